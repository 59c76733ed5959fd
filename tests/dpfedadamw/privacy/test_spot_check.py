"""The spot check: right engines pass, wrong ones end the run before anything is released."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn

from dpfedadamw.clipping.bookkeeping import BookKeepingEngine
from dpfedadamw.clipping.vmap import VmapEngine
from dpfedadamw.privacy import spot_check
from dpfedadamw.privacy.clipped_sum import ClippedSum, Clipping
from dpfedadamw.privacy.plain_form import LoopEngine
from dpfedadamw.privacy.spot_check import SpotCheck, SpotCheckError, drawn
from dpfedadamw.run.training import train
from tests.dpfedadamw.clipping.clipping_harness import cross_entropy
from tests.dpfedadamw.clipping.test_models import MODELS, build
from tests.runs import begin, small_spec

CLIPPING = Clipping(0.5)
BATCH = 6
# From here on a gradient may be finite in one form alone.
LARGEST = torch.finfo(torch.float32).max / 1000


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 3))


def batch() -> tuple[Tensor, Tensor]:
    torch.manual_seed(4)
    return 3.0 * torch.randn(BATCH, 4), torch.arange(BATCH) % 3


class Wrong:
    """An engine that makes a mistake of some kind, whatever it is asked.

    Args:
        of: The right one.
        mistake: From the right answer to the wrong one.
    """

    name = "wrong"
    layers: Mapping[str, str] = {}

    def __init__(self, of, mistake) -> None:
        self._of, self._mistake = of, mistake

    def explain(self) -> str:
        return "wrong"

    def __call__(self, inputs: Tensor, targets: Tensor) -> ClippedSum:
        return self._mistake(self._of, inputs, targets)


def norms_too_low(engine, inputs, targets):
    """A record's norm is missing one layer, and so is clipped too little."""
    right = engine(inputs, targets)
    factor = 0.9
    return ClippedSum(right.total / factor, factor * right.raw_norms, right.clipped_norms, 0)


def clipped_together(engine, inputs, targets):
    """The mean gradient is clipped, and not each record's."""
    free = BookKeepingEngine(engine._model, cross_entropy, Clipping(math.inf))(inputs, targets)
    most = CLIPPING.norm * len(targets) / float(free.total.norm())
    return ClippedSum(free.total * min(1.0, most), free.raw_norms, free.raw_norms, 0)


def factors_of_the_neighbour(engine, inputs, targets):
    """Each record has the factor of the one after it."""
    sums = [engine(inputs[k : k + 1], targets[k : k + 1]) for k in range(len(targets))]
    whole = engine(inputs, targets)
    total = torch.zeros_like(whole.total)
    for k, one in enumerate(sums):
        other = sums[(k + 1) % len(sums)]
        own = one.clipped_norms / one.raw_norms
        total += one.total * float(other.clipped_norms / other.raw_norms / own)
    return ClippedSum(total, whole.raw_norms, whole.clipped_norms, 0)


def norms_of_the_neighbour(engine, inputs, targets):
    right = engine(inputs, targets)
    return ClippedSum(right.total, right.raw_norms.roll(1), right.clipped_norms.roll(1), 0)


def one_record_twice(engine, inputs, targets):
    right, again = engine(inputs, targets), engine(inputs[:1], targets[:1])
    return ClippedSum(right.total + again.total, right.raw_norms, right.clipped_norms, 0)


def not_clipped_at_all(engine, inputs, targets):
    return BookKeepingEngine(engine._model, cross_entropy, Clipping(math.inf))(inputs, targets)


MISTAKES = [
    norms_too_low,
    clipped_together,
    factors_of_the_neighbour,
    norms_of_the_neighbour,
    one_record_twice,
    not_clipped_at_all,
]


def checked(engine, of: nn.Module, inputs: Tensor, targets: Tensor) -> None:
    """Every pair of neighbours in the batch is compared."""
    check = SpotCheck(of, cross_entropy, CLIPPING)
    norms = engine(inputs, targets).raw_norms
    for first in range(len(targets)):
        places = [first, (first + 1) % len(targets)]
        check(engine, inputs[places], targets[places], norms[places])
    assert check.made == len(targets)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", [BookKeepingEngine, VmapEngine])
