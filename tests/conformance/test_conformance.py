"""Two verifiers that share nothing but docs/format.md come to the same of every folder."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from audit.accounting.budget import Steps, ThirdParty, budget
from audit.untrusted.documents import DocumentError, canonical_json, parse_yaml
from dpfedadamw import spec as specs
from dpfedadamw.evidence.states import state_file
from dpfedadamw.experiment import prepare
from dpfedadamw.filing import after_training as filing
from dpfedadamw.run import setup
from dpfedadamw.run import training as engine_run
from dpfedadamw.rundir import open_existing
from dpfedadamw.spec import yamltext
from reports import formatting
from reports.signatures import dsse
from reports.signatures.verification import verify
from reports.verifier import PAGE, page, texts
from tests.audit.extensions.gate.forgeries import begun
from tests.audit.synthetic_run import rewrite_ledger
from tests.conformance import _PEOPLE, BROKEN, UNKNOWN, Case, _file, _spec, write
from tests.runs import PRIVATE, begin, probed, verdicts

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="the second verifier needs Node")
# What the auditor says where a verifier of the format says this of the claim.
VERDICTS = {"AGREES": "PASS", "CONTRADICTED": "FAIL", "NONE": "NO CLAIM", "NOT SEEN": "PASS"}


def second(what: str, given: Any) -> Any:
    """What verify.mjs makes of something."""
    assert NODE is not None
    judge = Path(__file__).with_name("judge.mjs")
    done = subprocess.run(
        [NODE, str(judge), what],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def _written(root: Path, every: int) -> tuple[Path, list[Case]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPFEDADAMW_KEYS", str(root / "keys"))
        return root / "folders", write(root / "folders", every)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Case]]:
    """One folder in nine of the conformance suite, by keys that nobody knows."""
    return _written(tmp_path_factory.mktemp("conformance"), 9)


@pytest.fixture(scope="module")
def many_folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Case]]:
    """One folder in four, for mutants of the second verifier."""
    return _written(tmp_path_factory.mktemp("many"), 4)


@pytest.fixture(scope="module")
def every_folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Case]]:
    """The conformance suite, by keys that nobody knows."""
    return _written(tmp_path_factory.mktemp("every"), 1)


@pytest.fixture(autouse=True)
def _a_stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPFEDADAMW_KEYS", str(tmp_path / "a stranger's keys"))


@pytest.mark.parametrize(
    "which",
    [
        "folders",
        pytest.param("many_folders", marks=pytest.mark.thorough),
        pytest.param("every_folder", marks=pytest.mark.slow),
    ],
)
def test_both_verifiers_say_of_every_folder_what_it_is(
    which: str, request: pytest.FixtureRequest
) -> None:
    root, cases = request.getfixturevalue(which)
    found = second("folders", [str(root / case.name) for case in cases])
    wrong = []
    for case in cases:
        told = found[str(root / case.name)]
        judgement = verify(root / case.name)
        first = judgement.outcome.value
        judged = None
        if case.claim is not None and (root / case.name / "evidence").is_dir():
            # Every such folder was audited when it was written.
            judged = json.loads((root / case.name / "audit.json").read_bytes())["verdict"]
        due = (case.signatures, case.signatures, case.claim or told["claim"])
        if (
            (told["outcome"], first, told["claim"]) != due
            or told["level"] != judgement.level
            or (judged is not None and judged != VERDICTS[case.claim or ""])
        ):
            fails = [line["what"] for line in told["lines"] if line["state"] == "fails"]
            wrong.append((case, told["outcome"], told["claim"], first, judged, fails))
    assert wrong == []


def test_a_long_spec_is_held_against_the_ledger_as_a_short_one_is(
    folders: tuple[Path, list[Case]], tmp_path: Path
) -> None:
    """A run of 930 columns has more than the 128 KiB that both verifiers read of a spec."""
    run = Path(shutil.copytree(folders[0] / "record", tmp_path / "run"))
    for many, fits in ((1 << 18, True), (1 << 20, False)):
        with (run / "spec.yaml").open("a", encoding="utf-8") as text:
            text.write("# " + "x" * many + "\n")
        (told,) = second("folders", [str(run)]).values()
        whys = [one["why"] for one in told["lines"] if one["file"] == "spec.yaml" and "why" in one]
        assert any("larger" in str(why) for why in whys) is not fits, whys
        parsed = contextlib.nullcontext() if fits else pytest.raises(DocumentError, match="larger")
        with parsed:
            parse_yaml((run / "spec.yaml").read_bytes())


def _times(factor: float, kind: str, name: str) -> Any:
    """One number of the lines of a kind, changed in all of them."""

    def change(run: Path) -> None:
        def lines(entries: list[dict[str, Any]]) -> None:
            for entry in (one for one in entries if one["kind"] == kind):
                entry[name] = type(entry[name])(factor * entry[name])

        rewrite_ledger(run, lines)

    return change


def _promised(before: str, after: str) -> Any:
    def change(run: Path) -> None:
        text = (run / "spec.yaml").read_text("utf-8")
        assert text.count(before) == 1, before
        (run / "spec.yaml").write_text(text.replace(before, after), "utf-8")

    return change


_HEADER = ("delta", "clipping_norm", "noise_multiplier", "expected_batch_size")
_SPEND = ("clipping_norm", "noise_multiplier", "sampling_rate", "expected_batch_size")
_COUNTS = ("rounds", "clients_per_round", "local_steps")
SINGLE_NUMBERS = {
    **{f"header {name}": _times(1.01, "header", name) for name in _HEADER},
    **{f"header {name}": _times(2.0, "header", name) for name in _COUNTS},
    **{f"spend {name}": _times(1.01, "spend", name) for name in _SPEND},
    **{f"spend {name}": _times(2.0, "spend", name) for name in ("records", "steps")},
    "claim delta": _times(1.01, "claim", "delta"),
    "spec delta": _promised("delta: 1.0e-5", "delta: 1.1e-5"),
    "spec noise": _promised("noise_multiplier: 2.0", "noise_multiplier: 2.1"),
    "spec norm": _promised("clipping_norm: 1.0", "clipping_norm: 1.1"),
    "spec rounds": _promised("rounds: 3", "rounds: 4"),
    "spec clients": _promised("clients_per_round: 4", "clients_per_round: 5"),
    "spec batch": _promised("expected_batch_size: 24.0", "expected_batch_size: 25.0"),
}


def test_no_number_of_a_promise_can_be_changed_alone(
    folders: tuple[Path, list[Case]], tmp_path: Path
) -> None:
    """A number that nothing is held against could be anything, and a reader would believe it."""
    given = []
    for name, change in {"nothing": lambda _run: None, **SINGLE_NUMBERS}.items():
        (tmp_path / name).mkdir()
        for file in ("spec.yaml", "ledger.jsonl"):
            shutil.copy(folders[0] / "record" / file, tmp_path / name)
        change(tmp_path / name)
        given.append(
            [(tmp_path / name / file).read_text() for file in ("spec.yaml", "ledger.jsonl")]
        )
    none, *found = second("promises", given)
    assert none == []
    assert [name for name, said in zip(SINGLE_NUMBERS, found, strict=True) if not said] == []


def _other(place: int, **values: Any) -> Any:
    """Other values in the first or the last line of a ledger."""
    return lambda run: rewrite_ledger(run, lambda lines: lines[place].update(values))


def _at(*changes: Any) -> Any:
    return lambda run: [change(run) for change in changes] and None


def _rate(rate: float, stated: bool) -> Any:
    def change(lines: list[dict[str, Any]]) -> None:
        for line in lines:
            if line["kind"] == "spend":
                line.update(sampling_rate=rate, **({"rate_stated": True} if stated else {}))

    return lambda run: rewrite_ledger(run, change)


_ONE_ROUND = _at(_promised("rounds: 3", "rounds: 1"), _other(0, rounds=1))
_BY_CLIENTS = _at(
    _other(0, noise_added_by="clients"),
    lambda run: rewrite_ledger(
        run,
        lambda lines: (
            [one.update(noise_added_by="clients") for one in lines if one["kind"] == "spend"]
            and None
        ),
    ),
)
_DRAWN = _at(
    _promised("client_sampling: poisson", "client_sampling: fixed"),
    _other(0, client_sampling="fixed-size"),
    lambda run: rewrite_ledger(
        run,
        lambda lines: (
            [one.update(sampling="fixed-size") for one in lines if one["kind"] == "spend"] and None
        ),
    ),
)
_DELTA = _at(_other(0, delta=0.4), _other(-1, delta=0.4))
# A base, what is forged in spec and ledger alike, and what must be said first.
PAIRS: dict[str, tuple[str, Any, str]] = {
    "a limit that the spec has not": ("record", _other(0, max_epsilon=9.0), "max_epsilon of spec"),
    "a claim above the limit": (
        "record",
        _at(_promised("max_epsilon: null", "max_epsilon: 0.05"), _other(0, max_epsilon=0.05)),
        "above the max_epsilon of 0.05",
    ),
    "a rate that the spec has not": (
        "record", _at(_other(0, sampling_rate=0.01), _rate(0.01, True)), "sampling rate of spec",
    ),
    "a rate that charges do not call stated": (
        "record",
        _at(_promised("rate: null", "rate: 0.01"), _other(0, sampling_rate=0.01),
            _rate(0.01, False)),
        "whether the rate is stated",
    ),
    "a rate of another size": (
        "record",
        _at(_promised("reference_size: null", "reference_size: 240.0"),
            _other(0, sampling_rate=0.01), _rate(0.01, True)),
        "sampling rate of spec and header: 0.1 here, 0.01 there",
    ),
    "rounds beyond the header's": ("record", _ONE_ROUND, "the header has 1 rounds"),
    "other clients": (
        "record", _other(0, clients=100, records=[200] * 100), "data.clients of spec",
    ),
    "other steps": (
        "record", _promised("local_steps: 3", "local_steps: 30"), "local_steps of spec",
    ),
    "clients drawn otherwise": (
        "record", _other(0, client_sampling="poisson"), "client_sampling of spec",
    ),
    "noise by somebody else": ("client", _BY_CLIENTS, "noise_added_by of spec"),
    "a fixed number of clients": ("client", _DRAWN, "only Poisson draws of clients"),
    "one client published": (
        "client", _at(_promised("delta: 0.001", "delta: 0.4"), _DELTA),
        "one over the number of clients",
    ),
    "a loop's neighbours": ("recorded", _other(0, adjacency="replace-one"), "no accounting under"),
    "a loop's record published": ("recorded", _DELTA, "the records of a client"),
    "a loop's claim at another δ": ("recorded", _other(-1, delta=0.1), "δ of header and claim"),
}  # fmt: skip


def test_no_pair_of_spec_header_and_charges_is_passed_over(
    folders: tuple[Path, list[Case]], tmp_path: Path
) -> None:
    """Each has a third party's ε at the forger's choice, where nothing holds the pair."""
    given = []
    for name, (base, change, _) in {
        **{base: (base, lambda _run: None, "") for base in ("record", "client", "recorded")},
        **PAIRS,
    }.items():
        (tmp_path / name).mkdir()
        for file in ("spec.yaml", "ledger.jsonl"):
            shutil.copy(folders[0] / base / file, tmp_path / name)
        change(tmp_path / name)
        given.append(
            [(tmp_path / name / file).read_text() for file in ("spec.yaml", "ledger.jsonl")]
        )
    found = second("promises", given)
    assert found[:3] == [[]] * 3
    said = {name: (one or [""])[0] for name, one in zip(PAIRS, found[3:], strict=True)}
    assert [(name, one) for name, one in said.items() if PAIRS[name][2] not in one] == []


def _signed_again(
    folder: Path, change: Any = lambda _: None, name: str | None = None, data: bytes = b""
) -> None:
    """The auditor signs public files again, one of them another or one more."""
    path, subjects = folder / "attestation-public.json", {}
    payload = dsse.parse_envelope(path.read_bytes(), path.name).payload
    statement = dsse.parse_statement(payload, dsse.PUBLIC_TYPE, path.name)
    change(statement.predicate)
    if name is not None:
        (folder / name).write_bytes(data)
        subjects[name] = (dsse.SHA256, hashlib.sha256(data).hexdigest())
    statement.subjects.update(subjects)
    key = filing.load_signers(None, None).auditor.private
    path.write_bytes(dsse.seal(dsse.write_statement(statement), key))


def test_public_files_that_their_auditor_signed_say_what_is_public_and_no_more(
    folders: tuple[Path, list[Case]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPFEDADAMW_KEYS", str(folders[0].parent / "keys"))
    good = folders[0] / "record-public"
    report = json.loads((good / "report-public.json").read_text("utf-8"))
    report["guarantee"]["delta"] = 1e-9
    said = "report-public.json: states another guarantee than was signed"
    cases: dict[str, tuple[dict[str, Any], str | None]] = {
        "nothing": ({}, None),
        "an extra": ({"name": "auditor.rotations.json", "data": b"{}"}, None),
        "who took part": (
            {"name": "participants.csv", "data": b"client,rounds\n0,3\n"},
            "attestation-public.json: names participants.csv, which is not public",
        ),
        "another δ": (
            {"name": "report-public.json", "data": json.dumps(report).encode()}, said,
        ),
        "a number that no counter reaches": (
            {"change": lambda predicate: predicate.update(sequence=2**60)},
            "attestation-public.json: has no sequence number",
        ),
    }  # fmt: skip
    for name, (other, _) in cases.items():
        shutil.copytree(good, tmp_path / name)
        _signed_again(tmp_path / name, **other)
    found = second("folders", [str(tmp_path / name) for name in cases])
    for name, (_, fault) in cases.items():
        told = found[str(tmp_path / name)]
        fails = [line["what"] for line in told["lines"] if line["state"] == "fails"]
        assert told["outcome"] == (UNKNOWN if fault is None else BROKEN), (name, fails)
        assert fails[:1] == ([] if fault is None else [fault])
        if fault is not None:
            assert verify(tmp_path / name).outcome.value == BROKEN


@pytest.mark.parametrize(
    "other", [{"delta": 1e-9}, {"view": "third_party", "epsilon": None}, {"epsilon": 0.1}]
)
def test_a_report_of_a_whole_run_leads_with_the_headline_of_its_ledger(
    folders: tuple[Path, list[Case]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    other: dict[str, Any],
) -> None:
    monkeypatch.setenv("DPFEDADAMW_KEYS", str(folders[0].parent / "keys"))
    run = tmp_path / "run"
    shutil.copytree(folders[0] / "record", run)
    lines = [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]
    party = lines[-1]["third_party"]
    if "view" in other:
        other["epsilon"] = party["epsilon"][party["accountant"]]

    def change(report: dict[str, Any]) -> dict[str, Any]:
        report["guarantee"].update(other)
        return report

    _file("report.json", change)(run)
    said = "report.json: states another guarantee than was signed"
    told = second("folders", [str(run)])[str(run)]
    assert [one["what"] for one in told["lines"] if one["state"] == "fails"] == [said]
    problems = [str(one) for one in verify(run).problems]
    assert "report.json: states another guarantee than ledger.jsonl" in problems


@pytest.mark.parametrize("left", [2, 0])
def test_a_claim_whose_evidence_lacks_rounds_is_not_seen(
    folders: tuple[Path, list[Case]], tmp_path: Path, left: int
) -> None:
    """Noise and batches that were left out are not those that have their variance and sizes."""
    run = tmp_path / "run"
    shutil.copytree(folders[0] / "record", run)
    files = sorted((run / "evidence").glob("round-*.npz"))
    for path in files[left:]:
        path.unlink()
    told = second("folders", [str(run)])[str(run)]
    assert told["claim"] == "NOT SEEN"
    said = [line["what"] for line in told["lines"] if line["state"] == "unseen"]
    assert any(f"the evidence of {len(files) - left} rounds is missing" in one for one in said)
    assert not any("of the variance" in line["what"] for line in told["lines"])


@pytest.mark.slow
def test_every_sentence_about_a_folder_is_one_of_the_table(
    every_folder: tuple[Path, list[Case]],
) -> None:
    root, cases = every_folder
    told = (Path(__file__).parents[2] / "docs" / "format.md").read_text("utf-8")
    assert f"writes {len(cases)} folders" in told
    found = second("sentences", [str(root / case.name) for case in cases])
    said = {one for one in found if not re.fullmatch(r"-?\d[\d.e+-]*", one)}
    assert said <= {*texts()}
    assert len(said) > 60


def _spoilt(run: Path, rng: random.Random) -> str:
    """Change one byte, or one field, of one file."""
    path = rng.choice(sorted(one for one in run.rglob("*") if one.is_file()))
    content = bytearray(path.read_bytes())
    at = rng.randrange(len(content))
    kind = rng.choice(("bit", "byte", "cut", "add", "swap", "field"))
    if kind == "bit":
        content[at] ^= 1 << rng.randrange(8)
    elif kind == "byte":
        content[at] = rng.randrange(256)
    elif kind == "cut":
        del content[at]
    elif kind == "add":
        content.insert(at, rng.choice(b' \n="0a'))
    elif kind == "swap":
        other = rng.randrange(len(content))
        content[at], content[other] = content[other], content[at]
    else:
        words = [b"PASS", b"record", b'"epsilon": ', b"sha256", b"1"]
        word = rng.choice(words)
        content = bytearray(bytes(content).replace(word, word[::-1], 1))
    path.write_bytes(content)
    return f"{kind} {path.relative_to(run)} {at}"


def _disagreements(good: Path, folder: Path, seeds: range) -> list[Any]:
    made = {}
    for seed in seeds:
        run = folder / str(seed)
        shutil.copytree(good, run)
        made[str(run)] = _spoilt(run, random.Random(seed))
    found = second("folders", list(made))
    wrong = []
    for path, what in made.items():
        outcomes = (found[path]["outcome"], verify(Path(path)).outcome.value)
        if outcomes not in ((BROKEN, BROKEN), (UNKNOWN, UNKNOWN)):
            wrong.append((what, *outcomes, found[path]["lines"]))
        shutil.rmtree(path)
    return wrong


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seeds", [range(8), range(8, 15)], ids=["few", "more"])
def test_on_small_changes_both_verifiers_agree(
    folders: tuple[Path, list[Case]], tmp_path: Path, seeds: range
) -> None:
    assert _disagreements(folders[0] / "record-archive", tmp_path, seeds) == []


@pytest.mark.slow
def test_on_a_thousand_changes_both_verifiers_agree(
    folders: tuple[Path, list[Case]], tmp_path: Path
) -> None:
    for start in range(1000, 2000, 50):
        for name in ("record-archive", "record-public"):
            some = range(start, start + 25)
            assert _disagreements(folders[0] / name, tmp_path, some) == []


HISTORIES = [
    *(
        [Steps(q, sigma, steps)]
        for q in (0.002, 0.05, 0.4, 1.0)
        for sigma, steps in ((0.8, 50), (2.0, 400))
    ),
    *([Steps(q, sigma, 60, fixed_size=True)] for q in (0.01, 0.3) for sigma in (1.0, 3.0)),
    [Steps(0.1, 0.7, 50), Steps(0.3, 2.0, 20)],
    [Steps(1.0, 0.05, 1)],
]


def test_it_computes_the_epsilon_that_the_auditor_computes() -> None:
    cases = [
        {
            "delta": delta,
            "history": [
                {
                    "rate": one.sampling_rate,
                    "sigma": one.noise_multiplier,
                    "steps": one.steps,
                    "fixed": one.fixed_size,
                }
                for one in history
            ],
        }
        for history in HISTORIES
        for delta in (1e-3, 1e-6)
    ]
    mixtures = [
        {
            "delta": 1e-5,
            "history": [{"rate": 0.3, "sigma": 2.0, "steps": 5, "rounds": 20, "share": share}],
        }
        for share in (0.1, 0.7)
    ]
    due = [budget(history, delta).headline for history in HISTORIES for delta in (1e-3, 1e-6)]
    due += [
        ThirdParty([(Steps(0.3, 2.0, 5), 20)], share, 1e-5).epsilon([20]) for share in (0.1, 0.7)
    ]
    found = [tight for tight, _ in second("epsilons", cases + mixtures)]
    assert found == pytest.approx(due, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("name", ["quickstart", "digits-cnn"])
def test_it_reads_a_spec_as_it_is_written(name: str) -> None:
    spec = specs.load(name)
    text = yamltext.write(spec.to_mapping())
    assert second("specs", [text]) == [json.loads(json.dumps(spec.to_mapping()))]


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**15), 10**15)
    | st.text(max_size=8)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("_part", range(2))
@settings(max_examples=4)
@given(
    values=st.lists(
        st.dictionaries(st.text(max_size=4), VALUES, max_size=4), min_size=20, max_size=40
    )
)
def test_it_spells_json_as_digests_of_the_ledger_have_it(_part: int, values: list[Any]) -> None:
    texts = [json.dumps(value) for value in values]
    assert second("canonical", texts) == [canonical_json(value).decode() for value in values]


NO_STRICT_JSON = [
    '{"a":1,"a":2}',
    '{"a":NaN}',
    '{"a":1e999}',
    '{"a":01}',
    '{"a":"\x01"}',
    "[" * 40 + "]" * 40,
    "{",
    '{"a":1} 2',
]


def test_it_refuses_what_is_no_strict_json() -> None:
    found = second("canonical", NO_STRICT_JSON)
    assert [
        text for text, one in zip(NO_STRICT_JSON, found, strict=True) if "refused" not in one
    ] == []


def test_it_prints_a_loss_as_sentences_do() -> None:
    values = [
        0.0,
        1e-7,
        0.0123,
        0.05,
        0.0999,
        0.1,
        0.5,
        1.0,
        1.001,
        7.081454819547156,
        12.0,
        999.999,
        1000.2,
        123456.7,
    ]
    assert second("printed", values) == [formatting.epsilon(value) for value in values]


def test_the_page_is_made_of_the_verifier_and_allows_nothing_else() -> None:
    text = PAGE.read_text("utf-8")
    assert text == page(), "run: python -m reports.verifier"
    assert "default-src 'none'" in text
    assert not any(
        word in text
        for word in ('http-equiv="refresh', 'src="http', "fetch(", "XMLHttpRequest", "eval(")
    )


@pytest.mark.parametrize(
    ("name", "known", "code"),
    [
        ("record-archive", True, 0),
        ("record-archive", False, 3),
        ("changed-spec.yaml", True, 1),
        ("third-party-halved", True, 1),
    ],
)
def test_the_exit_code_says_whether_all_holds_and_whose_it_is(
    folders: tuple[Path, list[Case]], name: str, known: bool, code: int
) -> None:
    """A program that goes on after 0 must not go on with a stranger's run, or a false claim."""
    assert NODE is not None
    keys = ("--trainer-key", folders[0] / "record" / "trainer.pub") if known else ()
    keys += ("--auditor-key", folders[0] / "record" / "auditor.pub") if known else ()
    program = PAGE.with_name("verify.mjs")
    done = subprocess.run(
        [NODE, program, folders[0] / name, *keys], capture_output=True, check=False
    )
    assert done.returncode == code, done.stdout.decode()[-2000:]


