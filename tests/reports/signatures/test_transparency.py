"""Proofs that a transparency log holds an envelope: for these bytes, by a log that is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from reports.errors import EnvelopeError, KeyFileError
from reports.signatures.trust.transparency import Inclusion, check, load_log_keys
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
