"""All figures of several runs: what can be drawn is, and the rest has its reason."""

from __future__ import annotations

import csv
import io
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from dpfedadamw.extensions.figures.errors import FigureError
from dpfedadamw.extensions.figures.gallery import collect
from dpfedadamw.extensions.figures.publication import RELEASED, check_folder, open_folder
from dpfedadamw.extensions.figures.reading import FinishedRun, labels, reason
from dpfedadamw.extensions.figures.registry import (
    FIGURES,
    Measuring,
    MechanismFigure,
    Settings,
)
from dpfedadamw.reexecution.history import ReexecutionError
from dpfedadamw.reexecution.rounds import Rerun
from dpfedadamw.rundir import RunDirectory
from tests.dpfedadamw.extensions.figures.opened import CPU, opened
from tests.runs import begin, small_spec

EVERY = [
    "second-moment-variance", "drift", "moments", "bias-shift", "update-norms", "loss-landscape",
    "hessian", "iterations",
]  # fmt: skip


def figures(*names):
    return [FIGURES[name] for name in names]


def test_figures_stand_in_their_order_and_each_says_from_what_it_is_made():
    assert list(FIGURES) == EVERY
    private = {name for name, one in FIGURES.items() if one.exposure.private}
    assert private == {*EVERY[:5]}
    assert all(one.summary and one.source for one in FIGURES.values())


def test_the_pages_name_every_figure_and_who_may_see_it():
    pages = Path(__file__).parents[4] / "docs"
    rows = re.findall(
        r"^\| `([a-z-]+)` \|.*\| ([^|]+) \|$", (pages / "figures.md").read_text(), re.M
    )
    assert [name for name, _ in rows] == EVERY
    assert {name for name, who in rows if who == "private"} == {*EVERY[:5]}
    asked = re.findall(r"--figure ([a-z-]+)", (pages / "papers.md").read_text())
    assert len(asked) >= 5
    assert {*asked} <= {*EVERY}


def test_all_figures_of_a_run_take_one_pass_over_its_rounds(noised, monkeypatch):
    executed, real = [], Rerun.run_round

    def counted(self, index, *arguments, **options):
        executed.append(index)
        return real(self, index, *arguments, **options)

    monkeypatch.setattr(Rerun, "run_round", counted)
    wanted = figures("second-moment-variance", "drift", "moments", "update-norms")
    gallery = collect(wanted, [opened(noised)], Settings())
    assert [one.figure.name for one in gallery.composed] == [one.name for one in wanted]
    assert gallery.left_out == ()
    assert executed == [0, 1]
    for one in gallery.composed:
        table = one.drawing.table
        assert table.rows
        assert {len(row) for row in table.rows} == {len(table.head)}
        assert one.drawing.chart.title.endswith(".")


def test_of_several_runs_those_that_lack_something_are_named_and_the_others_drawn(small, noised):
    plain = small("local-adamw", "algorithm.learning_rate=0.01", rounds=1)
    wanted = figures("second-moment-variance", "bias-shift", "iterations")
    gallery = collect(wanted, [opened(noised), opened(plain)], Settings())
    shown = {one.figure.name: one.runs for one in gallery.composed}
    assert shown == {
        "second-moment-variance": (noised.identifier, plain.identifier),
        "bias-shift": (noised.identifier,),
    }
    assert [(one.figure, one.run) for one in gallery.left_out] == [
        ("iterations", noised.identifier),
        ("bias-shift", plain.identifier),
        ("iterations", plain.identifier),
    ]


def test_without_a_key_no_figure_that_needs_rounds_is_drawn_and_the_others_are(noised):
    def keyless(run, data):
        raise ReexecutionError("give --escrow FILE")

    run = FinishedRun(noised, keyless, CPU)
    gallery = collect(figures("drift", "moments", "bias-shift"), [run], Settings())
    assert [one.figure.name for one in gallery.composed] == ["bias-shift"]
    assert {one.reason for one in gallery.left_out} == {"give --escrow FILE"}


