"""Canaries: records or clients that an audit run plants, and what its releases betray of them."""
