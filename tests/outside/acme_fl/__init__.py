"""A package of somebody else's, with an algorithm and its replay, a model and a data set."""
