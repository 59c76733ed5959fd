"""What single lines and sections of a ledger hold: charges, adaptive rules, sparsity, claims.

`ledger` reads every line; its sections are read here, and say what follows from them.

* A charge is one client's round at record level, and one whole round at client level; `read_spend`
  tells the two apart by the unit that the line names.
* `Adaptation` is what a rule may change from round to round. How much was spent by a rule that
  follows released values depends on the records, so its ε is that of the most that it could have
  spent. More noise is post-processing of less and fewer steps are a part of more, so the most
  covers every course within it.
* `Sparsification`: at client level updates may be cut to k of d coordinates. Where the choice is
  public, it follows from the spec's seed, the round and, for some kinds, what the round before
  released, and is repeated here. Where each client chooses its own, there is nothing public to
  repeat: noise must then cover every coordinate.
* A claim states each ε by accountant. Claims once had a field for each of three accountants
  (`epsilon_pld`, `epsilon_rdp`, `epsilon_rdp_classic`; in a view `epsilon` was the first of them).
  `read_claim` lifts that form, so that nothing behind it knows of two.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit.errors import UnverifiedError
from audit.untrusted import fields
from audit.untrusted.archives import Floats, Integers
from audit.untrusted.fields import FieldError

HEX = r"[0-9a-f]{64}"
RUN_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}"
# Noise that a recorded loop may state, and what the name of any other looks like.
GAUSSIAN, LAPLACE = "gaussian", "laplace"
MECHANISM = r"[a-z][a-z0-9 -]{0,59}"
# The bounds on guesses take time that grows with their number.
MOST_CANARIES = 100_000


@dataclass(frozen=True)
class Spend:
    """One client's charge for one round (and attempt), written before its noise."""

    line: int
    round: int
    client: int
    attempt: int
    records: int
    sampling: str
    sampling_rate: float
    expected_batch_size: float
    clipping_norm: float
    noise_multiplier: float
    steps: int
    queries_per_step: int
    rate_stated: bool = False

    @property
    def stated_rate(self) -> float | None:
        """Q where the charge says that the spec states it; None where it is B/R."""
        return self.sampling_rate if self.rate_stated else None


@dataclass(frozen=True)
class RoundSpend:
    """One round's charge (and attempt) at client level, written before its noise.

    Attributes:
        line: line of the ledger, from 1.
        round: index of the round.
        attempt: from 1; a round that is run again is charged again.
        sampling: how clients come to take part.
        sampling_rate: l, each client's chance to take part.
        expected_clients: S, the public number that the noisy sum is divided by.
        clipping_norm: C of one client's whole update.
        noise_multiplier: sigma of the noise on the sum.
        noise_added_by: "server" or "clients".
        clients: who takes part; may be empty.
        upload_noise_multiplier: sigma of a single upload where clients add the noise.
    """

    line: int
    round: int
    attempt: int
    sampling: str
    sampling_rate: float
    expected_clients: float
    clipping_norm: float
    noise_multiplier: float
    noise_added_by: str
    clients: tuple[int, ...]
    upload_noise_multiplier: float | None


def read_spend(entry: Mapping[str, Any], line: int) -> Spend | RoundSpend:
    """A spend line as the charge that it is.

    Raises:
        FieldError: a field is missing, of the wrong type or out of range.
    """
    if entry.get("unit", "record") == "record":
        return _spend(entry, line)
    fields.choice(entry, "unit", ("client",))
    return _round_spend(entry, line)


def _spend(entry: Mapping[str, Any], line: int) -> Spend:
    rate = fields.positive(entry, "sampling_rate", most=1.0)
    return Spend(
        line=line,
        round=fields.integer(entry, "round"),
        client=fields.integer(entry, "client"),
        attempt=fields.integer(entry, "attempt", least=1, most=1_000_000),
        records=fields.integer(entry, "records", least=1),
        sampling=fields.text(entry, "sampling"),
        sampling_rate=rate,
        expected_batch_size=fields.positive(entry, "expected_batch_size"),
        clipping_norm=fields.positive(entry, "clipping_norm"),
        noise_multiplier=fields.positive(entry, "noise_multiplier"),
        steps=fields.integer(entry, "steps", least=1, most=10_000_000),
        queries_per_step=fields.integer(entry, "queries_per_step", least=1, most=1000),
        rate_stated="rate_stated" in entry and fields.flag(entry, "rate_stated"),
    )


