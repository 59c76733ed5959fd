"""Published transformers: their keys and files, what they read, and how they are trained."""
