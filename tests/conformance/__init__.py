"""Run directories, good and bad, each with what a verifier of the published format must say of it.

``python -m tests.conformance FOLDER`` writes them anywhere, with ``cases.json``: for each folder
what must come of its signatures and of its claim, and why. A verifier in any language can be held
to that. The base runs are trained from fixed seeds; times, keys and identifiers differ from one
writing to the next, and no expectation rests on them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from dpfedadamw.filing import after_training as filing
from dpfedadamw.rundir import open_existing
from reports.content import parts
from reports.signatures import dsse
from reports.signatures.keys import public_pem
from tests.audit.synthetic_run import rewrite_ledger, rewrite_round
from tests.dpfedadamw.extensions.recorders import gradient_loop
from tests.runs import CLIENT_LEVEL, NOT_PRIVATE, PICTURE, PRIVATE, SMALL, call
from tests.tables import LEARNING, table

Edit = Callable[[Path], None]
Lines = list[dict[str, Any]]

HOLDS, UNKNOWN, BROKEN = "ALL HOLD", "INTACT, SIGNER UNKNOWN", "NOT VALID"
AGREES, CONTRADICTED, NO_CLAIM, NOT_SEEN = "AGREES", "CONTRADICTED", "NONE", "NOT SEEN"


@dataclass(frozen=True)
class Case:
    """A folder and what must be said of it.

    Attributes:
        name: Of the folder.
        signatures: What must come of its signatures, by keys that the reader was not given.
        claim: What must come of its claim, for a verifier that recomputes ε from the ledger and
            looks at noise and batches where the evidence is. None where no claim can be read.
        why: The reason.
    """

    name: str
    signatures: str
    claim: str | None
    why: str


def _spec(privacy: str, algorithm: str = "dp-fedavg", rounds: int = 3, clients: int = 4) -> str:
    return SMALL.format(
        algorithm=algorithm,
        rounds=rounds,
        clients_per_round=clients,
        privacy=privacy,
        mode="reproducible",
        seed=", seed: 3",
    )


_PEOPLE = """
version: 1
name: people
data:
  dataset: visits
  person: patient_id
  clients: 8
  partition: {kind: column, column: hospital}
model: {name: mlp, hidden: []}
algorithm: {name: dp-fedavg, learning_rate: 0.1}
federation: {rounds: 3, clients_per_round: 8, local_steps: 2, clients_per_person: 3}
privacy:
  unit: person
  records_per_person: 4
  clipping_norm: 1.0
  noise_multiplier: 2.0
  delta: 1.0e-5
  sampling: {kind: poisson, expected_batch_size: 60}
