"""The statistics behind the checks."""
