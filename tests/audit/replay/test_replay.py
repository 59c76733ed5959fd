"""The auditor's own algorithms: they agree with the engine's, and bound what rounding can do."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from audit import audit_run
from audit.reading import exchanges
from audit.reading.ledger import Round
from audit.replay import OWN, OWN_MEANS, find_replay
from audit.replay.base import (
    UPDATE,
    Conditions,
    NeedsWholeVectorsError,
    Partition,
    Released,
    ReplayError,
    ServerValues,
)
from audit.replay.participation import Tally, compare_released
from audit.replay.rounding import Rounded, exact, known, mean_of
from audit.untrusted.archives import MessageError, read_tensors
from audit.verdict import Verdict
from dpfedadamw.algorithms.base import Broadcast
from dpfedadamw.algorithms.keys import SecondMomentSpec
from dpfedadamw.algorithms.registry import ALGORITHMS
from dpfedadamw.evidence import exchanges as upload_evidence
from dpfedadamw.spec.vocabulary import fill_defaults
from dpfedadamw.vectors.flat import blocks_of
from tests.audit.corruptions import finding_of
from tests.audit.synthetic_client_run import ClientSettings, build_client_run
from tests.audit.synthetic_run import Settings, build_run, pack, rewrite_ledger
from tests.dpfedadamw.algorithms import worlds

RECORD_LEVEL = sorted(name for name, entry in ALGORITHMS.items() if entry.unit == "record")
SECTIONS = [
    *(f"{{name: {name}}}" for name in RECORD_LEVEL),
    *(
        f"{{name: dp-fedadamw, {part}}}"
        for part in (
            *(f"second_moment: {{aggregation: {kind}}}" for kind in ("full", "none", "tensor")),
            *(f"second_moment: {{aggregation: {kind}}}" for kind in ("layer", "hessian")),
            "first_moment: {aggregation: full}",
            "second_moment: {debias: false}",
            "second_moment: {counter: local}",
            "second_moment: {floor: {relative: 0.3}}",
            "second_moment: {floor: {absolute: 1.0e-3}}",
            "second_moment: {denominator: block}",
            "second_moment: {denominator: block, aggregation: tensor}",
            "alignment: 0",
            "weight_decay: 0",
            "decay: coupled",
            "decay: coupled, second_moment: {aggregation: none}",
        )
    ),
    "{name: dp-localadamw, decay: coupled}",
    "{name: dp-fedopt, server: {rule: yogi}}",
    "{name: dp-fedavg-ls, smoothing: {scope: tensor, strength: 3.0}}",
    *(f"{{name: {name}, server: {{learning_rate: 2.5}}}}" for name in RECORD_LEVEL),
    "{name: dp-fedsam, sam: {radius: 0.0}}",
]


def test_every_algorithm_that_protects_records_has_a_replay():
    assert OWN.keys() == set(RECORD_LEVEL)


def test_every_algorithm_that_protects_clients_is_known():
    client_level = {name for name, entry in ALGORITHMS.items() if "client" in entry.units}
    assert client_level <= OWN_MEANS


class Noting(worlds.Oracle):
    """The world's oracle, which keeps what it was asked and what it answered."""

    def gradient(self, parameters):
        self.points = [*getattr(self, "points", []), parameters.numpy().copy()]
        answer = super().gradient(parameters)
        self.answers = [*getattr(self, "answers", []), answer.numpy().copy()]
        return answer


def arrays(tensors):
    return {name: value.double().numpy().copy() for name, value in tensors.items()}


def setting_of(section, round_index, partition):
    mapping = fill_defaults({"algorithm": yaml.safe_load(section)})["algorithm"]
    steps = worlds.STEPS
    return Conditions(
        algorithm=mapping,
        clients=worlds.CLIENTS,
        learning_rate=worlds.RATES[round_index],
        steps=steps,
        earlier_steps=round_index * steps,
        noise_variance=worlds.NOISE_VARIANCE,
        partition=partition,
        whole=True,
    )