randomness: {mode: reproducible, seed: 3}
"""
_LEARNT = LEARNING.format(path="TABLE")
_FIXED = PRIVATE.replace("kind: poisson, expected_batch_size", "kind: fixed, batch_size")
_BASES: dict[str, tuple[str, str, tuple[str, ...], str]] = {
    "record": (_spec(PRIVATE), AGREES, (), "a correct run, four of five clients in each round"),
    "every-client": (_spec(PRIVATE, clients=5), AGREES, (), "a correct run, all clients"),
    "two-queries": (
        _spec(PRIVATE, "dp-fafed"),
        AGREES,
        (),
        "two noised answers on each batch: one query of σ/√2",
    ),
    "moments": (_spec(PRIVATE, "dp-fedadamw"), AGREES, (), "a correct run of DP-FedAdamW"),
    "fixed-size": (
        _spec(_FIXED),
        AGREES,
        ("privacy.adjacency=replace-one",),
        "batches of a fixed size, neighbours by replacing a record: the noise counts half",
    ),
    "shuffled": (
        _spec(_FIXED.replace("kind: fixed", "kind: shuffled")),
        AGREES,
        ("privacy.adjacency=replace-one",),
        "epochs of shuffled records: nothing gained by chance",
    ),
    "stated-rate": (
        _spec(PRIVATE),
        AGREES,
        ("privacy.sampling.rate=0.1",),
        "a rate that the spec states",
    ),
    "clients-by-chance": (
        _spec(PRIVATE),
        AGREES,
        ("federation.client_sampling=poisson",),
        "each client takes part by itself, so a round may have any number",
    ),
    "limited": (
        _spec(PRIVATE, rounds=6),
        AGREES,
        ("federation.max_epsilon=1.2",),
        "a limit on ε that ends the run early",
    ),
    "adaptive": (
        _spec(PRIVATE.replace("2.0", "2.0, target_epsilon: 2.5", 1), "ali-dpfl"),
        NOT_SEEN,
        (),
        "steps by a rule: a verifier that has no accounting for it must say so",
    ),
    "client": (
        _spec(CLIENT_LEVEL),
        AGREES,
        ("federation.client_sampling=poisson",),
        "whole clients; the server adds the noise, so no ε holds against it",
    ),
    "client-own-noise": (
        _spec(CLIENT_LEVEL),
        AGREES,
        ("federation.client_sampling=poisson", "privacy.noise_added_by=clients"),
        "whole clients, each adds its share of the noise: against the server without amplification",
    ),
    "people": (
        _PEOPLE,
        AGREES,
        (),
        "people with several records, at up to three clients, whose queries compose",
    ),
    "learnt-bounds": (
        _LEARNT,
        AGREES,
        ("algorithm={name: dp-fedavg, learning_rate: 0.1}",),
        "bounds of two columns are learnt from noised histograms, which compose with the rounds",
    ),
    "no-privacy": (_spec(NOT_PRIVATE, "fedavg"), NO_CLAIM, (), "no privacy is claimed"),
}


def write(folder: Path, every: int = 1) -> list[Case]:
    """Write the folders below one, with ``cases.json``, and return what must be said of each.

    Args:
        folder: Where.
        every: Write one in so many of the changed and of the forged, three times as many of the
            statements that an auditor signed otherwise, and of the others those that they are made
            of.
    """
    folder.mkdir(parents=True, exist_ok=True)
    changes, forgeries = (dict([*all_.items()][::every]) for all_ in (_CHANGES, _FORGERIES))
    bases = {"record", "every-client", "client", *(base for base, _, _ in forgeries.values())}
    if every == 1:
        bases |= {*_BASES}
    # No expectation rests on the reports' pictures, which take most of the time and the room.
    with patch.object(parts, "draw", lambda *_: PICTURE):
        cases = [
            *_good(folder, bases),
            *_changed(folder, changes),
            *_said_otherwise(folder, dict([*_STATEMENTS.items()][:: -(-every // 3)])),
            *_signed_again(folder, forgeries),
        ]
    text = json.dumps([asdict(case) for case in cases], indent=1, ensure_ascii=False)
    (folder / "cases.json").write_text(f"{text}\n", "utf-8")
    return cases


def _good(folder: Path, bases: set[str]) -> Iterator[Case]:
    for name in [name for name in _BASES if name in bases]:
        text, claim, changes, why = _BASES[name]
        path = folder / f"{name}.yaml"
        path.write_text(text.replace("path: TABLE", f"path: {table()}"), "utf-8")
        options = [part for change in changes for part in ("--set", change)]
        made = folder / "made"
        if call("run", str(path), "--out", str(made), "--json", *options) != 0:
            raise AssertionError(f"the base run {name} does not pass its audit")
        path.unlink()
        (run,) = (one for one in made.iterdir() if not one.is_symlink())
        run.rename(folder / name)
        shutil.rmtree(made)
        yield Case(name, UNKNOWN, claim, why)
    recorded = gradient_loop.train(folder / "recorded", seed=3)
    call("sign", str(recorded), "--role", "trainer")
    if call("audit", str(recorded), "--write") != 0:
        raise AssertionError("the recorded loop does not pass its audit")
    yield Case("recorded", UNKNOWN, AGREES, "a loop of another program, charged step by step")
    record = folder / "record"
    call("report", str(record), "--audience", "public")
    for audience, claim, why in (
        ("public", None, "the public files alone: what they claim is the auditor's word"),
        ("archive", AGREES, "all but the evidence: ε still follows from the ledger"),
    ):
        target = folder / f"record-{audience}"
        call("bundle", str(record), "--audience", audience, "--output", str(target))
        yield Case(target.name, UNKNOWN, claim, why)


# ------------------------------------------------------------------ changed after it was signed


def _flip(name: str, at: float = 0.5) -> Edit:
    """Change one bit of a file, at a share of its length."""

    def edit(run: Path) -> None:
        content = bytearray((run / name).read_bytes())
        content[int(len(content) * at)] ^= 1
        (run / name).write_bytes(content)

    return edit


def _remove(name: str) -> Edit:
    return lambda run: (run / name).unlink()


def _text(name: str, before: str, after: str) -> Edit:
    def edit(run: Path) -> None:
        content = (run / name).read_text("utf-8")
        assert before in content, (name, before)
        (run / name).write_text(content.replace(before, after, 1), "utf-8")

    return edit


def _place(name: str, content: bytes = b"{}") -> Edit:
    def edit(run: Path) -> None:
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_bytes(content)

    return edit


def _folder(name: str) -> Edit:
    """An empty folder, in the place of what lies there."""

    def edit(run: Path) -> None:
        shutil.rmtree(run / name, ignore_errors=True)
        (run / name).mkdir()

    return edit


def _a_file_for_evidence(run: Path) -> None:
    shutil.rmtree(run / "evidence")
    _place("evidence")(run)


def _with_a_gate(run: Path) -> None:
    """The ledger of a gate that the forger began; a file that was trained is another."""
    for name in ("ledger.jsonl", "gate.pub"):
        _place(f"ledger/{name}")(run)
    statement = dsse.Statement(
        {"ledger.jsonl": (dsse.SHA256, hashlib.sha256(b"{}").hexdigest())},
        "urn:dpfedadamw:attestation:gate:v1",
        {"bytes": 2, "charges": 0},
    )
    key = filing.load_signers(None, None).auditor
    _place("ledger/gate.pub", public_pem(key.public))(run)
    _place("ledger/head.json", dsse.seal(dsse.write_statement(statement), key.private))(run)
    _flip("model.safetensors")(run)


def _link(run: Path) -> None:
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").symlink_to(Path("..", "record", "metrics.jsonl"))


def _other_form(run: Path) -> None:
    """The signature (r, n - s), which holds as well."""
    order = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
    path = run / "attestation.json"
    envelope = json.loads(path.read_text("utf-8"))
    der = base64.b64decode(envelope["signatures"][0]["sig"])
    r = der[4 : 4 + der[3]]
    s = order - int.from_bytes(der[6 + len(r) :], "big")
    parts = b"".join(
        bytes([2, len(part)]) + part for part in (r, s.to_bytes((s.bit_length() + 8) // 8, "big"))
    )
    other = base64.b64encode(bytes([0x30, len(parts)]) + parts).decode()
    _text("attestation.json", envelope["signatures"][0]["sig"], other)(run)


def _other_key(run: Path) -> None:
    """The keyid of the other signer."""
    first, second = (
        json.loads((run / name).read_text("utf-8"))["signatures"][0]["keyid"]
        for name in ("attestation.json", "training.attestation.json")
    )
    _text("attestation.json", first, second)(run)


def _of_another(name: str) -> Edit:
    return lambda run: shutil.copyfile(run.parent / "every-client" / name, run / name) and None


def _swapped_envelopes(run: Path) -> None:
    first, second = run / "training.attestation.json", run / "attestation.json"
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)


_FILES = (
    "spec.yaml",
    "ledger.jsonl",
    "metrics.jsonl",
    "model.safetensors",
    "model.json",
    "audit.json",
    "report.json",
    "report.pdf",
    "report.html",
    "VERIFY.md",
    "trainer.pub",
    "auditor.pub",
    "training.attestation.json",
    "attestation.json",
    "evidence/salt",
    "evidence/round-00001.npz",
)
_NEEDED = (
    "spec.yaml",
    "ledger.jsonl",
    "model.safetensors",
    "audit.json",
    "report.json",
    "report.pdf",
    "trainer.pub",
    "attestation.json",
)
_CHANGES: dict[str, tuple[Edit, str]] = {
    **{f"changed-{name}": (_flip(name), f"one bit of {name} is another") for name in _FILES},
    **{f"without-{name}": (_remove(name), f"{name} is missing") for name in _NEEDED},
    "beside": (_place("notes.txt"), "a file lies there that nobody signed"),
    "beside-evidence": (_place("evidence/more.json"), "evidence that nobody signed"),
    "with-a-gate": (_with_a_gate, "the ledger of a gate lies in a run that was changed"),
    "link": (_link, "a file is a link, which is not followed"),
    "unfinished": (_place(".unfinished/report.pdf"), "a write was cut off"),
    "unfinished-file": (_place(".unfinished"), "a file in the place of what is not whole yet"),
    "lock-too-long": (
        _place(".unfinished/lock", b"1" * 1025),
        "a lock longer than one says who holds it",
    ),
    "evidence-empty": (_folder("evidence"), "the folder of the evidence, and nothing in it"),
    "evidence-file": (_a_file_for_evidence, "a file in the place of the evidence"),
    "checkpoint-empty": (_folder("checkpoint"), "an empty checkpoint"),
    "checkpoint": (_place("checkpoint/state.json"), "a finished run has no checkpoint"),
    "high-s": (_other_form, "the signature in its other form, which is not made"),
    "layout": (
        _text("attestation.json", '"payloadType"', ' "payloadType"'),
        "an envelope is laid out otherwise",
    ),
    "key-id": (_other_key, "an envelope names another key than signed it"),
    "envelopes-swapped": (_swapped_envelopes, "each envelope under the other's name"),
    "ledger-of-another": (_of_another("ledger.jsonl"), "the ledger of another run"),
    "attestation-of-another": (
        _of_another("attestation.json"),
        "the auditor's word on another run",
    ),
    "report-of-another": (_of_another("report.json"), "the report of another run"),
    "twice-in-json": (
        _text("audit.json", '"format": 1', '"format": 2,\n  "format": 1'),
        "a key twice",
    ),
    "cut-ledger": (
        lambda run: os.truncate(run / "ledger.jsonl", (run / "ledger.jsonl").stat().st_size - 1),
        "the last line of the ledger lacks its end",
    ),
}


def _changed(folder: Path, changes: dict[str, tuple[Edit, str]]) -> Iterator[Case]:
    for name, (edit, why) in changes.items():
        run = folder / name.replace("/", "-")
        # Its claim, which is not looked at here, is the quickest to compute again.
        shutil.copytree(folder / "client", run)
        edit(run)
        yield Case(run.name, BROKEN, None, why)


# ---------------------------------------------------- forged by whoever holds both keys, and signed


def _ledger(change: Callable[[Lines], None]) -> Edit:
    return lambda run: rewrite_ledger(run, change)


def _fields(kind: str, **values: Any) -> Edit:
    """Other values in all lines of one kind; a function gets the old value."""

    def change(lines: Lines) -> None:
        for line in lines:
            if line["kind"] == kind:
                for name, value in values.items():
                    line[name] = value(line[name]) if callable(value) else value

    return _ledger(change)


def _claims(factor: float, *views: str) -> Edit:
    """Other ε in the claim."""

    def change(lines: Lines) -> None:
        for view in views:
            stated = lines[-1][view]
            for part in (stated, *stated.get("clients", [])):
                part["epsilon"] = {name: factor * one for name, one in part["epsilon"].items()}

    return _ledger(change)


def _without_histograms(lines: Lines) -> None:
    lines[:] = [line for line in lines if line["kind"] != "query"]


def _with_more_noise(lines: Lines) -> None:
    lines[0]["column_queries"]["noise_multiplier"] = 60.0
    for line in lines:
        if line["kind"] == "query":
            line["noise_multiplier"] = 60.0


def _without_a_charge(lines: Lines) -> None:
    del lines[next(place for place, line in enumerate(lines) if line["kind"] == "spend")]


def _with_a_cheaper_charge(lines: Lines) -> None:
    charge = next(line for line in lines if line["kind"] == "spend")
    charge["noise_multiplier"] *= 50


def _rounds_swapped(lines: Lines) -> None:
    first, second = [place for place, line in enumerate(lines) if line["kind"] == "round"][:2]
    lines[first], lines[second] = lines[second], lines[first]


def _arrays(change: Callable[[dict[str, Any]], None]) -> Edit:
    def edit(run: Path) -> None:
        for path in sorted((run / "evidence").glob("round-*.npz")):
            rewrite_round(run, int(path.stem.partition("-")[2]), change)

    return edit


def _scaled(factor: float) -> Callable[[dict[str, Any]], None]:
    def change(arrays: dict[str, Any]) -> None:
        arrays["noise_sum_squares"] *= factor**2
        for name in ("noise_sample", "noise_largest"):
            arrays[name] = (arrays[name] * factor).astype(np.float32)

    return change


def _repeated(arrays: dict[str, Any]) -> None:
    arrays["noise_sample"][:] = arrays["noise_sample"][:1, :1]


def _repeated_once(arrays: dict[str, Any]) -> None:
    arrays["noise_sample"][0, 1] = arrays["noise_sample"][0, 0]


def _cut_batches(arrays: dict[str, Any]) -> None:
    arrays["batch_size"] = np.minimum(arrays["batch_size"], 20)


_FORGERIES: dict[str, tuple[str, Edit, str]] = {
    "third-party-halved": (
        "record",
        _claims(0.5, "third_party"),
        "the public ε is half of what it is",
    ),
    "less-noise-charged": (
        "record",
        _fields("spend", noise_multiplier=1.0),
        "charges of less noise than header and spec",
    ),
    "less-noise-in-ledger": (
        "record",
        lambda run: (
            [_fields(kind, noise_multiplier=1.0)(run) for kind in ("header", "spend")] and None
        ),
        "header and charges of less noise than the spec",
    ),
    "claim-halved": (
        "record",
        _claims(0.5, "server", "server_worst_case", "third_party"),
        "half of ε is claimed",
    ),
    "claim-rounded": (
        "record",
        _claims(0.995, "server", "server_worst_case"),
        "half a percent of ε is left out",
    ),
    "claim-doubled": (
        "record",
        _claims(2.0, "server", "server_worst_case"),
        "an ε that no charge explains",
    ),
    "client-claim-halved": ("client", _claims(0.5, "third_party"), "half of ε is claimed"),
    "own-noise-halved": (
        "client-own-noise",
        _claims(0.5, "server"),
        "half of ε against the server",
    ),
    "server-promised": (
        "client",
        _ledger(lambda lines: lines[-1]["server"].update(epsilon={"pld": 1.0}, accountant="pld")),
        "an ε against a server that adds the noise itself",
    ),
    "one-query-charged": (
        "two-queries",
        _fields("spend", queries_per_step=1),
        "two answers charged as one",
    ),
    "replaced-as-added": (
        "fixed-size",
        _fields("header", adjacency="add-remove"),
        "a fixed size has no accounting there",
    ),
    "fixed-as-poisson": (
        "fixed-size",
        lambda run: (
            [_fields(kind, sampling="poisson")(run) for kind in ("header", "spend")] and None
        ),
        "batches of a fixed size billed as Poisson draws",
    ),
    "lower-rate": (
        "record",
        _fields("spend", sampling_rate=lambda rate: rate / 2),
        "charges at half the rate",
    ),
    "fewer-steps": (
        "record",
        _fields("spend", steps=1),
        "charges of one step where three were made",
    ),
    "smaller-clients": (
        "record",
        _fields("spend", records=lambda records: 4 * records),
        "charges of four times the records",
    ),
    "other-norm": (
        "record",
        _fields("spend", clipping_norm=0.5),
        "charges at another clipping norm",
    ),
    "large-delta": (
        "record",
        _fields("header", delta=0.5),
        "δ is not below one over a client's records",
    ),
    "other-rounds": (
        "every-client",
        _fields("header", rounds=2),
        "more rounds than the header says",
    ),
    "charge-removed": (
        "record",
        _ledger(_without_a_charge),
        "a client took part and was not charged",
    ),
    "rounds-swapped": ("record", _ledger(_rounds_swapped), "rounds in another order"),
    "recorded-step-unpaid": (
        "recorded",
        _ledger(_without_a_charge),
        "a recorded step that was not charged",
    ),
    "recorded-step-cheaper": (
        "recorded",
        _ledger(_with_a_cheaper_charge),
        "a recorded step charged with more noise than the others of its file",
    ),
    "recorded-more-records": (
        "recorded",
        _fields("spend", records=400),
        "a recorded loop charged for twice the records",
    ),
    "recorded-claim-halved": ("recorded", _claims(0.5, "server"), "half of what its steps cost"),
    "recorded-noise-scaled": ("recorded", _arrays(_scaled(0.8)), "a fifth less noise than charged"),
    "unknown-kind": (
        "record",
        _ledger(lambda lines: lines.insert(1, {"kind": "constructor"})),
        "a line of a kind that there is not",
    ),
    "second-header": (
        "record",
        _ledger(lambda lines: lines.insert(1, dict(lines[0]))),
        "two headers",
    ),
    "chain-broken": (
        "record",
        _text("ledger.jsonl", '"attempt":1', '"attempt":2'),
        "a line was changed in the chain",
    ),
    "not-canonical": (
        "record",
        _text("ledger.jsonl", '{"accountant"', '{ "accountant"'),
        "a line in another spelling",
    ),
    "histograms-not-charged": (
        "learnt-bounds",
        _ledger(_without_histograms),
        "bounds are learnt, and no client is charged for its histograms",
    ),
    "histograms-with-more-noise": (
        "learnt-bounds",
        _ledger(_with_more_noise),
        "histograms charged with ten times the noise of the spec",
    ),
    "histograms-left-out": (
        "learnt-bounds",
        _claims(0.9, "server", "server_worst_case", "third_party"),
        "the claim is about that of the rounds alone",
    ),
    "client-rate": (
        "client",
        _fields("spend", sampling_rate=0.4),
        "charges at half the rate of clients",
    ),
    "no-claim": (
        "record",
        _ledger(lambda lines: lines.pop() and None),
        "a ledger without its claim",
    ),
    "noise-scaled": ("every-client", _arrays(_scaled(0.8)), "a fifth less noise than charged"),
    "noise-silent": ("every-client", _arrays(_scaled(1e-3)), "hardly any noise"),
    "noise-repeated": ("every-client", _arrays(_repeated), "one noise for all answers"),
    "noise-repeated-once": (
        "every-client",
        lambda run: rewrite_round(run, 0, _repeated_once),
        "two answers of one round with the same noise",
    ),
    "batches-cut": ("every-client", _arrays(_cut_batches), "no batch is larger than twenty"),
}
# Of which no claim is left to look at.
_UNREADABLE = {"no-claim"}


def _sealed(
    change: Callable[[dict[str, Any]], None], subjects: dict[str, tuple[str, str]] | None = None
) -> Edit:
    """The auditor signs another statement about the same files, or others' digests."""

    def edit(run: Path) -> None:
        path = run / "attestation.json"
        payload = dsse.parse_envelope(path.read_bytes(), path.name).payload
        statement = dsse.parse_statement(payload, dsse.RUN_TYPE, path.name)
        change(statement.predicate)
        statement.subjects.update(subjects or {})
        key = filing.load_signers(None, None).auditor.private
        path.write_bytes(dsse.seal(dsse.write_statement(statement), key))

    return edit


