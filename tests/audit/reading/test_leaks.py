"""Numbers of the private evidence that stand where others read are found, and not repeated."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from audit.reading import leaks
from audit.reading.bundle import open_bundle
from audit.verdict import Verdict
from tests.audit.corruptions import finding_of
from tests.audit.synthetic_client_run import ClientSettings, build_client_run
from tests.audit.synthetic_run import Settings, build_run


@pytest.fixture(scope="module", params=["record", "client"])
def _built_runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "record":
        return build_run(folder / "run", Settings())
    return build_client_run(folder / "run", ClientSettings())


@pytest.fixture
def run(_built_runs: Path, tmp_path: Path) -> Path:
    """A correct run that the test may change."""
    return Path(shutil.copytree(_built_runs, tmp_path / "run"))


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


def fields_of(shape: leaks.Shape, place: str) -> Iterator[tuple[str, str]]:
    """Place and name of each field that a shape lets stand, sections taken apart."""
    for name, inner in shape.items():
        if inner is None:
            yield place, name
        else:
            yield from fields_of(inner, f"{place}.{name}")


def test_a_field_that_others_may_read_stands_in_the_list_too() -> None:
    """A field more would let private numbers pass unseen, and one less would refuse good runs."""
    text = (Path(__file__).parent / "public_fields.txt").read_text("utf-8")
    sections = re.findall(r"(\S+):\n((?: .*\n)+)", text)
    listed = [(place, name) for place, names in sections for name in names.split()]
    shapes = {"metrics": leaks.METRICS, "model": leaks.MODEL}
    shapes |= {f"ledger.{kind}": shape for kind, shape in leaks.LEDGER.items()}
    found = [field for place, shape in shapes.items() for field in fields_of(shape, place)]
    assert sorted(found) == sorted(listed)


WRITTEN = """
    spec.yaml ledger.jsonl metrics.jsonl model.safetensors model.json model.sig erasure.json
    audit.json report.json report.pdf report.html report-public.json report-public.pdf
    report-public.html VERIFY.md VERIFY-public.md .unfinished/lock
    training.attestation.json training.attestation.json.tsr attestation.json attestation.json.tsr
    attestation-public.json attestation-public.json.tsr trainer.pub trainer.rotations.json
    auditor.pub auditor.rotations.json intent.json intent.json.tsr intent.json.tlog challenge.json
    challenge.json.tsr challenge.json.tlog draw.json draw.json.tsr draw.json.tlog
    evidence/salt evidence/tuning evidence/layout.json evidence/findings.json
    evidence/partition.npz evidence/inputs.npz evidence/probe.npz evidence/canaries.npz
    evidence/coordinates.npz evidence/records.npz evidence/people.npz evidence/columns.npz
    evidence/end.npz evidence/round-00000.npz evidence/round-123456.npz evidence/server-00003.npz
    evidence/upload-00003.npz evidence/upload-00003-00002.npz evidence/state-00004.safetensors
    evidence/environment-1.json evidence/client-00007.jsonl checkpoint/spec.yaml checkpoint/paid
    checkpoint/state-00004.safetensors
"""


def test_every_file_that_a_run_writes_is_known_and_no_other_of_a_similar_name() -> None:
    patterns = [*leaks.RUN_FILES, *leaks.EVIDENCE_FILES, *leaks.CHECKPOINT_FILES]

    def known(name: str) -> bool:
        return any(re.fullmatch(pattern, name) for pattern in patterns)

    written = WRITTEN.split()
    assert [name for name in written if not known(name)] == []
    similar = [f"{name}{end}" for name in written for end in (".bak", "x", "/x")]
    similar += [f"x{name}" for name in written] + ["evidence/round-0003.npz", "report-2.pdf"]
    assert [name for name in similar if known(name)] == []


def test_what_is_private_of_a_round_is_named_as_in_its_file(run: Path) -> None:
    bundle = open_bundle(run)
    unit = bundle.header.unit
    found = unit.private_numbers(bundle.evidence_of_round(1, unit))
    with np.load(run / "evidence" / "round-00001.npz") as arrays:
        for name, values in found.items():
            assert np.array_equal(values, arrays[name], equal_nan=True), name
    own = {"record": "clean_sum_squares", "client": "clean_sample"}[unit.name]
    due = {"raw_norms", "noise_sum_squares", "noise_sample", own}
    assert found.keys() - {"v_clean"} == due
