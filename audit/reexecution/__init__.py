"""Re-execution: which participations are computed again, and what the auditor is given of them.

The computing needs torch, the model and the data, so the engine does it; nothing here imports it.
"""
