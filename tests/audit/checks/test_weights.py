"""The check "weights": names, shapes, types and digests of the published model."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from audit.checks import weights as module
from audit.checks.base import Judgement
from audit.checks.weights import NOT_NOTED, WEIGHTS, WIDER, _narrow, _vector_digest
from audit.errors import AuditError
from audit.reading.bundle import Bundle, open_bundle
from audit.reading.units import NONE
from audit.untrusted.archives import Stored, read_tensors
from audit.verdict import Finding, Severity, Verdict
from tests.audit.checks.opened import changed, judged, says
from tests.audit.synthetic_client_run import ClientSettings, build_client_run
from tests.audit.synthetic_run import Settings, build_run, canonical, pack, rewrite_ledger

Tensors = dict[str, np.ndarray]


@pytest.fixture(scope="module", params=["record", "client"])
def _built_runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "record":
        return build_run(folder / "run", Settings(rounds=2))
    return build_client_run(folder / "run", ClientSettings(rounds=2))


@pytest.fixture
def run(_built_runs: Path, tmp_path: Path) -> Path:
    """A correct run that the test may change."""
    return Path(shutil.copytree(_built_runs, tmp_path / "run"))


def weights(run: Path) -> Finding:
    try:
        return WEIGHTS.finding(WEIGHTS.judge(open_bundle(run)))
    except AuditError as error:
        return WEIGHTS.finding(Judgement(Verdict.NOT_VERIFIED, str(error)))


def renamed(tensors: Tensors) -> None:
    tensors.update({f"module.{name}": tensors.pop(name) for name in list(tensors)})


def changed_in_one_bit(numbers: np.ndarray) -> None:
    numbers[3] = np.nextafter(numbers[3], np.float32(9))


def rewrite(run: Path, change: Callable[[Tensors], object]) -> None:
    path = run / "model.safetensors"
    tensors = {
        name: value.astype(np.float32) for name, value in read_tensors(path.read_bytes()).items()
    }
    change(tensors)
    path.write_bytes(pack(tensors))


def relist(run: Path, change: Callable[[list[dict[str, Any]]], object]) -> None:
    """Change the list of tensors and the digest that the ledger names: a consistent lie."""
    path = run / "model.json"
    config = json.loads(path.read_text())
    change(config["tensors"])
    path.write_text(json.dumps(config))
    digest = hashlib.sha256(canonical(config["tensors"])).hexdigest()
    rewrite_ledger(run, lambda entries: entries[0].update(tensors_sha256=digest))


def test_the_last_rounds_parameters_under_the_names_that_were_said_pass(run: Path) -> None:
    found = weights(run)
    assert (found.verdict, found.details) == (Verdict.PASS, {"tensors": 3, "trained": 3})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda tensors: renamed(tensors), "'module.layer-0'"),
        (lambda t: t.pop("layer-1"), "lacks the tensor 'layer-1'"),
        (lambda t: t.update(more=np.ones(2, np.float32)), "holds a tensor 'more'"),
        (lambda t: t.update({"layer-1": t["layer-1"].reshape(1, -1)}), "a different shape or type"),
        (
            lambda t: t["layer-2"].__setitem__(3, np.nextafter(t["layer-2"][3], np.float32(9))),
            "not the model after the last round",
        ),
    ],
    ids=["renamed", "missing", "further", "reshaped", "one bit"],
)
def test_any_other_weights_fail(run: Path, change: Callable[[Tensors], object], says: str) -> None:
    rewrite(run, change)
    found = weights(run)
    assert found.verdict is Verdict.FAIL
    assert says in found.measurement


def rewrite_as_left(run: Path, change: Callable[[Tensors], object]) -> None:
    """Other weights, which the last round left as well."""
    rewrite(run, change)
    vector = np.concatenate(
        [one.ravel() for one in read_tensors((run / "model.safetensors").read_bytes()).values()]
    )
    digest = hashlib.sha256(vector.astype("<f4").tobytes()).hexdigest()

    def left(entries: list[dict[str, Any]]) -> None:
        [one for one in entries if one["kind"] == "round"][-1].update(parameters_sha256=digest)

    rewrite_ledger(run, left)


def claim_divergence(entries: list[dict[str, Any]]) -> None:
    entries[-1].update(diverged={"rounds": 2})


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("claimed", [True, False])
def test_weights_that_are_no_numbers_are_told_beside_the_verdict(
    run: Path, bad: float, claimed: bool
) -> None:
    rewrite_as_left(run, lambda tensors: tensors["layer-2"].__setitem__(3, bad))
    if claimed:
        rewrite_ledger(run, claim_divergence)
    found = weights(run)
    assert found.verdict is Verdict.PASS
    assert found.qualifications[0].startswith("diverged: after round 2 of 2 the model held numbers")


def test_a_divergence_that_nobody_can_see_is_not_verified(run: Path) -> None:
    """Else rounds could be left out by calling them that."""
    assert weights(run).qualifications == ()
    rewrite_ledger(run, claim_divergence)
    found = weights(run)
    assert found.verdict is Verdict.NOT_VERIFIED
    assert "all published weights are finite" in found.measurement
    assert found.qualifications == ()


@pytest.mark.parametrize(("dtype", "code"), [("<f2", "F16"), ("<f4", "F32"), ("<f8", "F64")])
def test_weights_of_any_width_are_the_vector_of_float32_that_was_noted(
    dtype: str, code: str
) -> None:
    # Each of them a number of float16, so that no width loses any of it.
    parts = [np.array([0.5, -2.0], dtype), np.array([[1.25]], dtype)]
    stored = [Stored(code, part.shape, memoryview(part.tobytes())) for part in parts]
    vector = np.array([0.5, -2.0, 1.25], "<f4")
    assert _vector_digest(stored) == hashlib.sha256(vector.tobytes()).hexdigest()


@pytest.mark.parametrize(
    ("values", "narrow"),
    [
        (np.array([0.5, np.inf, np.nan, -0.0, 1e-45], "<f4").astype("<f8"), True),
        (np.array([0.1], "<f4"), True),
        (np.array([0.1], "<f2"), True),
        (np.array([0.5, 0.1], "<f8"), False),
        (np.array([1e300], "<f8"), False),
        (np.array([1e-300], "<f8"), False),
    ],
)
def test_only_bits_that_float32_holds_are_covered_by_a_digest(
    values: np.ndarray, narrow: bool
) -> None:
    code = {2: "F16", 4: "F32", 8: "F64"}[values.itemsize]
    stored = Stored(code, values.shape, memoryview(values.tobytes()))
    assert _narrow([stored]) is narrow


def test_weights_with_bits_that_the_digest_does_not_cover_are_not_verified(run: Path) -> None:
    path = run / "model.safetensors"
    tensors = read_tensors(path.read_bytes())
    relist(run, lambda listed: [one.update(dtype="F64") for one in listed])

    def widened(extra: float) -> Verdict:
        path.write_bytes(pack({name: one * (1.0 + extra) for name, one in tensors.items()}, "F64"))
        found = weights(run)
        assert (WIDER in found.measurement) is (found.verdict is not Verdict.PASS)
        return found.verdict

    assert widened(0.0) is Verdict.PASS
    assert widened(2.0**-40) is Verdict.NOT_VERIFIED


def test_weights_of_a_width_that_is_not_known_are_not_verified(run: Path) -> None:
    path = run / "model.safetensors"
    path.write_bytes(path.read_bytes().replace(b'"F32"', b'"I32"'))
    relist(run, lambda listed: [one.update(dtype="I32") for one in listed])
    found = weights(run)
    assert found.verdict is Verdict.NOT_VERIFIED
    assert "have a type that the auditor cannot read" in found.measurement


def test_a_list_that_is_not_the_headers_fails(run: Path) -> None:
    path = run / "model.json"
    original = path.read_text()
    path.write_text(original.replace("layer-0", "layer-9"))
    assert "not the one that the ledger's header names" in weights(run).measurement
    path.write_text(json.dumps({"format": 1, "parameters": 340}))
    assert weights(run).verdict is Verdict.FAIL


def test_a_list_that_calls_trained_tensors_others_fails(run: Path) -> None:
    relist(run, lambda tensors: tensors[0].update(trained=False))
    found = weights(run)
    assert found.verdict is Verdict.FAIL
    assert "not as many numbers as were trained" in found.measurement


def test_what_was_not_to_be_trained_stays_what_it_was(run: Path) -> None:
    frozen = np.arange(4, dtype=np.float32)
    digest = hashlib.sha256(frozen.tobytes()).hexdigest()
    entry = {"name": "frozen", "shape": [4], "dtype": "F32", "trained": False, "sha256": digest}
    relist(run, lambda tensors: tensors.append(entry))
    rewrite(run, lambda tensors: tensors.update(frozen=frozen))
    assert weights(run).verdict is Verdict.PASS
    rewrite(run, lambda tensors: tensors.update(frozen=frozen + 1))
    assert "'frozen' was not to be trained" in weights(run).measurement


def test_a_ledger_that_does_not_note_what_the_last_round_left_fails(run: Path) -> None:
    rewrite_ledger(run, lambda entries: entries[-2].pop("parameters_sha256"))
    assert weights(run).verdict is Verdict.FAIL


def test_a_run_from_before_is_judged_as_far_as_it_goes(run: Path) -> None:
    (run / "model.json").write_text(json.dumps({"format": 1, "parameters": 340}))

    def older(entries: list[dict[str, Any]]) -> None:
        entries[0].pop("tensors_sha256")
        entries[-2].pop("parameters_sha256")

    rewrite_ledger(run, older)
    found = weights(run)
    assert (found.verdict, found.severity) == (Verdict.NOT_VERIFIED, Severity.CRITICAL)
    assert found.qualifications == (NOT_NOTED,)
    rewrite(
        run, lambda tensors: tensors.update({f"module.{n}": tensors.pop(n) for n in list(tensors)})
    )
    assert weights(run).verdict is Verdict.FAIL


def test_weights_that_cannot_be_read_are_not_verified(run: Path) -> None:
    (run / "model.safetensors").write_bytes(b"none")
    found = weights(run)
    assert found.verdict is Verdict.NOT_VERIFIED
    assert found.measurement.startswith("model.safetensors: ")


def test_a_list_of_more_than_sixteen_megabytes_is_not_read(run: Path) -> None:
    with (run / "model.json").open("r+b") as file:
        file.truncate(2**24 + 1)
    found = weights(run)
    assert (found.verdict, "16777216" in found.measurement) == (Verdict.NOT_VERIFIED, True)
    # One byte less is read, and is no document.
    with (run / "model.json").open("r+b") as file:
        file.truncate(2**24)
    assert "16777216" not in weights(run).measurement


# Numbers and names one by one, on a run that is opened once.


def listing(bundle: Bundle, tensors: Any, monkeypatch: pytest.MonkeyPatch, **header: Any) -> Bundle:
    """The run with another list of tensors, and its digest in the header."""
    config = tensors if not isinstance(tensors, list) else {"tensors": tensors}
    monkeypatch.setattr(module, "parse_json", lambda _: config)
    digest = hashlib.sha256(canonical(tensors)).hexdigest() if isinstance(tensors, list) else "0"
    return changed(bundle, header={"tensors": digest, **header})


def of_the_run(bundle: Bundle) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((bundle.root / "model.json").read_bytes())["tensors"]
    return found


@pytest.mark.parametrize("config", [[], [{}], 7, None, {}, {"format": 1}, "tensors"])
def test_a_description_without_a_list_is_another_one_where_the_header_names_one(
    of_records: Bundle, config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "parse_json", lambda _: config)
    said = "model.json: its list of tensors is not the one that the ledger's header names"
    assert says(of_records, "weights") == ("FAIL", said)
    without = judged(changed(of_records, header={"tensors": None}), "weights")
    assert (without.verdict, without.measurement) == (Verdict.NOT_VERIFIED, NOT_NOTED)
    assert (without.qualifications, without.power) == ((NOT_NOTED,), "none")
    assert without.severity in (None, Severity.CRITICAL)


@pytest.mark.parametrize(("many", "read"), [(1_000_000, True), (1_000_001, False)])
def test_a_list_has_a_million_tensors_at_most(
    of_records: Bundle, many: int, read: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "parse_json", lambda _: {"tensors": [0] * many})
    monkeypatch.setattr(module, "canonical_json", lambda entries: b"another list")
    verdict, text = says(of_records, "weights")
    assert verdict == ("FAIL" if read else "NOT VERIFIED")
    assert ("tensors is not a list of at most 1000000 items" in text) is not read


@pytest.mark.parametrize("digest", ["0" * 63, "0" * 65, "A" * 64, "", "X" + "0" * 64])
def test_a_digest_has_sixty_four_small_digits(
    of_records: Bundle, digest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = of_the_run(of_records)
    tensors[1]["sha256"] = digest
    verdict, text = says(listing(of_records, tensors, monkeypatch), "weights")
    assert verdict == "NOT VERIFIED"
    assert "sha256 is not a text of the expected form" in text


@pytest.mark.parametrize("field", ["name", "shape", "dtype", "trained"])
def test_of_every_tensor_four_things_are_said(
    of_records: Bundle, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = of_the_run(of_records)
    del tensors[1][field]
    verdict, text = says(listing(of_records, tensors, monkeypatch), "weights")
    assert (verdict, f"{field} is missing" in text) == ("NOT VERIFIED", True)


def test_further_tensors_are_named_in_order(
    of_records: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = module.read_stored
    names = ["z", "m", "a", "q", "b"]

    def more(raw: bytes) -> dict[str, Stored]:
        found = read(raw)
        return {**dict.fromkeys(names, found["layer-0"]), **found}

    monkeypatch.setattr(module, "read_stored", more)
    said = [
        f"model.safetensors holds a tensor {name!r} that the model does not have"
        for name in sorted(names)
    ]
    assert says(of_records, "weights") == ("FAIL", "; ".join(said))


def test_the_last_round_is_the_one_of_the_highest_number(of_records: Bundle) -> None:
    rounds = of_records.readable_ledger.rounds
    turned = (*rounds[1:], rounds[0])
    assert says(changed(of_records, ledger={"rounds": turned}), "weights")[0] == "PASS"
    again = (*rounds, replace(rounds[-1], parameters="0" * 64))
    assert says(changed(of_records, ledger={"rounds": again}), "weights") == (
        "FAIL",
        "model.safetensors is not the model after the last round",
    )


def test_one_tensor_of_a_type_that_is_not_known_is_enough(
    of_records: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = of_the_run(of_records)
    tensors[1]["dtype"] = "I32"
    read = module.read_stored

    def other(raw: bytes) -> dict[str, Stored]:
        found = read(raw)
        return {**found, "layer-1": replace(found["layer-1"], dtype="I32")}

    monkeypatch.setattr(module, "read_stored", other)
    run = listing(of_records, tensors, monkeypatch)
    said = "the trained tensors have a type that the auditor cannot read"
    assert says(run, "weights") == ("NOT VERIFIED", said)


def test_names_are_those_of_the_evidence_where_privacy_is_claimed_alone(
    of_records: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = of_records.layout()
    tensors = (("another", 240), *layout.tensors[1:])
    other = replace(of_records, _layout=replace(layout, tensors=tensors))
    said = "model.json: its trained tensors are not those of the evidence"
    assert says(other, "weights") == ("FAIL", said)
    assert says(changed(other, header={"unit": NONE}), "weights")[0] == "PASS"
    # Nor are they looked for where there is no list.
    monkeypatch.setattr(module, "parse_json", lambda _: {})
    run = changed(other, header={"tensors": None})
    lacks = "model.safetensors lacks the trained tensor 'another'"
    assert says(run, "weights") == ("FAIL", lacks)
    assert says(changed(run, header={"unit": NONE}), "weights")[0] == "NOT VERIFIED"


def test_without_a_list_the_first_trained_tensor_of_another_length_is_named(
    of_records: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = of_records.layout()
    tensors = (layout.tensors[0], ("layer-1", 91), ("layer-2", 9))
    run = replace(of_records, _layout=replace(layout, tensors=tensors))
    monkeypatch.setattr(module, "parse_json", lambda _: {})
    assert says(changed(run, header={"tensors": None}), "weights") == (
        "FAIL",
        "model.safetensors lacks the trained tensor 'layer-1'",
    )


BEGUN, MOVED = "a" * 64, "b" * 64


@pytest.mark.parametrize(
    ("header", "rounds", "says"),
    [
        (None, (None, None), None),
        (BEGUN, (BEGUN, BEGUN), None),
        (BEGUN, (MOVED, BEGUN), "round 0: the parameters and buffers that are not trained are not"),
        (BEGUN, (BEGUN, MOVED), "round 1: the parameters and buffers that are not trained are not"),
        (
            BEGUN,
            (BEGUN, None),
            "round 1: the parameters and buffers that are not trained are noted",
        ),
        (None, (None, BEGUN), "round 1: the parameters and buffers that are not trained are noted"),
    ],
)
def test_what_is_not_trained_is_in_every_round_what_the_run_began_with(
    run: Path, header: str | None, rounds: tuple[str | None, ...], says: str | None
) -> None:
    """A run of an earlier version notes it nowhere, and is judged as before."""

    def note(entries: list[dict[str, Any]]) -> None:
        lines = [entries[0], *(one for one in entries if one["kind"] == "round")]
        for line, digest in zip(lines, (header, *rounds), strict=True):
            if digest is not None:
                line["frozen_sha256"] = digest

    rewrite_ledger(run, note)
    found = weights(run)
    assert found.verdict is (Verdict.PASS if says is None else Verdict.FAIL)
    assert says is None or says in found.measurement