@pytest.mark.parametrize("section", SECTIONS)
def test_the_replay_is_the_engines_algorithm_once_more(section):
    """In double precision both must agree to rounding: 1e-11 of values of order one."""
    system, model = worlds.algorithm(section), worlds.model()
    moment = worlds.section_of(section).part(SecondMomentSpec)
    kind = moment.aggregation if moment else "tensor"
    blocks = blocks_of(model, "tensor" if kind in ("full", "none") else kind)
    partition = Partition(blocks.sizes.numpy(), blocks.index.numpy(), np.array([6, 2]))
    own = find_replay(worlds.section_of(section).name).replay
    state = system.server.start(torch.from_numpy(worlds.first_parameters()))
    first = own.start(setting_of(section, 0, partition), worlds.first_parameters())
    assert_same(arrays(state.state), {name: exact(value) for name, value in first.items()})
    memories: dict[int, dict[str, torch.Tensor]] = {}
    for index, cohort in enumerate(worlds.COHORTS):
        setting = setting_of(section, index, partition)
        given_to = (state.parameters, state.state, setting.learning_rate, worlds.STEPS)
        uploads, replayed = [], []
        for client in cohort:
            oracle = Noting(client, index)
            before = memories.get(client, {})
            broadcast = Broadcast(*given_to, index * worlds.STEPS, before)
            upload = system.local.run(broadcast, oracle, worlds.Silent())
            memories[client] = dict(upload.memory)
            gradients = np.stack(oracle.answers)
            sums = np.stack([np.bincount(partition.of_coordinate, one**2) for one in gradients])
            released = Released(
                state.parameters.numpy(), arrays(state.state), arrays(before), gradients, sums
            )
            produced = own.local(setting, released)
            assert_same({UPDATE: upload.update.numpy(), **arrays(upload.state)}, produced.upload)
            assert_same(arrays(upload.memory), produced.memory)
            for point, expected in zip(oracle.points, released.points, strict=True):
                np.testing.assert_allclose(point, expected.value, rtol=1e-11, atol=1e-11)
            uploads.append(upload)
            replayed.append(produced.upload)
        now = ServerValues(
            exact(state.parameters.numpy()),
            {name: exact(value) for name, value in arrays(state.state).items()},
        )
        state = system.server.combine(state, uploads, Broadcast(*given_to, index * worlds.STEPS))
        after = own.combine(setting, now, replayed)
        found = {UPDATE: state.parameters.numpy(), **arrays(state.state)}
        assert_same(found, {UPDATE: after.parameters, **after.state})


def assert_same(found, expected):
    assert set(found) == set(expected)
    for name, value in found.items():
        np.testing.assert_allclose(value, expected[name].value, rtol=1e-11, atol=1e-11)


def test_a_rule_that_is_given_too_few_gradients_says_so():
    section = "{name: dp-fedavg}"
    partition = Partition(np.array([8.0]), np.zeros(8, np.int64), np.array([8]))
    released = Released(np.zeros(8), {}, {}, np.zeros((2, 8)), np.zeros((2, 1)))
    with pytest.raises(ReplayError, match="fewer gradients"):
        find_replay("dp-fedavg").replay.local(setting_of(section, 0, partition), released)


@pytest.mark.parametrize("section", ["{name: dp-fafed}", "{name: dp-fedavg-ls}"])
def test_a_rule_that_mixes_all_coordinates_refuses_a_sample_of_them(section):
    partition = Partition(np.array([8.0]), np.zeros(4, np.int64), np.array([8]))
    setting = replace(setting_of(section, 0, partition), whole=False)
    zero = np.zeros(4)
    state = {"first_moment": zero, "second_moment": zero, "previous": zero}
    released = Released(zero, state, {}, np.ones((8, 4)), np.ones((8, 1)))
    with pytest.raises(NeedsWholeVectorsError):
        find_replay(worlds.section_of(section).name).replay.local(setting, released)


# Away from float32's edges, as gradients, moments and weights are.
NUMBERS = st.lists(
    st.floats(-1e3, 1e3, width=32).filter(lambda x: x == 0.0 or abs(x) > 1e-6),
    min_size=4,
    max_size=4,
)