def _less_in_words(said: dict[str, Any]) -> None:
    said["claims"]["statement"] = said["claims"]["statement"].replace("(ε = ", "(ε = 0.")


def _more_in_words(said: dict[str, Any]) -> None:
    said["claims"]["statement"] += " This model reveals nothing: epsilon is 0.01."


def _nothing_claimed(said: dict[str, Any]) -> None:
    said["claims"]["views"] = []
    said["claims"]["statement"] = "This model reveals nothing: epsilon is 0.01."


def _file(name: str, change: Callable[[Any], Any]) -> Edit:
    """The auditor signs another JSON file."""

    def edit(run: Path) -> None:
        path = run / name
        changed = change(json.loads(path.read_text("utf-8")))
        path.write_text(json.dumps(changed), "utf-8")
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        _sealed(lambda _: None, {name: (dsse.SHA256, digest)})(run)

    return edit


def _less_in_the_report(report: dict[str, Any]) -> Any:
    report["guarantee"]["epsilon"] /= 2
    return report


def _a_failed_check(audit: dict[str, Any]) -> Any:
    audit["checks"][-1]["verdict"] = "FAIL"
    return audit


def _erased(record: bytes) -> Edit:
    """The evidence is gone, and the auditor signs a record of that."""

    def edit(run: Path) -> None:
        shutil.rmtree(run / "evidence")
        _place("erasure.json", record)(run)
        digest = hashlib.sha256(record).hexdigest()
        _sealed(lambda _: None, {"erasure.json": (dsse.SHA256, digest)})(run)

    return edit


