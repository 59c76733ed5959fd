"""The trainable parameters as one flat vector: blocks, sparsification, memory and threads."""
