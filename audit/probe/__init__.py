"""Judges what the engine's own step did to inputs that the auditor chose."""
