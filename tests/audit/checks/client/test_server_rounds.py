"""Whole clients: a round by the evidence of its server, where not every round is kept whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from audit.checks.client import uploads
from audit.checks.client.uploads import _of_servers, vector_sha256
from audit.errors import UnverifiedError
from audit.reading.bundle import Bundle, open_bundle
from audit.reading.exchanges import Extent
from audit.reading.ledger import Pieces, Resume, Stopped
from audit.reading.ledger_lines import BROADCAST_NAME, Grid
from audit.replay.base import UPDATE
from audit.replay.participation import Tally
from audit.replay.rounding import Rounded
from audit.replay.rounds import ServerRounds
from tests.audit.checks.opened import changed, judged
from tests.audit.synthetic_client_run import ClientSettings, build_client_run

INDEX = 3
PARAMETERS = 340
GRID = Grid(update=16, vectors=16, summaries=20, weights=16)


@dataclass
class Servers:
    """What `ServerRounds` is asked, with one round's evidence."""

    found: Any
    tally: Tally = field(default_factory=Tally)
    asked: list[tuple[str, Any]] = field(default_factory=list)

    def find(self, item: Any, last: bool) -> Any:
        self.asked.append(("last", last))
        return self.found

    def bind(self, item: Any, following: Any, found: Any, number: int) -> None:
        self.asked.append(("following", following and following.round))
        self.asked.append(("number", number))

    def judge(
        self,
        where: str,
        found: Any,
        expected: Rounded,
        state: Any,
        last: bool,
        beside: frozenset[str],
    ) -> None:
        self.asked.append(("published", last))
        self.asked.append(("expected", expected.value))
        self.asked.append(("beside", (where, state, beside)))


def sent(**tensors: np.ndarray) -> Any:
    return SimpleNamespace(tensors=tensors)


def evidence_of(bundle: Bundle, index: int = INDEX) -> tuple[Any, np.ndarray]:
    """A round's evidence as it is where servers leave some, and the mean that was released."""
    evidence = bundle.update_round(index)
    mean = bundle.release(index, PARAMETERS).released
    places = np.asarray(evidence.sample_places)
    return replace(evidence, released_sample=mean[places]), mean


def asked(
    bundle: Bundle,
    index: int = INDEX,
    *,
    found: Callable[[Any], Any] = lambda one: one,
    evidence: Callable[[Any], Any] = lambda one: one,
    rate: float = 1.0,
    grid: Grid | None = GRID,
    exchanged: str | None = None,
) -> Servers:
    """What is said of one round, whose evidence is correct but for the changes."""
    own, mean = evidence_of(bundle, index)
    kept = SimpleNamespace(
        coordinates=None,
        broadcast=sent(**{UPDATE: np.zeros(PARAMETERS)}),
        uploads=(sent(**{UPDATE: mean}),),
        combined=None,
    )
    items = list(bundle.readable_ledger.rounds)
    items[index] = replace(items[index], exchanged=exchanged or vector_sha256(mean))
    servers = Servers(found(kept))
    run = changed(bundle, header={"grid": grid})
    _of_servers(run, servers, items, index, evidence(own), rate)  # type: ignore[arg-type] # a stand-in
    return servers


def test_a_correct_round_is_bound_to_the_ledger_and_moves_by_the_mean(of_clients: Bundle) -> None:
    servers, mean = asked(of_clients), evidence_of(of_clients)[1]
    assert servers.tally.reasons == []
    assert servers.tally.replayed == 1
    told = dict(servers.asked)
    assert told["last"] is False
    assert told["following"] == INDEX + 1
    assert told["number"] == 1
    assert np.array_equal(told["expected"], mean)
    assert told["beside"] == ("round 3", {}, frozenset({BROADCAST_NAME}))
    twice = dict(asked(of_clients, rate=2.0).asked)
    assert np.array_equal(twice["expected"], 2.0 * np.asarray(mean, np.float64))


def test_after_the_last_round_there_is_no_broadcast_and_before_it_there_is(
    of_clients: Bundle,
) -> None:
    last = len(of_clients.readable_ledger.rounds) - 1
    told = dict(asked(of_clients, last).asked)
    assert (told["last"], told["published"], told["following"]) == (True, True, None)
    told = dict(asked(of_clients, last - 1).asked)
    assert (told["last"], told["published"], told["following"]) == (False, False, last)


