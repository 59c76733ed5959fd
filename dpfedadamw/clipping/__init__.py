"""Sums of clipped gradients: one a record, computed by the fastest engine that fits the model."""
