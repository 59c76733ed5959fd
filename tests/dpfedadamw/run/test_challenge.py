"""A challenged run through the engine: what it is bound to, and where it goes on when cut off."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import stat
from datetime import UTC, datetime

import pytest
import torch

from audit.reading.openings import Coin, Opening, histories, stream_key
from dpfedadamw import spec as specs
from dpfedadamw.data.digests import client_digests
from dpfedadamw.errors import DpfedadamwError, PrivacyError
from dpfedadamw.experiment import Experiment, RunError, prepare
from dpfedadamw.privacy.noise import randomness
from dpfedadamw.privacy.noise.key_tree import PublicCoin, data_commitment
from dpfedadamw.privacy.noise.randomness import ReleaseRandomness
from dpfedadamw.run import setup as engine_setup
from dpfedadamw.run import training as engine_run
from dpfedadamw.run.start_options import (
    Challenged,
    StartOptions,
    challenged_key,
    check_promise,
    coin_of,
    promise,
)
from dpfedadamw.rundir import new_identifier, open_existing
from tests.runs import key_of_a_test, small_spec

NONCE, NOON = bytes(range(32)), datetime(2026, 11, 22, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    return prepare(small_spec(mode="release", rounds=3), torch.device("cpu"))


def challenged(experiment: Experiment, run: str = "", nonce: bytes = NONCE) -> Challenged:
    run = run or new_identifier("small", NOON)
    source = ReleaseRandomness(key_of_a_test(), PublicCoin(nonce, run))
    return Challenged(
        run=run,
        promise=promise(experiment, source),
        randomness=source,
        header={"run": run, "nonce": nonce.hex()},
        files={"intent.json": b"intent", "challenge.json": b"challenge"},
    )


def trained(experiment: Experiment, parent, one: Challenged, cut_off: bool = False):
    """Train; or be cut off in the second round, when its first client is done."""
    # Training moves the weights, with which the next must not begin.
    fresh = prepare(experiment.spec, torch.device("cpu"))
    training = engine_setup.start(fresh, parent, options=StartOptions(challenged=one))
    done: list[int] = []

    def stop(client: int, _clients: int) -> None:
        done.append(client)
        if cut_off and len(done) == 5:
            raise InterruptedError

    with contextlib.suppress(InterruptedError), training.lock:
        engine_run.train(training, on_client=stop)
    return training


def test_whatever_ends_a_challenged_run_tells_that_its_key_is_needed(
    experiment, tmp_path, monkeypatch
):
    def full(*_args: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(engine_setup, "point_latest", full)
    with pytest.raises(OSError, match="no space left") as error:
        engine_setup.start(
            experiment, tmp_path, options=StartOptions(challenged=challenged(experiment))
        )
    (note,) = error.value.__notes__
    assert note.startswith(f"continue with: dpfedadamw run --resume {tmp_path}")
    assert note.endswith(" --escrow FILE")


def test_a_run_bears_the_name_and_the_files_that_were_signed(experiment, tmp_path):
    one = challenged(experiment)
    training = trained(experiment, tmp_path, one)
    assert training.run.path == tmp_path / one.run
    assert (training.run.path / "intent.json").read_bytes() == b"intent"
    assert (training.run.path / "challenge.json").read_bytes() == b"challenge"
    header = training.journal.header
    assert header["public_coin"] == one.header
    assert header["commitment"] == one.randomness.commitment
    assert coin_of(header) == one.randomness.coin
    with pytest.raises(DpfedadamwError, match="was already started"):
        engine_setup.start(
            experiment, tmp_path, options=StartOptions(challenged=challenged(experiment, one.run))
        )


def test_the_same_key_under_another_nonce_is_another_run(experiment, tmp_path):
    name = new_identifier("small", NOON)
    first, same, other = (
        trained(experiment, tmp_path / str(number), challenged(experiment, name, nonce))
        for number, nonce in enumerate((NONCE, NONCE, bytes(32)))
    )
    weights = [one.run.weights.read_bytes() for one in (first, same, other)]
    assert weights[0] == weights[1] != weights[2]


def test_a_run_that_was_cut_off_goes_on_with_its_own_key_and_other_noise(
    experiment, tmp_path, monkeypatch
):
    used: dict[tuple[str, int, int, int], bytes] = {}
    real = randomness.stream_key

    def noted(leaf, coin, purpose, round, client, attempt, history):
        key = real(leaf, coin, purpose, round, client, attempt, history)
        used[purpose, round, client, attempt] = key
        return key

    monkeypatch.setattr(randomness, "stream_key", noted)
    one = challenged(experiment)
    cut = trained(experiment, tmp_path, one, cut_off=True)
    run, cpu, escrow = open_existing(cut.run.path), torch.device("cpu"), tmp_path / "escrow"
    with pytest.raises(DpfedadamwError, match="--escrow FILE: an auditor has challenged"):
        engine_setup.resume(run, cpu)
    ReleaseRandomness(key_of_a_test(2)).write_escrow(tmp_path / "other")
    with pytest.raises(DpfedadamwError, match="a different key from the run's"):
        engine_setup.resume(run, cpu, escrow=tmp_path / "other")
    one.randomness.write_escrow(escrow)
    resumed = engine_setup.resume(run, cpu, escrow=escrow)
    with resumed.lock:
        engine_run.train(resumed)
    (again,) = resumed.ledger.of_kind("resume")
    assert again["commitment"] == one.randomness.commitment
    # What an auditor computes from the ledger alone are the streams of both attempts.
    found = histories(run.ledger.read_bytes())
    assert {place[1] for place in found.after if place[0] == 1} == {1, 2}
    noise = [name for name in used if name[0] == "noise"]
    assert len(noise) == 4 + 1 + 4 + 4
    for name in noise:
        _, round, client, attempt = name
        leaf = Opening(round, client, attempt, one.randomness.leaf(round, client))
        key = stream_key(leaf, Coin(NONCE, one.run), "noise", found.after[round, attempt])
        assert used[name] == key
    assert len(set(used.values())) == len(used)


def test_the_escrow_of_a_run_without_a_challenge_gets_each_further_key(tmp_path):
    kept, cpu = tmp_path / "key", torch.device("cpu")
    plain = engine_setup.start(
        prepare(small_spec(mode="release"), cpu), tmp_path, options=StartOptions(escrow=kept)
    )
    plain.lock.release()
    run = open_existing(plain.run.path)
    for _ in range(2):
        resumed = engine_setup.resume(run, cpu, escrow=kept)
        resumed.lock.release()
    entries = [resumed.journal.header, *resumed.ledger.of_kind("resume")]
    keys = ReleaseRandomness.all_from_escrow(kept)
    assert [key.commitment for key in keys] == [entry["commitment"] for entry in entries]
    assert len({key.commitment for key in keys}) == 3
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    # Where one key is meant, a file of three is refused, not read in part.
    with pytest.raises(PrivacyError, match="holds 3 keys"):
        ReleaseRandomness.from_escrow(kept)


def test_another_run_s_escrow_is_left_alone_and_a_new_file_is_made(tmp_path):
    other, new, cpu = tmp_path / "other", tmp_path / "new", torch.device("cpu")
    ReleaseRandomness(key_of_a_test()).write_escrow(other)
    plain = engine_setup.start(prepare(small_spec(mode="release"), cpu), tmp_path)
    plain.lock.release()
    run, before = open_existing(plain.run.path), other.read_bytes()
    with pytest.raises(PrivacyError, match="holds no key of this run"):
        engine_setup.resume(run, cpu, escrow=other)
    assert other.read_bytes() == before
    resumed = engine_setup.resume(run, cpu, escrow=new)
    resumed.lock.release()
    (entry,) = resumed.ledger.of_kind("resume")
    assert ReleaseRandomness.from_escrow(new).commitment == entry["commitment"]


def test_a_published_seed_is_no_key_to_keep(tmp_path):
    plain = engine_setup.start(prepare(small_spec(), torch.device("cpu")), tmp_path)
    plain.lock.release()
    with pytest.raises(DpfedadamwError, match="only randomness: release has a key"):
        engine_setup.resume(
            open_existing(plain.run.path), torch.device("cpu"), escrow=tmp_path / "x"
        )
    assert not (tmp_path / "x").exists()


def test_a_promise_is_made_of_digests_that_anyone_who_is_given_the_inputs_can_compute(experiment):
    source = ReleaseRandomness(key_of_a_test())
    found = promise(experiment, source)
    spec_text = specs.dump(experiment.spec).encode()
    assert found.spec_sha256 == hashlib.sha256(spec_text).hexdigest()
    assert found.root == source.tree(3, 5).root
    assert (found.rounds, found.clients, len(found.data)) == (3, 5, 5)
    digests = client_digests(experiment.dataset.train, experiment.owner, 5)
    assert list(found.data) == [
        data_commitment(source.data_salt(client), client, digests[client]) for client in range(5)
    ]
    assert len(set(found.data)) == 5


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (small_spec("fedavg", mode="release"), "privacy.unit: this spec claims no privacy"),
        (small_spec(), "randomness.mode: reproducible draws its noise from a published seed"),
    ],
)
def test_what_cannot_be_challenged_is_promised_to_nobody(spec, words):
    one = prepare(spec, torch.device("cpu"))
    with pytest.raises(RunError) as caught:
        promise(one, ReleaseRandomness(key_of_a_test()))
    assert str(caught.value).startswith(words)


def test_what_was_announced_is_what_runs(experiment):
    one = challenged(experiment)
    check_promise(experiment, one)
    for change, words in [
        ({"spec_sha256": "0" * 64}, "the spec is not the one of the intent of"),
        ({"root": "0" * 64}, "--escrow: holds a different key from the one that the intent of"),
        ({"rounds": 4}, "--escrow: holds a different key from the one that the intent of"),
        ({"clients": 6}, "--escrow: holds a different key from the one that the intent of"),
        ({"data": ("0" * 64, *one.promise.data[1:])}, ": 1 of 5 clients hold other records"),
        ({"data": ("0" * 64,) * 5}, ": 5 of 5 clients hold other records"),
    ]:
        other = dataclasses.replace(one, promise=dataclasses.replace(one.promise, **change))
        with pytest.raises(RunError) as caught:
            check_promise(experiment, other)
        assert words in str(caught.value)
        assert one.run in str(caught.value)


def test_streams_are_bound_to_the_nonce_and_the_run_of_the_header():
    assert coin_of({}) == PublicCoin(b"", "")
    assert coin_of({"public_coin": None}) == PublicCoin(b"", "")
    bound = {"public_coin": {"nonce": NONCE.hex(), "run": "small-1"}}
    assert coin_of(bound) == PublicCoin(NONCE, "small-1")


def test_a_challenged_run_goes_on_with_the_key_that_was_committed_to(tmp_path):
    coin = PublicCoin(NONCE, "small-1")
    source = ReleaseRandomness(key_of_a_test(), coin)
    escrow = tmp_path / "escrow"
    source.write_escrow(escrow)
    header = {
        "public_coin": {"nonce": NONCE.hex(), "run": "small-1"},
        "commitment": source.commitment,
    }
    again = challenged_key(header, escrow)
    assert again is not None
    assert (again.commitment, again.coin) == (source.commitment, coin)
    assert challenged_key({"commitment": source.commitment}, escrow) is None
    assert challenged_key({"commitment": source.commitment}, None) is None
    with pytest.raises(RunError, match="--escrow FILE: an auditor has challenged this run"):
        challenged_key(header, None)
    with pytest.raises(RunError, match="holds a different key from the run's"):
        challenged_key({**header, "commitment": "0" * 64}, escrow)
