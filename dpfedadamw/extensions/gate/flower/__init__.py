"""The gate on Flower: a SuperNode to the researcher's SuperLink, a SuperLink to the site's shards.

`link` speaks to the researcher's SuperLink, `shards` to one ordinary SuperNode a shard, each in a
cell (`cells`, `cell`) whose only way out is the gate's socket. `relay` carries a message from one
side to the other: arrays go in, `Gate.release` noises the answers, one reply goes out. `objects`
reads Flower's objects, which both sides may have forged.
"""