def test_of_a_run_that_comes_out_otherwise_nothing_that_needs_its_rounds_is_drawn(noised):
    wanted = figures("drift", "moments", "bias-shift", "update-norms")
    gallery = collect(wanted, [opened(noised, seed=2)], Settings())
    assert [one.figure.name for one in gallery.composed] == ["bias-shift"]
    assert [one.figure for one in gallery.left_out] == ["drift", "moments", "update-norms"]
    assert {one.run for one in gallery.left_out} == {noised.identifier}
    for one in gallery.left_out:
        assert "does not lead to the state that the ledger names" in one.reason


def test_every_panel_says_what_it_shows_and_no_two_of_a_figure_say_the_same(noised):
    wanted = figures(*(name for name in EVERY if name != "iterations"))
    gallery = collect(wanted, [opened(noised)], Settings(records=9))
    assert [one.figure.name for one in gallery.composed] == EVERY[:-1]
    for one in gallery.composed:
        panels = one.drawing.chart.panels
        assert all(panel.x_label and panel.y_label and panel.marks for panel in panels)
        assert len({(panel.title, panel.y_label) for panel in panels}) == len(panels)
        # With titles, each has one.
        assert len({bool(panel.title) for panel in panels}) == 1, one.figure.name


def small_arrays():
    """A round's file whose arrays are too short."""
    buffer = io.BytesIO()
    names = ("v_corrected", "v_clean", "subtracted", "tau", "floored")
    np.savez(buffer, **dict.fromkeys(names, np.ones((1, 7))))
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda path: path.unlink(), "evidence/round-00001.npz is not there"),
        (lambda path: path.write_bytes(b"PK"), "evidence/round-00001.npz cannot be read"),
        (lambda path: path.write_bytes(small_arrays()), "its evidence is damaged"),
    ],
)
def test_missing_and_damaged_evidence_is_named(noised, tmp_path, spoil, reason):
    copy = RunDirectory(tmp_path / noised.identifier)
    shutil.copytree(noised.path, copy.path)
    spoil(copy.evidence / "round-00001.npz")
    gallery = collect(figures("bias-shift"), [opened(copy)], Settings())
    assert not gallery.composed
    assert reason in gallery.left_out[0].reason


def test_a_ledger_whose_charges_lack_something_is_named(noised, tmp_path):
    copy = RunDirectory(tmp_path / noised.identifier)
    shutil.copytree(noised.path, copy.path)
    text = copy.ledger.read_text().replace(
        '"expected_batch_size":24.0,"kind":"spend"', '"kind":"spend"'
    )
    assert text != copy.ledger.read_text()
    copy.ledger.write_text(text)
    gallery = collect(figures("bias-shift"), [opened(copy)], Settings())
    assert "its ledger is damaged (KeyError)" in gallery.left_out[0].reason


def test_of_a_run_whose_evidence_was_erased_the_model_is_drawn_all_the_same(noised, tmp_path):
    copy = RunDirectory(tmp_path / noised.identifier)
    shutil.copytree(noised.path, copy.path, ignore=shutil.ignore_patterns("evidence"))
    gallery = collect(
        figures("drift", "bias-shift", "hessian"), [opened(copy)], Settings(records=9)
    )
    assert [one.figure.name for one in gallery.composed] == ["hessian"]
    assert [one.reason.partition(",")[0] for one in gallery.left_out] == [
        "its private evidence is not there",
        "evidence/layout.json is not there: it was never kept",
    ]


def test_a_run_that_is_not_finished_is_refused(tmp_path):
    training = begin(small_spec(), tmp_path)
    training.lock.release()
    with pytest.raises(FigureError, match="is not finished; finish it with"):
        opened(training.run)


