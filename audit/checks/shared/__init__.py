"""Checks and parts of checks that hold for both privacy units."""