def test_a_right_engine_passes_on_every_record_of_every_model(kind, name):
    of, inputs, targets = build(name)
    checked(kind(of, cross_entropy, CLIPPING), of, inputs, targets)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_an_engine_that_clips_wrongly_is_refused_without_a_number(mistake):
    of = model()
    wrong = Wrong(BookKeepingEngine(of, cross_entropy, CLIPPING), mistake)
    with pytest.raises(
        SpotCheckError, match="clipping engine wrong computed a clipped gradient"
    ) as refused:
        checked(wrong, of, *batch())
    assert not any(sign.isdigit() for sign in str(refused.value))


@pytest.mark.parametrize(("precision", "off"), [("float32", 0.004), ("bfloat16", 0.125)])
def test_a_norm_that_is_off_by_twice_what_rounding_explains_is_refused(precision, off):
    of, (inputs, targets) = model(), batch()
    engine = LoopEngine(of, cross_entropy, CLIPPING, precision)
    norms = engine(inputs, targets).raw_norms
    check = SpotCheck(of, cross_entropy, CLIPPING, precision)
    check(engine, inputs[:2], targets[:2], norms[:2])
    with pytest.raises(SpotCheckError):
        check(engine, inputs[:2], targets[:2], norms[:2] * (1 + off))


@pytest.mark.parametrize(("precision", "off"), [("float32", 0.002001), ("bfloat16", 0.0645)])
def test_a_norm_that_is_off_by_what_rounding_explains_of_the_larger_one_is_passed(precision, off):
    of, (inputs, targets) = model(), batch()
    engine = LoopEngine(of, cross_entropy, CLIPPING, precision)
    norms = engine(inputs, targets).raw_norms
    check = SpotCheck(of, cross_entropy, CLIPPING, precision)
    for factor in (1 + off, 1 / (1 + off)):
        check(engine, inputs[:2], targets[:2], norms[:2] * factor)


def test_a_sum_of_two_records_may_be_off_by_the_rounding_of_two_and_no_more():
    """An engine that is off by less adds at most this share of C to what a record can move."""
    of, (inputs, targets) = model(), batch()
    right = LoopEngine(of, cross_entropy, CLIPPING)
    norms = right(inputs, targets).raw_norms
    check = SpotCheck(of, cross_entropy, CLIPPING)

    def off_by(share: float) -> Wrong:
        def shifted(engine, inputs, targets):
            found = engine(inputs, targets)
            found.total[0] += share * CLIPPING.norm
            return found

        return Wrong(right, shifted)

    check(off_by(1.95 * 2e-3), inputs[:2], targets[:2], norms[:2])
    check(off_by(0.95 * 2e-3), inputs[:1], targets[:1], norms[:1])
    for records in (1, 2):
        with pytest.raises(SpotCheckError):
            check(
                off_by(1.05 * records * 2e-3), inputs[:records], targets[:records], norms[:records]
            )


def test_far_below_the_clipping_norm_an_error_may_be_small_against_it_alone():
    of, (inputs, targets) = model(), batch()
    engine = LoopEngine(of, cross_entropy, Clipping(1e4))
    norms = engine(inputs, targets).raw_norms
    check = SpotCheck(of, cross_entropy, Clipping(1e4))
    check(engine, inputs[:2], targets[:2], norms[:2] + 0.1)
    with pytest.raises(SpotCheckError):
        check(engine, inputs[:2], targets[:2], norms[:2] + 0.1 + 2.1e-3 * float(norms[0]))


@pytest.mark.parametrize(
    ("found", "right", "passes"),
    [
        # From a thousandth of the largest number on, neither form need have a finite gradient.
        (3.4028e35, 3.4028e35, True),
        (3.4029e35, 9e36, True),
        (math.nan, math.inf, True),
        (LARGEST, LARGEST, True),
        (3.4028e35, LARGEST, False),
        (LARGEST, 3.4028e35, False),
        (3.4029e35, 3.4028e35, False),
        (3.4028e35, 3.4029e35, False),
        (1.0, math.nan, False),
        (math.nan, 1.0, False),
    ],
)
def test_close_to_overflow_both_forms_must_be_close_to_it(found, right, passes):
    check = SpotCheck(model(), cross_entropy, CLIPPING)
    norms = (torch.tensor([one], dtype=torch.float64) for one in (found, right))
    assert check._same_norm(*norms) is passes


