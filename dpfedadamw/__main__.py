"""``python -m dpfedadamw`` is the command ``dpfedadamw``."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def start() -> NoReturn:
    """The command, which may be interrupted while it is still being loaded."""
    _keep_to_what_is_installed()
    from dpfedadamw.errors import taken_name

    taken = taken_name()
    if taken is not None:
        sys.stderr.write(f"error: {taken}\n")
        sys.exit(2)
    try:
        _leave_drawing_its_own_settings()
        from dpfedadamw.loading import loading

        with loading("dpfedadamw.cli"):
            from dpfedadamw.cli import main
    except KeyboardInterrupt:
        sys.exit(130)
    main()


def _keep_to_what_is_installed() -> None:
    """Stop looking for modules in the working directory, unless this package is there.

    ``python -m`` looks there first, and so does every process that is started by ``-m`` or ``-c``,
    as Python starts those of `multiprocessing`. A user's folder `reports`, `audit` or `specs` is
    not ours, and a file of somebody else's that is called as a module is would be run. Nothing is
    imported before this is done, but what Python itself has loaded by then.
    """
    here = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    try:
        if os.path.realpath(os.getcwd()) == here:
            return
    except FileNotFoundError:
        pass  # The folder is gone, and nothing can be found there.
    if not sys.flags.safe_path and _BY_NAME and os.path.realpath(sys.path[0]) != here:
        del sys.path[0]
    os.environ["PYTHONSAFEPATH"] = "1"


def _leave_drawing_its_own_settings() -> None:
    """Load matplotlib where no file `matplotlibrc` lies, if there is one here.

    Before any other it reads that of the working directory, whose settings have it start LaTeX on a
    text of theirs.
    """
    if not os.path.lexists("matplotlibrc"):
        return
    here = os.getcwd()
    os.chdir(os.path.dirname(os.__file__))
    try:
        import matplotlib  # noqa: F401  # it is loaded here, to find its own files
    finally:
        os.chdir(here)


# Whether Python was asked for the module, and has put the working directory first; the command that
# is installed is found by its file.
_BY_NAME = __name__ == "__main__"

if __name__ == "__main__":
    start()
