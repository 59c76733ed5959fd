"""The user's own list of modules that files may name: `allow-code`, in the key folder.

One module a line; what follows # is a comment. It stands where nothing that a stranger gives her
is ever written, and is refused where another user could write to it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from dpfedadamw.errors import FilingError

FILE = "allow-code"
_MOST_BYTES = 65_536


def listed() -> tuple[str, ...]:
    """The modules of the list; none where there is no list.

    Raises:
        FilingError: If it cannot be read, or another user may write to it or to its folder.
        reports.errors.KeyFileError: If there is no home folder that it could be in.
    """
    from audit.untrusted.files import FileError, Refusal, read_chosen
    from reports.signatures.keys import default_directory

    path = default_directory() / FILE
    # Relative to whatever folder a command is run in, it would be that folder's list.
    if not path.is_absolute():
        return ()
    try:
        content, _ = read_chosen(path, _MOST_BYTES)
    except FileError as error:
        if error.refusal is Refusal.MISSING:
            return ()
        raise FilingError(f"{path}: {error.what}") from error
    for one in (path.parent, path):
        _refuse_others(one)
    try:
        lines = content.decode("utf-8").splitlines()
    except UnicodeDecodeError:
        raise FilingError(f"{path}: is not text; write one module per line") from None
    return tuple(name for line in lines if (name := line.partition("#")[0].strip()))


def _refuse_others(path: Path) -> None:
    """Refuse a file or folder that another user may write to: she would choose what runs here."""
    found = path.stat()
    mode = stat.S_IMODE(found.st_mode)
    # Where there are no users, neither owners nor the bits of others say anything.
    if os.name != "posix":
        return
    if found.st_uid not in (0, os.geteuid()) or mode & 0o022:
        raise FilingError(
            f"{path}: another user may write to it (mode {mode:04o}) and so choose code that runs "
            "as you. Own the file, run chmod go-w on it, and check the modules that it lists"
        )
