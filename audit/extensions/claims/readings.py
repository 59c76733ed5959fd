"""What ε follows from a claim under each way of reading it.

A paper often leaves open, or states in two ways, what a loss depends on. Each reading fixes one
such choice and is computed with the auditor's own accounting. Readings that bound the loss of the
mechanism they describe are `bounds`; the others reproduce how a number may have come about.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from audit.accounting.budget import (
    Steps,
    ThirdParty,
    budget,
    closed_forms,
    effective_noise_multiplier,
)
from audit.extensions.claims.claim import Claim

SERVER, THIRD_PARTY = "server", "third-party"


@dataclass(frozen=True)
class Reading:
    """One way of reading a claim.

    Attributes:
        key: short name, unique in a claim.
        means: what is assumed, in words.
        towards: "server" or "third-party".
        accountant: how ε is computed.
        value: ε, or how many times that of one query a step; infinite where there is no bound.
        bounds: whether it bounds the loss of the mechanism it describes.
    """

    key: str
    means: str
    towards: str
    accountant: str
    value: float
    bounds: bool


@dataclass(frozen=True)
class _Draft:
    """A reading before it is computed."""

    key: str
    means: str
    towards: str
    accountant: str
    compute: Callable[[], float]
    bounds: bool = True

    def reading(self) -> Reading:
        return Reading(
            self.key, self.means, self.towards, self.accountant, self.compute(), self.bounds
        )


@dataclass(frozen=True)
class _CompleteClaim:
    """A claim in which nothing is missing."""

    claim: Claim
    rate: float
    sigma: float
    delta: float
    rounds: int
    steps: int
    participation: float | None
    fixed_size: bool = False

    def composed(self, steps: int) -> Steps:
        """So many steps of one client."""
        fixed_size = self.fixed_size and self.rate < 1.0
        return Steps(self.rate, self.sigma, steps, fixed_size)


def readings(claim: Claim) -> tuple[Reading, ...]:
    """Every reading of a claim in which nothing is missing (see `Claim.missing`).

    Raises:
        ValueError: something is missing.
    """
    found = tuple(draft.reading() for draft in _drafts(claim))
    if claim.times_one_query is None:
        return found
    single = {one.key: one.value for one in readings(_one_query(claim))}
    return tuple(
        replace(one, value=one.value / single[_baseline(one.key)])
        for one in found
        if 0.0 < single.get(_baseline(one.key), 0.0) < math.inf
    )


def plain_keys(claim: Claim) -> tuple[str, ...]:
    """The readings in the claimed view that take noise and queries as defined.

    By privacy loss distributions, and by the claim's own accountant where it is stated.
    """
    own = {"improved": "/rdp", "classic": "/rdp-classic"}.get(claim.conversion, "")
    plain = {name + end for name in _PLAIN for end in ("", "/fixed-size", own)}
    return tuple(
        draft.key
        for draft in _drafts(claim)
        if draft.bounds and claim.towards in (draft.towards, "unstated") and draft.key in plain
    )


def value_of(claim: Claim, key: str) -> float:
    """ε under one reading alone; KeyError if the claim has no such reading."""
    for draft in _drafts(claim):
        if draft.key == key:
            return draft.compute()
    raise KeyError(key)


_PLAIN = ("every-round", "expected-rounds", "mixture", "poisson", "fixed-size")
_APART = "/apart"


def _drafts(claim: Claim) -> Iterator[_Draft]:
    return _LEVELS[claim.unit](claim)


def _one_query(claim: Claim) -> Claim:
    return replace(claim, queries_per_step=1, times_one_query=None)


def _baseline(key: str) -> str:
    return key.removesuffix(_APART)


def _setting(claim: Claim) -> _CompleteClaim:
    if claim.missing or claim.noise_multiplier is None or claim.delta is None:
        raise ValueError(f"nothing follows without {', '.join(claim.missing)}")
    return _CompleteClaim(
        claim,
        claim.sampling_rate or 1.0,
        effective_noise_multiplier(claim.noise_multiplier, claim.queries_per_step),
        claim.delta,
        claim.rounds or 1,
        claim.local_steps or 1,
        claim.participation,
    )


def _epsilon(steps: Steps, delta: float, method: str = "pld") -> float:
    return budget([steps], delta).epsilon[method]


def _record_level(claim: Claim) -> Iterator[_Draft]:
    s = _setting(claim)
    private = claim.clipping != "batch-mean"
    if claim.clipping == "batch-mean":
        yield from _unbounded("batch-mean", "the batch's mean is clipped, not each record")
    if claim.divisor == "realised":
        yield from _unbounded("realised-divisor", "divisor as printed, the realised batch size")
    yield from _plain(s, private)
    if claim.queries_per_step > 1:
        apart = replace(
            s,
            sigma=s.sigma * math.sqrt(claim.queries_per_step),
            steps=s.steps * claim.queries_per_step,
        )
        # Less than queries on one batch cost, so no bound: it shows where "about twice" comes from.
        means = "the queries of a step as if each had its own batch"
        yield from _views(apart, "{view}" + _APART, means, bounds=False)
    if claim.noise_standard_deviation == "sigma*C^2" and claim.clipping_norm is not None:
        printed = replace(s, sigma=s.sigma * claim.clipping_norm)
        means = f"noise as printed, multiplier sigma*C = {printed.sigma:g}"
        yield from _views(printed, "{view}/noise-as-printed", means, private)
    if claim.sampling in ("fixed", "unstated"):
        means = "batches of fixed size, one record replaced"
        fixed = replace(_replaced(s), fixed_size=True)
        yield from _views(fixed, "{view}/fixed-size", means, private)
    if claim.sampling in ("shuffled", "unstated"):
        # An epoch uses each record once, and a participation begins with a new one.
        uses = math.ceil(s.steps * s.rate - 1e-9)
        shuffled = replace(_replaced(s), rate=1.0, steps=uses)
        means = "shuffled epochs without amplification, one record replaced"
        yield from _views(shuffled, "{view}/shuffled", means, private)
    if s.participation is not None:
        yield from _amplified_by_clients(s)
        yield from _closed_forms(s)


def _replaced(s: _CompleteClaim) -> _CompleteClaim:
    """The setting in which one record is replaced by another: the sum moves by up to 2C."""
    return replace(s, sigma=s.sigma / 2.0)


def _chosen(s: _CompleteClaim) -> bool:
    """Whether rounds leave clients out; where none does, a third party knows as much."""
    return s.participation is not None and s.participation < 1.0


def _counts(s: _CompleteClaim) -> Iterator[tuple[int, str, str]]:
    yield s.rounds, "every-round", f"a client in all {s.rounds} rounds"
    if s.participation is not None and _chosen(s):
        expected = max(1, round(s.rounds * s.participation))
        yield expected, "expected-rounds", f"a client in {expected} rounds, the mean"


def _plain(s: _CompleteClaim, private: bool) -> Iterator[_Draft]:
    """Poisson batches under add/remove, by every accountant."""
    for rounds, view, means in _counts(s):
        steps = s.composed(rounds * s.steps)
        for method, name in _METHODS:
            key = view if method == "pld" else f"{view}/{method}"
            compute = partial(_epsilon, steps, s.delta, method)
            yield _Draft(key, means, SERVER, name, compute, private)
    if _chosen(s):
        yield _mixture(s, "mixture", "not told who took part", private)


_METHODS = (("pld", "PLD"), ("rdp", "RDP improved"), ("rdp-classic", "RDP classic"))


def _views(s: _CompleteClaim, key: str, means: str, bounds: bool) -> Iterator[_Draft]:
    """The same change of mechanism in every view, by privacy loss distributions."""
    for rounds, view, _ in _counts(s):
        compute = partial(_epsilon, s.composed(rounds * s.steps), s.delta)
        where = f"{means}; {rounds} rounds"
        yield _Draft(key.format(view=view), where, SERVER, "PLD", compute, bounds)
    if _chosen(s):
        yield _mixture(s, key.format(view="mixture"), means, bounds)


def _mixture(s: _CompleteClaim, key: str, means: str, bounds: bool) -> _Draft:
    def compute() -> float:
        share = s.participation or 1.0
        return ThirdParty([(s.composed(s.steps), s.rounds)], share, s.delta).epsilon([s.rounds])

    return _Draft(key, means, THIRD_PARTY, "PLD, mixture", compute, bounds)


def _unbounded(key: str, means: str) -> Iterator[_Draft]:
    for towards in (SERVER, THIRD_PARTY):
        text = f"{means}: no finite epsilon"
        yield _Draft(f"{key}/{towards}", text, towards, "none covers it", lambda: math.inf)


def _amplified_by_clients(s: _CompleteClaim) -> Iterator[_Draft]:
    share = s.participation or 1.0
    if share < 1.0:
        compute = partial(_epsilon, Steps(s.rate * share, s.sigma, s.rounds * s.steps), s.delta)
        means = f"as if each step drew its records at q*l = {s.rate * share:g}"
        yield _Draft("client-amplified", means, THIRD_PARTY, "PLD", compute, False)


def _closed_forms(s: _CompleteClaim) -> Iterator[_Draft]:
    clients, share = s.claim.clients, s.participation
    if clients is None or share is None:
        return
    forms = closed_forms(s.rate, s.sigma, s.steps, s.rounds, clients, share, s.delta)
    at = f"at delta {forms['delta_server']:g}"
    for name, towards, means in (
        ("third_party_noble", THIRD_PARTY, "Noble et al. 2022, third party, constant 1"),
        ("server_noble", SERVER, f"that times sqrt(N/l), {at}"),
        ("equation_13", THIRD_PARTY, "without sqrt(l/N), as DP-FedAdamW (13) prints it"),
        ("equation_14", SERVER, f"(13) times sqrt(N/l), as (14) prints it, {at}"),
    ):
        compute = partial(float, forms[name])
        key = name.replace("_", "-")
        yield _Draft(key, means, towards, "closed form", compute, False)


def _client_level(claim: Claim) -> Iterator[_Draft]:
    s = _setting(claim)
    share = claim.participation or 1.0
    means = f"each client in a round by chance {share:g}, {s.rounds} rounds"
    for method, name in _METHODS:
        key = "poisson" if method == "pld" else f"poisson/{method}"
        compute = partial(_epsilon, Steps(share, s.sigma, s.rounds), s.delta, method)
        yield _Draft(key, means, THIRD_PARTY, name, compute)
    if claim.client_sampling in ("fixed", "unstated") and share < 1.0:
        fixed = replace(_replaced(s), rate=share, fixed_size=True)
        compute = partial(_epsilon, fixed.composed(s.rounds), s.delta)
        means = "a fixed number of clients a round, one client replaced"
        yield _Draft("fixed-size", means, THIRD_PARTY, "PLD", compute)
    if claim.rate_printed_twice and share < 1.0:
        compute = partial(_epsilon, Steps(share * share, s.sigma, s.rounds), s.delta, "rdp")
        means = f"the formula as printed, rate q^2 = {share * share:g}"
        yield _Draft("rate-as-printed", means, THIRD_PARTY, "RDP improved", compute, False)
    if claim.clients is not None and claim.noise_standard_deviation == "sigma*C/sqrt(m)":
        yield from _single_uploads(s, claim.clients, share)


def _single_uploads(s: _CompleteClaim, clients: int, share: float) -> Iterator[_Draft]:
    """A server that sees each upload with its own share of the noise, and from whom it is."""
    single = s.sigma / math.sqrt(max(1.0, clients * share))
    for rounds, view, who in _counts(s):
        compute = partial(_epsilon, Steps(1.0, single, rounds), s.delta)
        means = f"sees single uploads, multiplier {single:.4g}; {who}"
        yield _Draft(f"single-uploads/{view}", means, SERVER, "PLD", compute)


_LEVELS = {"record": _record_level, "client": _client_level}
