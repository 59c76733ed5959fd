"""Twenty trainers who lie consistently, and from which level of assurance on each is caught.

`python -m tests.faults.forgers_table docs/reexecution.md` plays them all and writes the table
between the page's marks, which takes some minutes. Each run has a hundred participations: twenty
rounds of five clients. Every participation is computed again and judged, once with the whole key
and once opened alone. Then twenty are drawn a thousand times by the code that draws, and a draw
catches the trainer if what was judged false is in it. The chance in closed form stands next to it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from audit.checks.shared.recomputed import Recomputed, judge_round
from audit.reading.bundle import Bundle, open_bundle
from audit.recomputed import RecomputedRound
from audit.reexecution import Participation, draw, escape_probability, with_the_first_round
from audit.replay.participation import finished_rounds
from dpfedadamw import spec as specs
from dpfedadamw.cli import challenge_files
from dpfedadamw.clipping.engines import choose
from dpfedadamw.experiment import prepare
from dpfedadamw.federation.participation import Answer, ClientData, ParticipationWithData
from dpfedadamw.federation.worker import Worker
from dpfedadamw.filing import after_training as filing
from dpfedadamw.filing.replaying import Order, replay_of
from dpfedadamw.models.registry import loss_of
from dpfedadamw.privacy import oracle as oracle_module
from dpfedadamw.privacy.clipped_sum import ClippedSum
from dpfedadamw.privacy.noise.key_tree import SERVER
from dpfedadamw.privacy.noise.noise import add_gaussian_noise
from dpfedadamw.privacy.noise.randomness import ReleaseRandomness
from dpfedadamw.privacy.noise.streams import Stream
from dpfedadamw.privacy.oracle import PrivateOracle
from dpfedadamw.reexecution.history import Keys, escrowed, opened
from dpfedadamw.reexecution.rounds import Rerun
from dpfedadamw.run import setup as engine_setup
from dpfedadamw.run import training as engine_run
from dpfedadamw.run.start_options import StartOptions, coin_of
from dpfedadamw.rundir import RunDirectory
from dpfedadamw.spec import Spec
from tests.challenged import Parties
from tests.faults import forgeries
from tests.faults.challenge_forgeries import (
    key_ground_for_its_noise,
    noise_made_before_its_charge,
    nonce_ignored,
)
from tests.faults.start_faults import trained_beforehand
from tests.runs import attest, key_of_a_test, probed, small_spec

BEGIN, END = "<!-- forgers -->", "<!-- end of forgers -->"
CPU = torch.device("cpu")
Patch = pytest.MonkeyPatch
Place = tuple[int, int]
Places = frozenset[Place]

ROUNDS, CLIENTS, DRAWN, DRAWS = 20, 5, 20, 1000
NONE: Places = frozenset()
ONE: Places = frozenset({(7, 2)})
FIVE: Places = frozenset({(3, 0), (6, 1), (9, 2), (12, 3), (15, 4)})
EVERY: Places = frozenset((t, k) for t in range(ROUNDS) for k in range(CLIENTS))
SMALL = "model={name: mlp, hidden: []}"
# A forger who draws again until the false ones are not among them gives up after so many.
PATIENCE = 100


class Now:
    """Which participation is going on, and what a forger has at hand."""

    place: Place = (-1, -1)
    data: dict[int, ClientData] = {}  # noqa: RUF012
    test: ClientData
    asked: tuple[PrivateOracle, Tensor]


def watched(patch: Patch) -> None:
    """Know at any time which participation is going on."""
    take_part, gradient = Worker.take_part, PrivateOracle.gradient

    def watching(self: Worker, part: ParticipationWithData) -> Answer:
        Now.place = (part.current.index, part.client)
        Now.data[part.client] = part.data
        try:
            return take_part(self, part)
        finally:
            Now.place = (-1, -1)

    def asking(self: PrivateOracle, parameters: Tensor) -> Tensor:
        Now.asked = self, parameters
        return gradient(self, parameters)

    patch.setattr(Worker, "take_part", watching)
    patch.setattr(PrivateOracle, "gradient", asking)


Lie = Callable[[Patch, Places], None]


def honest(patch: Patch, places: Places) -> None:
    """Train as the spec says."""


def everywhere(lie: Callable[[Patch], None]) -> Lie:
    """A lie that no participation is free of."""
    return lambda patch, _: lie(patch)


def noise_of_half_the_scale(patch: Patch, places: Places) -> None:
    """Half the noise, and a clean sum noted that the key's own noise would lead from."""
    forgeries.lying(lambda clean, noise: clean + noise / 2, lambda: Now.place in places)(patch)