def _round_spend(entry: Mapping[str, Any], line: int) -> RoundSpend:
    clients = fields.integers(entry, "clients")
    if len(set(clients)) != len(clients):
        raise FieldError("clients has a client twice")
    upload = None
    if entry.get("upload_noise_multiplier") is not None:
        upload = fields.positive(entry, "upload_noise_multiplier")
    return RoundSpend(
        line=line,
        round=fields.integer(entry, "round"),
        attempt=fields.integer(entry, "attempt", least=1, most=1_000_000),
        sampling=fields.text(entry, "sampling"),
        sampling_rate=fields.positive(entry, "sampling_rate", most=1.0),
        expected_clients=fields.positive(entry, "expected_clients"),
        clipping_norm=fields.positive(entry, "clipping_norm"),
        noise_multiplier=fields.positive(entry, "noise_multiplier"),
        noise_added_by=fields.choice(entry, "noise_added_by", ("server", "clients")),
        clients=clients,
        upload_noise_multiplier=upload,
    )


def last_spends(spends: Iterable[Spend]) -> dict[tuple[int, int], Spend]:
    """The charge of each (round, client) under which the round was finished: its last attempt's."""
    return {
        (spend.round, spend.client): spend for spend in sorted(spends, key=lambda one: one.attempt)
    }


def last_round_spends(spends: Iterable[RoundSpend]) -> dict[int, RoundSpend]:
    """The charge of each round under which it was finished: that of its last attempt."""
    return {spend.round: spend for spend in sorted(spends, key=lambda one: one.attempt)}


_MOST = 10_000_000
# A few numbers of a header can ask for one level a round; the slowest decays in use have hundreds.
_MOST_LEVELS = 1024