def test_runs_are_called_by_their_specs_names_or_by_their_cells_in_a_sweep(noised, tmp_path):
    assert labels([opened(noised)]) == ["small"]
    cells = []
    for label in ("IID", "Dirichlet 0.1"):
        cells.append(
            RunDirectory(tmp_path / "cells" / label / "runs" / f"{noised.identifier}-{label}")
        )
        shutil.copytree(noised.path, cells[-1].path)
    assert labels([opened(run) for run in cells]) == [run.identifier for run in cells]
    with (tmp_path / "results.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["cell", "curve", "seed", "run"])
        writer.writerows([[n, n.path.parents[1].name, 0, n.identifier] for n in cells])
    assert labels([opened(run) for run in cells]) == ["IID", "Dirichlet 0.1"]
    with (tmp_path / "results.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["cell", "curve", "seed", "run"])
        writer.writerows([[n, "IID", n, run.identifier] for n, run in enumerate(cells)])
    assert labels([opened(run) for run in cells]) == ["IID, seed 0", "IID, seed 1"]


def test_figures_do_not_go_into_a_run_or_onto_a_file(noised, tmp_path):
    for folder in (noised.path, noised.path / "figures", noised.evidence / "a" / "b"):
        with pytest.raises(FigureError, match="whose audit accepts no files but its own"):
            check_folder(folder)
    (tmp_path / "file").touch()
    with pytest.raises(FigureError, match="is no folder"):
        check_folder(tmp_path / "file")
    check_folder(tmp_path / "new")


def named(identifier: str, name: str = "small", path: Path | None = None):
    """A run, as far as it has a name."""
    directory = SimpleNamespace(identifier=identifier, path=path or Path(identifier))
    return SimpleNamespace(directory=directory, spec=SimpleNamespace(name=name))


class Watching(Measuring[str]):
    """Finds a word once the rounds are over, or that there is none."""

    def __init__(self, word: str) -> None:
        self.word = word

    def found(self) -> str:
        if not self.word:
            raise FigureError("nothing\n was found")
        return self.word


def figure_of(name: str, measure) -> MechanismFigure[str]:
    return MechanismFigure(
        name=name, summary="", source="", exposure=RELEASED, measure=measure,
        compose=lambda runs: [(one.label, one.numbers) for one in runs],  # type: ignore[arg-type]
    )  # fmt: skip


def refused(_run, _settings):
    raise FigureError("lacks\n  it")


def test_what_each_run_has_is_shown_by_figure_and_what_it_lacks_named_by_run():
    """Two runs; the rounds of one cannot be run again."""
    passes = []

    def observe(run, observer, on_round):
        on_round(1, 2)
        passes.append(run.spec.name)
        if run.spec.name == "two":
            raise ReexecutionError("no key")

    runs = [named("run-1", "one"), named("run-2", "two")]
    for run in runs:
        run.observe = lambda *arguments, run=run: observe(run, *arguments)
    figures = [
        figure_of("kept", lambda run, settings: f"{run.spec.name} {settings.seed}"),
        figure_of("seen", lambda *_: Watching("word")),
        figure_of("empty", lambda *_: Watching("")),
        figure_of("refused", refused),
    ]
    told = []
    found = collect(figures, runs, Settings(seed=7), lambda *what: told.append(what))
    assert [(one.figure.name, one.drawing, one.runs) for one in found.composed] == [
        ("kept", [("one", "one 7"), ("two", "two 7")], ("run-1", "run-2")),
        ("seen", [("one", "word")], ("run-1",)),
    ]
    assert [(one.figure, one.run, one.reason) for one in found.left_out] == [
        ("refused", "run-1", "lacks it"),
        ("empty", "run-1", "nothing was found"),
        ("refused", "run-2", "lacks it"),
        ("seen", "run-2", "no key"),
        ("empty", "run-2", "no key"),
    ]
    # One pass over the rounds serves both figures.
    assert passes == ["one", "two"]
    names = ("kept", "seen", "empty", "refused")
    assert told == [
        step
        for label in ("one", "two")
        for step in (
            *((f"{label}: {name}", at, 4) for at, name in enumerate(names)),
            (f"{label}: rounds", 1, 2),
        )
    ]


def test_a_run_of_which_nothing_is_to_be_seen_again_is_not_run_again():
    run = named("run-1")
    run.observe = lambda *_: pytest.fail("it is run again")
    found = collect([figure_of("kept", lambda *_: "it")], [run], Settings())
    assert [one.runs for one in found.composed] == [("run-1",)]


ROWS = """\
cell,curve,rate,seed,run
a,IID,0.1,3,first
b,,,4,second
c,"a, b",,,third
"""


@pytest.mark.parametrize(
    ("parts", "table", "name"),
    [
        ("cells/a/runs/first", ROWS, "IID, 0.1"),
        ("cells/b/runs/second", ROWS, "small"),
        ("cells/c/runs/third", ROWS, "a, b"),
        ("cells/d/runs/fourth", ROWS, "small"),
        ("cells/a/run/first", ROWS, "small"),
        ("cell/a/runs/first", ROWS, "small"),
        ("cells/a/runs/first", None, "small"),
        ("cells/a/runs/first", "cell,run\na,first\n", "small"),
        ("cells/a/runs/first", "run,seed\nfirst,1\n", "small"),
        ("cells/a/runs/first", "\udcff", "small"),
    ],
)
def test_a_run_is_called_by_its_cell_where_the_sweeps_results_have_it(parts, table, name, tmp_path):
    if table is not None:
        (tmp_path / "results.csv").write_bytes(table.encode("utf-8", "surrogateescape"))
    path = tmp_path / parts
    assert labels([named("id", path=path)]) == [name]


def test_runs_of_one_name_are_told_apart_by_seeds_or_else_by_their_identifiers(tmp_path):
    rows = "cell,curve,seed,run\na,IID,3,x\nb,IID,4,y\nc,IID,4,z\n"
    (tmp_path / "results.csv").write_text(rows)
    x, y, z = (
        named(run, path=tmp_path / "cells" / cell / "runs" / run)
        for cell, run in (("a", "x"), ("b", "y"), ("c", "z"))
    )
    assert labels([x]) == ["IID"]
    assert labels([x, y]) == ["IID, seed 3", "IID, seed 4"]
    assert labels([y, z]) == ["y", "z"]
    assert labels([x, named("w", "other")]) == ["IID", "other"]


def test_a_reason_is_one_line():
    assert reason(FigureError("a\n  b\tc ")) == "a b c"


def test_a_folder_that_cannot_be_made_is_named_and_one_that_is_there_stays_as_it_is(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(FigureError, match=r"--out .*file/in: cannot be made \("):
        open_folder(tmp_path / "file" / "in")
    (tmp_path / "there").mkdir(mode=0o755)
    (tmp_path / "there").chmod(0o755)
    open_folder(tmp_path / "there")
    assert (tmp_path / "there").stat().st_mode & 0o777 == 0o755
    open_folder(tmp_path / "a" / "b")
    assert {(tmp_path / one).stat().st_mode & 0o777 for one in ("a", "a/b")} == {0o700}


def test_test_records_are_those_of_the_run_however_many_are_asked_for(noised, tmp_path):
    finished = opened(noised)
    every = finished.test_records(None)
    assert len(finished.test_records(10**6)) == len(every)
    few = finished.test_records(3)
    assert few.labels.tolist() == every.labels[:3].tolist()
    copy = RunDirectory(tmp_path / noised.identifier)
    shutil.copytree(noised.path, copy.path)
    digest = finished.past.header["data_sha256"]
    copy.ledger.write_text(copy.ledger.read_text().replace(digest, digest[::-1]))
    with pytest.raises(FigureError, match="the data set is not the one that the ledger names"):
        opened(copy).test_records(3)