def with_records(chosen: Callable[[PrivateOracle, int], tuple[Tensor, Tensor]]) -> Lie:
    """The numbers that were drawn are noted, and as many other records used."""

    def lie(patch: Patch, places: Places) -> None:
        next_batch = PrivateOracle.next_batch

        def lying(self: PrivateOracle) -> None:
            next_batch(self)
            assert self._batch is not None
            if Now.place in places:
                # What was drawn is read too, so that the evidence has its rows and contents.
                drawn, labels = self._batch
                drawn[:]
                self._batch = chosen(self, len(labels))

        patch.setattr(PrivateOracle, "next_batch", lying)

    return lie


def _rows(data: ClientData, rows: Tensor) -> tuple[Tensor, Tensor]:
    return data.inputs[rows][:], data.labels[rows]


def first_records(self: PrivateOracle, size: int) -> tuple[Tensor, Tensor]:
    """The client's first records, whatever is drawn."""
    return _rows(Now.data[Now.place[1]], torch.arange(size))


def of_another_client(self: PrivateOracle, size: int) -> tuple[Tensor, Tensor]:
    """Records of the next client."""
    return _rows(Now.data[(Now.place[1] + 1) % CLIENTS], torch.arange(size))


def of_the_test_set(self: PrivateOracle, size: int) -> tuple[Tensor, Tensor]:
    """Test records."""
    return _rows(Now.test, torch.arange(size) % len(Now.test.labels))


def of_the_highest_loss(self: PrivateOracle, size: int) -> tuple[Tensor, Tensor]:
    """Those of the client's records that the model does worst on."""
    data, model = Now.data[Now.place[1]], self._flat.module
    with torch.no_grad():
        losses = loss_of(model)(model(data.inputs[torch.arange(len(data.labels))][:]), data.labels)
    return _rows(data, losses.argsort(descending=True)[:size])


def more_records(patch: Patch, places: Places) -> None:
    """Ten records more than drawn are in the sum; size and norms are noted without them."""
    real = oracle_module.clipped_sum

    def lying(engine: Any, flat: Any, point: Tensor, batch: Any, most: int) -> ClippedSum:
        told = real(engine, flat, point, batch, most)
        if Now.place not in places:
            return told
        further = first_records(Now.asked[0], 10)
        more = real(engine, flat, point, further, most)
        return dataclasses.replace(told, total=told.total + more.total)

    patch.setattr(oracle_module, "clipped_sum", lying)


def not_clipped(patch: Patch, places: Places) -> None:
    """Of ten records the gradients are added as they are, and noted as if they were clipped.

    With all of a batch it would be seen at once: the sum is longer than its clipped gradients.
    """
    real = oracle_module.clipped_sum

    def lying(engine: Any, flat: Any, point: Tensor, batch: Any, most: int) -> ClippedSum:
        told = real(engine, flat, point, batch, most)
        if Now.place not in places:
            return told
        ten = batch[0][:10], batch[1][:10]
        bare = choose(flat.module, loss_of(flat.module), math.inf, engine="vmap")
        clipped, whole = (real(one, flat, point, ten, most).total for one in (engine, bare))
        return dataclasses.replace(told, total=told.total + whole - clipped)

    patch.setattr(oracle_module, "clipped_sum", lying)


