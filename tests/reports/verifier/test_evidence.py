"""The second verifier's tests of noise, each at the edge of what chance makes once in 10⁷ runs."""

from __future__ import annotations

import base64
import io
import json
import math
import shutil
from typing import Any

import numpy as np
import pytest
from scipy import optimize, stats

from tests.audit.synthetic_run import chain
from tests.conformance.test_conformance import second

pytestmark = pytest.mark.skipif(
    shutil.which("node") is None, reason="the second verifier needs Node"
)
ALARM, SIGMA, SIZES = 1e-7, 2.0, np.array([45, 5])
D, FAR = 50, float(stats.norm.isf(ALARM / 2))
# On both sides of an edge, in standard errors.
NEAR = (-0.01, 0.01)


def scaled(n: float, z: float) -> float:
    """The sum of squares over n that lies z standard errors off (Wilson & Hilferty 1931)."""
    return float((1 - 2 / (9 * n) + z * math.sqrt(2 / (9 * n))) ** 3)


def off(found: np.ndarray) -> float:
    """Standard errors by which the sum of squares of standard normal numbers is off."""
    n = found.size
    cube = np.cbrt(np.square(found).sum() / n)
    return float((cube - (1 - 2 / (9 * n))) / math.sqrt(2 / (9 * n)))


def normal(rounds: int, people: int, steps: int) -> np.ndarray:
    """Noise [T, S, Q, d] in units of σ, with the quantiles of the normal law, in any order."""
    count = rounds * people * steps * D
    quantiles = stats.norm.ppf((np.arange(count) + 0.5) / count)
    return np.random.default_rng(3).permutation(quantiles).reshape(rounds, people, steps, D)


def evidence(
    noise: np.ndarray,
    squares: np.ndarray | None = None,
    sizes: np.ndarray | None = None,
    largest: float | None = None,
    clipping: float = 1.0,
    layout: Any = None,
    each: int = 1,
    other: dict[str, np.ndarray] | None = None,
    **header: Any,
) -> dict[str, Any]:
    """A folder and a ledger: squares [T, S, Q, B] over σ², batch sizes [T, S, Q]."""
    rounds, people, steps = noise.shape[:3]
    if squares is None:
        squares = np.broadcast_to(SIZES, (rounds, people, steps, 2))
    if sizes is None:
        sizes = np.full((rounds, people, steps), 20)
    if largest is None:
        # As is to be expected: one of all is beyond it.
        largest = float(stats.norm.isf(0.5 / (rounds * people * steps * D)))
    files = {}
    for place in range(rounds):
        arrays = {
            "clients": np.arange(people),
            "noise_sum_squares": squares[place] * (SIGMA * clipping) ** 2,
            "noise_sample": (noise[place] * SIGMA).astype(np.float32),
            "noise_largest": np.full((people, steps), largest * SIGMA, np.float32),
            "batch_size": sizes[place].astype(np.int64),
            **(other or {}),
        }
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)
        files[f"evidence/round-{place:05d}.npz"] = base64.b64encode(buffer.getvalue()).decode()
    if layout is None:
        layout = {"blocks": {"sizes": SIZES.tolist()}}
    files["evidence/layout.json"] = base64.b64encode(json.dumps(layout).encode()).decode()
    spends = [
        {
            "round": place, "client": client, "sampling_rate": 0.4, "records": 50,
            "clipping_norm": clipping, "queries_per_step": each, "noise_multiplier": SIGMA,
        }
        for place in range(rounds)
        for client in range(people)
    ]  # fmt: skip
    told = {"noise_multiplier": SIGMA, "parameters": D, "sampling": "poisson", **header}
    ended = [
        {"round": place, "clients": [*range(people)], "queries": [steps] * people}
        for place in range(rounds)
    ]
    ledger = {"header": told, "rounds": ended, "spends": spends}
    return {"files": files, "ledger": ledger}


def faults(*cases: dict[str, Any]) -> list[list[str]]:
    return [one["faults"] for one in second("noise", list(cases))]


def test_correct_noise_has_no_fault_and_its_share_of_the_variance_is_told() -> None:
    noise = normal(2, 3, 4)
    found = second(
        "noise", [evidence(noise), evidence(noise, 1.01 * np.ones((2, 3, 4, 2)) * SIZES)]
    )
    assert [one["faults"] for one in found] == [[], []]
    assert [one["queries"] for one in found] == [24, 24]
    assert [one["ratio"] for one in found] == pytest.approx([1.0, 1.01])


