"""``sweep``: many runs of one spec, their results as tidy data, and the table of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.live import Live
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from dpfedadamw.cli import display
from dpfedadamw.cli.options import DeviceOption, JsonOption, SetOption, SpecArgument
from dpfedadamw.cli.terminal import (
    EXIT_NOT_PASSED,
    err,
    out,
    print_document,
    print_json,
    refuse,
    relative,
    status,
)

if TYPE_CHECKING:
    from dpfedadamw.spec.matrix import Cell, Sweep
    from dpfedadamw.sweep.folder import SweepFolder
    from dpfedadamw.sweep.runner import Job
    from dpfedadamw.sweep.search import Best

SWEEPS = Path("sweeps")
_SHARD = re.compile(r"([1-9][0-9]{0,5})/([1-9][0-9]{0,5})")
_MINUTE, _HOUR = 60, 3600
_PASSED = ("PASS", "NO CLAIM")
_ERASED = "the results of the sweep are kept, and the evidence is not needed any more"


class SweepCommands(TyperGroup):
    """`sweep SPEC` runs a sweep; `sweep merge` and `sweep table` are commands of their own."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Let a spec stand where a command's name would."""
        if args and args[0] not in (*self.commands, "--help", "-h"):
            args = ["run", *args]
        return list(super().parse_args(ctx, args))


