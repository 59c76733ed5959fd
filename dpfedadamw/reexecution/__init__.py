"""A finished run, computed again: from its data, its spec, what was broadcast, and its key.

The auditor draws participations once the run is over, so that a trainer cannot know which of its
answers will be looked at. `rounds` runs their rounds again with the engine's own arithmetic, which
must lead to the same bits. `plain` computes the gradients of what was drawn a second time, one
record at a time and in float64, by nothing that the engine uses for clipped sums. `whole` runs the
whole run again.

What comes out is plain arrays (`results`); the auditor judges them.
"""