def noise_drawn_again(patch: Patch, places: Places) -> None:
    """Of eight noises the quietest is released, each as good a Gaussian as any."""
    _noise(patch, places, _quietest)


def _quietest(honestly: Callable[..., Tensor], clean: Tensor) -> Tensor:
    again = (
        honestly(clean, stream=Stream(key_of_a_test(100 * sum(Now.place) + number)))
        for number in range(8)
    )
    return min(again, key=lambda one: float((one - clean).norm()))


def step_as_noise(patch: Patch, places: Places) -> None:
    """A further local step on four records is taken in the clear, and written down as noise."""
    _noise(patch, places, _one_step_further)


def _one_step_further(honestly: Callable[..., Tensor], clean: Tensor) -> Tensor:
    oracle, point = Now.asked
    there = point - 0.1 * clean.to(point.dtype) / 60.0
    extra = oracle_module.clipped_sum(
        oracle._engine, oracle._flat, there, first_records(oracle, 4), 64
    )
    return honestly(clean + extra.total)


def _noise(
    patch: Patch, places: Places, made: Callable[[Callable[..., Tensor], Tensor], Tensor]
) -> None:
    def lying(clean: Tensor, deviation: float, stream: Any, *rest: Any, **options: Any) -> Tensor:
        def honestly(total: Tensor, stream: Any = stream) -> Tensor:
            return add_gaussian_noise(total, deviation, stream, *rest, **options)

        return made(honestly, clean) if Now.place in places else honestly(clean)

    patch.setattr(oracle_module, "add_gaussian_noise", lying)


@dataclasses.dataclass(frozen=True)
class Forger:
    """A trainer who lies in all that is written, so that all of it agrees.

    Attributes:
        name: In words joined by hyphens.
        lie: What is false, in one sentence without a full stop.
        places: Participations that are false: round and client.
        patch: Lets the engine lie, in these places.
        warm: Steps on all clients' records, without noise, before training begins.
        tries: Runs that are trained; one of them is filed.
        best: What the run that is filed has most of.
        coin: How the engine lies where an auditor's nonce decides about the noise; None where that
            makes no difference.
        always_coin: Whether there is nothing to lie about without such a nonce.
        draws_again: Whether trainer and auditor are one, who draws until no false one is drawn.
    """

    name: str
    lie: str
    places: Places = NONE
    patch: Lie = honest
    warm: int = 0
    tries: int = 1
    best: Callable[[RunDirectory], float] = lambda _: 0.0
    coin: Callable[[Patch], None] | None = None
    always_coin: bool = False
    draws_again: bool = False

    def false(self, level: int) -> Places:
        """Participations that are false to somebody who works at a level."""
        return EVERY if self.coin is not None and level > 2 else self.places


def _accuracy(run: RunDirectory) -> float:
    lines = json.loads("[" + ",".join(run.metrics.read_text().splitlines()) + "]")
    return float(lines[-1]["test_accuracy"])


def _quiet(run: RunDirectory) -> float:
    """How little noise the participation (7, 2) got."""
    with np.load(run.evidence / "round-00007.npz") as arrays:
        return -float(arrays["noise_sum_squares"][2].sum())