def test_the_random_state_of_an_accelerator_is_kept_and_put_back_too(monkeypatch):
    device, states = torch.device("cuda", 1), {}
    there = torch.arange(16, dtype=torch.uint8)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda where: there)
    monkeypatch.setattr(
        torch.cuda, "set_rng_state", lambda state, where: states.update({where: state})
    )
    here = torch.get_rng_state()
    before = spot_check._random_state(device)
    torch.rand(3)
    spot_check._restore(before, device)
    assert torch.equal(torch.get_rng_state(), here)
    assert list(states) == [device]
    assert torch.equal(states[device], there)


def test_a_gradient_that_is_finite_in_one_form_alone_is_refused_and_in_neither_is_passed():
    of = model()
    inputs, targets = batch()
    engine = BookKeepingEngine(of, cross_entropy, CLIPPING)
    check = SpotCheck(of, cross_entropy, CLIPPING)
    broken = inputs[:1].clone()
    broken[0, 0] = math.nan
    check(engine, broken, targets[:1], torch.tensor([math.nan], dtype=torch.float64))
    with pytest.raises(SpotCheckError):
        check(engine, broken, targets[:1], torch.tensor([0.3], dtype=torch.float64))
    with pytest.raises(SpotCheckError):
        check(engine, inputs[:1], targets[:1], torch.tensor([math.inf], dtype=torch.float64))


def test_dropout_is_compared_without_its_draw_and_the_draws_of_training_stay():
    of = nn.Sequential(model(), nn.Dropout(0.5), nn.Linear(3, 3), nn.Dropout(0.9))
    # What is frozen stays so.
    of[3].eval()
    modes = [module.training for module in of.modules()]
    engine = BookKeepingEngine(of, cross_entropy, CLIPPING)
    inputs, targets = batch()
    torch.manual_seed(9)
    expected = torch.rand(3)
    torch.manual_seed(9)
    check = SpotCheck(of, cross_entropy, CLIPPING)
    check(engine, inputs[:2], targets[:2], torch.full((2,), 77.0, dtype=torch.float64))
    assert torch.equal(torch.rand(3), expected)
    assert [module.training for module in of.modules()] == modes
    wrong = Wrong(engine, one_record_twice)
    with pytest.raises(SpotCheckError):
        check(wrong, inputs[:2], targets[:2], torch.ones(2, dtype=torch.float64))


def at_a_kink(distance: float) -> tuple[nn.Module, nn.Module, Tensor, Tensor]:
    """A rectifier's input lies so far above zero for one record, in its twin as far below.

    Returns:
        The model, its twin, which gives the record's gradient without the path, and two records.
    """
    torch.manual_seed(5)
    of = nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Linear(7, 3))
    inputs, targets = batch()
    with torch.no_grad():
        of[0].bias[2] -= of[0](inputs)[0, 2]
    twin = copy.deepcopy(of)
    with torch.no_grad():
        of[0].bias[2] += distance
        twin[0].bias[2] -= distance
    return of, twin, inputs[:2], targets[:2]


def the_twin(twin: nn.Module):
    def answer(_, inputs, targets):
        return BookKeepingEngine(twin, cross_entropy, CLIPPING)(inputs, targets)

    return answer


def test_a_kink_that_rounding_takes_otherwise_ends_no_run():
    """A rectifier's input within rounding of zero: batches of two sizes may have it on two sides.

    Each of the 24 further tries takes the engine's side with a probability of a third at least:
    all miss once in 10^4 checks of such records.
    """
    of, twin, inputs, targets = at_a_kink(2e-7)
    engine = Wrong(BookKeepingEngine(of, cross_entropy, CLIPPING), the_twin(twin))
    right, found = (LoopEngine(m, cross_entropy, CLIPPING)(inputs, targets) for m in (of, twin))
    assert float((right.total - found.total).norm()) > 3 * 2e-3 * CLIPPING.norm
    check = SpotCheck(of, cross_entropy, CLIPPING)
    torch.manual_seed(9)
    expected = torch.rand(3)
    torch.manual_seed(9)
    check(engine, inputs, targets, found.raw_norms)
    assert torch.equal(torch.rand(3), expected)
    assert not any(module._forward_pre_hooks for module in of.modules())
    check._moves = ()
    with pytest.raises(SpotCheckError):
        check(engine, inputs, targets, found.raw_norms)


