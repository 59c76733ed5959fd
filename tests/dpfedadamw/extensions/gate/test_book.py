"""The ledger survives kill -9 and power cuts, and refuses to start where it was rolled back."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time

import pytest

from dpfedadamw.extensions.gate import book, mechanism, settings
from dpfedadamw.extensions.gate.book import Book
from dpfedadamw.extensions.gate.door import Gate
from dpfedadamw.extensions.gate.errors import GateError, Refused
from dpfedadamw.extensions.gate.verification import charges_of, verify
from dpfedadamw.storage.disk import DISK
from reports.signatures.keys import public_pem
from tests.dpfedadamw.extensions.gate.conftest import GATE
from tests.dpfedadamw.extensions.gate.replies import as_bytes, ask

# More releases than any test here asks for: a fast machine gets through hundreds.
MANY = {"noise_multiplier": 400.0}


def reopened(gate):
    return Gate.open(gate.settings.path)


def charged(gate):
    return charges_of(gate.settings)


def killed(work):
    """Run work in a child of its own, which must end by a signal."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)


def die(*_arguments):
    os.kill(os.getpid(), signal.SIGKILL)


def dying_before(name):
    def patch():
        setattr(Book, name, die)

    return patch


def before_noise():
    mechanism.noised_mean = die


def before_the_reply_is_noted():
    whole = Book._append

    def append(self, kind, fields):
        if kind == book.REPLY:
            die()
        whole(self, kind, fields)

    Book._append = append


def before_the_charge_is_signed():
    Book.sign = die


POINTS = {
    "before the charge is signed": (before_the_charge_is_signed, False),
    "before noise": (before_noise, False),
    "before the reply is stored": (dying_before("keep"), False),
    "before the reply is noted": (before_the_reply_is_noted, False),
    "before it is sent": (None, True),
}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_twenty_kills_between_charge_and_send_are_charged_and_send_no_second_noise(begin):
    gate = begin(**MANY)
    ask(gate, "first")
    seen = {}
    for number in range(20):
        where, request = list(POINTS)[number % len(POINTS)], f"r{number}"
        patch, stored = POINTS[where]
        before = len(charged(gate))

        def work(patch=patch, request=request):
            own = reopened(gate)
            if patch is not None:
                patch()
            ask(own, request)
            die()

        killed(work)
        assert len(charged(gate)) == before + 1, where
        kept = reopened(gate).released(job="job", request=request)
        assert (kept is not None) == stored, where
        sent = as_bytes(ask(reopened(gate), request))
        # A stored reply is sent as it is; any other is charged once more, and drawn once more.
        assert len(charged(gate)) == before + (1 if stored else 2), where
        assert as_bytes(ask(reopened(gate), request)) == sent
        seen[request] = sent
    assert len(set(seen.values())) == 20
    assert all(holds for _, holds, _ in verify(gate.settings, _public()))


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_kills_at_any_time_lose_no_charge_of_what_was_sent(begin):
    gate = begin(**MANY)
    ask(gate, "first")
    chance, sent = random.Random(3), {}
    for number in range(8):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                own = reopened(gate)
                for step in range(100):
                    request = f"r{number}-{step}"
                    found = as_bytes(ask(own, request))
                    os.write(writer, f"{request} {found.hex()}\n".encode())
            finally:
                os._exit(0)
        os.close(writer)
        time.sleep(chance.uniform(0.05, 0.6))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with os.fdopen(reader) as told:
            sent |= dict(line.split() for line in told if line.endswith("\n"))
        reopened(gate).check()
    asked = [charge.request for charge in charged(gate)]
    assert set(sent) <= set(asked)
    assert len(set(sent.values())) == len(sent)


@pytest.mark.parametrize("heads", ["ledger alone", "ledger and its head"])
def test_a_ledger_that_was_rolled_back_refuses_to_start(gate, tmp_path, heads):
    ask(gate, "1")
    shutil.copytree(gate.settings.ledger, tmp_path / "before")
    ask(gate, "2")
    back = ["ledger.jsonl"] + (["head.json"] if heads != "ledger alone" else [])
    for name in back:
        shutil.copy(tmp_path / "before" / name, gate.settings.ledger / name)
    with pytest.raises(GateError, match="was rolled back or changed"):
        reopened(gate)
    rows = {what: holds for what, holds, _ in verify(gate.settings, _public())}
    assert rows["chain"]
    assert not rows["signature"]