FORGERS = (
    Forger("start-trained-on-records",
           "the first weights took a step on all records, and are said to come from the seed",
           warm=1),
    Forger("other-records-once",
           "records of choice stand under the numbers that were drawn, in one participation",
           ONE, with_records(first_records)),
    Forger("other-records-everywhere", "the same in all participations",
           EVERY, with_records(first_records)),
    Forger("unclipped-once",
           "ten records' gradients are not clipped in one participation, and noted as if",
           ONE, not_clipped),
    Forger("noise-drawn-again", "of eight noises the quietest is released, in five participations",
           FIVE, noise_drawn_again),
    Forger("half-the-noise-once",
           "noise has half its scale in one participation, and the evidence is rewritten",
           ONE, noise_of_half_the_scale),
    Forger("half-the-noise-five-times", "the same in five participations",
           FIVE, noise_of_half_the_scale),
    Forger("half-the-noise-everywhere", "the same in all participations",
           EVERY, noise_of_half_the_scale),
    Forger("records-of-another-client", "batches are another client's, in five participations",
           FIVE, with_records(of_another_client)),
    Forger("step-written-as-noise",
           "a further step on four records is added in the clear and noted as noise, in five "
           "participations", FIVE, step_as_noise),
    Forger("records-of-highest-loss",
           "batches are the records with the highest loss, in five participations",
           FIVE, with_records(of_the_highest_loss)),
    Forger("test-records", "batches are test records, in five participations",
           FIVE, with_records(of_the_test_set)),
    Forger("more-records", "ten records more than noted are in each sum of five participations",
           FIVE, more_records),
    Forger("other-labels", "other labels are trained on than those whose digest is claimed",
           EVERY, everywhere(forgeries._other_labels)),
    Forger("noise-of-another-key", "all noise comes from a key that was not committed to",
           EVERY, everywhere(forgeries._another_key)),
    Forger("best-of-ten", "ten runs are trained, and the most accurate is filed as the only one",
           tries=10, best=_accuracy),
    Forger("key-chosen-for-its-noise",
           "of ten keys the one with the least noise in one participation is kept; with an "
           "auditor's nonce, another key than was announced", tries=10, best=_quiet,
           coin=key_ground_for_its_noise),
    Forger("nonce-ignored", "noise comes from the announced key alone, without the auditor's nonce",
           EVERY, coin=nonce_ignored, always_coin=True),
    Forger("ledger-after-the-fact", "all noise was made before the ledger had a line to bind it to",
           EVERY, everywhere(noise_made_before_its_charge)),
    Forger("two-keys-in-one-hand",
           "half the noise in one participation; trainer and auditor are one, who draws until it "
           "is not among those drawn", ONE, noise_of_half_the_scale, draws_again=True),
)  # fmt: skip


def spec_of(model: str) -> Spec:
    """The spec of all these runs."""
    return small_spec(
        "dp-fedavg",
        rounds=ROUNDS,
        clients_per_round=CLIENTS,
        mode="release",
        overrides=(
            model,
            "federation.local_steps=1",
            "privacy.noise_multiplier=0.4",
            "privacy.sampling.expected_batch_size=60",
        ),
    )


def _trained(forger: Forger, spec: Spec, folder: Path, number: int) -> RunDirectory:
    """A run that the trainer announced to nobody; its key lies in the folder as "escrow"."""
    key = key_of_a_test(number)
    folder.mkdir(parents=True)
    ReleaseRandomness(key).write_escrow(folder / "escrow")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_setup, "ReleaseRandomness", lambda: ReleaseRandomness(key))
        watched(patch)
        forger.patch(patch, forger.places)
        experiment = prepare(spec, CPU)
        test = experiment.dataset.test
        Now.test = ClientData(test.inputs.to(CPU), torch.from_numpy(test.labels))
        if forger.warm:
            trained_beforehand(experiment, forger.warm)
        training = engine_setup.start(experiment, folder)
        with training.lock:
            engine_run.train(training)
    attest(training)
    return training.run


