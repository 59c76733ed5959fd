"""Whose keys, from when to when: certificates, a key's life, hardware keys, and trusted time.

`keys` reads and writes single key files; this package says what stands behind them. `signer` joins
a private key, wherever it is kept, with its certificates and with the statements by which its
holder moved from an earlier key to it.
"""
