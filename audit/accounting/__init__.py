"""The auditor's own accountants, which share no code with the engine's."""
