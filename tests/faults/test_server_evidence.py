"""What is kept of a server's steps where not every participation is kept, and what it shows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import audit.reading.exchanges
from audit.checks.client.uploads import CLIENT_UPLOADS
from audit.checks.record.uploads import UPLOADS, share_judged
from audit.errors import AuditError
from audit.reading.bundle import open_bundle
from audit.replay.participation import Tally
from audit.replay.rounds import ANOTHER_KEY
from audit.verdict import Verdict
from dpfedadamw.evidence import exchanges, servers
from dpfedadamw.filing import after_training
from tests.audit.synthetic_run import rewrite_ledger, save
from tests.dpfedadamw.run.test_adaptive_runs import cut_off_and_resumed
from tests.faults.fault import findings_of
from tests.faults.server_faults import GROUP
from tests.runs import attest, failing, judged, small_spec, train

# A whole participation has 36 kB at most, a round of four about 20 kB, a release 8 kB.
RECORDS, CLIENTS = 40_000, 8_000


def server_room(monkeypatch, size):
    monkeypatch.setattr(servers, "CAPACITY_BYTES", size)
    monkeypatch.setattr(audit.reading.exchanges, "SERVER_CAPACITY_BYTES", size)


@pytest.fixture
def little_fits(monkeypatch):
    for module in (audit.reading.exchanges, exchanges):
        monkeypatch.setattr(module, "CAPACITY_BYTES", RECORDS)
        monkeypatch.setattr(module, "FEWEST_WHOLE", 1)
    server_room(monkeypatch, RECORDS)
    for module in (audit.reading.exchanges, servers):
        monkeypatch.setattr(module, "FEWEST_PIECES", 3)


@pytest.fixture
def hardly_any_fits(little_fits, monkeypatch):
    server_room(monkeypatch, CLIENTS)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "room"), [("dp-scaffold", 3 * RECORDS), ("fed-smp", RECORDS)])
@pytest.mark.parametrize("after", [14, 24])
def test_a_run_that_ends_at_its_target_after_it_was_cut_off_passes_too(
    name, room, after, little_fits, tmp_path, monkeypatch
):
    """Also where it was cut off in its last round: the one before was kept like any other."""
    # With less room a round is kept by chance, and at times none.
    server_room(monkeypatch, room)
    overrides = ("privacy.target_epsilon=2", "federation.clients_per_round=4", "data.clients=4")
    spec = small_spec(name, rounds=6, overrides=overrides)
    resumed, outcome = cut_off_and_resumed(spec, tmp_path, monkeypatch, after)
    assert outcome.claim["stopped"] == {"rounds": 5, "target_epsilon": 2.0}
    attest(resumed)
    findings = after_training.audit(resumed.run).to_json()
    assert findings["verdict"] == "PASS", failing(findings)
    assert any("a share was judged" in text for text in findings["qualifications"])


def uploads_of(findings):
    return next(check for check in findings["checks"] if check["name"] == "uploads")


def spec_of(name: str):
    return small_spec(name, rounds=10 if name in ("blur", "fed-smp") else 6)


@pytest.mark.parametrize(
    "name",
    [
        "dp-scaffold",
        "fed-smp",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in (
                "dp-fedadamw",
                "dp-fedopt",
                "dp-fedavg-ls",
                "adap-dpfl",
                "blur",
            )
        ),
    ],
)
def test_correct_runs_pass_and_name_the_share_that_was_judged(name, little_fits, tmp_path):
    findings = judged(spec_of(name), tmp_path)
    assert findings["verdict"] == "PASS", failing(findings)
    said = [text for text in findings["qualifications"] if "a share was judged" in text]
    assert len(said) == 1
    assert "rounds, drawn after the fact, by" in said[0]
    assert "% of the coordinates at least" in said[0]


def test_of_a_last_round_that_does_not_fit_pieces_are_judged(hardly_any_fits, tmp_path):
    findings = judged(spec_of("dp-fedavg"), tmp_path)
    assert findings["verdict"] == "PASS", failing(findings)
    assert "(0 whole" in uploads_of(findings)["measurement"]
    assert "so do the published weights" in uploads_of(findings)["measurement"]


@pytest.mark.slow
@pytest.mark.parametrize("fault", GROUP.faults[:4], ids=lambda fault: fault.name)
def test_a_server_that_meddles_is_seen_at_pieces(fault, hardly_any_fits, tmp_path):
    assert uploads_of(findings_of(fault, tmp_path))["verdict"] == "FAIL"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        for module in (audit.reading.exchanges, exchanges):
            patch.setattr(module, "CAPACITY_BYTES", RECORDS)
            patch.setattr(module, "FEWEST_WHOLE", 1)
        training, _ = train(spec_of("dp-fedavg"), tmp_path_factory.mktemp("runs"))
        yield training.run.path


@pytest.fixture
def copied(run: Path, tmp_path: Path) -> Path:
    for path in run.rglob("*"):
        if path.is_file():
            other = tmp_path / path.relative_to(run)
            other.parent.mkdir(exist_ok=True)
            other.write_bytes(path.read_bytes())
    return tmp_path


def said(run: Path) -> tuple[Verdict, str]:
    try:
        found = UPLOADS.judge(open_bundle(run))
    except AuditError as error:
        return Verdict.NOT_VERIFIED, str(error)
    return found.verdict, found.measurement


def rewrite(run: Path, name: str, change) -> None:
    path = run / "evidence" / "server-00005.npz"
    with np.load(path) as file:
        arrays = dict(file)
    arrays[name] = change(arrays[name].copy())
    save(path, arrays)


def flipped(content: np.ndarray) -> np.ndarray:
    content[-1] ^= 1
    return content


def test_the_run_passes_before_anything_is_done_to_it(copied):
    assert said(copied)[0] is Verdict.PASS
    assert CLIENT_UPLOADS.name == UPLOADS.name


@pytest.mark.parametrize("name", ["broadcast_pieces", "uploads_pieces", "uploads_head"])
def test_what_was_kept_is_held_to_the_ledgers_roots(name, copied):
    rewrite(copied, name, flipped)
    verdict, text = said(copied)
    assert verdict is not Verdict.PASS
    if name != "uploads_head":
        assert "is not the one whose pieces the ledger notes" in text


def test_a_round_that_is_due_cannot_be_left_out(copied):
    (copied / "evidence" / "server-00005.npz").unlink()
    verdict, text = said(copied)
    assert verdict is Verdict.NOT_VERIFIED
    assert "server-00005.npz" in text


def test_the_key_that_draws_is_committed_to_before_training(copied):
    (copied / "evidence" / "salt").write_bytes(bytes(32))
    assert said(copied) == (Verdict.FAIL, ANOTHER_KEY)


def test_pieces_that_the_ledger_does_not_note_are_not_judged_and_that_is_said(copied):
    rewrite_ledger(copied, lambda entries: [entry.pop("pieces", None) for entry in entries])
    verdict, text = said(copied)
    assert verdict is Verdict.NOT_VERIFIED
    assert "how the server combined them was not judged" in text


def test_roots_that_are_noted_in_some_rounds_alone_fail(copied):
    rewrite_ledger(copied, lambda entries: next(e for e in entries if "pieces" in e).pop("pieces"))
    verdict, text = said(copied)
    assert verdict is Verdict.FAIL
    assert "does not note its pieces" in text


def test_engine_and_auditor_draw_alike():
    rng = np.random.default_rng(5)
    for parameters, vectors, heads, rounds in [
        (650, 6, 300, 5),
        (19_210, 10, 900, 40),
        (100_000, 110, 9_000, 100),
        (11_000_000, 28, 9_000, 100),
        (11_000_000, 3, 20_000_000, 50),
        (64, 3, 10, 1),
        (86_000_000, 220, 10_000, 1_000),
    ]:
        own = servers.kept_of(parameters, vectors, heads, rounds)
        noted = audit.reading.ledger.Pieces(rng.bytes(32), rng.bytes(32), vectors, heads)
        due = audit.reading.exchanges.kept_of(parameters, noted, rounds)
        assert vars(own) == vars(due)
        assert servers.pieces_of(parameters) == audit.reading.exchanges.pieces_of(parameters)
        count, _ = servers.pieces_of(parameters)
        for index in range(10):
            roots = (noted.broadcast, noted.uploads)
            left = servers.drawn(b"key", roots, index, own, count, index == 9)
            right = audit.reading.exchanges.drawn(b"key", noted, index, due, count, index == 9)
            assert (left is None) == (right is None)
            if left is not None and right is not None:
                assert left.tolist() == right.tolist()
        # The last round is kept, and all of it stays near what may be kept.
        assert own.last >= 1
        row = 4 * parameters * vectors
        others = own.whole * row + (1 - own.whole) * own.part * (heads + row * own.pieces / count)
        assert rounds * others < 2.0 * servers.CAPACITY_BYTES


def test_how_many_rounds_had_no_clients_is_not_told():
    tally = Tally(finished=20, participations=50, replayed=5, rounds=20, shares=[1.0] * 3 + [0.5])
    text = share_judged(tally)
    assert "in 20 of 20 rounds, drawn after the fact, by 50 % of the coordinates at least" in text
    assert not {"3", "4", "5", "16"} & set(text.replace(",", "").split())
