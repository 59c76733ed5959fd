"""A run's public values for the trackers of experiments that people look at already.

A tracker gets what `metrics.jsonl` holds, the spec's settings, and at the end ε, δ and the verdict:
nothing else of a run is at hand here. Trackers note when they are told something. Where nobody may
know how many clients took part in a round, its time would tell; they are then told all of it at the
end, at once.

Other packages bring one by an entry point of the group ``dpfedadamw.trackers``, whose value is a
`TrackerEntry`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from audit.protection import in_front, unprotected_by
from dpfedadamw.accounting.registry import headline
from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.registration import LAST, Registry
from dpfedadamw.storage.foreign import read_json_lines

if TYPE_CHECKING:
    from dpfedadamw.rundir import RunDirectory
    from dpfedadamw.spec import Spec

# The part of a spec that is public in every run: no path, no digest of data, no free text.
_SECTIONS = ("algorithm", "federation", "privacy", "randomness", "evaluation", "compute")
_SINGLE = ("name", "data.dataset", "data.clients", "data.partition.kind", "model.name")
# Lines of metrics that are no values of a curve.
_NO_CURVES = ("round", "test_classes", "canaries", "train_accuracy", "train_loss")

Setting = str | int | float | bool


class TrackerError(DpfedadamwError):
    """A tracker is unknown, or its library is not installed."""


class Tracker(Protocol):
    """What is told of one run."""

    def settings(self, values: Mapping[str, Setting]) -> None:
        """Take the spec's settings, by dotted name."""
        ...

    def round(self, completed: int, values: Mapping[str, float]) -> None:
        """Take a round's public metrics, by name; round 0 is the untrained model."""
        ...

    def finish(self, values: Mapping[str, Setting]) -> None:
        """Take ε, δ and the verdict, and close; where the run was cut off, nothing is given."""
        ...


@dataclass(frozen=True, kw_only=True)
class TrackerEntry:
    """A tracker that can be asked for by name.

    Attributes:
        name: What ``--tracker`` calls it.
        summary: What it is, and where it writes.
        open: Begins with a run, by the folder for what trackers write and the run's identifier.
        needs: Modules that must be there.
        install: What installs them.
        place: Where it stands in lists.
    """

    name: str
    summary: str
    open: Callable[[Path, str], Tracker]
    install: str
    needs: tuple[str, ...] = ()
    place: int = LAST


TRACKERS: Registry[TrackerEntry] = Registry(
    "tracker", "dpfedadamw.extensions.trackers", TrackerEntry, group="dpfedadamw.trackers"
)
register = TRACKERS.register


def check(names: Sequence[str]) -> None:
    """Refuse trackers that are not there, before a run begins.

    Raises:
        TrackerError: If one is unknown, or its library is not installed.
    """
    for name in names:
        if name not in TRACKERS:
            raise TrackerError(f"--tracker {name}: unknown; there are {', '.join(TRACKERS)}")
        if any(find_spec(module) is None for module in TRACKERS[name].needs):
            raise TrackerError(
                f"--tracker {name}: its library is not installed here: {TRACKERS[name].install}"
            )


class Tracking:
    """Tells trackers of a run as it goes.

    What goes wrong in one ends that tracker and not the run; it is kept in `problems`.

    Args:
        names: The trackers.
        folder: Where they write.
        spec: The run's.
        run: Its directory.
        completed: Rounds that were over before.
        hidden: Whether nobody may know how many clients take part in a round.

    Attributes:
        problems: What went wrong, a line each.

    Raises:
        TrackerError: If a tracker cannot begin.
    """

    def __init__(
        self,
        names: Sequence[str],
        folder: Path,
        spec: Spec,
        run: RunDirectory,
        completed: int,
        hidden: bool,
    ) -> None:
        check(names)
        self._run, self._hidden = run, hidden
        # The untrained model belongs to who told of the first round.
        self._told = completed if completed else -1
        self.problems: list[str] = []
        self._open: dict[str, Tracker] = {}
        for name in names:
            self._open[name] = _opened(TRACKERS[name], folder, run.identifier)
        self._each(lambda one: one.settings(settings_of(spec)))
        if not hidden:
            self.round_is_over()

    def round_is_over(self) -> None:
        """Tell what the run's public metrics say since the last time."""
        if self._hidden or not self._open:
            return
        self._tell()

    def _tell(self) -> None:
        for found in read_json_lines(self._run.metrics):
            completed = int(found["round"])
            if completed > self._told:
                self._told = completed
                values = curves_of(found)
                self._each(lambda one, at=completed, of=values: one.round(at, of))  # type: ignore[misc]  # bound early

    def finish(self, values: Mapping[str, Setting]) -> None:
        """Tell what the run came to, and close."""
        self._tell()
        self._each(lambda one: one.finish(values))
        self._open.clear()

    def finished(self, summary: Mapping[str, Any]) -> None:
        """Tell what a finished run came to, by what ``run --json`` prints, and close."""
        self.finish(outcome_of(summary))

    def close(self) -> None:
        """Close what is open, of a run that was cut off."""
        self._each(lambda one: one.finish({}))
        self._open.clear()

    def _each(self, call: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._open.items()):
            try:
                call(tracker)
            except Exception as error:
                reason = str(error).partition("\n")[0] or type(error).__name__
                self.problems.append(f"tracker {name}: failed and gets no further data ({reason})")
                del self._open[name]


def outcome_of(summary: Mapping[str, Any]) -> dict[str, Setting]:
    """What a finished run came to: ε and δ as claimed first, the verdict, the accuracy.

    Where ε is too large to protect anybody, the verdict's first words say that.

    Args:
        summary: What ``run --json`` prints.
    """
    claim = summary["privacy"]
    found = {
        "epsilon": headline(claim),
        "delta": claim.get("delta"),
        "final_test_accuracy": summary["test_accuracy"],
        "audit": in_front(summary["verdict"], unprotected_by(claim)),
    }
    return {name: value for name, value in found.items() if value is not None}


def _opened(entry: TrackerEntry, folder: Path, run: str) -> Tracker:
    try:
        return entry.open(folder, run)
    except Exception as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise TrackerError(f"--tracker {entry.name}: cannot start ({reason})") from error


def settings_of(spec: Spec) -> dict[str, Setting]:
    """The settings of a spec that are public in every run, by dotted name."""
    mapping = spec.to_mapping()
    found = {name: value for section in _SECTIONS for name, value in _flat(mapping, section)}
    found |= {name: value for single in _SINGLE for name, value in _flat(mapping, single)}
    # Anyone who knows it can subtract all noise.
    found.pop("randomness.seed", None)
    return found


def _flat(mapping: Mapping[str, Any], path: str) -> list[tuple[str, Setting]]:
    value: Any = mapping
    for part in path.split("."):
        value = value[part]
    if isinstance(value, Mapping):
        return [pair for key in value for pair in _flat(mapping, f"{path}.{key}")]
    if value is None:
        return []
    return [(path, value if isinstance(value, (str, int, float)) else str(value))]


def curves_of(line: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a line of public metrics."""
    return {
        name: float(value)
        for name, value in line.items()
        if name not in _NO_CURVES and isinstance(value, (int, float))
    }