def test_a_round_that_need_not_be_kept_is_judged_by_its_noise_alone(of_clients: Bundle) -> None:
    servers = asked(of_clients, found=lambda one: None)
    assert (servers.tally.reasons, servers.tally.replayed) == ([], 0)
    assert [name for name, _ in servers.asked] == ["last"]


def test_a_release_that_is_not_recorded_beside_its_noise_is_not_verified(
    of_clients: Bundle,
) -> None:
    with pytest.raises(UnverifiedError, match="round 3: what was released is not recorded where"):
        asked(of_clients, evidence=lambda one: replace(one, released_sample=None))


OFF = "round 3: the released mean lies off the public grid of 16 significant bits"
NOT_ITS_NOISE = "round 3: the released mean does not carry the noise recorded for it"
NOT_BESIDE = "round 3: the released mean is not the one recorded with its noise"
NOT_NOTED = "round 3: its released mean is not the one that the ledger notes"
NOT_ONE = "round 3: has no parameters, or more than one released mean"


def scaled(kept: Any, place: int, factor: float = 2.0) -> Any:
    """Another value at one place; twice a value is on the grid as well."""
    mean = kept.uploads[0].tensors[UPDATE].copy()
    mean[place] *= np.float32(factor)
    kept.uploads = (sent(**{UPDATE: mean}),)
    return kept


def test_noise_that_is_not_the_recorded_one_is_found(of_clients: Bundle) -> None:
    def louder(one: Any) -> Any:
        return replace(one, noise_sample=one.noise_sample * 1.01)

    assert asked(of_clients, evidence=louder).tally.reasons == [NOT_ITS_NOISE]
    # Also where the round itself need not be kept.
    servers = asked(of_clients, evidence=louder, found=lambda one: None)
    assert servers.tally.reasons == [NOT_ITS_NOISE]


def test_without_a_grid_what_was_released_is_clean_sum_and_noise_but_for_rounding(
    of_clients: Bundle,
) -> None:
    clip = of_clients.header.declared("clipping_norm")

    def said(off: float) -> list[str]:
        def exact(one: Any) -> Any:
            total = (one.noise_sample * clip + one.clean_sample) / one.divisor
            return replace(one, released_sample=total * (1.0 + off))

        return asked(of_clients, grid=None, evidence=exact, found=lambda one: None).tally.reasons

    assert said(0.0) == said(1e-7) == []
    assert said(1e-4) == [NOT_ITS_NOISE]


def test_one_value_off_the_grid_is_found_where_there_is_a_grid(of_clients: Bundle) -> None:
    places = evidence_of(of_clients)[0].sample_places
    free = next(n for n in range(PARAMETERS) if n not in places)

    def off(one: Any) -> Any:
        return scaled(one, free, 1.000001)

    assert asked(of_clients, found=off).tally.reasons == [OFF, NOT_NOTED]
    assert OFF not in asked(of_clients, grid=None, found=off).tally.reasons


def test_the_mean_is_the_one_that_the_ledger_notes_and_beside_the_noise(
    of_clients: Bundle,
) -> None:
    assert asked(of_clients, exchanged="0" * 64).tally.reasons == [NOT_NOTED]
    place = int(evidence_of(of_clients)[0].sample_places[0])
    other = asked(of_clients, found=lambda one: scaled(one, place))
    assert other.tally.reasons == [NOT_NOTED, NOT_BESIDE]


def test_of_pieces_no_digest_is_compared_and_noise_only_where_they_are(
    of_clients: Bundle,
) -> None:
    own, mean = evidence_of(of_clients)
    coordinates = np.arange(0, PARAMETERS, 2)
    assert 0 < np.isin(own.sample_places, coordinates).sum() < len(own.sample_places)

    def pieces(kept: Any) -> Any:
        kept.coordinates = coordinates
        kept.broadcast = sent(**{UPDATE: np.zeros(len(coordinates))})
        kept.uploads = (sent(**{UPDATE: mean[coordinates]}),)
        return kept

    assert asked(of_clients, found=pieces, exchanged="0" * 64).tally.reasons == []
    there = int(next(place for place in own.sample_places if place % 2 == 0)) // 2
    other = asked(of_clients, found=lambda one: scaled(pieces(one), there))
    assert other.tally.reasons == [NOT_BESIDE]