def _payload(change: Callable[[Any], Any]) -> Edit:
    """The auditor signs another statement, which may be none."""

    def edit(run: Path) -> None:
        path = run / "attestation.json"
        payload = json.loads(dsse.parse_envelope(path.read_bytes(), path.name).payload)
        key = filing.load_signers(None, None).auditor.private
        path.write_bytes(dsse.seal(json.dumps(change(payload)).encode(), key))

    return edit


_DIGEST = (dsse.SHA256, "ab" * 32)
# Statements of which the claim holds: what a reader must let pass.
_LET_PASS = {"lock-alone", "erased", "said-nothing-of-re-execution"}
# What an auditor signs that the files do not say; and, last, what a reader must let pass.
_STATEMENTS: dict[str, tuple[Edit, str]] = {
    "said-another-run": (_sealed(lambda said: said.update(run="another")), "of another run"),
    "said-another-verdict": (
        _sealed(lambda said: said.update(verdict="NOT VERIFIED")),
        "another verdict than audit.json",
    ),
    "said-another-role": (_sealed(lambda said: said.update(role="trainer")), "in another role"),
    "said-less": (
        _sealed(lambda said: said["claims"]["views"][0].update(epsilon=0.1)),
        "a smaller ε than the ledger's claim",
    ),
    "said-another-delta": (
        _sealed(lambda said: said["claims"]["views"][0].update(delta=1e-7)),
        "a smaller δ than the ledger's claim",
    ),
    "said-another-adjacency": (
        _sealed(lambda said: said["claims"].update(adjacency="replace-one")),
        "other neighbours than the ledger's",
    ),
    "said-another-randomness": (
        _sealed(lambda said: said["claims"].update(randomness="release")),
        "other randomness than the ledger's",
    ),
    "said-less-in-words": (_sealed(_less_in_words), "a smaller ε in its sentence alone"),
    "said-more-in-words": (_sealed(_more_in_words), "another ε at the end of its sentence"),
    "said-nothing-of-epsilon": (
        _sealed(_nothing_claimed),
        "no view, and an ε in its sentence alone",
    ),
    "said-one-view": (
        _sealed(lambda said: said["claims"]["views"].pop(0) and None),
        "not the ε against the server",
    ),
    "said-less-in-the-report": (
        _file("report.json", _less_in_the_report),
        "a smaller ε in the report's data",
    ),
    "said-pass-over-a-fail": (
        _file("audit.json", _a_failed_check),
        "PASS, and one of its checks failed",
    ),
    "said-no-report": (_file("report.json", lambda _: None), "a report that is null"),
    "said-no-audit": (_file("audit.json", lambda _: None), "an audit that is null"),
    "said-no-number": (_sealed(lambda said: said.pop("sequence") and None), "no sequence number"),
    "said-re-executed": (
        _sealed(lambda said: said["reexecution"].update(agrees=True)),
        "a re-execution that agrees, and there was none",
    ),
    "said-challenged": (
        _sealed(lambda said: said["reexecution"].update(public_coin=True)),
        "a challenge that the ledger does not name",
    ),
    "said-null": (_payload(lambda _: None), "a payload that is null"),
    "said-no-predicate": (
        _payload(lambda told: told | {"predicate": [None]}),
        "a list in the place of what is said",
    ),
    "said-no-subject": (
        _payload(lambda told: told | {"subject": [None]}),
        "a subject that is null",
    ),
    "said-too-many-files": (
        _sealed(lambda _: None, {f"{number}": _DIGEST for number in range(100_000)}),
        "more files than any run has",
    ),
    "erased-unreadable": (_erased(b"{"), "a record of the erasure that is no JSON"),
    "erased": (_erased(b'{"format": 1, "erased": "2026-11-22T12:00:00Z"}'), "evidence erased"),
    "said-nothing-of-re-execution": (
        _sealed(lambda said: said.pop("reexecution") and None),
        "nothing of a re-execution, as earlier versions did not",
    ),
    "lock-alone": (
        _place(".unfinished/lock", b"1" * 1024),
        "the lock of a command that was killed, and nothing else: all that is signed is whole",
    ),
}


def _said_otherwise(folder: Path, statements: dict[str, tuple[Edit, str]]) -> Iterator[Case]:
    for name, (edit, why) in statements.items():
        shutil.copytree(folder / "record", folder / name)
        edit(folder / name)
        holds = name in _LET_PASS
        yield Case(name, UNKNOWN if holds else BROKEN, AGREES if holds else None, why)


def _signed_again(folder: Path, forgeries: dict[str, tuple[str, Edit, str]]) -> Iterator[Case]:
    signers = filing.load_signers(None, None)
    for name, (base, edit, why) in forgeries.items():
        path = folder / name
        shutil.copytree(folder / base, path)
        edit(path)
        run = open_existing(path)
        for stale in path.glob("report*"):
            stale.unlink()
        filing.attest_training(run, signers)
        filing.file_report(run, filing.audit(run), signers.auditor)
        broken = name in _UNREADABLE
        yield Case(name, BROKEN if broken else UNKNOWN, None if broken else CONTRADICTED, why)
