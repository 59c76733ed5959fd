"""Noise, and the random streams that it is drawn from."""