def sweep_run(
    spec: SpecArgument,
    out_dir: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="The sweep's folder. [default: sweeps/NAME]"),
    ] = None,
    changes: SetOption = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            metavar="AXIS=LABEL",
            help="Run only cells of this label; AXIS=A|B for several. Repeatable: all must hold.",
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, max=1024, help="Runs at a time.")] = 1,
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="I/N",
            help="Run every N-th cell from the I-th on, for N machines; of a search with a matrix, "
            "every N-th search.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the cells, what is done, and how long it takes.")
    ] = False,
    gpu_rate: Annotated[
        float,
        typer.Option(
            "--gpu-rate",
            metavar="TFLOPS",
            min=1e-3,
            max=1e6,
            help="With --dry-run: 10^12 operations a second that one GPU is taken to do. "
            "The default is an eighth of what an RTX 4090 can: small batches do not fill it.",
        ),
    ] = 10.0,
    smoke: Annotated[
        bool,
        typer.Option(
            "--smoke",
            help="Try each combination for two rounds, small, in a folder of its own: published "
            "data become random records, published models few parameters.",
        ),
    ] = False,
    erase_evidence: Annotated[
        bool,
        typer.Option(
            "--erase-evidence",
            help="Erase a run's private evidence, most of what it weighs, once its audit passed "
            "and its result is kept; of runs that are done, too. Nobody can audit them again.",
        ),
    ] = False,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Run every combination of a spec's matrix under every seed; what is done is left alone.

    Each cell is a run like any other: trained, audited, reported and signed. The same command goes
    on where a sweep was cut off. Exit code 0 when all cells are done and their audits passed.
    """
    from dpfedadamw.spec.matrix import load_sweep
    from dpfedadamw.sweep.folder import SweepFolder
    from dpfedadamw.sweep.runner import Job

    sweep = load_sweep(spec, changes or ())
    name = f"{sweep.name}-smoke" if smoke else sweep.name
    folder = SweepFolder(out_dir if out_dir is not None else SWEEPS / name)
    if sweep.tune.selection == "private":
        from dpfedadamw.cli.selection import select

        if erase_evidence:
            refuse(
                "--erase-evidence: of a private selection the winner's evidence alone is kept; "
                "leave it out, and erase that once it is not needed: dpfedadamw erase"
            )
        given = {"--only": only, "--shard": shard, "--smoke": smoke}
        partial = [option for option, value in given.items() if value]
        select(sweep, folder.path, jobs, device, partial, dry_run, as_json)
        return
    cells, reported = _chosen(sweep, only or (), shard)
    if smoke:
        from dpfedadamw.sweep.smoke import small

        cells, replaced = small(cells, folder.path)
        sweep = replace(sweep, cells=tuple(small(sweep.cells, folder.path)[0]))
        reported = _once(one for cell in cells for one in cell.released)
        if not as_json:
            err.print(Text("two rounds each; " + "; ".join(replaced), style="dim"))
    if dry_run:
        _list(sweep, cells, reported, folder, gpu_rate * 1e12, as_json)
        return
    wanted = [Job(cell, folder.cell(cell)) for cell in _once(cells)]
    folder.begin(sweep.text)
    options = ["--device", device]

    def run(part: Sequence[Job]) -> None:
        if part:
            _run(folder, part, min(jobs, len(part)), options, erase_evidence, as_json)

    try:
        run(wanted)
        bests = _bests(sweep, folder)
        last = [Job(cell, folder.cell(cell)) for cell in _released(bests, reported)]
        run(last)
    except BaseException as error:
        error.add_note("every run was stopped; the same command goes on")
        raise
    rows = _results(sweep, folder, bests)
    missing = _write(folder, rows)
    _tell(sweep, folder, [*wanted, *last], bests, rows, missing, as_json)


def _once(cells: Iterable[Cell]) -> list[Cell]:
    """Cells that mean the same run are one."""
    return list({cell.digest: cell for cell in cells}.values())


def _chosen(sweep: Sweep, only: Sequence[str], shard: str | None) -> tuple[list[Cell], list[Cell]]:
    """The cells that are asked for.

    Returns:
        Cells, and what candidates are released as, each candidate's: the best of them is not known
        yet.
    """
    cells = list(sweep.cells)
    released = _once(one for cell in cells for one in cell.released)
    found: dict[str, dict[str, None]] = {}
    for cell in (*cells, *released):
        numbered = {} if cell.seed is None else {"seed": str(cell.seed)}
        for name, label in {**cell.labels, **numbered}.items():
            found.setdefault(name, {})[label] = None
    labels = {name: tuple(known) for name, known in found.items()}
    for text in only:
        name, equals, values = text.partition("=")
        if not equals or name not in labels:
            known = ", ".join(labels) or "none: the spec has no matrix"
            refuse(f"--only {text}: write AXIS=LABEL; the axes are {known}")
        wanted = values.split("|")
        unknown = [value for value in wanted if value not in labels[name]]
        if unknown:
            refuse(f"--only {text}: {name} has no {unknown[0]}; it has {', '.join(labels[name])}")
        cells, released = (
            [cell for cell in part if _label(cell, name) in wanted] for part in (cells, released)
        )
    if not cells and not released:
        refuse("--only: no cell is left")
    return (cells, released) if shard is None else _shared(sweep, cells, released, shard)


def _shared(
    sweep: Sweep, cells: list[Cell], released: list[Cell], shard: str
) -> tuple[list[Cell], list[Cell]]:
    """One machine's share of the cells; a search stays whole, because its best is chosen there."""
    match = _SHARD.fullmatch(shard)
    if match is None or int(match[1]) > int(match[2]):
        refuse(f"--shard {shard}: write I/N, such as 1/4 for the first of four machines")
    share = slice(int(match[1]) - 1, None, int(match[2]))
    if not sweep.grids:
        cells = cells[share]
    else:
        searches = dict.fromkeys(tuple(cell.values.values()) for cell in (*cells, *released))
        own = list(searches)[share]
        cells, released = (
            [cell for cell in part if tuple(cell.values.values()) in own]
            for part in (cells, released)
        )
    if not cells and not released:
        what = "searches" if sweep.grids else "cells"
        refuse(f"--shard {shard}: there are fewer {what} than machines")
    return cells, released


def _label(cell: Cell, name: str) -> str:
    return str(cell.seed) if name == "seed" else cell.labels.get(name, "")


def _columns(cell: Cell) -> dict[str, str]:
    """A cell's labels by what its axes are called in the results, where no name is taken twice."""
    from reports.comparison import tidy

    known = tidy.columns_of([dict.fromkeys((*tidy.SEARCH, *tidy.SOMETIMES), "")])
    return {
        (tidy.AXIS + name if name in known else name): label for name, label in cell.labels.items()
    }


