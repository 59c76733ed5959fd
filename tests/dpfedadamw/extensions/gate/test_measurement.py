"""A job's own noise is measured, refutes what the job states, and is never called a guarantee."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from safetensors.numpy import save_file
from scipy import stats

from audit.statistics.intervals import FALSE_ALARM
from dpfedadamw.extensions.gate import spending
from dpfedadamw.extensions.gate.errors import GateError
from dpfedadamw.extensions.gate.measurement import Measured, files_of, measured
from tests.dpfedadamw.extensions.gate.replies import facts_of
from tests.runs import call

DELTA, SIZE = 1e-5, 4000


def filtered(rng, clip, deviation, size=SIZE, rounds=3):
    """Updates, and what a Gaussian filter makes of them."""
    before = [rng.normal(size=size) for _ in range(rounds)]
    return [
        (one, one * min(1.0, clip / np.linalg.norm(one)) + deviation * rng.normal(size=size))
        for one in before
    ]


def test_the_noise_of_a_correct_filter_is_measured_from_below_and_closely():
    stated = spending.epsilon_of([0.5] * 3, DELTA)
    found = [
        measured(filtered(np.random.default_rng(seed), 5.0, 5.0), DELTA).epsilon
        for seed in range(20)
    ]
    # The clip is 5 and the noise 5, which is 0.5 over twice the clip.
    assert max(found) <= stated
    weak = measured(filtered(np.random.default_rng(1), 5.0, 0.05), DELTA)
    assert weak.epsilon > 0.8 * spending.epsilon_of([0.005] * 3, DELTA)


def test_of_few_numbers_both_ends_are_on_the_side_of_a_smaller_epsilon():
    ((before, after),) = filtered(np.random.default_rng(0), 5.0, 0.05, size=30, rounds=1)
    share = before @ after / (before @ before)
    noise = after - share * before
    # One false alarm in a thousand, half for each end; 29 numbers are free of the update.
    level = FALSE_ALARM / 2
    most = np.sqrt(noise @ noise / stats.chi2.ppf(level, 29))
    length = abs(share) * np.linalg.norm(before)
    least = length - stats.norm.isf(level) * np.sqrt(noise @ noise / 29)
    expected = spending.epsilon_of([most / (2 * least)], DELTA)
    assert measured([(before, after)], DELTA).epsilon == pytest.approx(expected, rel=1e-9)


def test_the_defaults_of_a_published_platform_are_refuted():
    found = measured(filtered(np.random.default_rng(0), 1.0, 4.845e-5, rounds=1), DELTA)
    assert found.length == pytest.approx(1.0, rel=1e-3)
    assert found.epsilon == pytest.approx(8.5e8, rel=0.15)


def _laplace(rng):
    return [(one, one + rng.laplace(size=one.size)) for one, _ in filtered(rng, 1.0, 1.0)]


def _sparse(rng):
    return [
        (one, np.where(rng.random(one.size) < 0.1, one + rng.laplace(size=one.size), 0.0))
        for one, _ in filtered(rng, 1.0, 1.0)
    ]


def _repeated(rng):
    noise = rng.normal(size=SIZE)
    return [(one, one / 100 + noise) for one, _ in filtered(rng, 1.0, 1.0)]


def _not_finite(rng):
    return [(one, np.full(SIZE, np.nan)) for one, _ in filtered(rng, 1.0, 1.0)]


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (_laplace, "no Gaussian noise"),
        (_sparse, "no Gaussian noise"),
        (_repeated, "share noise"),
        (_not_finite, "not finite"),
    ],
)
def test_what_is_no_gaussian_noise_of_its_own_gets_no_number(made, why):
    found = measured(made(np.random.default_rng(4)), DELTA)
    assert found.epsilon is None
    assert why in found.why


def test_length_and_noise_are_those_of_the_filter():
    rng = np.random.default_rng(8)
    before = rng.normal(size=SIZE)
    noise = rng.normal(size=SIZE)
    longest, least = (measured([(before, share * before + scale * noise)], DELTA)
                      for share, scale in ((-0.5, 0.1), (0.25, 0.01)))  # fmt: skip
    both = measured(
        [
            (before, -0.5 * before + 0.1 * noise),
            (before, 0.25 * before + 0.01 * rng.permutation(noise)),
        ],
        DELTA,
    )
    assert longest.length == pytest.approx(0.5 * np.linalg.norm(before), rel=0.02)
    assert (longest.deviation, least.deviation) == pytest.approx((0.1, 0.01), rel=0.05)
    # A multiplier is the deviation over twice the length; at 99.9 % of it, a little less.
    stated = 0.1 / (2 * longest.length)
    assert 0.8 * spending.epsilon_of([stated], DELTA) < longest.epsilon
    assert longest.epsilon < spending.epsilon_of([stated], DELTA)
    assert (both.updates, both.length) == (2, longest.length)
    assert both.deviation == pytest.approx(0.01, rel=0.05)
    assert both.epsilon > least.epsilon


def test_an_update_that_noise_hides_costs_nothing_and_one_of_zeros_has_no_length():
    rng = np.random.default_rng(9)
    hidden = [(1e-3 * rng.normal(size=SIZE), rng.normal(size=SIZE))]
    assert measured(hidden, DELTA).epsilon == 0.0
    nothing = measured([(np.zeros(SIZE), rng.normal(size=SIZE))], DELTA)
    assert (nothing.epsilon, nothing.length) == (0.0, 0.0)
    assert nothing.deviation == pytest.approx(1.0, rel=0.05)


def test_updates_of_several_sizes_are_measured_and_the_pair_that_shares_noise_is_named():
    rng = np.random.default_rng(10)
    pairs = [filtered(rng, 5.0, 5.0, size, rounds=1)[0] for size in (100, 200, 300, 200)]
    assert measured(pairs, DELTA).epsilon is not None
    noise = pairs[1][1] - pairs[1][0] * min(1.0, 5.0 / np.linalg.norm(pairs[1][0]))
    pairs[3] = (pairs[3][0], 0.3 * pairs[3][0] - noise)
    assert measured(pairs, DELTA).why == "updates 2 and 4 share noise"


def test_the_first_update_that_is_wrong_is_named():
    rng = np.random.default_rng(11)
    pairs = filtered(rng, 5.0, 5.0)
    one = pairs[0][0]
    pairs[1] = (one, one + rng.laplace(size=SIZE))
    pairs[2] = (np.full(SIZE, np.inf), one)
    found = measured(pairs, DELTA)
    assert found.why == "what was added to update 2 is no Gaussian noise"
    assert measured(pairs[2:], DELTA) == Measured(
        updates=1, length=0.0, deviation=0.0, epsilon=None,
        why="update 1 holds values that are not finite",
    )  # fmt: skip


def saved(path, **arrays):
    save_file({name: np.asarray(one, "f4") for name, one in arrays.items()}, path, {"format": "np"})
    return path


def test_a_pair_of_files_is_read_in_one_order_whatever_else_they_say(tmp_path):
    one = saved(tmp_path / "1.safetensors", b=np.arange(20), a=np.arange(10) / 2)
    two = saved(tmp_path / "2.safetensors", a=np.arange(10), b=np.arange(20) + 1)
    ((before, after),) = files_of(one, two)
    assert before.tolist() == [*(np.arange(10) / 2), *range(20)]
    assert after.tolist() == [*range(10), *range(1, 21)]


def test_folders_are_read_by_the_names_of_their_files(tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "notes.txt").write_text("left out")
        for number in (2, 10):
            saved(tmp_path / folder / f"{number}.safetensors", w=np.full(30, number))
    pairs = files_of(tmp_path / "one", tmp_path / "two")
    assert [(one[0], two[0]) for one, two in pairs] == [(10.0, 10.0), (2.0, 2.0)]


def test_what_is_no_pair_of_updates_is_one_line(tmp_path):
    whole = saved(tmp_path / "1.safetensors", w=np.zeros(30))
    other = saved(tmp_path / "2.safetensors", w=np.zeros(31))
    small = saved(tmp_path / "3.safetensors", w=np.zeros(29))
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("no arrays")
    for before, after, said in (
        (whole, other, "2.safetensors: has other arrays than"),
        (small, small, "3.safetensors: has 29 numbers; 30 are needed"),
        (whole, tmp_path / "text", "text: cannot be read as a .safetensors file"),
        (whole, tmp_path / "gone", "gone: cannot be read as a .safetensors file"),
        (tmp_path / "empty", tmp_path / "empty", "must hold .safetensors files of the same names"),
        (whole, tmp_path / "empty", "must hold .safetensors files of the same names"),
    ):
        with pytest.raises(GateError, match=said) as error:
            files_of(before, after)
        assert str(error.value).count(str(after)) == 1 or before == after


def test_a_file_that_is_too_large_is_not_read(tmp_path):
    path = tmp_path / "large.safetensors"
    with path.open("wb") as file:
        file.truncate(2**30 + 1)
    with pytest.raises(GateError, match="is larger than 1073741824 bytes; measure fewer arrays"):
        files_of(path, path)


def test_an_update_without_noise_has_no_finite_epsilon():
    found = measured([(one, one) for one, _ in filtered(np.random.default_rng(5), 1.0, 0.0)], DELTA)
    assert found.epsilon == float("inf")


def test_the_command_says_where_there_is_no_number(tmp_path, capsys):
    rng = np.random.default_rng(12)
    before = saved(tmp_path / "before.safetensors", w=rng.normal(size=SIZE))
    laplace = saved(tmp_path / "laplace.safetensors", w=rng.laplace(size=SIZE))
    noise = saved(tmp_path / "noise.safetensors", w=1e3 * rng.normal(size=SIZE))
    for after, code, said in (
        (before, 1, "no finite ε: nothing was added at δ = 1e-05"),
        (laplace, 1, "not measured: what was added to update 1 is no Gaussian noise at δ"),
        (noise, 0, "at least ε = 0"),
    ):
        asked = ("gate", "measure", str(before), str(after), "--delta", "1e-5")
        assert call(*asked) == code
        told = facts_of(capsys)["measured"]
        assert said in told
        assert told.startswith("NO MEANINGFUL") == (after == before)
        assert call(*asked, "--json") == code
        found = json.loads(capsys.readouterr().out)
        assert (found["epsilon"], found["holds"]) == (None if code else 0.0, not code)
    # The bound itself is allowed.
    assert call(*asked, "--most", "0") == 0


def test_the_command_refuses_above_its_bound_and_promises_nothing(tmp_path, capsys):
    for folder in ("before", "after"):
        (tmp_path / folder).mkdir()
    for number, pair in enumerate(filtered(np.random.default_rng(6), 5.0, 0.5)):
        for folder, values in zip(("before", "after"), pair, strict=True):
            save_file({"w": values.astype("f4")}, tmp_path / folder / f"{number}.safetensors")
    folders = str(tmp_path / "before"), str(tmp_path / "after")
    asked = ("gate", "measure", *folders, "--delta", "1e-5", "--most", "1000")
    assert call(*asked, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert 0.3 < found.pop("epsilon") / spending.epsilon_of([0.05] * 3, DELTA) <= 1
    assert (found.pop("length"), found.pop("deviation")) == pytest.approx((5, 0.5), rel=0.05)
    assert found == {
        "updates": 3, "why": "", "holds": True, "delta": 1e-5, "is_guarantee": False,
    }  # fmt: skip
    assert call(*asked[:-1], "1") == 1
    told = facts_of(capsys)
    assert re.fullmatch(
        r"NO MEANINGFUL PROTECTION · at least ε = .* at δ = 1e-05", told["measured"]
    )
    assert told["updates"] == "3"
    assert told["longest"].endswith(", without its noise")
    assert re.fullmatch(r"deviation 0\.[45]\d* at least", told["noise"])
    assert told["this is"].startswith("no guarantee: ")
    (tmp_path / "after" / "2.safetensors").unlink()
    assert call(*asked) == 2
    assert "of the same names" in capsys.readouterr().err
