"""Extensions: what judging a run does not need. Each folder can be removed; nothing imports it."""
