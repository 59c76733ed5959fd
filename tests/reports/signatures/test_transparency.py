"""Proofs that a transparency log holds an envelope: for these bytes, by a log that is known."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from reports.errors import EnvelopeError, KeyFileError
from reports.signatures.transparency import Inclusion, check, load_log_keys
from tests.logs import TransparencyLog


def filled(count: int) -> TransparencyLog:
    log = TransparencyLog()
    log.entries += [b"entry %d" % number for number in range(count)]
    return log


def keys(log: TransparencyLog, folder: Path):
    (folder / "log.pub").write_text(log.key + "\n")
    return load_log_keys([folder / "log.pub"])


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 13])
def test_every_entry_is_found_and_no_other_under_its_proof(count, tmp_path):
    log = filled(count)
    trusted = keys(log, tmp_path)
    for index, entry in enumerate(log.entries):
        proof = log.proof(index)
        expected = Inclusion(log.name, index, count, trusted=True)
        assert check(proof, entry, trusted, "it") == expected
        with pytest.raises(EnvelopeError, match="holds something else"):
            check(proof, b"another", trusted, "it")


def test_a_log_is_believed_only_under_a_key_that_the_reader_has(tmp_path):
    log, other = filled(4), filled(4)
    assert not check(log.proof(2), log.entries[2], (), "it").trusted
    assert not check(log.proof(2), log.entries[2], keys(other, tmp_path), "it").trusted


def test_a_checkpoint_that_was_changed_is_not_the_log_s(tmp_path):
    log = filled(4)
    trusted = keys(log, tmp_path)
    # Whoever forges a root must forge the signature over it too.
    forged = filled(4)
    forged.entries[2] = b"put in later"
    body = forged.proof(2).rpartition(b"\n\n")[0]
    proof = body + b"\n\n" + log.proof(2).rpartition(b"\n\n")[2]
    assert not check(proof, b"put in later", trusted, "it").trusted


@pytest.mark.parametrize(
    "change",
    [
        lambda proof: b"",
        lambda proof: b"\xff" + proof,
        lambda proof: proof.replace(b"@v1", b"@v2"),
        lambda proof: proof.replace(b"index 2", b"index 9"),
        lambda proof: proof.replace(b"index 2", b"index 02"),
        lambda proof: proof.replace(b"index 2", b"index 3"),
        lambda proof: proof.replace(b"index 2\n", b"index 2\nAAAA\n"),
        lambda proof: proof.replace(b"index 2\n", b"index 2\n" + b"A" * 43 + b"=\n"),
        lambda proof: proof.replace(b"\n4\n", b"\n5\n"),
        lambda proof: proof.partition(b"\n\n")[0],
    ],
)
def test_what_is_no_proof_is_one_sentence(change):
    log = filled(4)
    with pytest.raises(EnvelopeError, match=r"^it: ") as error:
        check(change(log.proof(2)), log.entries[2], (), "it")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("line", ["", "name", "name+00000000+AAAA", "name+x+!"])
def test_what_is_no_key_is_one_sentence(line, tmp_path):
    (tmp_path / "log.pub").write_text(line)
    with pytest.raises(KeyFileError, match=r"log's? ?key|key of a log"):
        load_log_keys([tmp_path / "log.pub"])
    with pytest.raises(KeyFileError, match="cannot be read"):
        load_log_keys([tmp_path / "missing"])


def test_a_proof_may_carry_a_line_for_its_own_log_which_is_not_read(tmp_path):
    """c2sp.org/tlog-proof lets "extra" stand before the index."""
    log = filled(4)
    proof = log.proof(2).replace(b"index 2\n", b"extra AAAA\nindex 2\n")
    assert check(proof, log.entries[2], keys(log, tmp_path), "it").trusted


@pytest.mark.parametrize(
    "change",
    [
        lambda proof: b"c2sp.org/tlog-proof@v1" + proof[proof.index(b"\n\n") :],
        lambda proof: proof.replace(b"index 2\n", b"extra AAAA\n"),
        # As many digests as the place asks for, of which one is too short.
        lambda proof: proof.replace(proof.split(b"\n")[2], b"AAAA"),
        # A checkpoint that nobody signed.
        lambda proof: proof.rpartition(b"\n\n")[0],
        lambda proof: proof.replace(b"\n4\n", b"\n2\n"),
        # Base64 that another reader would take for the same digest.
        lambda proof: proof.replace(proof.split(b"\n")[2], proof.split(b"\n")[2] + b"!"),
    ],
)
def test_a_proof_that_lacks_a_part_is_none(change: Callable[[bytes], bytes]) -> None:
    log = filled(4)
    proof = change(log.proof(2))
    assert proof != log.proof(2)
    with pytest.raises(EnvelopeError, match="it: is no proof of inclusion"):
        check(proof, log.entries[2], (), "it")


def test_the_log_s_signature_is_found_among_those_of_its_witnesses(tmp_path):
    log, witness = filled(4), filled(4)
    trusted = keys(log, tmp_path)
    proof = log.proof(2)
    body, _, ours = proof.rpartition(b"\n\n")
    theirs = witness.proof(2).rpartition(b"\n\n")[2]
    broken = f"— {log.name} base64!\n".encode()
    short = f"— {log.name} AAAA\n".encode()
    elsewhere = theirs.replace(log.name.encode(), b"witness.example")
    for others in (theirs, broken, short, elsewhere, b"- a line\n"):
        assert check(body + b"\n\n" + others + ours, log.entries[2], trusted, "it").trusted
        assert not check(body + b"\n\n" + others, log.entries[2], trusted, "it").trusted


@pytest.mark.parametrize("forge", ["mark", "name", "identifier", "signature", "origin"])
def test_a_signature_counts_under_its_mark_its_name_and_its_key_alone(forge, tmp_path):
    log = filled(4)
    body, _, line = log.proof(2).decode().rpartition("\n\n")
    mark, name, encoded = line.split()
    content = bytearray(base64.b64decode(encoded))
    if forge == "mark":
        mark = "-"
    elif forge == "name":
        name = "another"
    elif forge == "identifier":
        content[0] ^= 1
    elif forge == "signature":
        content[-1] ^= 1
    else:
        # The log's own signature below another log's name.
        body = body.replace(f"{log.name}\n", "log.example/other\n")
    proof = f"{body}\n\n{mark} {name} {base64.b64encode(content).decode()}\n".encode()
    assert not check(proof, log.entries[2], keys(log, tmp_path), "it").trusted


def test_logs_keys_are_read_from_every_line_of_every_file(tmp_path):
    logs = [TransparencyLog(f"log{number}.example") for number in range(3)]
    (tmp_path / "two").write_text(f"{logs[0].key}\n{logs[1].key}\n")
    (tmp_path / "one").write_text(logs[2].key)
    found = load_log_keys([tmp_path / "two", tmp_path / "one"])
    assert [key.name for key in found] == [log.name for log in logs]


def key_line(name: str, key: bytes) -> str:
    identifier = hashlib.sha256(name.encode() + b"\n" + key).digest()[:4].hex()
    return f"{name}+{identifier}+{base64.b64encode(key).decode()}"


def test_a_log_s_key_has_a_name_its_own_identifier_and_is_of_ed25519(tmp_path):
    log = TransparencyLog()
    key = base64.b64decode(log.key.split("+", 2)[2])
    assert key_line(log.name, key) == log.key
    path = tmp_path / "log.pub"
    for line in (
        key_line("", key),
        key_line(log.name, b"\x02" + key[1:]),
        log.key.replace(log.name, "another"),
        key_line(log.name, key[:-1]),
    ):
        path.write_text(line)
        with pytest.raises(KeyFileError, match="holds no Ed25519 key of a log"):
            load_log_keys([path])


def test_an_entry_behind_the_last_is_none():
    log = filled(4)
    proof = log.proof(2).replace(b"index 2", b"index 4")
    with pytest.raises(EnvelopeError, match="it: is no proof of inclusion"):
        check(proof, log.entries[2], (), "it")