@pytest.mark.parametrize("side", [-1, 1])
def test_variance_is_judged_over_all_in_each_block_and_in_each_answer(side: int) -> None:
    noise, count = normal(2, 3, 4), 24
    exact = np.broadcast_to(SIZES, (2, 3, 4, 2)).astype(float)

    def whole(z: float) -> np.ndarray:
        return exact * scaled(D * count, z)

    def of_block(z: float) -> np.ndarray:
        changed = exact.copy()
        changed[..., 1] *= scaled(5 * count, z)
        # Of all the variance is exact.
        changed[..., 0] += (exact - changed)[..., 1]
        return changed

    def of_answer(z: float) -> np.ndarray:
        changed = exact * (1 - (scaled(D, z) - 1) / (count - 1))
        changed[1, 2, 3] = exact[0, 0, 0] * scaled(D, z)
        return changed

    edges = ((whole, FAR), (of_block, stats.norm.isf(ALARM / 4)),
             (of_answer, stats.norm.isf(ALARM / 2 / count)))  # fmt: skip
    found = faults(
        *(evidence(noise, make(side * (edge + near))) for make, edge in edges for near in NEAR)
    )
    assert found[0] == found[2] == found[4] == []
    ratio = scaled(D * count, side * (FAR + NEAR[1]))
    assert found[1] == [
        f"the noise has {ratio:.4f} of the variance that the ledger states "
        f"({side * FAR:.1f} standard errors off)"
    ]
    assert found[3] == ["in 1 of 2 blocks the noise has another variance"]
    assert found[5] == ["1 of 24 answers have noise of another variance"]


def test_an_answer_without_noise_is_told_whatever_the_variance_of_all() -> None:
    squares = np.broadcast_to(SIZES, (2, 3, 4, 2)).astype(float) * (24 / 23)
    squares[0, 1, 2] = 0.0
    (found,) = faults(evidence(normal(2, 3, 4), squares))
    assert found == ["1 of 24 answers have noise of another variance"]


def test_the_largest_part_is_neither_beyond_normal_numbers_nor_short_of_them() -> None:
    noise, parts = normal(2, 3, 4), 24 * D
    highest = float(stats.norm.isf(ALARM / 2 / parts))
    least = float(stats.norm.isf(-math.log(ALARM) / 2 / parts))
    found = faults(
        *(
            evidence(noise, largest=edge + near)
            for edge in (highest, least)
            for near in (-1e-3, 1e-3)
        )
    )
    assert found[0] == found[3] == []
    assert found[1] == [
        f"the largest of {parts} parts of the noise is {highest + 1e-3:.2f} σ, as normal numbers "
        "do not have it"
    ]
    assert len(found[2]) == 1
    assert "as normal numbers do not have it" in found[2][0]


@pytest.mark.parametrize("side", [-1, 1])
def test_the_shape_is_held_to_the_bound_of_dvoretzky_kiefer_and_wolfowitz(side: int) -> None:
    noise = normal(1, 3, 8)
    most = math.sqrt(math.log(2 / ALARM) / 2 / noise.size)

    def moved(distance: float) -> np.ndarray:
        """All quantiles moved one way by so much of the law, less half a step of it."""
        shift = side * (distance - 0.5 / noise.size)
        return stats.norm.ppf(np.clip(stats.norm.cdf(noise) + shift, 1e-4, 1 - 1e-4))

    below, above = faults(*(evidence(moved(most + near)) for near in (-1e-4, 1e-4)))
    said = "the sampled noise does not have the shape of normal numbers"
    # Numbers that all lie on one side have sums that are too large as well.
    assert said not in below
    assert said in above


def test_noise_is_repeated_where_eight_coordinates_are_the_same() -> None:
    noise = normal(2, 3, 4)
    twice, seven = noise.copy(), noise.copy()
    twice[1, 2, 3, :8] = noise[0, 0, 0, :8]
    seven[1, 2, 3, :7] = noise[0, 0, 0, :7]
    found = faults(evidence(twice), evidence(seven))
    assert found == [["1 answers repeat the noise of another"], []]


