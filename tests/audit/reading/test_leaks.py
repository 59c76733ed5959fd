"""Numbers of the private evidence that stand where others read are found, and not repeated."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from audit.reading import leaks
from audit.verdict import Verdict
from tests.audit.corruptions import finding_of
from tests.audit.synthetic_client_run import ClientSettings, build_client_run
from tests.audit.synthetic_run import Settings, build_run


@pytest.fixture(params=["record", "client"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "record":
        return build_run(tmp_path / "run", Settings())
    return build_client_run(tmp_path / "run", ClientSettings())


def private_number(run: Path, array: str, index: int = 1) -> float:
    with np.load(run / "evidence" / f"round-{index:05d}.npz") as arrays:
        return abs(float(arrays[array].ravel()[0]))


def test_a_correct_run_shows_none(run: Path) -> None:
    assert leaks.search(run) == ()


@pytest.mark.parametrize("array", ["raw_norms", "noise_sample", "noise_sum_squares"])
@pytest.mark.parametrize("name", ["report.json", "report-public.html", "audit.json"])
def test_a_private_number_in_a_file_is_found_and_not_repeated(
    run: Path, name: str, array: str
) -> None:
    number = private_number(run, array)
    (run / name).write_text(f'<p>"about": 1.5, "epsilon": {number!r}</p>', "utf-8")
    assert leaks.search(run) == (leaks.Leak(name, array, 1),)
    finding = finding_of(run, "disclosure")
    assert finding.verdict is Verdict.FAIL
    assert name in finding.measurement
    assert repr(number)[:8] not in finding.measurement


@pytest.mark.parametrize("form", ["{:.15e}", "{:.14f}", "-{!r}", "{!r}0"])
def test_a_number_is_found_in_any_notation_with_enough_digits(run: Path, form: str) -> None:
    shown = form.format(private_number(run, "noise_sum_squares"))
    (run / "report.html").write_text(f"<td>{shown}</td>", "utf-8")
    assert [leak.file for leak in leaks.search(run)] == ["report.html"]


def test_a_rounded_number_is_not_taken_for_a_copy(run: Path) -> None:
    (run / "report.html").write_text(f"{private_number(run, 'raw_norms'):.4f}", "utf-8")
    assert leaks.search(run) == ()


def test_ten_thousand_other_numbers_are_not_taken_for_private_ones(run: Path) -> None:
    """False alarm: 10,000 numbers meet 20,000 private ones by chance once in 4,500 runs at most."""
    others = np.random.default_rng(7).normal(size=10_000)
    (run / "report.json").write_text(" ".join(repr(float(one)) for one in others), "utf-8")
    assert leaks.search(run) == ()
