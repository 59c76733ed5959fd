"""Whose word a run is: keys and what stands behind them, signatures, and how they are checked."""