def _challenged(forger: Forger, spec: Spec, folder: Path) -> RunDirectory:
    """A run that was announced to an auditor, and got a nonce."""
    assert forger.coin is not None
    folder.mkdir(parents=True)
    (folder / "small.yaml").write_text(specs.dump(spec), encoding="utf-8")
    parties = Parties(folder)
    assert parties.announce(escrow="escrow") == parties.challenge() == 0
    with parties.acting("trainer", forger.coin):
        signers = filing.load_signers(None, None)
        answer = folder / "challenge.json"
        challenge = challenge_files.read_challenged(answer, folder / "escrow", signers.trainer)
        training = engine_setup.start(
            prepare(spec, CPU), folder, options=StartOptions(challenged=challenge)
        )
        with training.lock:
            engine_run.train(training, before_claim=probed)
        filing.attest_training(training.run, signers)
    return training.run


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What an audit can find of a forger, participation by participation.

    Attributes:
        verdict: Of the audit that computes nothing again.
        start: Whether what training began with is found out once it is made again.
        whole: Participations whose draw is the trainer's end where the whole key is at hand: the
            round that they are in is run again.
        opened: The same where nothing is opened but what is drawn.
    """

    verdict: str
    start: bool
    whole: Places
    opened: Places


def declared(forger: Forger) -> Outcome:
    """What must be found."""
    if forger.warm:
        # The first round is computed from the start that the spec's seed makes.
        first = frozenset(place for place in EVERY if place[0] == 0)
        return Outcome("PASS", True, first, first)
    rounds = {index for index, _ in forger.false(2)}
    whole = frozenset(place for place in EVERY if place[0] in rounds)
    return Outcome("PASS", False, whole, forger.false(3))


def played(forger: Forger, model: str, folder: Path) -> Outcome:
    """What is found."""
    spec = spec_of(model)
    alone = [
        _trained(forger, spec, folder / str(number), number + 1)
        for number in range(0 if forger.always_coin else forger.tries)
    ]
    with_nonce = [] if forger.coin is None else [_challenged(forger, spec, folder / "coin")]
    filed = max(alone or with_nonce, key=forger.best)
    verdicts = {filing.audit(run).to_json()["verdict"] for run in (filed, *with_nonce)}
    opened_alone = _opened_alone((with_nonce or [filed])[0])
    whole, start = _with_the_key(filed)
    # A participation is judged with its round where that is known, and else by what it opens.
    found = whole if with_nonce else whole | opened_alone
    return Outcome("/".join(sorted(verdicts)), start, found, opened_alone)


def _order(keys: Keys, seed: bytes = bytes(32)) -> Order:
    return Order(keys=keys, count=DRAWN, seed=seed, salts={})


def _key(run: RunDirectory) -> ReleaseRandomness:
    header = json.loads(run.ledger.read_bytes().split(b"\n", 1)[0])
    return ReleaseRandomness.from_escrow(run.path.parent / "escrow", coin_of(header))


def _false(bundle: Bundle, again: RecomputedRound) -> bool:
    """The auditor's own judgement of one round, and of the participations in it."""
    rounds = {item.round: item for item in finished_rounds(bundle.readable_ledger)}
    tally = Recomputed()
    judge_round(bundle, rounds[again.round], again, tally)
    assert not tally.unjudged, tally.unjudged
    return bool(tally.reasons)


def _opened_alone(run: RunDirectory) -> Places:
    """Participations that are false by themselves, each opened without the others of its round."""
    key, bundle, false = _key(run), open_bundle(run.path), set()
    for client in range(CLIENTS):
        leaves = {(t, who): key.leaf(t, who) for t in range(ROUNDS) for who in (client, SERVER)}
        keys = opened(leaves, key.coin)
        replay = replay_of(Rerun(run, keys, CPU), _order(keys))
        places = [(index, client) for index in range(ROUNDS)]
        for again in replay.rounds(places, ROUNDS - 1):
            if _false(bundle, again):
                false.add((again.round, client))
    return frozenset(false)


def _with_the_key(run: RunDirectory) -> tuple[Places, bool]:
    """Participations in rounds that are false, and whether the start is.

    A whole audit that draws is held against them.
    """
    bundle, false = open_bundle(run.path), set[int]()
    key = _key(run)
    keys = escrowed([run.path.parent / "escrow"], key.coin)
    replay = replay_of(Rerun(run, keys, CPU), _order(keys))
    for again in replay.rounds([(index, 0) for index in range(ROUNDS)], ROUNDS - 1):
        if _false(bundle, dataclasses.replace(again, participations=())):
            false.add(again.round)
    whole = frozenset(place for place in EVERY if place[0] in false)
    found = filing.audit(run, replay=replay).to_json()
    start = forgeries.check_of(found, "initial-weights")["verdict"] == "FAIL"
    ledger = hashlib.sha256(run.ledger.read_bytes()).hexdigest()
    caught = start or bool(whole & _drawn(replay.seed, ledger))
    assert (found["verdict"] == "FAIL") == caught, found["verdict"]
    return whole, start


