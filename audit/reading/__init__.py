"""Reads a run directory, none of whose files is trusted."""
