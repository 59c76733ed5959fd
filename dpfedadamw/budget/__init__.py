"""The privacy budget of a data set: what all runs on it may spend together, kept in one file."""