def test_a_rollback_is_seen_by_a_gate_that_is_open(gate, tmp_path):
    shutil.copytree(gate.settings.ledger, tmp_path / "before")
    ask(gate, "1")
    shutil.rmtree(gate.settings.ledger)
    shutil.copytree(tmp_path / "before", gate.settings.ledger)
    with pytest.raises(GateError) as error:
        gate.check()
    assert "was rolled back" in error.value.reason


def test_a_changed_line_refuses_to_start(gate):
    ask(gate, "1")
    path = gate.settings.ledger / "ledger.jsonl"
    path.write_bytes(
        path.read_bytes().replace(b'"noise_multiplier":4.0', b'"noise_multiplier":9.0')
    )
    with pytest.raises(GateError, match="was rolled back or changed"):
        reopened(gate)
    rows = {what: holds for what, holds, _ in verify(gate.settings, _public())}
    assert not rows["chain"]
    assert not rows["signature"]


def test_an_operation_reads_what_was_added_and_nothing_before_it(begin, monkeypatch):
    gate, read = begin(**MANY), []
    for number in range(10):
        ask(gate, str(number))
    ledger, whole, added = gate.settings.ledger / "ledger.jsonl", DISK.read, book._bytes_from

    def all_of(path, *rest):
        assert path != ledger
        return whole(path, *rest)

    def new(path, start):
        found = added(path, start)
        read.append(found.count(b"\n"))
        return found

    monkeypatch.setattr(DISK, "read", all_of)
    monkeypatch.setattr(book, "_bytes_from", new)
    ask(gate, "11")
    # Nothing was added since; then the charge, then the note of the reply.
    assert read == [0, 1, 1]


def test_gates_that_take_turns_know_each_others_charges(begin):
    gate = begin(**MANY)
    other = reopened(gate)
    for number in range(3):
        ask(gate, f"a{number}")
        ask(other, f"b{number}")
    assert as_bytes(ask(gate, "b1")) == as_bytes(ask(other, "b1"))
    assert len(charged(gate)) == 6
    at_once = reopened(gate)._known
    for known in (gate, other):
        known.check()
        assert known._known.history == at_once.history
        assert known._known.head == at_once.head
    assert all(holds for _, holds, _ in verify(gate.settings, _public()))


def test_an_open_gate_sees_that_ledger_head_and_anchor_were_rolled_back_together(gate, tmp_path):
    places = gate.settings.ledger, gate.settings.anchor.parent
    for number, folder in enumerate(places):
        shutil.copytree(folder, tmp_path / f"before-{number}")
    ask(gate, "1")
    for number, folder in enumerate(places):
        shutil.rmtree(folder)
        shutil.copytree(tmp_path / f"before-{number}", folder)
    # Again and again: one refusal is no reason to forget what was seen.
    for _ in range(3):
        with pytest.raises(GateError) as error:
            gate.check()
        assert "was rolled back" in error.value.reason


def test_a_head_by_another_key_is_refused(gate, tmp_path, monkeypatch):
    ask(gate, "1")
    monkeypatch.setenv("DPFEDADAMW_KEYS", str(tmp_path / "other"))
    with pytest.raises(GateError, match="no such key"):
        reopened(gate)
    book.load_key(make=True)
    with pytest.raises(GateError, match="the signature is not by the key"):
        reopened(gate)


def test_a_torn_last_line_is_cut_off_and_paid_for_nothing(gate):
    ask(gate, "1")
    path = gate.settings.ledger / "ledger.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"kind":"spe')
    ask(reopened(gate), "2")
    assert path.read_bytes().startswith(whole)
    assert len(charged(gate)) == 2


def test_a_ledger_of_an_earlier_version_is_refused_in_one_line(begin, monkeypatch):
    gate = begin()
    append = book.Ledger.append

    def without_framework(ledger, kind, fields):
        append(ledger, kind, {k: v for k, v in fields.items() if k != "framework"})

    monkeypatch.setattr(book.Ledger, "append", without_framework)
    with pytest.raises(Refused):
        ask(gate)
    monkeypatch.undo()
    with pytest.raises(GateError, match="an earlier version wrote it"):
        reopened(gate)


def test_a_book_counts_what_was_released_with_each_noise(begin):
    gate = begin(**MANY)
    for number in range(3):
        ask(gate, str(number))
    with book.opened(gate.settings, book.load_key()) as found:
        assert found.spent == {400.0: 3}
        assert found.head.size == (gate.settings.ledger / "ledger.jsonl").stat().st_size
        assert found.kept("other", "job", "2") is not None
        assert found.kept("flower", "job", "2") is None