@pytest.mark.parametrize(("axis", "among"), [(1, "clients"), (2, "steps"), (0, "rounds")])
def test_noise_that_is_shared_is_told_with_what_shares_it(axis: int, among: str) -> None:
    noise = normal(2, 3, 4)
    others = np.random.default_rng(8).standard_normal(noise.shape)
    # One value along the axis; of rounds, the sum of all their answers.
    common = np.broadcast_to(others.take([0], axis), noise.shape)
    if among == "rounds":
        common = np.broadcast_to(others[:1, :1, :1], noise.shape)

    def mixed(share: float) -> np.ndarray:
        return math.sqrt(1 - share**2) * noise + share * common

    def z(share: float) -> float:
        made = mixed(share)
        if among == "rounds":
            return off(made.sum((0, 1, 2)) / math.sqrt(24))
        return off(made.sum(axis) / math.sqrt(noise.shape[axis]))

    edges = [optimize.brentq(lambda a, due: z(a) - due, 0.0, 0.999, (FAR + one,)) for one in NEAR]
    below, above = faults(*(evidence(mixed(share)) for share in edges))
    said = f"noise is correlated between {among}"
    assert said not in below
    assert said in above


def test_batches_have_the_sizes_of_their_rate_and_those_of_one_step_count_once() -> None:
    noise = normal(2, 3, 4)
    # Twelve batches of 0.4 · 50: two answers each, of which only the first counts.
    edge = FAR * math.sqrt(12 * 50 * 0.4 * 0.6)
    cases = []
    for excess in (math.floor(edge), math.ceil(edge), -math.floor(edge), -math.ceil(edge)):
        sizes = np.full((2, 3, 4), 20)
        sizes[..., 1::2] = 49
        sizes[0, 0, 0] += excess
        cases.append(evidence(noise, sizes=sizes, each=2))
    cases.append(evidence(noise, sizes=np.full((2, 3, 4), 90), sampling="fixed-size"))
    found = faults(*cases)
    assert found[0] == found[2] == found[4] == []
    for place, sign in ((1, ""), (3, "-")):
        (said,) = found[place]
        assert said.startswith(f"batches are {sign}{math.ceil(edge) / edge * FAR:.1f} standard")


def test_a_recorded_loops_squares_are_not_over_its_clipping_norm() -> None:
    noise = normal(2, 1, 12)
    found = second(
        "noise",
        [
            evidence(noise, clipping=3.0, producer={}),
            evidence(noise, clipping=3.0),
            evidence(noise, clipping=1.0, producer=None),
        ],
    )
    assert [one.get("ratio") for one in found] == pytest.approx([1.0, 9.0, 1.0])
    assert [bool(one["faults"]) for one in found] == [False, True, False]


def test_a_recorded_loops_noise_is_held_to_its_charges_and_not_to_its_header() -> None:
    noise = normal(2, 1, 12)
    header = evidence(noise, producer={}, noise_multiplier=5 * SIGMA)
    cheaper, changing = evidence(noise, producer={}), evidence(noise, producer={})
    for charge in cheaper["ledger"]["spends"]:
        charge["noise_multiplier"] = 5 * SIGMA
    # The second file has twice the noise and is charged for it.
    louder = evidence(2 * noise, 4 * np.broadcast_to(SIZES, (2, 1, 12, 2)), largest=7.0)
    changing["ledger"]["spends"][1]["noise_multiplier"] = 2 * SIGMA
    changing["files"]["evidence/round-00001.npz"] = louder["files"]["evidence/round-00001.npz"]
    found = second("noise", [header, cheaper, changing])
    assert [one["faults"] for one in found[::2]] == [[], []]
    assert [one["ratio"] for one in found[::2]] == pytest.approx([1.0, 1.0])
    assert found[1]["faults"][0].startswith("the noise has 0.0400 of the variance")


def test_what_cannot_be_read_is_named_and_what_is_of_no_round_is_passed_over() -> None:
    noise = normal(2, 3, 4)
    other = evidence(noise, layout={"blocks": {"sizes": [50]}})
    without, unread, none, alien = (evidence(noise) for _ in range(4))
    without["files"].pop("evidence/layout.json")
    unread["files"]["evidence/round-00001.npz"] = base64.b64encode(b"none").decode()
    none["ledger"]["rounds"] = []
    alien["ledger"]["rounds"].pop()
    found = second("noise", [other, without, unread, none, alien])
    assert found[0]["faults"] == [
        f"evidence/round-{place:05d}.npz: has other blocks than evidence/layout.json"
        for place in range(2)
    ]
    assert found[1]["faults"][0] == "evidence/layout.json cannot be read"
    assert found[2]["faults"] == ["evidence/round-00001.npz: is no ZIP archive"]
    assert (found[3]["faults"], found[3]["queries"]) == ([], 0)
    assert (found[4]["faults"], found[4]["queries"]) == ([], 12)


