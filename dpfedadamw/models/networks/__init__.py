"""The package's own networks, as torch modules."""
