"""Every algorithm once more, in NumPy and from the papers, to work out what a client must upload.

A replay is an algorithm written once more, in NumPy and from its paper. It is three functions:

* ``local(setting, released)`` works out what a client must upload and keep. It starts from
  ``released.parameters``, asks for each noised gradient by ``released.ask(point)`` where the client
  must have asked, and returns ``Produced(upload, memory)``. All numbers are
  `audit.replay.rounding.Rounded`, which carry how far float32 may have moved them.
* ``start(setting, parameters)`` is the server's further state before the first round, by name.
* ``combine(setting, before, uploads)`` is the server's parameters and state after a round.

Each file of this folder with replays of the auditor's own has them in ``REPLAYS`` at its end, by
the algorithm's name, and `OWN` below says in which file an algorithm is, as a run loads its own
alone::

REPLAYS = {"dp-fedavg": Replay(gradient_descent, start_average, average)}

Another package names the `Replay`, or a module that calls ``register(name, replay)``, in an entry
point of the group ``dpfedadamw.replays`` that is called like the algorithm::

[project.entry-points."dpfedadamw.replays"] my-fedavg = "my_package.replays:REPLAY"

With whole clients protected nothing is replayed but the server, which must add the noised mean as
it is; an algorithm of which that is so stands in `OWN_MEANS`, or is entered by
``register_applied_mean``. What comes from outside never stands in for a replay of the auditor's
own, and the finding names who brought it. It runs inside the auditor: installing it means trusting
it with the verdict on its algorithm's uploads. Until an algorithm has a replay the check "uploads"
says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points

from audit.errors import UnverifiedError
from audit.replay.base import Replay

GROUP = "dpfedadamw.replays"
OWN = {
    **dict.fromkeys(("dp-fedadamw", "dp-localadamw"), "adamw"),
    **dict.fromkeys(("dp-fedlada", "dp-fafed", "pe-dpfl", "adap-dpfl", "ali-dpfl"), "adaptive"),
    **dict.fromkeys(
        ("dp-fedavg", "dp-fedsam", "dp-fedavg-ls", "dp-scaffold", "dp-fedopt"), "descent"
    ),
}
# With clients protected a participant's steps are not noised and so not replayed; what leaves is
# the noised mean update, by which these servers must move as the spec says: θ ← θ + η_s·mean.
OWN_MEANS = frozenset(
    ("dp-fedavg", "dp-fedsam", "fed-smp", "dp-fedsam-randk", "dp-fedsam-topk", "blur", "blurs")
)
_BROUGHT: dict[str, Replay] = {}
_BROUGHT_MEANS: set[str] = set()


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
        """What must qualify the verdict if the replay comes from outside."""
        if self.source is None:
            return ()
        return (f"uploads were judged by a replay from {self.source}, not by the auditor's own",)


def register(name: str, replay: Replay) -> None:
    """Enter the replay of an algorithm on single records that another package brings.

    Raises:
        ValueError: there is one of this name.
    """
    if name in OWN or name in _BROUGHT:
        raise ValueError(f"there is already a replay of {name}")
    _BROUGHT[name] = replay


def register_applied_mean(name: str) -> None:
    """Enter an algorithm of another package on whole clients, whose server adds the mean as is."""
    _BROUGHT_MEANS.add(name)


def find_replay(name: str) -> Found | None:
    """The replay of an algorithm on single records, None where nobody has one.

    Raises:
        UnverifiedError: a package says that it has one, but it cannot be had.
    """
    if name in OWN:
        own = import_module(f"{__name__}.{OWN[name]}")
        return Found(own.REPLAYS[name], None)
    brought = _brought(name)
    if brought is None:
        return None
    value, source = brought
    replay = value if isinstance(value, Replay) else _BROUGHT.get(name)
    return None if replay is None else Found(replay, source)


def find_applied_mean(name: str) -> Found | None:
    """The same for an algorithm on whole clients.

    Raises:
        UnverifiedError: a package says that it has one, but it cannot be had.
    """
    if name in OWN_MEANS:
        return Found(None, None)
    brought = _brought(name)
    return Found(None, brought[1]) if brought is not None and name in _BROUGHT_MEANS else None


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
            f"the replay of {name} from {sources[0]} cannot be loaded ({type(error).__name__}: "
            f"{' '.join(str(error).split())[:200]})"
        ) from error


def _source(point: EntryPoint) -> str:
    found = point.dist
    return "a package without a name" if found is None else f"{found.name} {found.version}"


__all__ = [
    "OWN",
    "OWN_MEANS",
    "Found",
    "Replay",
    "find_applied_mean",
    "find_replay",
    "register",
    "register_applied_mean",
]
