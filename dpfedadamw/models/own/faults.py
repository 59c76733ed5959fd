"""What a model's own code raises while it sees private records: told without its message.

An exception may quote what it stumbled over, and a message ends up in logs.
"""

from __future__ import annotations

import contextlib
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path

from dpfedadamw.errors import DpfedadamwError, ModelError
from dpfedadamw.models.registry import MODELS
from dpfedadamw.spec.model_section import ModelSpec

_PACKAGE = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def own_code(keys: ModelSpec) -> Iterator[None]:
    """Turn what the code of a model of one's own raises into a line without a record.

    Args:
        keys: The spec's section ``model``; of the package's own models nothing is changed.

    Raises:
        ModelError: With the place and the kind of what was raised.
    """
    try:
        yield
    except (DpfedadamwError, OSError, MemoryError):
        raise
    except Exception as error:
        place = None if MODELS[keys.name].on_meta else _place(error)
        if place is None:
            raise
        raise ModelError(
            f"model: its own code failed on records, the run's or made-up ones, at {place} "
            f"({type(error).__name__}; what it says is not shown, for it may quote a record); mend "
            "it, and start a new run"
        ) from None


def _place(error: BaseException) -> str | None:
    """The last line of code that is neither this package's nor installed, if any is on the way."""
    installed = [Path(sysconfig.get_path(name)) for name in ("purelib", "platlib", "stdlib")]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        known = [_PACKAGE, *installed]
        if not any(path.is_relative_to(folder) for folder in known) and "torch" not in path.parts:
            return f"{path.name}:{frame.lineno} in {frame.name}"
    return None