def test_a_kink_beyond_what_rounding_moves_is_a_mistake():
    of, twin, inputs, targets = at_a_kink(1e-3)
    engine = Wrong(BookKeepingEngine(of, cross_entropy, CLIPPING), the_twin(twin))
    found = LoopEngine(twin, cross_entropy, CLIPPING)(inputs, targets)
    with pytest.raises(SpotCheckError):
        SpotCheck(of, cross_entropy, CLIPPING)(engine, inputs, targets, found.raw_norms)
    assert not any(module._forward_pre_hooks for module in of.modules())


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_at_a_record_with_a_kink_is_refused(mistake):
    of, _, inputs, targets = at_a_kink(1e-8)
    wrong = Wrong(BookKeepingEngine(of, cross_entropy, CLIPPING), mistake)
    with pytest.raises(SpotCheckError):
        checked(wrong, of, inputs, targets)


def test_two_different_records_are_drawn_each_as_often_as_any_other():
    pairs = [tuple(drawn(4)) for _ in range(6_000)]
    assert drawn(1) == [0]
    counts = [pairs.count((one, other)) for one in range(4) for other in range(4) if one != other]
    assert sum(counts) == 6_000
    # 500 expected of each of twelve; 120 away is more than five deviations: once in 10^6 runs.
    assert all(380 < count < 620 for count in counts)


def test_checks_take_a_fiftieth_of_the_time_and_the_first_batch_is_checked(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(spot_check.time, "perf_counter", lambda: clock[0])
    check = SpotCheck(model(), cross_entropy, CLIPPING)

    def compare(*_):
        clock[0] += 3.0

    monkeypatch.setattr(check, "_compare", compare)
    assert check.due(0.0)
    check(None, None, None, None)
    spent = 0.0
    for _ in range(20_000):
        spent += 1.0
        if check.due(1.0):
            check(None, None, None, None)
    assert check.made == pytest.approx(1 + 20_000 * 0.02 / 3.0, rel=0.1)
    assert 3.0 * (check.made - 1) <= 0.02 * spent


def test_of_batches_that_could_be_checked_one_in_four_is_whatever_their_place(monkeypatch):
    """A batch that recurs at every second step would else always be passed over."""
    check, asked, drawn_number = SpotCheck(model(), cross_entropy, CLIPPING), [], [0]
    check.made = 1
    monkeypatch.setattr(
        spot_check.secrets, "randbelow", lambda most: asked.append(most) or drawn_number[0]
    )
    assert check.due(1.0)
    drawn_number[0] = 1
    assert not check.due(1.0)
    assert asked == [4, 4]


def test_a_run_whose_engine_goes_wrong_after_its_rehearsal_ends_charged_and_releases_nothing(
    tmp_path, monkeypatch
):
    training = begin(small_spec(rounds=3, clients_per_round=2), tmp_path)
    training.lock.release()
    kind = type(training.federation.worker.engine)
    right = kind.__call__
    monkeypatch.setattr(kind, "__call__", lambda self, *given: _doubled(right(self, *given)))
    with pytest.raises(SpotCheckError):
        train(training)
    kinds = [entry["kind"] for entry in training.ledger.entries]
    assert "spend" in kinds
    assert "round" not in kinds
    assert not (training.run.path / "model.safetensors").exists()


def _doubled(right: ClippedSum) -> ClippedSum:
    return ClippedSum(2.0 * right.total, right.raw_norms, right.clipped_norms, right.nonfinite)


def test_the_engine_that_is_chosen_by_default_is_checked(monkeypatch, tmp_path):
    seen = []
    compare = SpotCheck._compare
    monkeypatch.setattr(
        SpotCheck, "_compare", lambda self, *given: seen.append(1) or compare(self, *given)
    )
    training = begin(small_spec(rounds=1, clients_per_round=2), tmp_path)
    training.lock.release()
    train(training)
    assert seen