# A busy machine draws long vectors slowly; that says nothing about the arithmetic.
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(NUMBERS, NUMBERS, st.floats(0.01, 0.99), st.floats(1e-4, 1.0))
def test_float32_arithmetic_stays_within_the_bound(first, second, share, rate):
    """A step of every operation there is, in float32 by torch, lies within the replay's bound."""
    a, b = torch.tensor(first), torch.tensor(second)
    moved = (a * share).add_(b, alpha=1.0 - share)
    square = (a * a * share).addcmul_(b, b, value=1.0 - share)
    root = (square / (1.0 - share**3)).sub_(0.1).clamp_(min=0.2).sqrt_().add_(1e-8)
    engine = (a * (1.0 - rate * 0.01)).addcdiv_(moved, root, value=-rate)
    x, y = exact(a.double().numpy()), exact(b.double().numpy())
    momentum = x * share + y * (1.0 - share)
    estimate = (x.square() * share + y.square() * (1.0 - share)) / (1.0 - share**3)
    denominator = (estimate - 0.1).at_least(0.2).root() + 1e-8
    own = x * (1.0 - rate * 0.01) - momentum / denominator * rate
    assert np.all(np.abs(engine.double().numpy() - own.value) <= own.bound)
    mean = torch.stack([a, b, engine]).mean(0).double().numpy()
    expected = mean_of([x, y, own])
    assert np.all(np.abs(mean - expected.value) <= expected.bound)


@given(st.floats(0.0, 10.0), st.floats(0.0, 1.0), st.floats(-1.0, 1.0))
def test_a_roots_bound_holds_for_every_value_within_its_arguments(value, bound, place):
    own = Rounded(np.array([value]), np.array([bound])).root()
    other = np.sqrt(max(0.0, value + place * bound))
    assert abs(other - own.value[0]) <= own.bound[0]


@given(st.floats(-10.0, 10.0), st.floats(0.0, 2.0), st.floats(0.5, 9.0), st.floats(-1.0, 1.0))
def test_a_quotients_bound_holds_or_is_infinite(value, bound, divisor, place):
    own = exact(np.array([value])) / Rounded(np.array([divisor]), np.array([bound]))
    other = divisor + place * bound
    assert np.isinf(own.bound[0]) or abs(value / other - own.value[0]) <= own.bound[0]


def test_a_comparison_sees_what_is_beyond_the_bound_and_only_that():
    expected = Rounded(np.array([1.0, 2.0]), np.array([1e-6, 1e-6]))
    good, bad, short = Tally(), Tally(), Tally()
    good.compare("x", np.array([1.0 + 9e-7, 2.0]), expected)
    bad.compare("x", np.array([1.0, 2.0 - 2e-6]), expected)
    short.compare("x", np.array([1.0]), expected)
    assert (good.reasons, len(bad.reasons), len(short.reasons)) == ([], 1, 1)
    unknown = Tally()
    unknown.compare("x", np.array([np.nan, np.inf]), expected)
    assert unknown.reasons


def test_a_message_is_read_as_the_engine_writes_it():
    tensors = {"parameters": torch.randn(5), "state.second_moment": torch.rand(2)}
    found = read_tensors(save(tensors))
    assert set(found) == set(tensors)
    for name, value in tensors.items():
        np.testing.assert_array_equal(found[name], value.double().numpy())
    assert read_tensors(save({})) == {}


def gap():
    raw = pack({"a": np.zeros(2)})
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    header["a"]["data_offsets"] = [4, 12]
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(12)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xff" * 40,
        pack({"a": np.zeros(2)}) + b"x",
        pack({"a": np.zeros(2)})[:-1],
        save({"a": torch.zeros(2)}, metadata={"record": "0.1 0.7"}),
        save({"a": torch.zeros(2, dtype=torch.int64)}),
        gap(),
    ],
    ids=["empty", "no message", "trailing", "cut", "texts", "whole numbers", "gap"],
)
def test_a_message_with_room_for_more_than_its_tensors_is_refused(raw):
    with pytest.raises(MessageError):
        read_tensors(raw)