def test_a_round_whose_file_is_not_there_is_missing_and_not_passed_over() -> None:
    one, all_ = (evidence(normal(2, 3, 4)) for _ in range(2))
    one["files"].pop("evidence/round-00001.npz")
    for place in range(2):
        all_["files"].pop(f"evidence/round-{place:05d}.npz")
    found = second("noise", [one, all_, evidence(normal(2, 3, 4))])
    assert [one["missing"] for one in found] == [
        ["evidence/round-00001.npz"],
        ["evidence/round-00000.npz", "evidence/round-00001.npz"],
        [],
    ]
    assert [one["queries"] for one in found] == [12, 0, 24]


def test_a_file_has_the_clients_and_answers_of_its_line_and_numbers_that_are_some() -> None:
    noise = normal(1, 3, 4)
    fewer, others, longer = (evidence(noise) for _ in range(3))
    fewer["ledger"]["rounds"][0].update(clients=[0, 1], queries=[4, 4])
    others["ledger"]["rounds"][0]["clients"] = [2, 0, 4]
    longer["ledger"]["rounds"][0]["queries"] = [4, 5, 4]
    whole = np.full((3, 4), 20)
    nan = np.where(np.arange(D) == 7, np.nan, noise[0])
    wrong = {
        "its clients are not the ledger’s": [fewer, others],
        "its answers are not as many as the ledger’s": [longer],
        "has batch sizes that are no whole numbers": [
            evidence(noise, other={"batch_size": np.full((3, 4), np.nan)}),
            evidence(noise, other={"batch_size": whole.astype(float)}),
        ],
        "has arrays of another shape": [evidence(noise, other={"batch_size": whole[:2]})],
        "has numbers that are not finite": [
            evidence(noise, other={"noise_sample": nan}),
            evidence(noise, other={"noise_largest": np.full((3, 4), np.nan)}),
            evidence(noise, other={"noise_sum_squares": np.full((3, 4, 2), np.inf)}),
        ],
    }
    for said, cases in wrong.items():
        assert faults(*cases) == [[f"evidence/round-00000.npz: {said}"]] * len(cases)


# What a gate adds to a sum of shards: the noise's median times its deviation.
MOVE = stats.norm.isf(0.25)


def tensors(**arrays: np.ndarray) -> bytes:
    from safetensors.numpy import save

    return save(arrays)


def reply(before: np.ndarray, after: np.ndarray, **more: Any) -> list[Any]:
    import hashlib

    file = tensors(**{"broadcast.w": before, "released.w": after})
    charge = {
        "shards": 4, "sensitivity": 2.0, "noise_multiplier": 3.0,
        "broadcast_sha256": hashlib.sha256(before.tobytes()).hexdigest(), **more,
    }  # fmt: skip
    return [base64.b64encode(file).decode(), charge]


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_moves_of_a_reply_are_small_below_the_median_of_its_noise(kind: type) -> None:
    most = MOVE * 2.0 * 3.0 / 4
    before = np.linspace(-3, 3, 8).astype(kind)
    shares = np.array([0.0, 0.5, 0.999, 1.001, -0.999, -1.001, 2.0, -3.0])
    after = (before + shares * most).astype(kind)
    given = reply(before, after)
    double = reply(before, after, noise_multiplier=6.0)
    other = reply(before, after, broadcast_sha256="ab" * 32)
    shorter = reply(before, after[:-1])
    narrowed = reply(before, after.astype(np.float32 if kind is np.float64 else np.float64))
    found = second("moves", [given, double, other, shorter, narrowed])
    assert found[:2] == [[4, 8], [6, 8]]
    assert found[2] == {"refused": "holds another broadcast than was charged"}
    assert [one["refused"] for one in found[3:]] == [
        "broadcast.w did not come back in its form"
    ] * 2
    none = [base64.b64encode(tensors(**arrays)).decode() for arrays in (
        {}, {"released.w": before}, {"broadcast.w": before.astype(np.int64)},
        {"broadcast.w": before, "released.w": after, "more": after},
    )]  # fmt: skip
    cut = base64.b64encode(base64.b64decode(given[0])[:-1]).decode()
    torn = base64.b64encode(b"abc").decode()
    refused = second("moves", [[file, given[1]] for file in (*none, cut, torn)])
    assert refused == [{"refused": "is no file of arrays"}] * 6


@pytest.mark.parametrize(("kind", "size"), [(np.float32, 2.0**20), (np.float64, 2.0**49)])
def test_a_number_may_have_moved_by_one_unit_in_its_last_place(kind: type, size: float) -> None:
    """Of such numbers that is an eighth: what did not move is small beyond it, and not below."""
    same = np.array([size], kind)
    cases = [reply(same, same, noise_multiplier=most * 4 / (MOVE * 2.0)) for most in (0.124, 0.126)]
    assert second("moves", cases) == [[0, 1], [1, 1]]