def _list(
    sweep: Sweep,
    cells: Sequence[Cell],
    reported: Sequence[Cell],
    folder: SweepFolder,
    rate: float,
    as_json: bool,
) -> None:
    """List the cells: what is done of each, and how long it may take, here and on a GPU."""
    from dpfedadamw.sweep.estimate import Estimator
    from dpfedadamw.sweep.runner import expected_seconds

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
    out.print(_grouped(sweep, cells, stages, states, expected, on_gpu))
    known = [seconds for seconds in expected if seconds is not None]
    left = sum(state != "done" for state in states)
    text = f"{len(cells)} cells, {left} to do"
    if later:
        text += f": {trials} trials, and {len(later)} runs of what they show to be best"
    if known:
        text += f"; about {_duration(sum(known) / len(known) * left)} of computing, one at a time"
    elif left:
        text += "; how long they take here is known once one of a model is done"
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
                f"on a GPU about {_duration(total)} in all, at most: an estimate, nothing was "
                f"measured; {total * rate:.2g} operations of training at {rate / 1e12:g} TFLOP/s "
                "(--gpu-rate), without noise, evaluation and audit; small models take longer"
            )
        )
    for name, reading in sweep.readings.items():
        out.print(Text.assemble((f"ours, {name}: ", "bold"), reading))


def _foreseen(sweep: Sweep, reported: Sequence[Cell], folder: SweepFolder) -> list[Cell]:
    """What will be run of the best candidates; of a search that is not over, without its labels.

    Such a cell has no digest, and for an estimate the settings of one of the candidates.
    """
    bests = _bests(sweep, folder)
    found = _released(bests, reported)
    unknown: dict[tuple[Any, ...], Cell] = {}
    for cell in reported:
        labels = tuple(cell.values.values())
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
) -> Table:
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
    return display.grid((*heads, "state", "expected", "GPU, estimated"), rows)


def _summed(seconds: Sequence[float | None]) -> str:
    """The time of several cells; empty where one's is not known."""
    known = [one for one in seconds if one is not None]
    return _duration(sum(known)) if known and len(known) == len(seconds) else ""


def _run(
    folder: SweepFolder,
    jobs: Sequence[Job],
    processes: int,
    options: Sequence[str],
    erase: bool,
    quiet: bool,
) -> None:
    """Run what is to do, with a live table on a terminal and a line a cell elsewhere."""
    from dpfedadamw.cli.processes import starting
    from dpfedadamw.sweep.runner import Runner

    for job in jobs:
        if job.folder.result() is not None:
            job.state = "done"
    waiting = [job for job in jobs if job.state != "done"]
    earlier = len(jobs) - len(waiting)
    if earlier and not quiet:
        err.print(Text(f"{earlier} of {len(jobs)} cells were done before", style="dim"))
    if erase and earlier:
        with status("erasing evidence", quiet):
            for job in jobs:
                if job.state == "done":
                    _erase(job)

    def finished(job: Job) -> None:
        _keep(job)
        if erase:
            _erase(job)

    runner = Runner(folder, processes, starting(processes), finished, options)
    live = err.is_terminal and not quiet
    with Live(console=err, transient=True, auto_refresh=False) if live else _Nothing() as shown:
        for ended in runner.run(waiting):
            if live:
                shown.update(_progress(jobs, earlier, processes), refresh=True)
            if ended is not None and not quiet:
                err.print(_line(ended, jobs), soft_wrap=True)


class _Nothing:
    """Stands for a live table where there is none."""

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def _keep(job: Job) -> None:
    """Keep what a finished run says of itself to everybody, and on what it was computed."""
    from dpfedadamw.sweep.folder import SweepError, machine_of
    from reports.comparison import tidy
    from reports.errors import ReportError

    run = job.folder.newest_run()
    assert run is not None
    try:
        row = tidy.row_of(run.path)
    except ReportError as error:
        raise SweepError(str(error)) from error
    machine = machine_of(run)
    job.folder.write_result({**row, **{name: machine.get(name) for name in tidy.MACHINE}})


