"""Extensions: what a run's report does not need. Each folder can be removed; nothing imports it."""
