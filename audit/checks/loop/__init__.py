"""Checks of training loops that are not the engine's, on evidence that a recorder wrote."""
