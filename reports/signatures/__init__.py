"""Signatures: envelopes, the PDF's signature, keys, trust and verification."""
