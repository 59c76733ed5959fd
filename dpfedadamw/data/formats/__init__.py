"""Data sets: a file for each format, which registers those that come in it."""