@dataclass(frozen=True)
class Decay:
    """Noise that may fall: by `factor` after `patience` rounds that speak for it, to `floor`."""

    factor: float
    patience: int
    floor: float

    def after(self, decays: int) -> float:
        """Share of the first round's noise multiplier after some decays."""
        return max(self.floor, self.factor**decays)

    def least(self, index: int) -> float:
        """Smallest share that round `index` (from 0) can have; round 0 speaks for nothing."""
        return self.after(max(0, index - 1) // self.patience)


@dataclass(frozen=True)
class Adaptation:
    """What the header declares a run may change, and how far.

    Attributes:
        most_local_steps: most steps of one round.
        step_limit: most steps of all rounds together, repeated ones included; None for no limit.
        follows_releases: whether choices heed released values.
        decay: how the noise may fall; None for one noise multiplier throughout.
    """

    most_local_steps: int
    step_limit: int | None
    follows_releases: bool
    decay: Decay | None


def read_adaptation(entry: Mapping[str, Any]) -> Adaptation | None:
    """What a header says of it; None for a run that is the same in every round.

    Raises:
        FieldError: a field is missing, of the wrong type or out of range.
    """
    if entry.get("adaptation") is None:
        return None
    section = fields.mapping(entry, "adaptation")
    decay = None
    if section.get("decay") is not None:
        part = fields.mapping(section, "decay")
        decay = Decay(
            fields.positive(part, "factor", most=1.0),
            fields.integer(part, "patience", least=1, most=_MOST),
            fields.positive(part, "floor", most=1.0),
        )
    limit = None
    if section.get("step_limit") is not None:
        limit = fields.integer(section, "step_limit", least=1, most=_MOST)
    return Adaptation(
        fields.integer(section, "most_local_steps", least=1, most=_MOST),
        limit,
        fields.flag(section, "follows_releases"),
        decay,
    )


def steps_charged(spends: Sequence[Spend]) -> int:
    """Local steps of all rounds together, those of repeated rounds included."""
    return sum({(spend.round, spend.attempt): spend.steps for spend in spends}.values())


@dataclass(frozen=True)
class SpendingBound:
    """The most that a run can spend: rounds, steps and noise as spec and header declare them.

    Attributes:
        rounds: T, the most there can be.
        local_steps: K.
        noise_multiplier: sigma, of the first round.
        adaptation: what may change; None for nothing.
    """

    rounds: int
    local_steps: int
    noise_multiplier: float
    adaptation: Adaptation | None

    @property
    def most_local_steps(self) -> int:
        """Most steps of one round."""
        return self.adaptation.most_local_steps if self.adaptation else self.local_steps

    def most_steps(self, rounds: int) -> int:
        """Most steps of a client that takes part in this many rounds."""
        total = rounds * self.most_local_steps
        limit = self.adaptation.step_limit if self.adaptation else None
        return total if limit is None else min(total, limit)

    def least_noise(self, index: int) -> float:
        """Smallest noise multiplier that round `index` can have."""
        decay = self.adaptation.decay if self.adaptation else None
        return self.noise_multiplier * (decay.least(index) if decay else 1.0)

    def noise_levels(self, rounds: int) -> dict[float, int]:
        """Smallest noise multipliers of the first rounds, and how many rounds have each.

        Raises:
            UnverifiedError: there are more of them than can be composed in some minutes.
        """
        decay = self.adaptation.decay if self.adaptation else None
        if decay is None:
            return {self.noise_multiplier: rounds} if rounds else {}
        found: dict[float, int] = {}
        decays, left = 0, rounds
        while left:
            if len(found) >= _MOST_LEVELS:
                raise UnverifiedError(
                    f"the header lets the noise fall to more than {_MOST_LEVELS:,} levels, which "
                    "the auditor does not compose"
                )
            share = decay.after(decays)
            falls = share > decay.floor and decay.factor < 1.0
            # Round 0 speaks for nothing.
            count = min(left, decay.patience + (decays == 0)) if falls else left
            noise = self.noise_multiplier * share
            found[noise] = found.get(noise, 0) + count
            decays, left = decays + 1, left - count
        return found

    def accounted(self, spends: Sequence[Spend]) -> list[tuple[Spend, float, int]]:
        """Every charge with the noise multiplier and the steps that a claim must count it at."""
        if self.adaptation is None or not self.adaptation.follows_releases:
            return [(spend, spend.noise_multiplier, spend.steps) for spend in spends]
        counted: list[tuple[Spend, float, int]] = []
        most: dict[int, int] = {}
        charged: dict[int, int] = {}
        for spend in spends:
            before = most.get(spend.client, 0)
            after = before + self.most_local_steps
            if self.adaptation.step_limit is not None:
                after = min(after, self.adaptation.step_limit)
            charged[spend.client] = charged.get(spend.client, 0) + spend.steps
            # What goes beyond the declared limits fails "promise", and costs what it costs.
            most[spend.client] = after = max(after, charged[spend.client])
            noise = min(self.least_noise(spend.round), spend.noise_multiplier)
            counted.append((spend, noise, after - before))
        return counted


def local_steps_of_equation_9(
    strong_convexity: float,
    heterogeneity: float,
    total_steps: float,
    clipping_norm: float,
    noise_energy: float,
) -> float:
    """Best number of local steps by ALI-DPFL eq. (9): mu, Gamma, T, C and sigma^2 C^2 d / B^2."""
    spread = clipping_norm * clipping_norm + noise_energy
    rest = (
        4.0 / (strong_convexity * strong_convexity)
        + 2.0 * clipping_norm * clipping_norm
        + 2.0 * heterogeneity * total_steps * strong_convexity
        + spread
    )
    return math.sqrt(1.0 + rest / (spread * (2.0 + 1.0 / total_steps)))


KINDS = ("random", "released-top", "local-top")
# Under which name a broadcast carries public coordinates that follow from releases.
BROADCAST_NAME = "kept_coordinates"
DIGEST_BYTES = 32
# Beyond this, finding the coordinates again would take more memory than an auditor may have.
MOST_COORDINATES = 1 << 28
_DOMAIN = b"dpfedadamw public coordinates 1\x00"


@dataclass(frozen=True)
class Sparsification:
    """What a ledger's header says of sparse updates.

    Attributes:
        kind: one of KINDS.
        size: d, coordinates of an update.
        kept: k of them survive.
        seed: public seed of the choices.
    """

    kind: str
    size: int
    kept: int
    seed: int

    @property
    def public(self) -> bool:
        """Whether the same k coordinates hold for all clients, and anyone can find them."""
        return self.kind != "local-top"


def read_sparsification(source: Mapping[str, Any]) -> Sparsification:
    """The header's section as a Sparsification."""
    size = fields.integer(source, "size", least=1, most=10**11)
    return Sparsification(
        fields.choice(source, "kind", KINDS),
        size,
        fields.integer(source, "kept", least=1, most=size),
        fields.integer(source, "seed", least=-(2**63), most=2**63),
    )


def promised(spec: Mapping[str, Any], size: int) -> Sparsification | None:
    """What a spec says of sparse updates, for d coordinates; None where it keeps them whole.

    Raises:
        FieldError: a field is missing or has a wrong type or range.
    """
    algorithm = fields.mapping(spec, "algorithm")
    if algorithm.get("sparsification") is None:
        return None
    section = fields.mapping(algorithm, "sparsification")
    fraction = fields.positive(section, "fraction", most=1.0)
    seed = fields.integer(fields.mapping(spec, "data"), "seed", least=-(2**63), most=2**63)
    kind = fields.choice(section, "kind", KINDS)
    return Sparsification(kind, size, max(1, round(fraction * size)), seed)


def public_choices(
    sparsification: Sparsification, releases: Iterator[Floats | None]
) -> Iterator[Integers]:
    """The public coordinates of every round, ascending, one array [k] a round.

    Args:
        sparsification: of a public kind.
        releases: what each round released at its coordinates, [k]; read only as far as needed.

    Raises:
        FieldError: a release that the next choice rests on is missing.
    """
    before: Integers | None = None
    last: Floats | None = None
    for index, released in enumerate(releases):
        draws = _draws(sparsification, index)
        if before is None or sparsification.kind == "random":
            chosen = _lowest(draws, np.arange(sparsification.size), sparsification.kept)
        else:
            if last is None:
                raise FieldError("released is missing")
            # Half stay by how far they moved; equal moves are decided by the lower coordinate.
            ranks = np.lexsort((before, -np.abs(last.astype(np.float32))))
            stay = before[ranks[: sparsification.kept // 2]]
            free = np.ones(sparsification.size, dtype=bool)
            free[stay] = False
            drawn = _lowest(draws, np.flatnonzero(free), sparsification.kept - len(stay))
            chosen = np.sort(np.concatenate([stay, drawn]))
        yield chosen
        if released is not None and len(released) != sparsification.kept:
            raise FieldError("released does not have one value for each kept coordinate")
        before, last = chosen, released


def digest(coordinates: Integers) -> bytes:
    """SHA-256 of coordinates, each as eight bytes, lowest first."""
    return hashlib.sha256(coordinates.astype("<i8").tobytes()).digest()


def kept_by_block(coordinates: Integers, sizes: Integers) -> Integers:
    """How many coordinates lie in each of consecutive blocks, [B]."""
    ends = np.cumsum(sizes)
    return np.bincount(
        np.searchsorted(ends, coordinates, side="right"), minlength=len(sizes)
    ).astype(np.int64)


def _draws(sparsification: Sparsification, index: int) -> NDArray[np.uint64]:
    """One raw word of Philox for each coordinate, keyed by seed and round."""
    name = _DOMAIN + f"{sparsification.seed} {index}".encode()
    key = int.from_bytes(hashlib.sha256(name).digest()[:16], "little")
    words: NDArray[np.uint64] = np.random.Philox(key=key).random_raw(sparsification.size)
    return words


def _lowest(draws: NDArray[np.uint64], among: Integers, count: int) -> Integers:
    """The coordinates with the lowest draws, ascending."""
    order = np.argsort(draws[among], kind="stable")
    return np.sort(among[order[:count]])


OLD_FIELDS = {"epsilon_pld": "pld", "epsilon_rdp": "rdp", "epsilon_rdp_classic": "rdp-classic"}
_VIEWS = ("server", "server_worst_case", "third_party")
_MOST_ACCOUNTANTS = 100
_NAME = r"[a-z0-9][a-z0-9.-]{0,39}"


def read_claim(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """The claim line with every ε by accountant; what has neither form stays as it is."""
    lifted = dict(entry)
    for name in _VIEWS:
        if not isinstance(view := entry.get(name), dict):
            continue
        view = _lifted(view)
        if isinstance(clients := view.get("clients"), list):
            view["clients"] = [
                _lifted(client) if isinstance(client, dict) else client for client in clients
            ]
        lifted[name] = view
    return lifted


def _lifted(part: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in part.items() if key not in OLD_FIELDS}
    found = {name: part[old] for old, name in OLD_FIELDS.items() if old in part}
    stated = kept.get("epsilon")
    if isinstance(stated, dict) or (stated is not None and "pld" in found):
        return dict(part)
    if stated is not None:
        found["pld"] = stated
        kept.setdefault("accountant", "pld")
    return {**kept, "epsilon": found} if found else dict(part)


def claimed_epsilons(part: Mapping[str, Any]) -> dict[str, float]:
    """Each ε of a view or client by the accountant's name.

    Raises:
        FieldError: it is not a mapping from names to numbers, or there are also numbers next to it.
    """
    beside = next((old for old in OLD_FIELDS if old in part), None)
    if beside is not None:
        raise FieldError(
            f"{beside} is given in addition to epsilon, which holds every accountant's number"
        )
    stated = fields.mapping(part, "epsilon")
    if not 1 <= len(stated) <= _MOST_ACCOUNTANTS:
        raise FieldError("epsilon holds no accountant's number, or too many")
    if not all(re.fullmatch(_NAME, str(name)) for name in stated):
        raise FieldError("epsilon names an accountant by something that is not a name")
    return {name: fields.number(stated, name) for name in stated}


def claimed_headline(view: Mapping[str, Any]) -> float:
    """The ε that a view promises: that of the accountant which it names.

    Raises:
        FieldError: as for `claimed_epsilons`, or it names none whose number it states.
    """
    return fields.number(claimed_epsilons(view), fields.text(view, "accountant"))


@dataclass(frozen=True)
class Canaries:
    """What an audit run says it planted.

    Attributes:
        count: N.
        kind: "gradient", "input", "secret", or "label", which is retired.
        audited: identifier of the run whose spec was trained again, None for a spec alone.
    """

    count: int
    kind: str
    audited: str | None


def read_canaries(entry: Mapping[str, Any]) -> Canaries:
    """The header's section as it stands in `Header`."""
    return Canaries(
        fields.integer(entry, "count", least=1, most=MOST_CANARIES),
        fields.choice(entry, "kind", ("gradient", "input", "secret", "label")),
        None if entry.get("audited") is None else fields.text(entry, "audited", pattern=RUN_NAME),
    )


@dataclass(frozen=True)
class SharedBudget:
    """What all runs on the data set may spend together, as the header declares it."""

    epsilon: float
    delta: float


def read_budget(entry: Mapping[str, Any]) -> SharedBudget:
    """The header's section as it stands in `Header`."""
    return SharedBudget(
        fields.positive(entry, "epsilon"), fields.positive(entry, "delta", most=1.0)
    )


@dataclass(frozen=True)
class Trial:
    """Which trial of a private selection the run is, as the header declares it.

    Attributes:
        trial: its number, from 1.
        trials: how many there are.
        commitment: digest (hex) of what drew their number.
    """

    trial: int
    trials: int
    commitment: str


def read_trial(entry: Mapping[str, Any]) -> Trial:
    """The header's section as it stands in `Header`."""
    return Trial(
        fields.integer(entry, "trial", least=1),
        fields.integer(entry, "trials", least=1),
        fields.text(entry, "commitment", pattern=HEX),
    )


@dataclass(frozen=True)
class Grid:
    """Significant bits that the run says it writes: in updates, other vectors, summaries, weights.

    Attributes:
        update: of a client's update; of a round's released mean where whole clients are protected.
        vectors: of all else that has d coordinates.
        summaries: of shorter tensors.
        weights: of the published weights.
    """

    update: int
    vectors: int
    summaries: int
    weights: int


def read_grid(entry: Mapping[str, Any]) -> Grid:
    """The header's section as it stands in `Header`."""
    names = ("update", "vectors", "summaries", "weights")
    return Grid(**{name: fields.integer(entry, name, least=1, most=53) for name in names})


@dataclass(frozen=True)
class Producer:
    """Who trained where it was not the engine, as the header declares it.

    Attributes:
        name: such as "opacus".
        version: its version.
        mode: how it computes clipped sums.
        optimizer: the update's name.
        generator: what draws noise and batches.
        secure: whether that is said to be a cryptographic generator.
        mechanism: by what noise the loop says that it protects.
    """

    name: str
    version: str
    mode: str
    optimizer: str
    generator: str
    secure: bool
    mechanism: str = GAUSSIAN


def read_producer(entry: Mapping[str, Any]) -> Producer:
    """The header's section as it stands in `Header`."""
    texts = ("name", "version", "mode", "optimizer", "generator")
    found = {name: fields.text(entry, name, pattern=r".{1,200}") for name in texts}
    stated = GAUSSIAN
    if entry.get("mechanism") is not None:
        stated = fields.text(entry, "mechanism", pattern=MECHANISM)
    return Producer(**found, secure=fields.flag(entry, "secure"), mechanism=stated)