def _erase(job: Job) -> None:
    """Erase the evidence of a finished run whose audit passed and whose result is kept."""
    from dpfedadamw.cli import after_training
    from dpfedadamw.storage.lock import LockedError
    from dpfedadamw.sweep.folder import SweepError
    from reports.errors import ReportError
    from reports.signatures import handing_over

    run, row = job.folder.newest_run(), job.folder.result()
    if run is None or row is None or row.get("run") != run.identifier:
        return
    if row.get("audit") not in _PASSED or row.get("signatures") != "holds":
        return
    try:
        if not handing_over.is_erased(run.path):
            key = after_training.load_key("auditor", None, [])
            with after_training.writing(run):
                handing_over.erase(run.path, key, _ERASED)
    except (ReportError, LockedError) as error:
        raise SweepError(f"--erase-evidence: {error}") from error


def _line(job: Job, jobs: Sequence[Job]) -> Text:
    """One line on a cell that ended."""
    done = sum(other.state == "done" for other in jobs)
    head = f"{done}/{len(jobs)}  {job.cell.label}: "
    if job.state == "done":
        row = job.folder.result() or {}
        accuracy = row.get("test_accuracy")
        said = "no accuracy" if accuracy is None else f"{accuracy:.1%}"
        return Text(f"{head}{said}, audit {row.get('audit')}, {_duration(job.seconds)}")
    why = "another sweep is running it" if job.state == "elsewhere" else job.said
    return Text(f"{head}{job.state}: {why}", style="red")


