"""Extensions: what a run, its audit and its report do not need. Each folder can be removed.

The folders of the engine import none of these. An extension that has commands of its own names
them in its `__init__`, with the first sentence of their help: `COMMANDS`, whose functions of the
same names lie in its module `commands`, or `GROUPS`, whose `typer.Typer` is `app` there. The
command line finds both by the folder, and loads `commands` when a command is called.
"""
