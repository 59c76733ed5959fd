"""Which algorithms the auditor can replay; another installed package can bring one.

A replay is an algorithm written once more, in NumPy and from its paper. It is three functions:

* ``local(setting, released)`` works out what a client must upload and keep. It starts from
  ``released.parameters``, asks for each noised gradient by ``released.ask(point)`` where the client
  must have asked, and returns ``Produced(upload, memory)``. All numbers are
  `audit.replay.rounding.Rounded`, which carry how far float32 may have moved them.
* ``start(setting, parameters)`` is the server's further state before the first round, by name.
* ``combine(setting, before, uploads)`` is the server's parameters and state after a round.

A file of this folder registers its algorithms at its end::

    register("dp-fedavg", Replay(gradient_descent, start_average, average))

Another package does the same, or names the `Replay` itself, in an entry point of the group
``dpfedadamw.replays`` that is called like the algorithm::

    [project.entry-points."dpfedadamw.replays"]
    my-fedavg = "my_package.replays:REPLAY"      # a Replay, or a module that calls register

With whole clients protected nothing is replayed but the server, which must add the noised mean as
it is; an algorithm of which that is so is entered by ``register_applied_mean``. What comes from
outside never stands in for a replay of the auditor's own, and the finding names who brought it. It
runs inside the auditor: whoever installs it trusts it with the verdict on its algorithm's uploads.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from pkgutil import iter_modules

from audit.errors import UnverifiedError
from audit.replay.base import Replay

GROUP = "dpfedadamw.replays"
_REPLAYS: dict[str, Replay] = {}
_APPLY_THE_MEAN: set[str] = set()


@dataclass(frozen=True)
class Found:
    """A replay, and who brought it.

    Attributes:
        replay: the algorithm in NumPy; None where the server's mean is all that is replayed.
        source: name and version of the package that it comes from; None for the auditor's own.
    """

    replay: Replay | None
    source: str | None

    @property
    def details(self) -> dict[str, str]:
        """What a finding's public numbers say of a replay from outside."""
        return {} if self.source is None else {"replay": self.source}

    @property
    def qualifications(self) -> tuple[str, ...]:
        """What must stand beside the verdict where the replay is from outside."""
        if self.source is None:
            return ()
        return (f"uploads were judged by a replay that {self.source} brings, not the auditor's",)


def register(name: str, replay: Replay) -> None:
    """Enter the replay of an algorithm on single records.

    Raises:
        ValueError: there is one of this name.
    """
    if name in _REPLAYS:
        raise ValueError(f"there is a replay of {name} already")
    _REPLAYS[name] = replay


def register_applied_mean(name: str) -> None:
    """Enter an algorithm on whole clients whose server adds the noised mean as it is."""
    _APPLY_THE_MEAN.add(name)


def find_replay(name: str) -> Found | None:
    """The replay of an algorithm on single records, None where nobody has one.

    Raises:
        UnverifiedError: a package says that it has one, but it cannot be had.
    """
    own, _ = own_algorithms()
    if name in own:
        return Found(_REPLAYS[name], None)
    brought = _brought(name)
    if brought is None:
        return None
    value, source = brought
    replay = value if isinstance(value, Replay) else _REPLAYS.get(name)
    return None if replay is None else Found(replay, source)


def find_applied_mean(name: str) -> Found | None:
    """The same for an algorithm on whole clients.

    Raises:
        UnverifiedError: a package says that it has one, but it cannot be had.
    """
    _, own = own_algorithms()
    if name in own:
        return Found(None, None)
    brought = _brought(name)
    return Found(None, brought[1]) if brought is not None and name in _APPLY_THE_MEAN else None


@cache
def own_algorithms() -> tuple[frozenset[str], frozenset[str]]:
    """The algorithms that the auditor itself can replay: on single records, on whole clients."""
    foreign, foreign_means = frozenset(_REPLAYS), frozenset(_APPLY_THE_MEAN)
    for module in iter_modules([str(Path(__file__).parent)]):
        import_module(f"{__package__}.{module.name}")
    return frozenset(_REPLAYS) - foreign, frozenset(_APPLY_THE_MEAN) - foreign_means


def _brought(name: str) -> tuple[object, str] | None:
    """What the one entry point of this name holds, and who brought it."""
    points = list(entry_points(group=GROUP, name=name))
    if not points:
        return None
    sources = sorted({_source(point) for point in points})
    if len(points) > 1:
        raise UnverifiedError(
            f"more than one replay of {name} is installed ({', '.join(sources)}): none was used"
        )
    try:
        return points[0].load(), sources[0]
    except (Exception, SystemExit) as error:
        # Whatever a package does while it is imported, its replay is not there.
        raise UnverifiedError(
            f"the replay of {name} that {sources[0]} brings cannot be loaded "
            f"({type(error).__name__}: {' '.join(str(error).split())[:200]})"
        ) from error


def _source(point: EntryPoint) -> str:
    found = point.dist
    return "a package without a name" if found is None else f"{found.name} {found.version}"
