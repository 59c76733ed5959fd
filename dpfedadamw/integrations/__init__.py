"""Recorders and adapters for training loops that are not this package's own."""