@given(st.integers(1, 10**8), st.integers(0, 400), st.integers(1, 10**6), st.binary(max_size=40))
def test_engine_and_auditor_agree_on_what_is_kept(parameters, queries, participations, salt):
    ours = upload_evidence.extent(parameters, queries, participations)
    theirs = exchanges.extent(parameters, queries, participations)
    assert (ours.share, ours.coordinates) == (theirs.share, theirs.coordinates)
    assert 0.0 < ours.share <= 1.0
    for index in range(4):
        asked = (salt, index, 3, salt[::-1], ours.share)
        assert upload_evidence.is_kept(*asked) == exchanges.is_kept(*asked)
    count = min(parameters, 50)
    engine = upload_evidence.kept_coordinates(salt, parameters, count)
    none = np.zeros(0, np.int64)
    np.testing.assert_array_equal(engine, exchanges.kept_coordinates(salt, parameters, count, none))
    assert len(set(engine.tolist())) == count
    assert engine.min() >= 0
    assert engine.max() < parameters


@given(st.integers(1, 10**7), st.integers(0, 200), st.integers(1, 10**5))
def test_what_is_kept_fits(parameters, queries, participations):
    kept = exchanges.extent(parameters, queries, participations)
    vectors = 2 * queries + 8
    expected = kept.share * participations * vectors * 4 * (kept.coordinates or parameters)
    assert expected <= exchanges.CAPACITY_BYTES
    assert kept.share * participations <= exchanges.MOST_FILES


def judged(run: Path):
    return finding_of(run, "uploads")


def test_a_broadcast_that_no_upload_explains_is_found(good_run):
    # A message and its digest in the ledger can both be replaced; what the server computes cannot.
    def change(entries):
        rounds = [entry for entry in entries if entry["kind"] == "round"]
        rounds[1]["broadcast_sha256"] = rounds[0]["broadcast_sha256"]

    rewrite_ledger(good_run, change)
    finding = judged(good_run)
    assert finding.verdict is Verdict.FAIL
    assert "not the one that the ledger notes" in finding.measurement


def test_a_ledger_without_digests_is_not_verified(good_run):
    def forget(entries):
        for entry in entries:
            entry.pop("uploads_sha256", None)

    rewrite_ledger(good_run, forget)
    assert judged(good_run).verdict is Verdict.NOT_VERIFIED


@pytest.mark.parametrize("unit", ["record", "client"])
def test_an_algorithm_without_a_replay_is_not_verified_and_named(unit, tmp_path, monkeypatch):
    monkeypatch.setattr("audit.replay.OWN", {})
    monkeypatch.setattr("audit.replay.OWN_MEANS", frozenset())
    if unit == "record":
        run = build_run(tmp_path / "run", Settings(algorithm="dp-fedavg"))
    else:
        run = build_client_run(tmp_path / "run", ClientSettings())
    finding = judged(run)
    assert finding.verdict is Verdict.NOT_VERIFIED
    assert "no replay of dp-fedavg" in finding.measurement
    assert audit_run(run).verdict is Verdict.NOT_VERIFIED


def test_a_further_tensor_at_client_level_is_named(tmp_path):
    finding = judged(build_client_run(tmp_path / "run", ClientSettings(further_tensor=True)))
    assert finding.verdict is Verdict.FAIL
    assert "'loss'" in finding.measurement


def test_no_number_measured_on_private_evidence_is_published(good_run):
    findings = audit_run(good_run)
    assert "could_hide" in json.dumps(findings.private_json())
    assert "could_hide" not in json.dumps(findings.to_json())


def test_what_an_adaptive_rule_goes_by_is_what_the_uploads_give():
    after = ServerValues(exact(np.zeros(2)), {"slope": known(np.full(1, 0.5), 1e-6)})
    line = Round(line=3, round=7, clients=(0,), steps=(1,), queries=(1,))
    for released, said in (
        ({}, []),
        ({"slope": 0.5}, []),
        ({"another": 3.0}, []),
        ({"slope": -0.5}, ["round 7: the ledger's slope is not what follows from the released"]),
        ({"slope": "-"}, ["round 7: the ledger's slope: slope is not a number"]),
    ):
        tally = Tally()
        compare_released(replace(line, released=released), after, tally)
        assert [one[: len(word)] for one, word in zip(tally.reasons, said, strict=True)] == said
