"""``sweep``: many runs of one spec, their results as tidy data, and the table of them."""
