"""Simulated crashes: the engine's own steps on a disk in memory that loses what was not synced."""