def test_added_lines_that_do_not_continue_the_chain_are_refused_though_they_are_signed(gate):
    ask(gate, "1")
    with book.opened(gate.settings, book.load_key()) as other:
        added = b'{"kind":"spend","noise_multiplier":4000.0}\n'
        with (gate.settings.ledger / "ledger.jsonl").open("ab") as file:
            file.write(added)
        other._digest.update(added)
        other._ledger.size += len(added)
        other.sign()
    with pytest.raises(Refused) as error:
        gate.check()
    assert "the hash chain is broken behind byte" in error.value.reason
    assert error.value.reason.endswith("; put the newest ledger back")


def test_a_ledger_that_another_process_holds_is_waited_for_and_then_refused(gate):
    folder, began = gate.settings.ledger, time.monotonic()
    held = pytest.raises(GateError, match="another process has held the gate's ledger")
    with book._locked(folder), held, book._locked(folder, 0.05):
        pass
    assert time.monotonic() - began > 0.05
    with book._locked(folder, 0.0):
        pass


def test_the_files_of_a_gate_are_its_own_but_for_what_auditors_read(gate):
    ask(gate, "1")
    modes = {
        path.name: path.stat().st_mode & 0o777
        for path in (*gate.settings.ledger.rglob("*"), gate.settings.anchor)
        if path.is_file()
    }
    assert modes["000001.safetensors"] == 0o600
    assert {modes["head.json"], modes["gate.pub"]} == {0o644}
    assert (gate.settings.ledger / "head.json").read_bytes() == gate.settings.anchor.read_bytes()


def test_an_auditor_finds_the_key_next_to_the_ledger(gate):
    assert (gate.settings.ledger / "gate.pub").read_bytes() == _public()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("head.json", b"{}", "put back the head that the gate wrote"),
        ("head.json", None, "the signed head cannot be read"),
        ("ledger.jsonl", None, "is missing; begin a gate with: dpfedadamw gate init, or put back"),
    ],
)
def test_a_file_that_is_damaged_or_gone_is_named_with_what_to_do(gate, name, content, said):
    path = gate.settings.ledger / name
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(GateError, match=said) as error:
        reopened(gate)
    assert name in str(error.value)


@pytest.mark.parametrize("predicate", [{"bytes": -1}, {"bytes": True}, {"bytes": "9"}, {}])
def test_a_signed_head_that_states_no_length_is_refused(gate, predicate):
    from reports.signatures import dsse

    key, path = book.load_key(), gate.settings.ledger / "head.json"
    public = key.private.public_key()
    subjects = {"ledger.jsonl": (dsse.SHA256, "0" * 64)}
    kind = "urn:dpfedadamw:attestation:gate:v1"
    for named, told in (
        (subjects, predicate),
        ({**subjects, "b": subjects["ledger.jsonl"]}, {"bytes": 1}),
    ):
        sealed = dsse.seal(dsse.write_statement(dsse.Statement(named, kind, told)), key.private)
        path.write_bytes(sealed)
        with pytest.raises(GateError, match="is no head of a gate's ledger"):
            book.read_head(path, public)
    sealed = dsse.seal(
        dsse.write_statement(dsse.Statement(subjects, kind, {"bytes": 0})), key.private
    )
    path.write_bytes(sealed)
    assert book.read_head(path, public) == book.Head(0, "0" * 64)


def test_a_disk_that_fails_refuses_and_says_where_to_the_operator(gate, monkeypatch):
    def full(*_arguments):
        raise OSError(28, "No space left on device", "ledger.jsonl")

    monkeypatch.setattr(book.Ledger, "append", full)
    with pytest.raises(Refused) as error:
        ask(gate)
    assert error.value.reason.startswith("ledger.jsonl: No space left on device; nothing is rel")
    assert error.value.kind == "ledger"


@pytest.mark.parametrize(
    "content", [b"[]", b"{", b'{"2026-01-01": 3}', b'{"yesterday": {"form": 1}}']
)
def test_a_count_of_refusals_that_is_none_is_one_line_and_stops_no_refusal(gate, content):
    path = gate.settings.ledger / "refusals.json"
    assert book.refusals(gate.settings) == {}
    path.write_bytes(content)
    with pytest.raises(GateError, match="is no count of refusals; remove it to count from zero"):
        book.refusals(gate.settings)
    book.count_refusal(gate.settings, "form")
    assert path.read_bytes() == content


