"""One figure a file, each of which registers itself."""