@pytest.mark.parametrize(
    ("broadcast", "means", "said"),
    [
        ({UPDATE: np.zeros(PARAMETERS), BROADCAST_NAME: np.zeros(2)}, 1, []),
        (
            {UPDATE: np.zeros(PARAMETERS), "z": np.zeros(1), "loss": np.zeros(1)},
            1,
            [
                "round 3: holds a tensor 'loss' besides the parameters",
                "round 3: holds a tensor 'z' besides the parameters",
            ],
        ),
        ({BROADCAST_NAME: np.zeros(2)}, 1, [NOT_ONE]),
        ({UPDATE: np.zeros(PARAMETERS)}, 2, [NOT_ONE]),
        ({UPDATE: np.zeros(PARAMETERS)}, 0, [NOT_ONE]),
    ],
)
def test_a_round_has_the_parameters_and_one_released_mean(
    of_clients: Bundle, broadcast: dict[str, np.ndarray], means: int, said: list[str]
) -> None:
    def other(kept: Any) -> Any:
        kept.broadcast = sent(**broadcast)
        kept.uploads = kept.uploads * means
        return kept

    servers = asked(of_clients, found=other)
    assert servers.tally.reasons == said
    assert ("expected" in dict(servers.asked)) is (NOT_ONE not in said)


def test_an_upload_with_a_further_tensor_is_no_released_mean(of_clients: Bundle) -> None:
    def other(kept: Any) -> Any:
        kept.uploads = (sent(**kept.uploads[0].tensors, loss=np.zeros(1)),)
        return kept

    assert asked(of_clients, found=other).tally.reasons == [NOT_ONE]


# When servers are asked, and what the finding then tells.

PIECES = Pieces(broadcast=b"", uploads=b"", vectors=3, heads=0)


def with_pieces(bundle: Bundle, noted: int) -> Bundle:
    """The run, where some of its rounds note pieces of what their servers sent."""
    rounds = [
        replace(item, pieces=PIECES if place < noted else None)
        for place, item in enumerate(bundle.readable_ledger.rounds)
    ]
    return changed(bundle, ledger={"rounds": tuple(rounds)})


