"""Checks of runs that protect single records."""
