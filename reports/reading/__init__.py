"""Reads a run directory for the report."""