def test_a_key_that_is_not_the_files_is_named_with_its_file(
    folders: tuple[Path, list[Case]],
) -> None:
    assert NODE is not None
    run, program = folders[0] / "record-archive", PAGE.with_name("verify.mjs")
    for role, other in (("trainer", "auditor"), ("auditor", "trainer")):
        keys = (f"--{role}-key", run / f"{other}.pub")
        done = subprocess.run(
            [NODE, program, run, *keys, "--json"], capture_output=True, check=False
        )
        fails = [one["file"] for one in json.loads(done.stdout)["lines"] if one["state"] == "fails"]
        assert (done.returncode, f"{role}.pub" in fails) == (1, True)


def test_a_wrong_call_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    assert NODE is not None
    program = str(PAGE.with_name("verify.mjs"))
    for arguments in ([], [str(tmp_path / "none")], [str(tmp_path), "--trainer-key", "none.pub"]):
        done = subprocess.run(
            [NODE, program, *arguments], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done
        assert done.stderr.startswith("error: ")


def _told(folder: Path, *options: str | Path) -> tuple[int, dict[str, Any]]:
    """Exit code and JSON of verify.mjs."""
    assert NODE is not None
    program = PAGE.with_name("verify.mjs")
    done = subprocess.run(
        [NODE, program, folder, *options, "--json"], capture_output=True, text=True, check=False
    )
    return done.returncode, json.loads(done.stdout)


def test_the_ledger_of_a_gate_is_judged_by_its_own_key_alone(
    folders: tuple[Path, list[Case]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPFEDADAMW_KEYS", str(tmp_path / "keys"))
    ledger = begun(tmp_path / "gate")
    gate, key = ledger.parent, ("--gate-key", ledger / "gate.pub")
    code, found = _told(gate, *key)
    assert (code, found["outcome"], found["claim"]) == (0, "ALL HOLD", "AGREES")
    unseen = [one["what"] for one in found["lines"] if one["state"] == "unseen"]
    assert any("no part of the gate" in one and "gate.yaml" in one for one in unseen)
    for role in ("trainer", "auditor"):
        known = (f"--{role}-key", folders[0] / "record" / f"{role}.pub")
        code, found = _told(gate, *key, *known)
        assert (code, found["outcome"]) == (1, BROKEN)
    (ledger / "ledger.jsonl").unlink()
    assert _told(gate, *key)[1]["outcome"] == BROKEN


@pytest.mark.parametrize(
    "name", ["spec.yaml", "audit.json", "trainer.pub", "attestation.json", "ledger.jsonl"]
)
def test_a_gate_in_the_folder_of_a_run_makes_it_no_gate(
    folders: tuple[Path, list[Case]], tmp_path: Path, name: str
) -> None:
    """One file of a run is enough: what was taken out of a run does not make it another thing."""
    (tmp_path / "ledger").mkdir()
    (tmp_path / "ledger" / "head.json").write_text("{}")
    shutil.copy(folders[0] / "record" / name, tmp_path)
    code, found = _told(tmp_path)
    fails = {one["file"] for one in found["lines"] if one["state"] == "fails"}
    assert (code, found["outcome"], "gate.pub" in fails) == (1, BROKEN, False)


def _cut_off(text: str, folder: Path) -> Path:
    """A run whose second round was finished, lost with its state, and run again; it is signed."""

    def stop(result: Any, _evaluation: Any) -> None:
        if result.completed == 2:
            raise InterruptedError

    training = begin(specs.loads(text), folder)
    with contextlib.suppress(InterruptedError):
        engine_run.train(training, on_round=stop)
    run = training.run
    for state in (run.checkpoint / "state-00002.safetensors", run.evidence / state_file(1)):
        if state.exists():
            state.write_bytes(b"torn")
    again = setup.resume(run, torch.device("cpu"))
    with again.lock:
        engine_run.train(again, before_claim=probed)
    filing.attest_training(run, filing.load_signers(None, None))
    return run.path


@pytest.mark.parametrize("text", [_spec(PRIVATE, clients=2), _PEOPLE], ids=["records", "people"])
def test_a_round_that_is_run_again_costs_twice_against_a_third_party(
    text: str, tmp_path: Path
) -> None:
    """What came of it first was broadcast, or was in the public metrics, before it was lost."""
    path = _cut_off(text, tmp_path)
    lines = [json.loads(line) for line in (path / "ledger.jsonl").read_text().splitlines()]
    assert [one["round"] for one in lines if one["kind"] == "round"] == [0, 1, 1, 2]

    def said() -> tuple[str, str, str]:
        audited = verdicts(filing.audit(open_existing(path)).to_json())
        told = second("folders", [str(path)])[str(path)]
        return audited["views"], audited["accounting"], told["claim"]

    assert said() == ("PASS", "PASS", "AGREES")
    plan = prepare(specs.loads(text), torch.device("cpu")).plan
    planned = plan.unit.expected_claim(plan, None)["third_party"]
    stated = lines[-1]["third_party"]
    assert stated["epsilon"]["pld"] > 1.05 * planned["epsilon"]["pld"]

    def as_planned(entries: list[dict[str, Any]]) -> None:
        entries[-1]["third_party"] = planned

    rewrite_ledger(path, as_planned)
    filing.attest_training(open_existing(path), filing.load_signers(None, None))
    assert said() == ("FAIL", "PASS", "CONTRADICTED")
