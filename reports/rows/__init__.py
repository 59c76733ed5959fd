"""A finished run as one row of a table, with its signatures checked."""