def _drawn(seed: bytes, ledger: str) -> Places:
    """The places that a seed draws."""
    among = [Participation(index, client, 1) for index, client in sorted(EVERY)]
    drawn = draw(among, seed, ledger, DRAWN)
    asked = with_the_first_round(drawn, among, seed, ledger)
    return frozenset((one.round, one.client) for one in asked)


@cache
def _draws() -> tuple[Places, ...]:
    """A thousand draws of twenty, the same for every forger."""
    ledger = hashlib.sha256(b"a ledger").hexdigest()
    seeds = (hashlib.sha256(b"draw %d" % number).digest() for number in range(DRAWS))
    return tuple(_drawn(seed, ledger) for seed in seeds)


def simulated(forger: Forger, found: Outcome, level: int) -> int:
    """How many of a thousand auditors catch a forger, by what the engine and the auditor found."""
    if level == 1:
        return 0 if found.verdict == "PASS" else DRAWS
    false = found.whole if level == 2 else found.opened
    caught = [found.start or bool(false & drawn) for drawn in _draws()]
    if forger.draws_again and level < 4:
        # Auditor and trainer are one, who goes on from each draw until it suits.
        tried = (caught[first:] + caught[:first] for first in range(DRAWS))
        return sum(all(attempts[:PATIENCE]) for attempts in tried)
    return sum(caught)


def chance(forger: Forger, level: int) -> float:
    """The same in closed form (hypergeometric), by what is declared to be false."""
    due = declared(forger)
    if level == 1 or (forger.draws_again and level < 4):
        return 0.0
    if due.start:
        return 1.0
    false = due.whole if level == 2 else due.opened
    return 1.0 - escape_probability(len(EVERY), len(false), DRAWN)


def table(found: Mapping[str, Outcome]) -> str:
    """The table as Markdown.

    Args:
        found: What was found of each forger, by name.
    """
    lines = [
        "| forgery | false of 100 | 1 | 2 | 3 | 4 |",
        "|---|---|---|---|---|---|",
    ]
    for forger in FORGERS:
        cells = [f"`{forger.name}`: {forger.lie}", _amount(forger)]
        for level in (1, 2, 3, 4):
            times = simulated(forger, found[forger.name], level)
            cells.append(_cell(chance(forger, level), times))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _amount(forger: Forger) -> str:
    if forger.warm:
        return "the start"
    amounts = sorted({len(forger.false(level)) for level in (1, 3)})
    return " or ".join(str(amount) for amount in amounts)


def _cell(expected: float, times: int) -> str:
    if expected in (0.0, 1.0) and times == expected * DRAWS:
        return f"{expected:.0%}".replace("%", " %")
    return f"{expected:.1%} ({times / DRAWS:.1%})".replace("%", " %")


def main(arguments: Sequence[str]) -> int:
    """Play all forgers and rewrite the table of the page that is named."""
    path = Path(arguments[0])
    torch.set_num_threads(1)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DPFEDADAMW_KEYS"] = f"{folder}/keys"
        os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
        for forger in FORGERS:
            found[forger.name] = played(forger, SMALL, Path(folder) / forger.name)
            if found[forger.name] != declared(forger):
                raise SystemExit(f"{forger.name}: {found[forger.name]}")
            print(forger.name, file=sys.stderr, flush=True)
    before, rest = path.read_text(encoding="utf-8").split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    path.write_text(f"{before}{BEGIN}\n\n{table(found)}\n\n{END}{after}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
