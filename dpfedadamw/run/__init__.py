"""One run, from its start to its claim: training, checkpoints, evaluation, probe and export."""
