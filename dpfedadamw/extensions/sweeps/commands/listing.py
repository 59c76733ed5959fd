"""``sweep --dry-run``: what is done of each cell, and how long the rest may take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.text import Text

from dpfedadamw.cli import display
from dpfedadamw.cli.terminal import out, print_json, print_whole, status
from dpfedadamw.extensions.sweeps.commands.progress import duration
from dpfedadamw.extensions.sweeps.commands.results import bests_of, released

if TYPE_CHECKING:
    from dpfedadamw.extensions.sweeps.folder import SweepFolder
    from dpfedadamw.spec.matrix import Cell, Sweep


def list_cells(
    sweep: Sweep,
    cells: Sequence[Cell],
    reported: Sequence[Cell],
    folder: SweepFolder,
    rate: float,
    as_json: bool,
) -> None:
    """List the cells: what is done of each, and how long it may take, here and on a GPU."""
    from dpfedadamw.extensions.sweeps.estimate import Estimator
    from dpfedadamw.extensions.sweeps.runner import expected_seconds

    later = _foreseen(sweep, reported, folder)
    trials, cells = len(cells), [*cells, *later]
    timed, states = [], []
    for cell in cells:
        place = folder.cell(cell)
        result = place.result()
        seconds = result.get("seconds") if result else None
        if isinstance(seconds, int | float):
            timed.append((cell, float(seconds)))
        begun = place.newest_run() is not None
        failed = place.failed() is not None
        waiting = "failed" if failed else "cut off" if begun else "to do"
        unknown = sweep.grids and not cell.candidate
        states.append("done" if result else "after its search" if unknown else waiting)
    expected = [
        None if state == "done" else expected_seconds(timed, cell)
        for cell, state in zip(cells, states, strict=True)
    ]
    with status("counting operations", quiet=as_json):
        estimator = Estimator()
        counted = [estimator.operations(cell.spec) for cell in cells]
    on_gpu = [None if count is None else count / rate for count in counted]
    stages = ["trial"] * trials + ["best"] * len(later) if later else []
    if as_json:
        print_json(
            [
                {
                    "cell": cell.digest or None, "values": cell.labels, "seed": cell.seed,
                    **({"stage": stages[number]} if stages else {}),
                    "state": states[number], "expected_seconds": expected[number],
                    "estimated_operations": counted[number],
                    "estimated_gpu_seconds": on_gpu[number],
                    "printed": {
                        table.measure: found.value
                        for table in sweep.expected
                        if (found := table.of(cell.values)) is not None
                    },
                }
                for number, cell in enumerate(cells)
            ]
        )  # fmt: skip
        return
    print_whole(_grouped(sweep, cells, stages, states, expected, on_gpu))
    known = [seconds for seconds in expected if seconds is not None]
    left = sum(state != "done" for state in states)
    text = f"{len(cells)} cells, {left} to do"
    if later:
        text += f": {trials} trials, and {len(later)} runs of the best settings"
    if known:
        text += f"; about {duration(sum(known) / len(known) * left)} of computing, one at a time"
    elif left:
        text += "; the expected time is known once one cell of a model is done"
    out.print(Text(text))
    open_ = [
        gpu
        for gpu, state in zip(on_gpu, states, strict=True)
        if gpu is not None and state != "done"
    ]
    if open_:
        total = sum(open_)
        out.print(
            Text(
                f"on a GPU about {duration(total)} in all, at most: an estimate, not a "
                f"measurement, from {total * rate:.2g} training operations at {rate / 1e12:g} "
                "TFLOP/s (--gpu-rate), without noise, evaluation and audit. Small models take "
                "longer"
            )
        )
    for name, reading in sweep.readings.items():
        out.print(Text.assemble((f"ours, {name}: ", "bold"), reading))


def _foreseen(sweep: Sweep, reported: Sequence[Cell], folder: SweepFolder) -> list[Cell]:
    """What will be run of the best candidates; of a search that is not over, without its labels.

    Such a cell has no digest, and for an estimate the settings of one of the candidates.
    """
    bests = bests_of(sweep, folder)
    found = released(bests, reported)
    unknown: dict[tuple[Any, ...], Cell] = {}
    for cell in reported:
        labels = cell.combination
        if labels not in bests:
            unknown.setdefault((*labels, cell.seed), replace(cell, candidate={}, digest=""))
    return [*found, *unknown.values()]


def _grouped(
    sweep: Sweep,
    cells: Sequence[Cell],
    stages: Sequence[str],
    states: Sequence[str],
    expected: Sequence[float | None],
    on_gpu: Sequence[float | None],
) -> RenderableType:
    """A line for each combination: its seeds together."""
    names = list(dict.fromkeys(name for cell in cells for name in cell.labels))
    groups: dict[tuple[str, ...], list[int]] = {}
    for number, cell in enumerate(cells):
        labels = (*(cell.labels.get(name, "") for name in names), *stages[number : number + 1])
        groups.setdefault(labels, []).append(number)
    seeded = any(cell.seed is not None for cell in cells)
    rows = []
    for labels, members in groups.items():
        counts = Counter(states[number] for number in members)
        state = next(iter(counts)) if len(counts) == 1 else ", ".join(
            f"{count} {name}" for name, count in counts.items()
        )  # fmt: skip
        left = [number for number in members if states[number] != "done"]
        rows.append(
            (
                *labels,
                *([str(len(members))] if seeded else []),
                *([_beside_text(sweep, cells[members[0]])] if sweep.expected else []),
                state,
                _summed([expected[number] for number in left]),
                _summed([on_gpu[number] for number in left]),
            )
        )
    heads = [
        *names,
        *(["stage"] if stages else []),
        *(["seeds"] if seeded else []),
        *(["printed"] if sweep.expected else []),
    ]
    return display.labelled((*heads, "state", "expected", "GPU, estimated"), rows)


def _summed(seconds: Sequence[float | None]) -> str:
    """The time of several cells; empty where one's is not known."""
    known = [one for one in seconds if one is not None]
    return duration(sum(known)) if known and len(known) == len(seconds) else ""


def _beside_text(sweep: Sweep, cell: Cell) -> str:
    """What a paper prints for a cell, as it prints it: accuracies in percent."""
    found = []
    for table in sweep.expected:
        number = table.of(cell.values)
        if number is not None:
            share = table.measure.endswith("accuracy")
            text = f"{100 * number.value:.2f} %" if share else f"{number.value:.3f}"
            found.append(f"{table.measure} {text}" if len(sweep.expected) > 1 else text)
    return ", ".join(found)
