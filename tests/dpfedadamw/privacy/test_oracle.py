"""The oracle: what a rule gets for a query, what it cannot get, and what is written down of it."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy import oracle as module
from dpfedadamw.privacy.clipped_sum import Clipping
from dpfedadamw.privacy.noise.noise import NoiseAhead, add_gaussian_noise
from dpfedadamw.privacy.noise.randomness import ReproducibleRandomness
from dpfedadamw.privacy.oracle import Charge, PrivateOracle, clipped_sum
from dpfedadamw.privacy.plain_form import LoopEngine
from dpfedadamw.privacy.sampling import FixedSizeSampling, People, PoissonSampling, ShuffledEpochs
from dpfedadamw.privacy.spot_check import SpotCheck, SpotCheckError
from dpfedadamw.profiling import profiled
from dpfedadamw.vectors.flat import FlatParameters
from tests.dpfedadamw.clipping.clipping_harness import assert_same, weighted_squares

RECORDS, DEVIATION, NORM = 12, 0.75, 0.4
INPUTS = torch.randn(RECORDS, 3, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
LABELS = torch.arange(RECORDS)
THETA = torch.tensor([0.3, -0.2, 0.5, 0.1], dtype=torch.float64)


class Counted:
    """An engine that tells how many records it was given at a time."""

    def __init__(self, engine: LoopEngine) -> None:
        self.engine = engine
        self.sizes: list[int] = []

    def __call__(self, inputs, targets):
        assert len(inputs) == len(targets)
        self.sizes.append(len(targets))
        return self.engine(inputs, targets)


def toy(groups=None) -> tuple[Counted, FlatParameters]:
    module = nn.Linear(3, 1).double()
    if groups is not None:
        module.record_groups = groups
    return Counted(LoopEngine(module, weighted_squares, Clipping(NORM))), FlatParameters(module)


class Written:
    """Evidence that keeps what it is told."""

    def __init__(self) -> None:
        self.batches: list[tuple[list[int], int]] = []
        self.queries: list = []

    def batch(self, indices, records, rows):
        self.batches.append((indices.tolist(), records))

    def of_people(self, rows, records):
        self.people = (rows.tolist(), records)

    def query(self, query):
        self.queries.append(query)


def plan(deviation: float = DEVIATION, divisor: float | None = 5.0, sampling=None):
    """What the oracle asks a plan for; each client has another divisor and variance."""
    return SimpleNamespace(
        noise_variance=lambda client: 0.25 + client,
        noise_standard_deviation=deviation,
        fixed_divisor=lambda client: None if divisor is None else divisor + client,
        sampling=sampling or PoissonSampling(4.0),
        gaussian_sampler="four-draw",
    )


def stream(name: str):
    return ReproducibleRandomness(8).stream(name, 0, 2)


def oracle(
    of=None,
    steps=3,
    queries=2,
    most=512,
    written=None,
    groups=None,
    inputs=INPUTS,
    labels=LABELS,
    people=None,
    spoilt=None,
) -> PrivateOracle:
    engine, flat = toy(groups)
    check = None
    if people is not None:
        # Asked of people, it has no count to keep.
        check = SpotCheck(flat.module, weighted_squares, Clipping(NORM))
        engine = engine.engine if spoilt is None else spoilt(engine.engine)
    return PrivateOracle(
        plan=of or plan(),
        client=2,
        charge=Charge(steps, queries),
        engine=engine,
        flat=flat,
        inputs=inputs,
        labels=labels,
        batches=stream("batches"),
        noise=stream("noise"),
        evidence=written,
        physical_batch_size=most,
        people=people,
        check=check,
    )


def drawn(count: int = 1) -> list[torch.Tensor]:
    """The batches that the stream of these tests gives, as the sampler draws them."""
    source = PoissonSampling(4.0).batches(RECORDS, stream("batches"))
    return [torch.from_numpy(next(source)) for _ in range(count)]


def test_an_answer_is_the_clipped_sum_with_noise_over_the_clients_fixed_divisor():
    (rows,) = drawn()
    engine, flat = toy()
    clean = clipped_sum(engine, flat, THETA, (INPUTS[rows], LABELS[rows]), 512).total
    noisy = add_gaussian_noise(clean, DEVIATION, stream("noise"), "four-draw")
    asked = oracle()
    asked.next_batch()
    assert torch.equal(asked.gradient(THETA), noisy / 7.0)
    assert asked.noise_variance == 2.25


def test_without_noise_the_mean_is_that_of_the_records_that_are_there():
    rows = next(ShuffledEpochs(5).batches(RECORDS, stream("batches")))
    engine, flat = toy()
    clean = clipped_sum(engine, flat, THETA, (INPUTS[rows], LABELS[rows]), 512).total
    asked = oracle(plan(0.0, None, ShuffledEpochs(5)))
    asked.next_batch()
    assert torch.equal(asked.gradient(THETA), clean / 5.0)


def test_an_empty_batch_is_answered_by_noise_alone_and_a_plain_one_by_zero():
    never = PoissonSampling(1e-12)
    asked = oracle(plan(sampling=never))
    asked.next_batch()
    nothing = torch.zeros(4, dtype=torch.float64)
    noise = add_gaussian_noise(nothing, DEVIATION, stream("noise"), "four-draw")
    assert torch.equal(asked.gradient(THETA), noise / 7.0)
    plain = oracle(plan(0.0, None, never))
    plain.next_batch()
    assert torch.equal(plain.gradient(THETA), nothing)


def test_no_more_batches_and_answers_are_given_than_were_charged():
    asked = oracle(steps=2, queries=2)
    with pytest.raises(PrivacyError, match="gradient 1 of a batch charged for 2"):
        asked.gradient(THETA)
    for step in (1, 2):
        asked.next_batch()
        assert asked.steps == step
        for _ in range(2):
            asked.gradient(THETA)
        with pytest.raises(PrivacyError, match="gradient 3 of a batch charged for 2"):
            asked.gradient(THETA)
        assert asked.queries == 2 * step
    with pytest.raises(PrivacyError, match="step 3 of a round charged for 2"):
        asked.next_batch()
    assert asked.steps == 2


def test_both_answers_on_a_batch_have_noise_of_their_own():
    asked = oracle()
    asked.next_batch()
    assert not torch.equal(asked.gradient(THETA), asked.gradient(THETA))


def test_the_evidence_holds_batch_norms_sums_and_divisor_of_each_answer():
    written = Written()
    asked = oracle(written=written)
    batches = drawn(2)
    for rows in batches:
        asked.next_batch()
        answer = asked.gradient(THETA)
        engine, flat = toy()
        clean = clipped_sum(engine, flat, THETA, (INPUTS[rows], LABELS[rows]), 512)
        query = written.queries[-1]
        assert (query.batch_size, query.nonfinite, query.divisor) == (len(rows), 0, 7.0)
        assert torch.equal(query.raw_norms, clean.raw_norms)
        assert torch.equal(query.clipped_norms, clean.clipped_norms)
        assert torch.equal(query.clean_sum, clean.total)
        # The noisy sum is divided in place, once it has been written down.
        assert torch.equal(query.noisy_sum, answer)
    assert written.batches == [(rows.tolist(), RECORDS) for rows in batches]
    assert len(batches[0]) != len(batches[1])


@pytest.mark.parametrize("most", [1, 4, 5, 11, 12, 512])
def test_a_batch_in_parts_has_the_sum_of_the_whole_and_no_part_is_larger_than_said(most):
    engine, flat = toy()
    whole = clipped_sum(engine, flat, THETA, (INPUTS, LABELS), RECORDS)
    found = clipped_sum(engine, flat, THETA, (INPUTS, LABELS), most)
    assert_same(found, whole)
    full, rest = divmod(RECORDS, most)
    assert engine.sizes[1:] == [most] * full + [rest] * (rest > 0)


@pytest.mark.parametrize(("most", "sizes"), [(8, [4, 4, 2, 2]), (12, [6, 6])])
def test_records_that_a_model_groups_keep_their_norms_at_their_places(most, sizes):
    engine, flat = toy()
    whole = clipped_sum(engine, flat, THETA, (INPUTS, LABELS), RECORDS)

    def odd_ones_first(inputs):
        rows = torch.arange(len(inputs))
        return [rows[rows % 2 == 1], rows[rows % 2 == 0]]

    grouped, flat = toy(odd_ones_first)
    found = clipped_sum(grouped, flat, THETA, (INPUTS, LABELS), most)
    assert grouped.sizes == sizes
    assert_same(found, whole)


def test_records_without_a_finite_gradient_are_counted_over_all_parts():
    inputs = INPUTS.clone()
    inputs[[1, 2, 9]] = float("nan")
    engine, flat = toy()
    found = clipped_sum(engine, flat, THETA, (inputs, LABELS), 4)
    assert found.nonfinite == 3
    assert np.flatnonzero(~np.isfinite(found.raw_norms.numpy())).tolist() == [1, 2, 9]
    finite = torch.isfinite(inputs).all(1)
    rest = clipped_sum(engine, flat, THETA, (inputs[finite], LABELS[finite]), 512)
    torch.testing.assert_close(found.total, rest.total, rtol=1e-12, atol=0)


def test_gradients_are_taken_at_the_parameters_that_are_asked_for():
    engine, flat = toy()
    here = clipped_sum(engine, flat, THETA, (INPUTS, LABELS), 512).total
    there = clipped_sum(engine, flat, 2 * THETA, (INPUTS, LABELS), 512).total
    assert not torch.equal(here, there)
    assert torch.equal(clipped_sum(engine, flat, THETA, (INPUTS, LABELS), 512).total, here)


def test_rows_are_asked_for_where_they_were_drawn_and_only_labels_lie_on_the_device():
    """Rows that were sent to an accelerator and back would wait for all that it has to do."""
    asked: list[torch.Tensor] = []

    class Noted:
        def __getitem__(self, chosen):
            asked.append(chosen)
            return INPUTS[chosen]

    one = oracle(inputs=Noted(), labels=LABELS.to("meta"))
    one.next_batch()
    assert asked[0].device.type == "cpu"
    assert torch.equal(asked[0], drawn()[0])
    assert one._batch[1].device.type == "meta"
    assert one._batch[1].shape == asked[0].shape


class Numbered:
    """Inputs that say which rows of a data set a batch holds."""

    rows = np.arange(100, 100 + RECORDS)

    def __getitem__(self, chosen):
        return Rows(INPUTS[chosen], self.rows[chosen.numpy()])


class Rows:
    def __init__(self, inputs, rows):
        self.inputs, self.rows = inputs, rows

    def __getitem__(self, part):
        return self.inputs[part]


def test_rows_of_the_data_set_are_passed_on_where_inputs_know_them():
    assert oracle().rows is None
    written = Written()
    seen = []
    written.batch = lambda indices, records, rows: seen.append((indices, records, rows))
    asked = oracle(inputs=Numbered(), written=written)
    assert asked.rows is Numbered.rows
    asked.next_batch()
    plain = oracle(written=written)
    plain.next_batch()
    (indices, records, rows), (_, _, none) = seen
    assert rows.tolist() == (100 + indices).tolist()
    assert (records, none) == (RECORDS, None)


@pytest.mark.parametrize(
    ("deviation", "short", "expected"),
    [(0.75, True, [(4, 6)]), (1e-9, True, [(4, 6)]), (0.75, False, []), (0.0, True, [])],
)
def test_noise_of_all_charged_queries_is_expected_of_a_short_model(
    deviation, short, expected, monkeypatch
):
    told = []
    monkeypatch.setattr(module, "is_short", lambda size: short)
    monkeypatch.setattr(
        type(stream("noise")), "expect", lambda _, n, times: told.append((n, times))
    )
    oracle(plan(deviation), steps=3, queries=2)
    assert told == expected


def test_without_noise_none_is_drawn_and_the_answer_is_exact_however_small_the_sum():
    asked = oracle(plan(0.0, 1.0))
    asked.next_batch()
    asked.gradient(THETA)
    assert repr(asked._noise) == "Stream(blocks_drawn=0)"
    tiny = oracle(plan(1e-9))
    tiny.next_batch()
    tiny.gradient(THETA)
    assert repr(tiny._noise) != "Stream(blocks_drawn=0)"


@pytest.mark.parametrize(
    ("sampler", "deviation", "device", "ahead"),
    [
        ("box-muller", 0.5, "cuda", True),
        ("four-draw", 0.5, "cuda", True),
        ("on-device", 0.5, "cuda", False),
        ("box-muller", 0.0, "cuda", False),
        ("box-muller", 0.5, "cpu", False),
        ("box-muller", 0.0, "cpu", False),
    ],
)
def test_noise_is_drawn_ahead_where_an_accelerator_computes_the_sum(
    sampler, deviation, device, ahead
):
    """In numbers, it makes no difference (`test_noise`); in time, on a CPU both share the cores."""
    said = plan(deviation)
    said.gaussian_sampler = sampler
    asked = oracle(said)

    class There:
        """Parameters of a device that this machine need not have."""

        def __init__(self):
            self.device = torch.device(device)

        def __len__(self):
            return 4

    found = asked._draw_ahead(There())
    assert isinstance(found, NoiseAhead) is ahead
    if ahead:
        total = torch.zeros(4)
        expected = add_gaussian_noise(total, 0.5, stream("noise"), sampler)
        assert torch.equal(found.add(total, 0.5), expected)


@pytest.mark.parametrize("sampler", ["box-muller", "four-draw", "on-device"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_ahead_and_noise_behind_give_one_answer_of_the_parameters_type(
    sampler, dtype, monkeypatch
):
    said = plan()
    said.gaussian_sampler = sampler

    def answered():
        asked = oracle(said)
        asked.next_batch()
        return asked.gradient(THETA.to(dtype))

    behind = answered()
    (rows,) = drawn()
    engine, flat = toy()
    here = THETA.to(dtype)
    clean = clipped_sum(engine, flat, here, (INPUTS[rows], LABELS[rows]), 512).total
    noisy = add_gaussian_noise(clean, DEVIATION, stream("noise"), sampler, dtype=dtype)
    assert behind.dtype == dtype
    assert torch.equal(behind, noisy / 7.0)
    if sampler != "on-device":
        given = NoiseAhead(4, stream("noise"), sampler)
        monkeypatch.setattr(PrivateOracle, "_draw_ahead", lambda *_: given)
        assert torch.equal(answered(), behind)


def test_the_divisor_without_a_fixed_one_is_what_is_there_and_one_at_least():
    for sampling, size in ((FixedSizeSampling(1), 1), (FixedSizeSampling(3), 3)):
        written = Written()
        asked = oracle(plan(0.0, None, sampling), written=written)
        asked.next_batch()
        asked.gradient(THETA)
        assert (written.queries[0].batch_size, written.queries[0].divisor) == (size, float(size))
    written = Written()
    asked = oracle(plan(0.5, None, PoissonSampling(1e-12)), written=written)
    asked.next_batch()
    asked.gradient(THETA)
    assert (written.queries[0].batch_size, written.queries[0].divisor) == (0, 1.0)


def test_a_divisor_below_one_is_kept_as_it_is():
    asked = oracle(plan(0.0, -1.5))
    asked.next_batch()
    engine, flat = toy()
    (rows,) = drawn()
    clean = clipped_sum(engine, flat, THETA, (INPUTS[rows], LABELS[rows]), 512).total
    assert torch.equal(asked.gradient(THETA), clean / 0.5)


class Sums:
    """An engine whose sums are told apart, without norms as where nothing is private."""

    def __init__(self, measured: bool) -> None:
        self.measured, self.calls = measured, []

    def __call__(self, inputs, targets):
        self.calls.append((inputs[:, 0].tolist(), targets.tolist()))
        norms = targets.float() if self.measured else torch.zeros(0)
        return module.ClippedSum(targets.double().sum()[None], norms, norms / 2, len(targets))


@pytest.mark.parametrize("measured", [True, False])
def test_a_batch_that_is_cut_up_comes_together_in_its_own_order(measured):
    _, flat = toy(lambda records: [torch.tensor([2, 0]), torch.tensor([1])])
    engine, inputs = Sums(measured), torch.arange(6.0)[:, None]
    found = clipped_sum(engine, flat, THETA, (inputs, 10 * torch.arange(6)), 3)
    assert engine.calls == [
        ([2.0, 0.0], [20, 0]),
        ([1.0], [10]),
        ([5.0, 3.0], [50, 30]),
        ([4.0], [40]),
    ]
    assert (found.total.tolist(), found.nonfinite) == ([150.0], 6)
    order = [0.0, 10.0, 20.0, 30.0, 40.0, 50.0] if measured else []
    assert found.raw_norms.tolist() == order
    assert found.clipped_norms.tolist() == [norm / 2 for norm in order]


@pytest.mark.parametrize("groups", [[[0, 1], [1, 2]], [[0, 1]], [[0, 1, 2], [0]], [[0, 0, 1]]])
def test_a_record_that_a_model_groups_twice_or_not_at_all_is_refused(groups):
    """The spot check is of the engine, which does not know what it was not given."""
    _, flat = toy(lambda records: [torch.tensor(rows) for rows in groups])
    inputs = torch.arange(4.0)[:, None]
    with pytest.raises(PrivacyError, match="record_groups must return each row exactly once"):
        clipped_sum(Sums(True), flat, THETA, (inputs[:3], torch.arange(3)), 512)


def test_an_attribute_of_ones_own_called_groups_groups_no_records():
    _, flat = toy()
    flat.module.groups = 2
    found = clipped_sum(Sums(True), flat, THETA, (INPUTS[:3], torch.arange(3)), 512)
    assert found.raw_norms.tolist() == [0.0, 1.0, 2.0]


def test_one_group_of_all_records_is_one_sum_of_the_batch_as_it_is():
    seen = []

    class Same(Sums):
        def __call__(self, inputs, targets):
            seen.append(inputs)
            return super().__call__(inputs, targets)

    _, flat = toy(lambda records: [torch.arange(len(records))])
    inputs = torch.arange(3.0)[:, None]

    class Whole:
        def __getitem__(self, part):
            assert part == slice(0, 512)
            return inputs

    found = clipped_sum(Same(True), flat, THETA, (Whole(), torch.arange(3)), 512)
    # Neither copied nor put in another order.
    assert seen[0] is inputs
    assert found.raw_norms.tolist() == [0.0, 1.0, 2.0]


def test_no_records_are_one_call_whatever_the_model_groups():
    _, flat = toy(lambda records: 1 / 0)
    engine = Sums(True)
    found = clipped_sum(engine, flat, THETA, (INPUTS[:0], LABELS[:0]), 3)
    assert engine.calls == [([], [])]
    assert found.total.tolist() == [0.0]


def test_time_counts_for_the_sampling_and_for_the_clipped_sum():
    with profiled() as profile:
        asked = oracle()
        asked.next_batch()
        asked.gradient(THETA)
    assert {"sampling", "clipped sum", "noise"} <= set(profile.seconds)


def test_places_of_records_are_made_where_the_records_lie():
    """Made elsewhere, they would wait for all that an accelerator has to do."""
    places = []

    class Made(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if func is torch.arange:
                places.append((kwargs or {}).get("device"))
            return func(*args, **(kwargs or {}))

    _, flat = toy()
    with Made():
        clipped_sum(Sums(True), flat, THETA, (INPUTS, LABELS), 5)
    assert places == [INPUTS.device] * 3


# Four people, who have five, one, four and two of the twelve records.
WHO = np.array([0, 2, 0, 1, 2, 0, 3, 2, 0, 3, 2, 0])
OF_EACH = [[0, 2, 5, 8, 11], [3], [1, 4, 7, 10], [6, 9]]


def people(most: int = 5):
    return People(WHO, most), stream("people")


def test_people_are_drawn_and_each_is_one_mean_gradient_clipped_to_c():
    written = Written()
    asked = oracle(plan(sampling=PoissonSampling(3.0)), people=people(), written=written)
    persons = next(PoissonSampling(3.0).batches(4, stream("batches"))).tolist()
    asked.next_batch()
    answer = asked.gradient(THETA)
    assert 1 < len(persons) < 4
    rows = [row for person in persons for row in OF_EACH[person]]
    _, flat = toy()
    flat.assign(THETA)
    total = torch.zeros(4, dtype=torch.float64)
    norms = []
    for person in persons:
        own = OF_EACH[person]
        flat.module.zero_grad()
        weighted_squares(flat.module(INPUTS[own]), LABELS[own]).mean().backward()
        mean = torch.cat([one.grad.reshape(-1) for one in flat.module.parameters()])
        norms.append(float(mean.norm()))
        total += mean * min(1.0, NORM / norms[-1])
    (query,) = written.queries
    # Factors are cut a little short, so that no rounding lifts a norm over C.
    torch.testing.assert_close(query.clean_sum, total, rtol=1e-6, atol=0)
    torch.testing.assert_close(query.raw_norms, torch.tensor(norms).double(), rtol=1e-6, atol=0)
    # The batch's size is that of its people, and the divisor is fixed.
    assert (query.batch_size, query.divisor) == (len(persons), 7.0)
    assert written.batches == [(persons, 4)]
    assert written.people == (rows, RECORDS)
    noisy = add_gaussian_noise(query.clean_sum, DEVIATION, stream("noise"), "four-draw")
    assert torch.equal(answer, noisy / 7.0)


def test_no_person_has_more_records_in_a_batch_than_the_most():
    written = Written()
    asked = oracle(plan(sampling=PoissonSampling(3.9)), people=people(2), written=written)
    asked.next_batch()
    rows, _ = written.people
    ((persons, _),) = written.batches
    assert [int((WHO[rows] == person).sum()) for person in persons] == [
        min(2, len(OF_EACH[person])) for person in persons
    ]


def test_a_batch_without_a_person_is_answered_by_noise_alone():
    written = Written()
    asked = oracle(plan(sampling=PoissonSampling(1e-12)), people=people(), written=written)
    asked.next_batch()
    noise = add_gaussian_noise(
        torch.zeros(4, dtype=torch.float64), DEVIATION, stream("noise"), "four-draw"
    )
    assert torch.equal(asked.gradient(THETA), noise / 7.0)
    assert written.people == ([], RECORDS)


class Neighbours(LoopEngine):
    """Gives each person the last record of the one after."""

    def of_people(self, inputs, targets, sizes):
        return super().of_people(inputs.roll(1, 0), targets.roll(1, 0), sizes)


def test_an_engine_that_mistakes_one_persons_records_for_anothers_is_found_while_it_runs():
    fine = oracle(plan(sampling=PoissonSampling(3.9)), people=people())
    fine.next_batch()
    fine.gradient(THETA)
    assert fine._check.made == 1

    def spoilt(engine):
        return Neighbours(engine._model, weighted_squares, Clipping(NORM))

    wrong = oracle(plan(sampling=PoissonSampling(3.9)), people=people(), spoilt=spoilt)
    wrong.next_batch()
    with pytest.raises(SpotCheckError):
        wrong.gradient(THETA)