def _progress(jobs: Sequence[Job], earlier: int, processes: int) -> Table:
    """What runs now, and when all may be done."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for job in jobs:
        if job.state == "running":
            rounds = job.cell.spec.federation.rounds
            completed, accuracy = job.folder.completed_rounds()
            said = "" if accuracy is None else f"accuracy {accuracy:.1%}"
            at = f"round {completed} of {rounds}" if completed < rounds else "audit and report"
            table.add_row(job.cell.label, at, said, _duration(job.seconds))
    ended = [job for job in jobs if job.state == "done" and job.seconds]
    left = sum(job.state in ("waiting", "running") for job in jobs)
    text = f"{len(ended) + earlier} of {len(jobs)} cells done"
    if ended:
        mean = sum(job.seconds for job in ended) / len(ended)
        text += f"; the rest in about {_duration(mean * left / processes)}"
    table.add_row(Text(text, style="bold"))
    return table


def _duration(seconds: float) -> str:
    """A span of time in words."""
    if seconds < 2 * _MINUTE:
        return f"{seconds:.0f} s"
    return f"{seconds / _MINUTE:.0f} min" if seconds < 2 * _HOUR else f"{seconds / _HOUR:.1f} h"


def _results(
    sweep: Sweep, folder: SweepFolder, bests: Mapping[tuple[str, ...], Best]
) -> list[dict[str, Any]]:
    """The rows of all cells of the sweep that are done, in its order."""
    from dpfedadamw.sweep.folder import SHOWN_DIGITS

    rows = []
    for cell in (*sweep.cells, *_released(bests)):
        row = folder.cell(cell).result()
        if row is not None:
            named = {"cell": cell.digest[:SHOWN_DIGITS], **_columns(cell), "seed": cell.seed}
            chosen = _chosen_as(cell, sweep, bests)
            rows.append({**named, **row, **chosen, **_beside(sweep, cell)})
    return rows


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


def _beside(sweep: Sweep, cell: Cell) -> dict[str, Any]:
    """What a paper prints for a cell, and which fields of the sweep it does not state."""
    from reports.comparison import tidy

    found: dict[str, Any] = {}
    for table in sweep.expected:
        number = table.of(cell.values)
        if number is not None:
            name = f"{tidy.EXPECTED}{table.measure}"
            found |= {name: number.value, f"{name}{tidy.DEVIATION}": number.deviation}
            found[tidy.SOURCE] = table.source
    if sweep.readings:
        found[tidy.READINGS] = ", ".join(sweep.readings)
    return found


def _released(
    bests: Mapping[tuple[str, ...], Best], asked: Iterable[Cell] | None = None
) -> list[Cell]:
    """What the best candidates are released as, beside their trials; of what is asked for alone."""
    cells = [cell for best in bests.values() for cell in best.cells[0].released]
    digests = None if asked is None else {cell.digest for cell in asked}
    return [cell for cell in _once(cells) if digests is None or cell.digest in digests]


def _chosen_as(
    cell: Cell, sweep: Sweep, bests: Mapping[tuple[str, ...], Best]
) -> dict[str, str | int]:
    """What the results say of a cell of a search: nothing of any other cell."""
    from reports.comparison import tidy

    if not sweep.grids:
        return {}
    best = bests.get(tuple(cell.values.values()))
    found: dict[str, str | int] = {} if best is None else {"candidates": best.candidates}
    if cell.released:
        found["selected"] = tidy.TRIAL
    elif best is not None and cell.digest in {one.digest for one in best.reported}:
        found["selected"] = tidy.SELECTED
        found["on_the_grids_edge"] = ", ".join(best.edges)
    return found


def _bests(sweep: Sweep, folder: SweepFolder) -> dict[tuple[str, ...], Best]:
    """The best candidate of every search whose cells are all done."""
    from dpfedadamw.sweep.search import best_of

    found = {}
    for labels, cells in sweep.searches.items():
        scores: dict[str, float] = {}
        for cell in cells:
            row = folder.cell(cell).result() or {}
            score = row.get(str(row.get("tune_score")))
            if isinstance(score, int | float):
                scores[cell.digest] = float(score)
        best = best_of(cells, sweep.grids[labels], scores)
        if best is not None:
            found[labels] = best
    return found


def _write(folder: SweepFolder, rows: Sequence[dict[str, Any]]) -> str | None:
    """Write the results; returns why there is no Parquet, or None."""
    from reports.comparison import tidy
    from reports.errors import ReportError
    from reports.reading.files import write_atomic

    write_atomic(folder.csv, tidy.as_csv(rows).encode(), 0o644)
    try:
        write_atomic(folder.parquet, tidy.as_parquet(rows), 0o644)
    except ReportError as error:
        return str(error)
    return None


def _tell(
    sweep: Sweep,
    folder: SweepFolder,
    jobs: Sequence[Job],
    bests: Mapping[tuple[str, ...], Best],
    rows: Sequence[dict[str, Any]],
    missing: str | None,
    as_json: bool,
) -> None:
    """Say what came of it, and end by it."""
    states = {
        state: [job for job in jobs if job.state == state] for state in ("failed", "elsewhere")
    }
    later = {tuple(cell.values.values()): len(cell.released) for cell in sweep.cells}
    many = len(sweep.cells) + sum(later.values())
    refused = [row for row in rows if row["audit"] not in _PASSED]
    if as_json:
        failures = {job.cell.digest: job.said for job in states["failed"]}
        print_json(
            {
                "folder": str(folder.path), "cells": many, "done": len(rows),
                "failed": failures, "elsewhere": len(states["elsewhere"]),
                "not_passed": [row["run"] for row in refused], "results": rows,
            }
        )  # fmt: skip
    else:
        facts = [
            ("sweep", f"{len(rows)} of {many} cells are done"),
            *_told_of_searches(sweep, folder, bests),
            *([("failed", f"{len(states['failed'])}; the same command tries them again")]
              if states["failed"] else []),
            *([("not passed", f"the audit of {len(refused)} says FAIL or NOT VERIFIED")]
              if refused else []),
            *([("privacy", "each run claims its own ε; all of them together spend more")]
              if sum(row["unit"] != "none" for row in rows) > 1 else []),
            ("results", str(relative(folder.csv.resolve()))),
            *([("", missing)] if missing else [("", str(relative(folder.parquet.resolve())))]),
            ("table", f"dpfedadamw sweep table {relative(folder.csv.resolve())} --rows AXIS"),
        ]  # fmt: skip
        out.print(display.facts(facts))
    if states["failed"] or states["elsewhere"] or refused:
        raise typer.Exit(EXIT_NOT_PASSED)


def _told_of_searches(
    sweep: Sweep, folder: SweepFolder, bests: Mapping[tuple[str, ...], Best]
) -> list[tuple[str, str]]:
    """The best candidates, where they lie, and what is to be said of them."""
    if not sweep.grids:
        return []
    facts = []
    for labels, best in bests.items():
        cell = best.cells[0]
        settings = ", ".join(f"{name} {label}" for name, label in cell.candidate.items())
        name = f"best, {', '.join(labels)}" if labels else "best"
        score = cell.spec.tune.score or "score"
        facts.append((name, f"{settings}: {score} {best.score:.1%}, of {best.candidates}"))
        run = folder.cell(best.reported[0]).newest_run()
        facts += [("", str(relative(run.path)))] if run is not None else []
        facts += [
            ("warning", f"the best {axis} lies on the edge of its grid; widen it and go on")
            for axis in best.edges
        ]
    missing = len(sweep.searches) - len(bests)
    if missing:
        facts.append(("no best", f"of {missing} searches yet: not all of their cells are done"))
    if sweep.tune.selection == "unaccounted" and sweep.cells[0].spec.privacy.unit != "none":
        said = "the choice looked at the private records, and no ε covers it: the reports say so"
        facts.append(("privacy", said))
    return facts


def sweep_merge(
    folders: Annotated[
        list[Path], typer.Argument(metavar="FOLDER...", help="Sweeps' folders, or results.csv.")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE.csv", help="The merged results.")
    ],
) -> None:
    """Put the results of several machines together; a cell that two of them ran counts once."""
    from reports.comparison import tidy
    from reports.reading.files import write_atomic

    if output.suffix != ".csv":
        refuse(f"--output {output}: the name must end with .csv")
    found: dict[Any, dict[str, Any]] = {}
    again = 0
    for folder in folders:
        for row in _read(folder):
            again += row["cell"] in found
            found.setdefault(row["cell"], row)
    write_atomic(output, tidy.as_csv(list(found.values())).encode(), 0o644)
    text = f"{output}: {len(found)} cells"
    if again:
        text += f"; {again} that were run more than once are counted once, as first named"
    err.print(Text(text), soft_wrap=True)


def sweep_table(
    results: Annotated[
        Path, typer.Argument(metavar="RESULTS", help="A sweep's folder, or its results.csv.")
    ],
    rows: Annotated[str, typer.Option("--rows", metavar="COLUMN", help="What the rows differ in.")],
    columns: Annotated[
        str | None, typer.Option("--columns", metavar="COLUMN", help="What the columns differ in.")
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN=VALUE", help="Show only these runs. Repeatable."),
    ] = None,
    measure: Annotated[
        str, typer.Option(help="test_accuracy, test_loss, train_accuracy or train_loss.")
    ] = "test_accuracy",
    as_latex: Annotated[bool, typer.Option("--latex", help="Print LaTeX (booktabs).")] = False,
) -> None:
    """Print the table of a sweep: mean ± sd over seeds, ε beside it, the best where it is one.

    Where the sweep holds what a paper prints, that stands in brackets beside what was measured.

    The best is marked only where paired t-tests over the seeds, corrected for their number (Holm),
    tell it apart from every other row of its column. Runs whose audit did not pass are left out.
    """
    from reports.comparison import cross_table, tidy
    from reports.errors import ReportError

    if measure not in tidy.MEASURES:
        refuse(f"--measure {measure}: one of {', '.join(tidy.MEASURES)}")
    chosen = _read(results)
    for text in where or ():
        name, equals, value = text.partition("=")
        if not equals or not chosen or name not in chosen[0]:
            refuse(f"--where {text}: write COLUMN=VALUE, of a column of the results")
        chosen = [row for row in chosen if str(row[name]) == value]
    try:
        table = cross_table.tabulate(chosen, rows, columns, measure)
    except ReportError as error:
        _refused(error)
    write = cross_table.as_latex if as_latex else cross_table.as_markdown
    print_document(write(table))


def _read(path: Path) -> list[dict[str, Any]]:
    """The rows of a folder or of a file."""
    from reports.comparison import tidy
    from reports.errors import ReportError

    with status("reading results", quiet=False):
        try:
            return tidy.read_csv(path / "results.csv" if path.is_dir() else path)
        except ReportError as error:
            _refused(error)


def _refused(error: Exception) -> NoReturn:
    refuse(f"error: {error}")