@pytest.mark.parametrize(
    ("kept", "noted", "rounds"),
    [
        (Extent(1.0, None), 24, 0),
        (Extent(0.5, None), 24, 24),
        (Extent(0.5, None), 1, 24),
        (Extent(0.5, None), 0, 0),
        (Extent(1.0, 8), 24, 24),
    ],
)
def test_servers_are_asked_of_all_rounds_where_any_noted_pieces_and_not_all_is_kept(
    of_clients: Bundle, kept: Extent, noted: int, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_of: list[int] = []
    kinds: set[int] = set()

    def of_servers(bundle: Bundle, servers: ServerRounds, items: Any, index: int, *_: Any) -> None:
        asked_of.append(index)
        kinds.add(servers.per_round)

    monkeypatch.setattr(uploads, "_of_servers", of_servers)
    monkeypatch.setattr(uploads, "_release", lambda *_: None)
    monkeypatch.setattr(uploads, "recorded_coordinates", lambda *_: None)
    tally = Tally()
    run = with_pieces(of_clients, noted)
    uploads._judge_all(run, kept, 1.0, tally)
    assert asked_of == list(range(rounds))
    assert kinds == ({1} if rounds else set())
    assert tally.finished == 24


def told(
    bundle: Bundle, kept: Extent, monkeypatch: pytest.MonkeyPatch, **tally: Any
) -> tuple[str, tuple[str, ...], Any]:
    def judge_all(run: Bundle, extent: Extent, rate: float, into: Tally) -> None:
        for name, value in {"finished": 24, "rounds": 24, **tally}.items():
            setattr(into, name, value)

    monkeypatch.setattr(uploads, "extent", lambda *_: kept)
    monkeypatch.setattr(uploads, "_judge_all", judge_all)
    found = judged(bundle, "uploads")
    assert found.verdict.value == "PASS"
    amount = found.measurement.split("its update; ")[1].split(": the next model")[0]
    return amount, found.qualifications, found.details["coordinates"]


WHOLE = "all 24 rounds"
SHARE = "a share was judged: the server's step in "


@pytest.mark.parametrize(
    ("kept", "tally", "amount", "shares", "coordinates"),
    [
        (Extent(1.0, None), {"rounds": 12}, WHOLE, (), PARAMETERS),
        (Extent(0.5, None), {}, "24 of 24 rounds", (), PARAMETERS),
        (Extent(0.5, None), {"shares": [1.0] * 24}, "24 of 24 rounds", (), PARAMETERS),
        (
            Extent(0.5, None),
            {"rounds": 12},
            "12 of 24 rounds",
            (SHARE + "12 of 24 rounds, drawn after the fact",),
            PARAMETERS,
        ),
        (
            Extent(0.5, 8),
            {},
            "24 of 24 rounds at 8 coordinates drawn in secret",
            (SHARE + "24 of 24 rounds, drawn after the fact",),
            8,
        ),
        (
            Extent(1.0, 8),
            {"shares": [1.0] * 24},
            "24 of 24 rounds",
            (SHARE + "24 of 24 rounds, drawn after the fact",),
            8,
        ),
        (
            Extent(0.5, None),
            {"shares": [1.0] * 23 + [0.5]},
            "24 of 24 rounds, drawn after the fact (23 whole, 1 by 50 % of the coordinates)",
            (SHARE + "24 of 24 rounds, drawn after the fact, by 50 % of the coordinates at least",),
            PARAMETERS,
        ),
    ],
)
def test_what_was_judged_is_told_in_rounds_coordinates_and_shares(
    of_clients: Bundle,
    kept: Extent,
    tally: dict[str, Any],
    amount: str,
    shares: tuple[str, ...],
    coordinates: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert told(of_clients, kept, monkeypatch, **tally) == (amount, shares, coordinates)


def test_an_algorithm_of_another_key_is_refused_before_anything_is_read(
    of_clients: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "another_key", lambda bundle: True)
    found = judged(of_clients, "uploads")
    assert (found.verdict.value, found.measurement) == ("FAIL", uploads.ANOTHER_KEY)


@pytest.mark.parametrize("weights", [True, False])
def test_the_published_weights_are_told_where_they_were_compared(
    of_clients: Bundle, weights: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def judge_all(run: Bundle, extent: Extent, rate: float, into: Tally) -> None:
        into.weights = weights

    monkeypatch.setattr(uploads, "_judge_all", judge_all)
    text = judged(of_clients, "uploads").measurement
    assert text.endswith("; the published weights are the last model") is weights


def test_every_release_of_a_run_that_is_kept_whole_is_counted(of_clients: Bundle) -> None:
    tally = Tally()
    uploads._judge_all(of_clients, Extent(1.0, None), 1.0, tally)
    assert tally.reasons == []
    assert (tally.rounds, tally.replayed, tally.finished, tally.weights) == (24, 24, 24, True)


def test_which_releases_are_kept_is_drawn_by_what_each_round_released(
    of_clients: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def is_kept(salt: bytes, index: int, client: int, digest: bytes, share: float) -> bool:
        asked.append((salt, index, client, digest, share))
        return False

    judged_rounds: list[int] = []
    monkeypatch.setattr(uploads, "is_kept", is_kept)
    monkeypatch.setattr(uploads, "_release", lambda item, *_: judged_rounds.append(item.round))
    rounds = of_clients.readable_ledger.rounds
    uploads._judge_all(of_clients, Extent(0.5, None), 1.0, Tally())
    # The first and the last are kept whatever is drawn.
    assert judged_rounds == [0, 23]
    assert asked == [
        (
            of_clients.salt(), index, -1, bytes.fromhex(rounds[index].exchanged or "none"), 0.5,
        )
        for index in range(1, 23)
    ]  # fmt: skip


@pytest.mark.parametrize("bits", [8, 15])
def test_the_last_model_may_lie_off_the_grid_where_the_run_was_cut_off_after_it(
    of_clients: Bundle, bits: int
) -> None:
    """It was sent once more. What is published of it lies on the grid in any case.

    By chance half of the coordinates lie on a grid that has one bit less.
    """
    ledger, coarse = of_clients.readable_ledger, replace(GRID, weights=bits)
    off = f"round 23: the next model lies off the public grid of {bits} significant bits"

    def said(*resumes: Resume, planned: int = 25) -> str:
        run = changed(
            of_clients,
            header={"grid": coarse, "rounds": planned, "max_epsilon": 1.0},
            ledger={"resumes": resumes, "stopped": Stopped(24, max_epsilon=1.0)},
        )
        tally = Tally()
        uploads._judge_all(run, Extent(1.0, None), 1.0, tally)
        assert any(reason.startswith("model.safetensors lies off") for reason in tally.reasons)
        return " ".join(tally.reasons)

    assert off in said()
    assert off in said(Resume(ledger.rounds[-1].line - 1, 23, None))
    after = Resume(ledger.rounds[-1].line + 1, 24, None)
    assert off not in said(after)
    # No round could follow the last that was planned.
    assert off in said(after, planned=24)


# The released mean against all of its noise, and not at the sampled coordinates alone.

NOT_ITS_SIZE = "the size of the released mean does not fit the noise recorded for it"
NOT_EACH = "the released mean does not have the noise of single coordinates"
LAST = 23


@pytest.fixture(scope="module")
def few_sampled(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A run whose noise is sampled at 24 of its coordinates alone."""
    path = tmp_path_factory.mktemp("few") / "run"
    return open_bundle(build_client_run(path, ClientSettings(sample=24)))


def against(
    bundle: Bundle,
    change: Callable[[np.ndarray], np.ndarray],
    index: int = INDEX,
    coordinates: np.ndarray | None = None,
) -> list[str]:
    """What is said of a round's mean, changed where its noise is not sampled."""
    own, mean = evidence_of(bundle, index)
    free = np.setdiff1d(np.arange(PARAMETERS), own.sample_places)
    mean = np.array(mean, np.float64)
    mean[free] = change(mean[free])
    found = mean if coordinates is None else mean[coordinates]
    faults = uploads._against_noise(bundle, index, found, coordinates, own)
    return [fault.removeprefix(f"round {index}: ") for fault in faults]


@pytest.mark.parametrize("index", [INDEX, LAST])
def test_values_without_noise_are_found_where_none_is_sampled(
    few_sampled: Bundle, index: int
) -> None:
    def pixels(values: np.ndarray) -> np.ndarray:
        return np.where(np.arange(len(values)) % 4 == 0, 0.1, 0.0)

    def louder(values: np.ndarray) -> np.ndarray:
        return 3.0 * values

    assert against(few_sampled, lambda values: values, index) == []
    each = [NOT_EACH] if index == LAST else []
    assert against(few_sampled, pixels, index) == [NOT_ITS_SIZE, *each]
    assert against(few_sampled, louder, index) == [NOT_ITS_SIZE, *each]


def test_values_of_the_noises_size_in_its_place_are_found_in_the_last_round(
    few_sampled: Bundle,
) -> None:
    """Block by block nothing is wrong with values in another order; at the coordinates it is."""
    index = few_sampled.layout().of_coordinate

    def turned(values: np.ndarray) -> np.ndarray:
        free = np.setdiff1d(np.arange(PARAMETERS), evidence_of(few_sampled)[0].sample_places)
        found = values.copy()
        for block in range(3):
            found[index[free] == block] = values[index[free] == block][::-1]
        return found

    assert against(few_sampled, turned) == []
    assert against(few_sampled, turned, LAST) == [NOT_EACH]
    without = changed(few_sampled, files={"coordinate_sums": None})
    assert against(without, turned, LAST) == []


def test_of_a_part_of_the_coordinates_only_what_is_too_long_is_found(few_sampled: Bundle) -> None:
    part = np.arange(0, PARAMETERS, 2)
    for index in (INDEX, LAST):
        assert against(few_sampled, lambda values: values, index, part) == []
        assert NOT_ITS_SIZE in against(few_sampled, lambda values: 5.0 * values, index, part)
    assert against(few_sampled, lambda values: 0.0 * values, INDEX, part) == []
    assert against(few_sampled, lambda values: 0.0 * values, LAST, part) == [NOT_EACH]


def test_a_last_release_without_noise_where_none_is_sampled_fails(
    few_sampled: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = np.setdiff1d(np.arange(PARAMETERS), evidence_of(few_sampled, LAST)[0].sample_places)
    read = type(few_sampled).release

    def without(bundle: Bundle, index: int, recorded: int) -> Any:
        found = read(bundle, index, recorded)
        released = found.released.copy()
        released[free] = 2.0
        return replace(found, released=released) if index == LAST else found

    monkeypatch.setattr(type(few_sampled), "release", without)
    said = judged(few_sampled, "uploads")
    assert said.verdict.value == "FAIL"
    assert f"round {LAST}: {NOT_ITS_SIZE}" in said.measurement
