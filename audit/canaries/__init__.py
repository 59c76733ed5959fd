"""Bounds ε from below with planted records: scores, guesses on their coins, and what they prove."""
