"""All figures of several runs: what can be drawn is, and the rest has its reason."""

from __future__ import annotations

import csv
import io
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from dpfedadamw.extensions.figures.errors import FigureError
from dpfedadamw.extensions.figures.gallery import collect
from dpfedadamw.extensions.figures.publication import check_folder
from dpfedadamw.extensions.figures.reading import FinishedRun, labels
from dpfedadamw.extensions.figures.registry import FIGURES, Settings
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
