"""The gate on Flower: a SuperNode to the researcher's SuperLink, which runs no job itself.

`link` speaks to the researcher's SuperLink. `relay` carries a message to the shards and one reply
back: arrays go in, `Gate.release` noises the answers. `trainer` runs the job's ClientApp in each
shard's cell. `objects` reads the arrays of the server's message, which may be forged.
"""
