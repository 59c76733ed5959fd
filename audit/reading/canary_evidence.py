"""The private evidence of an audit run: coins, and what each release said of each canary.

The archive `evidence/canaries.npz`, every array checked before use; `scores` and `guessing` make
guesses of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from audit.reading.units import PERSON, RECORD, Unit
from audit.untrusted.archives import Arrays, Floats, Integers, floats, integers
from audit.untrusted.fields import FieldError

FURTHER = (
    "others",
    "contributions",
    "residuals",
    "residual_shift",
    "residual_low",
    "residual_high",
    "residual_total",
)


@dataclass(frozen=True)
class KnownSecrets:
    """How well the final model knows secret texts, of which there are so many as canaries.

    Attributes:
        candidates: codes among which each secret is ranked.
        rank: [planted] from 1, of the code that the model holds most likely.
        nats: [planted] minus the logarithm of the chance that a sample repeats it.
        repeated: [planted] whether greedy decoding repeats it.
    """

    candidates: int
    rank: Integers
    nats: Floats
    repeated: NDArray[np.bool_]


@dataclass(frozen=True)
class CanaryEvidence:
    """N canaries, those of one client side by side, and L rows, one a noised answer or release.

    People who are at several clients have a part at each. N is then the number of parts, and what
    is known of a person is what all their parts say together.

    Attributes:
        client: [N] whose record each takes the place of, ascending.
        included: [N] the coins.
        opposed: whether a canary that is not included points the other way, not nowhere.
        row_round: [L] round of each answer.
        row_step: [L] its local step.
        row_first: [L] the first of the canaries of the client that asked.
        row_count: [L] how many they are.
        projections: one a row and canary, row after row: the released sum along the canary's own
            clipped gradient, in units of C²; 0 where it was not finite.
        further: more numbers, one a row and canary each, by name; those that are there. `others`:
            what other records put in, where that is not taken away already. Of crafted inputs
            `contributions`, by what a canary that is drawn moves its projection, and `residuals`
            with `residual_shift`, `residual_low`, `residual_high` and `residual_total`: scores that
            are independent of each other, what the canary moves its own, between what their means
            lie, and what the canary moves the sum of those of canaries that are in.
        loss_before: [N] loss under the initial model.
        loss_after: [N] loss under the final model.
        person: [N] of whom each is a part; every one of its own where records are planted.
        known: of secret texts, how well the final model knows them; None of other kinds.
    """

    client: Integers
    included: NDArray[np.bool_]
    opposed: bool
    row_round: Integers
    row_step: Integers
    row_first: Integers
    row_count: Integers
    projections: Floats
    further: Mapping[str, Floats]
    loss_before: Floats
    loss_after: Floats
    person: Integers
    known: KnownSecrets | None = None

    @property
    def planted(self) -> int:
        """How many canaries there are, with all their parts."""
        return int(self.person.max()) + 1

    @property
    def coins(self) -> NDArray[np.bool_]:
        """[planted] the coin of each canary."""
        found = np.zeros(self.planted, bool)
        found[self.person] = self.included
        return found

    def together(self, scores: Floats) -> Floats:
        """[planted] the sum of scores [N] over each canary's parts."""
        found = np.bincount(self.person, weights=scores, minlength=self.planted)
        return found.astype(np.float64)

    def clients_of_each(self) -> list[tuple[int, ...]]:
        """[planted] the clients at which each canary is, ascending."""
        found: list[list[int]] = [[] for _ in range(self.planted)]
        for client, person in zip(self.client.tolist(), self.person.tolist(), strict=True):
            found[person].append(client)
        return [tuple(one) for one in found]

    def rows(self) -> list[tuple[int, int, slice, Floats]]:
        """Round, step, canaries and their projections of every row, in order."""
        ends = np.cumsum(self.row_count)
        return [
            (
                int(number),
                int(step),
                slice(int(first), int(first + count)),
                self.projections[end - count : end],
            )
            for number, step, first, count, end in zip(
                self.row_round, self.row_step, self.row_first, self.row_count, ends, strict=True
            )
        ]

    def further_by_row(self, name: str, missing: float = 0.0) -> list[Floats]:
        """Some of the further numbers, of every row; `missing` where there are none."""
        found = self.further.get(name)
        if found is None:
            found = np.full(len(self.projections), missing)
        return np.split(found, np.cumsum(self.row_count)[:-1])


