"""Extensions: what a run, its audit and its report do not need. Each folder can be removed.

The folders of the engine import none of these. An extension that has commands of its own has a
module `commands` with `add_to(app)`, which the command line calls where the folder is there.
"""