def test_a_lost_anchor_is_not_made_up_for(gate):
    gate.settings.anchor.unlink()
    with pytest.raises(GateError, match="the signed head cannot be read"):
        reopened(gate)
    rows = {what: holds for what, holds, _ in verify(gate.settings, _public())}
    assert not rows["anchor"]
    assert rows["chain"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"unit": "person"}, "unit: is person, but the ledger was begun with record"),
        ({"budget": {"epsilon": 9.0, "delta": 1e-5}}, "budget.epsilon: is 9.0, but"),
        ({"budget": {"epsilon": 1.8, "delta": 1e-3}}, "budget.delta: is 0.001, but"),
    ],
)
def test_a_ledger_keeps_its_unit_and_budget(gate, changes, said):
    gate.settings.path.write_text(settings.write({**GATE, **changes}), encoding="utf-8")
    with pytest.raises(GateError, match=said):
        reopened(gate)


def test_a_gate_is_begun_once(gate):
    ask(gate)
    with pytest.raises(GateError, match="exists, so this gate was begun before"):
        book.begin(gate.settings, book.load_key())
    shutil.rmtree(gate.settings.ledger)
    with pytest.raises(GateError, match="exists, so this gate was begun before"):
        book.begin(gate.settings, book.load_key())


def test_a_beginning_that_failed_is_continued_and_a_gate_that_was_used_is_not(
    tmp_path, gate, monkeypatch
):
    path = tmp_path / "second" / "gate.yaml"
    path.parent.mkdir()
    path.write_text(settings.write(GATE), encoding="utf-8")
    found, key = settings.read(path), book.load_key()
    whole = book.write_atomically

    def full(path, *given):
        if path == found.anchor:
            raise OSError(28, "No space left on device", str(path))
        whole(path, *given)

    monkeypatch.setattr(book, "write_atomically", full)
    with pytest.raises(GateError, match=r"head\.json: No space left on device"):
        book.begin(found, key)
    monkeypatch.undo()
    monkeypatch.setenv("DPFEDADAMW_KEYS", str(book.key_path().parent))
    book.begin(found, key)
    ask(Gate.open(path), "1")
    # The anchor of a gate that was used is lost: that is no beginning.
    found.anchor.unlink()
    with pytest.raises(GateError, match="exists, so this gate was begun before"):
        book.begin(found, key)


def test_a_gate_that_was_not_used_is_continued_by_its_own_key_and_budget_alone(gate, tmp_path):
    def others(**changes):
        path = tmp_path / "again.yaml"
        path.write_text(settings.write({**GATE, **changes}), encoding="utf-8")
        return settings.read(path)

    key, before = book.load_key(), (gate.settings.ledger / "ledger.jsonl").read_bytes()
    for changes in ({"unit": "site", "shards": 1}, {"budget": {"epsilon": 1.9, "delta": 1e-5}}):
        with pytest.raises(GateError, match="exists, so this gate was begun before"):
            book.begin(others(**changes), key)
    book.begin(others(clip=0.25), key)
    assert (gate.settings.ledger / "ledger.jsonl").read_bytes() == before
    public = public_pem(key.private.public_key())
    assert all(holds for _, holds, _ in verify(gate.settings, public))


def test_a_ledger_that_was_rolled_back_to_its_header_is_not_continued(gate):
    path, key = gate.settings.ledger / "ledger.jsonl", book.load_key()
    header, head = path.read_bytes(), (gate.settings.ledger / "head.json").read_bytes()
    ask(gate)
    path.write_bytes(header)
    (gate.settings.ledger / "head.json").write_bytes(head)
    with pytest.raises(GateError, match="exists, so this gate was begun before"):
        book.begin(gate.settings, key)
    gate.settings.anchor.write_bytes(b"no head")
    with pytest.raises(GateError, match="put back the head that the gate wrote"):
        book.begin(gate.settings, key)


def test_refusals_are_counted_by_kind_and_never_make_a_ledger(gate):
    for job in ("a b", "c d"):
        with pytest.raises(GateError):
            ask(gate, job=job)
    (counted,) = book.refusals(gate.settings).values()
    assert counted == {"form": 2}
    shutil.rmtree(gate.settings.ledger)
    with pytest.raises(GateError):
        gate.check()
    assert not gate.settings.ledger.exists()


def test_only_the_newest_replies_are_kept(begin):
    gate = begin(**MANY)
    for number in range(20):
        ask(gate, str(number))
    names = sorted(path.name for path in (gate.settings.ledger / "replies").iterdir())
    assert names == [f"{number:06d}.safetensors" for number in range(5, 21)]


def _public():
    return public_pem(book.load_key().private.public_key())
