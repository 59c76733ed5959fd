"""What a client of a client-level run sends, and what is released and noted of its round."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dpfedadamw.algorithms.base import Upload
from dpfedadamw.evidence.exchanges import vector_digest
from dpfedadamw.federation.client import (
    ClientLevel,
    combine_updates,
    evidence_of,
    public_coordinates,
)
from dpfedadamw.federation.messages import pack, unpack_update
from dpfedadamw.federation.participation import Participation
from dpfedadamw.profiling import profiled
from dpfedadamw.vectors.sparsification import KEPT
from tests.dpfedadamw.federation.client_worlds import CLIP, EXPECTED, SIZE, federated

PLAIN = "{name: dp-fedavg}"
RANDOM = "{name: dp-fedsam-randk, sparsification: {fraction: 0.5}}"
TOP = "{name: dp-fedsam-topk, sparsification: {kind: local-top, fraction: 0.25}}"
CPU = torch.device("cpu")


def answered(section, path, by="server", clients=(0, 4, 6)):
    """A federation, and a round of it whose clients have answered."""
    federation, state, _ = federated(section, path, by=by)
    current = replace(federation._begin(federation.plan, state, None, 1), chosen=clients)
    answers = tuple(
        federation.worker.take_part(
            Participation(current=current, place=place, client=client, memory={}).of(
                federation.clients[client]
            )
        )
        for place, client in enumerate(clients)
    )
    return federation, replace(current, answers=answers)


def test_public_coordinates_are_those_of_the_broadcast_or_of_the_round(tmp_path):
    sparse = federated(RANDOM, tmp_path)[0].plan.sparsification
    for index in (0, 1):
        found = public_coordinates(sparse, index, {}, CPU)
        assert found.dtype == torch.int64
        assert found.tolist() == sparse.draw(index).tolist()
    sent = {KEPT: torch.tensor([5, 1], dtype=torch.int32)}
    found = public_coordinates(sparse, 0, sent, CPU)
    assert (found.dtype, found.tolist()) == (torch.int64, [5, 1])
    assert public_coordinates(None, 0, sent, CPU) is None


def test_coordinates_that_a_client_chooses_are_not_public(tmp_path):
    plan = federated(TOP, tmp_path)[0].plan
    assert public_coordinates(plan.sparsification, 0, {}, CPU) is None


@pytest.mark.parametrize(("section", "kept"), [(PLAIN, SIZE), (RANDOM, SIZE // 2), (TOP, 2)])
def test_an_upload_of_a_noising_server_is_the_clipped_update_itself(section, kept, tmp_path):
    _, current = answered(section, tmp_path)
    for answer in current.answers:
        size = len(answer.clipped.update)
        sent = unpack_update(answer.message, size, answer.clipped.update)
        assert torch.equal(sent, answer.clipped.update)
        assert int((sent != 0).sum()) == kept
        assert float(sent.norm()) <= CLIP * (1 + 1e-12)
        assert answer.commitment == bytes(32)
        assert (answer.kept is None) == (section != RANDOM)


@pytest.mark.parametrize("by", ["server", "clients"])
@pytest.mark.parametrize("section", [PLAIN, RANDOM])
def test_the_release_is_the_noised_sum_over_the_expected_number_and_zero_elsewhere(
    by, section, tmp_path
):
    federation, current = answered(section, tmp_path, by)
    noise = current.stream(federation.worker.randomness, "release noise", -1)
    made = combine_updates(current, noise)
    kept = range(SIZE) if made.kept is None else made.kept.tolist()
    released = torch.zeros(SIZE, dtype=torch.float64)
    released[list(kept)] = made.noisy / EXPECTED
    assert torch.allclose(made.released.double(), released, atol=1e-12)
    assert made.by_server == (by == "server")
    total = sum(upload.double() for upload in made.uploads)
    # Where clients have added the noise, the server adds none.
    assert torch.allclose(made.noisy, total) == (by == "clients")
    told = evidence_of(current, made)
    clean = sum(answer.clipped.update.double() for answer in current.answers)
    assert torch.allclose(told.clean_sum, clean)
    assert told.noisy_sum is made.noisy
    assert told.released is made.released
    assert (told.divisor, told.deviation) == (
        EXPECTED,
        current.plan.update_noise_standard_deviation,
    )
    assert told.raw_norms == [answer.clipped.raw_norm for answer in current.answers]
    assert told.clipped_norms == [answer.clipped.clipped_norm for answer in current.answers]
    assert told.commitments == [bytes(32)] * 3
    assert told.further == []
    assert len(told.kept_by_clients) == (3 if section == RANDOM else 0)
    assert len(told.upload_noise) == (3 if by == "clients" else 0)
    # An upload that holds more than an update is told by its tensors' names.
    more = Upload(torch.zeros(0), {"a": torch.ones(1)}, {"b": torch.ones(1)})
    more = tuple(replace(one, result=replace(one.result, upload=more)) for one in current.answers)
    assert evidence_of(replace(current, answers=more), made).further == ["a", "b"] * 3
    if by == "clients":
        for share, upload, answer in zip(
            told.upload_noise, made.uploads, current.answers, strict=True
        ):
            assert torch.equal(share, upload.double() - answer.clipped.update.double())
            assert float(share.norm()) > 0


def test_a_round_without_clients_releases_noise_of_the_plans_scale(tmp_path):
    federation, current = answered(PLAIN, tmp_path, clients=())
    noise = current.stream(federation.worker.randomness, "release noise", -1)
    made = combine_updates(current, noise)
    assert made.uploads == []
    assert ClientLevel.moved_by_empty_rounds
    assert float(made.noisy.norm()) > 0


class Observer:
    """Plants one update, and keeps what it is told."""

    def __init__(self):
        self.told = []

    def planted(self, client, update, kept):
        return torch.full_like(update, 0.01 * client)

    def released(self, *given):
        self.told.append(given)


def test_what_an_audit_run_plants_is_clipped_and_its_release_is_told(tmp_path):
    federation, current = answered(PLAIN, tmp_path)
    observer, seen = Observer(), []
    unit = federation.worker.unit
    unit.evidence.witness = lambda: "a witness"
    assert unit.witness() == "a witness"
    unit.evidence.write_round = lambda *given: seen.append(given)
    watched = replace(unit, observer=observer)
    results = [answer.result for answer in current.answers]
    parts = [
        Participation(current=current, place=place, client=client, memory={})
        for place, client in enumerate(current.chosen)
    ]
    answers = tuple(map(watched.answer, parts, results))
    for client, answer in zip(current.chosen, answers, strict=True):
        assert answer.clipped.raw_norm == pytest.approx(0.01 * client * SIZE**0.5)
    current = replace(current, answers=answers)
    with profiled() as profile:
        (upload,) = watched.receive(current)
    assert "server" in profile.seconds
    ((index, released, chosen, clipped, kept),) = observer.told
    assert (index, chosen, kept) == (1, (0, 4, 6), None)
    assert released is upload.update
    assert clipped == [answer.clipped for answer in answers]
    ((noted, attempt, clients, release, rows, witnessed),) = seen
    assert (noted, attempt, clients) == (1, 1, (0, 4, 6))
    assert release.released is upload.update
    assert len(rows) == len(witnessed) == 3


def test_what_the_ledger_is_told_of_a_round_are_digests_of_what_is_public(tmp_path):
    federation, current = answered(PLAIN, tmp_path)
    unit, kept = federation.worker.unit, []
    upload = unit.receive(replace(current, answers=current.answers, index=0))[0]
    current = replace(current, uploads=(upload,), following=b"next", last=True)
    with profiled() as profile:
        plain = unit.close(current)
    assert set(profile.seconds) == {"other", "evidence"}
    assert set(plain) == {"broadcast_sha256", "released_sha256", "participations_sha256"}
    assert plain["released_sha256"] == vector_digest(upload.update).hex()

    class Servers:
        def combined(self, *given, **more):
            kept.append((*given, more))
            return {"pieces": 1}

    unit.evidence.servers = Servers()
    assert unit.close(current) == {**plain, "pieces": 1}
    messages = (current.message, b"next")
    assert kept == [(1, messages, [pack(upload.update, {})], {"last": True})]


def test_the_summary_says_what_is_cut_and_clipped(tmp_path):
    for section, start in (
        (PLAIN, "whole updates, each clipped"),
        (RANDOM, f"updates cut to {SIZE // 2} of {SIZE}"),
    ):
        (tmp_path / start[:5]).mkdir()
        plan = federated(section, tmp_path / start[:5])[0].plan
        assert ClientLevel.explain(None, plan).startswith(start)


def test_traffic_is_that_of_as_many_clients_as_are_expected_and_likeness_is_an_upload(tmp_path):
    for section in (PLAIN, RANDOM, TOP):
        (tmp_path / section[7:20]).mkdir()
        _, current = answered(section, tmp_path / section[7:20])
        length = len(current.answers[0].message)
        assert ClientLevel.traffic(current) == (EXPECTED * length, EXPECTED * len(current.message))
        assert len(ClientLevel.likeness(current, None)) == length