def test_so_many_small_moves_surprise_as_chernoffs_bound_has_it() -> None:
    cases = [[0, 10], [5, 10], [6, 10], [10, 10], [700, 1000]]
    due = [0.0, 0.0]
    for small, of in cases[2:]:
        share = small / of
        rest = (1 - share) * math.log(2 * (1 - share)) if share < 1 else 0.0
        due.append(of * (share * math.log(2 * share) + rest))
    assert second("surprises", cases) == pytest.approx(due)


_GATE = {"kind": "gate", "format": 1, "unit": "record", "epsilon": 3.0, "delta": 1e-5, "key": "k"}
_PAID = {
    "kind": "spend", "release": 1, "job": "j", "framework": "flower", "request": "r", "shards": 2,
    "time": "2026-11-27T10:00:00Z", "clip": 1.0, "sensitivity": 2.0, "noise_multiplier": 3.0,
    "broadcast_sha256": "ab" * 32,
}  # fmt: skip
_SENT = {"kind": "reply", "release": 1, "sha256": "cd" * 32}


def gates(*given: list[dict[str, Any]]) -> list[Any]:
    return second("gates", [chain(lines).decode() for lines in given])


def test_a_gates_ledger_is_read_charge_by_charge() -> None:
    two = {**_PAID, "release": 2, "noise_multiplier": 4.0}
    lines = [_GATE, _PAID, _SENT, two]
    (found,) = gates(lines)
    assert found["faults"] == []
    assert found["header"]["epsilon"] == 3.0
    told = [(one["release"], one["line"], one["noise_multiplier"]) for one in found["charges"]]
    assert told == [(1, 2, 3.0), (2, 4, 4.0)]
    assert found["replies"] == [[1, "cd" * 32]]
    text = chain(lines)
    ends = [0, *np.cumsum([len(line) for line in text.splitlines(keepends=True)]).tolist()]
    assert found["ends"] == ends
    # A torn last line paid for nothing.
    (torn,) = second("gates", [text.decode() + '{"kind":'])
    assert (torn["faults"], torn["ends"]) == ([], ends)


def test_each_rule_of_a_gates_ledger_is_seen_by_itself() -> None:
    wrong = {
        "no header": [_PAID],
        "two headers": [_GATE, _GATE],
        "another kind": [_GATE, {"kind": "other"}],
        "release 2 first": [_GATE, {**_PAID, "release": 2}],
        "a release twice": [_GATE, _PAID, _PAID],
        "a reply to none": [_GATE, _SENT],
        "a reply to release 0": [_GATE, _PAID, {**_SENT, "release": 0}],
        "a second reply": [_GATE, _PAID, _SENT, _SENT],
    }
    fields: list[tuple[dict[str, Any], str, list[Any]]] = [
        (_GATE, "format", [2]), (_GATE, "unit", ["client"]), (_GATE, "epsilon", [0.0, -1.0]),
        (_GATE, "delta", [0.0, 0.51]), (_GATE, "key", [3]),
        (_PAID, "job", ["", "a b", "a" * 129, 3]), (_PAID, "framework", [""]),
        (_PAID, "request", [""]), (_PAID, "shards", [0, 4097, 1.5]), (_PAID, "clip", [0.0]),
        (_PAID, "sensitivity", [0.0]), (_PAID, "noise_multiplier", [0.0]),
        (_PAID, "broadcast_sha256", ["ab"]), (_SENT, "sha256", ["ab"]),
        (_PAID, "time", ["2026-02-30T10:00:00Z", "2026-11-27T25:00:00Z", "2026-11-27 10:00:00Z"]),
    ]  # fmt: skip
    for line, name, values in fields:
        for value in (None, *values):
            changed = [
                {**one, name: value} if one is line else one for one in (_GATE, _PAID, _SENT)
            ]
            wrong[f"{line['kind']} {name} {value}"] = changed
    found = dict(zip(wrong, gates(*wrong.values()), strict=True))
    assert [name for name, one in found.items() if not one["faults"]] == []
    good = [
        [{**_GATE, "unit": unit, "delta": 0.5}, {**_PAID, "shards": shards, "job": "a" * 128}]
        for unit, shards in (("record", 1), ("person", 4096), ("site", 1))
    ]
    assert [one["faults"] for one in gates(*good)] == [[], [], []]