def read_canaries(arrays: Arrays, clients: int, unit: Unit = RECORD) -> CanaryEvidence:
    """The archive as CanaryEvidence; shapes must agree with each other.

    Args:
        arrays: what the archive holds.
        clients: how many clients there are.
        unit: what is protected. Where that is whole clients, a row names those of any number; where
            it is people, the archive says of whom each canary is a part.

    Raises:
        FieldError: an array is missing, or has another type, shape or range.
    """
    client = integers(arrays, "client", (None,))
    planted = len(client)
    if not planted or np.any(np.diff(client) < 0) or client[-1] >= clients:
        raise FieldError("client is not an ascending list of clients")
    included, opposed = integers(arrays, "included", (planted,)), integers(arrays, "opposed", ())
    if max(int(included.max()), int(opposed)) > 1:
        raise FieldError("a coin is neither 0 nor 1")
    number = integers(arrays, "row_round", (None,))
    length = (len(number),)
    step = integers(arrays, "row_step", length)
    first, count = integers(arrays, "row_first", length), integers(arrays, "row_count", length)
    if np.any(first >= planted) or np.any(count > planted) or np.any(first + count > planted):
        raise FieldError("a row names canaries that do not exist")
    if unit.whole_clients and np.any(np.diff(client) == 0):
        raise FieldError("client names a client twice")
    if not unit.whole_clients and np.any(
        client[first] != client[np.maximum(first + count - 1, first)]
    ):
        raise FieldError("a row names canaries of two clients")
    person = np.arange(planted)
    if unit is PERSON:
        person = integers(arrays, "person", (planted,))
        if not np.array_equal(np.unique(person), np.arange(int(person.max()) + 1)):
            raise FieldError("person does not number the canaries from 0")
        if len(np.unique(np.stack([person, client]), axis=1).T) < planted:
            raise FieldError("a canary has two parts at one client")
        coins = np.full((2, int(person.max()) + 1), False)
        coins[included, person] = True
        if coins.all(0).any():
            raise FieldError("parts of one canary have different coins")
    projections = floats(arrays, "projections", (int(count.sum()),), finite=False)
    further = {
        name: floats(arrays, name, (len(projections),), finite=False)
        for name in FURTHER
        if name in arrays
    }
    return CanaryEvidence(
        client,
        included == 1,
        bool(opposed),
        number,
        step,
        first,
        count,
        np.where(np.isfinite(projections), projections, 0.0),
        further,
        floats(arrays, "loss_before", (planted,), finite=False),
        floats(arrays, "loss_after", (planted,), finite=False),
        person,
        _known(arrays, person) if "rank" in arrays else None,
    )


def _known(arrays: Arrays, person: Integers) -> KnownSecrets:
    """What the archive says of secret texts; all parts of a person have one."""
    shape = person.shape
    rank, candidates = integers(arrays, "rank", shape), int(integers(arrays, "candidates", ()))
    repeated, nats = (
        integers(arrays, "repeated", shape),
        floats(arrays, "nats", shape, finite=False),
    )
    if rank.min() < 1 or rank.max() > candidates:
        raise FieldError("rank is not between 1 and candidates")
    if repeated.max() > 1 or np.any(nats < 0.0):
        raise FieldError("a secret is repeated neither 0 nor 1 times, or with a chance above 1")
    first = np.unique(person, return_index=True)[1]
    if any(np.any(one != one[first][person]) for one in (rank, repeated)):
        raise FieldError("parts of one canary have different secrets")
    unlikely = np.where(np.isnan(nats), np.inf, nats)
    return KnownSecrets(candidates, rank[first], unlikely[first], repeated[first] == 1)
