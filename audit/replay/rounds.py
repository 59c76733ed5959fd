"""Goes through the rounds whose server left evidence, and says of each what can be said.

Where not every participation is kept whole, the check "uploads" judges servers by this evidence:
all uploads of a round and the broadcasts around it, whole or at pieces that were drawn after them.

What is published may be the running average of the server's models (`with_average`): θ̄_t =
θ̄_{t−1} + (p + 1)/(t + p)·(θ_t − θ̄_{t−1}) (Shamir & Zhang 2013, section 4), in which t counts the
rounds that moved the model and p is the spec's `algorithm.server.averaging`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from audit.reading.bundle import Bundle
from audit.reading.exchanges import Sent, ServerRound, drawn, kept_of, pieces_of
from audit.reading.ledger import Round
from audit.replay.base import UPDATE, Conditions, NeedsWholeVectorsError, Replay, ServerValues
from audit.replay.participation import (
    Message,
    Tally,
    compare_released,
    exactly,
    judge_weights,
    shown,
)
from audit.replay.queries import Places, off_grid
from audit.replay.rounding import ROUNDING, Rounded, exact, known
from audit.untrusted import fields
from audit.untrusted.archives import Floats, Integers

AVERAGED_MODEL = "averaged_model"


def power_of(algorithm: Mapping[str, Any]) -> float | None:
    """The spec's power p; None where the last round's model is published.

    Raises:
        FieldError: it is no number of 0 or more.
    """
    server = algorithm.get("server")
    if not isinstance(server, Mapping) or server.get("averaging") is None:
        return None
    return fields.number(server, "averaging", least=0.0)


def with_average(replay: Replay, algorithm: Mapping[str, Any]) -> Replay:
    """The replay of an algorithm whose server also averages its models, where the spec says so."""
    power = power_of(algorithm)
    if power is None:
        return replay

    def start(setting: Conditions, parameters: Floats) -> Mapping[str, Floats]:
        return {**replay.start(setting, parameters), AVERAGED_MODEL: parameters}

    def combine(
        setting: Conditions, before: ServerValues, uploads: Sequence[Mapping[str, Rounded]]
    ) -> ServerValues:
        state = dict(before.state)
        average = state.pop(AVERAGED_MODEL)
        after = replay.combine(setting, ServerValues(before.parameters, state), uploads)
        rounds = setting.earlier_steps // setting.steps + 1
        weight = (power + 1.0) / (rounds + power)
        moved = average + (after.parameters - average) * weight
        return ServerValues(after.parameters, {**after.state, AVERAGED_MODEL: moved})

    return Replay(replay.local, start, combine)


def published(after: ServerValues) -> Rounded:
    """The model that is published if no round follows, [d']."""
    return after.state.get(AVERAGED_MODEL, after.parameters)


_STATE = "state."


@dataclass(frozen=True)
class ServerRounds:
    """The evidence of servers of one run.

    Attributes:
        bundle: the run.
        tally: where differences are noted.
        per_round: uploads of a round, or how many are expected; 1 at client level.
    """

    bundle: Bundle
    tally: Tally
    per_round: int

    def find(self, item: Round, last: bool) -> ServerRound | None:
        """What was kept of a round, held to its roots in the ledger; None where none is due.

        A round after which the run was cut off, and no other fitted its limit, was kept like one
        that others follow.

        Raises:
            UntrustedFileError: what is due cannot be read.
        """
        noted, header = item.pieces, self.bundle.header
        where = f"round {item.round}"
        if noted is None:
            self.tally.reasons.append(f"{where}: the ledger does not note its pieces")
            return None
        if last and self.bundle.readable_ledger.resumed_after(item):
            last = not self.bundle.has_next_broadcast(item.round)
        kept = kept_of(header.parameters, noted, header.rounds)
        count, _ = pieces_of(header.parameters)
        places = drawn(self.bundle.salt(), noted, item.round, kept, count, last)
        if places is None:
            return None
        found = self.bundle.server_round(item.round, places, last)
        per_round = self.per_round
        vectors = per_round * found.vectors[1] + 2 * found.vectors[0]
        heads = per_round * found.heads[1] + 2 * found.heads[0]
        if (vectors, heads) != (noted.vectors, noted.heads):
            self.tally.reasons.append(f"{where}: its messages are not as long as the ledger notes")
        self.tally.shares.append(len(places) / count)
        return found

    def bind(self, item: Round, following: Round | None, found: ServerRound, uploads: int) -> None:
        """What was kept must be what the ledger notes, of as many uploads as there were."""
        noted, where = item.pieces, f"round {item.round}"
        if noted is None:
            return
        due = [("broadcast", noted.broadcast), ("uploads", noted.uploads)]
        if following is not None:
            due.append(("next broadcast", following.pieces.broadcast if following.pieces else b""))
        for (what, root), own in zip(due, found.roots, strict=False):
            # After the last round with clients nobody notes the pieces of a broadcast again.
            if root and root != own:
                self.tally.reasons.append(
                    f"{where}: its {what} is not the one whose pieces the ledger notes"
                )
        if len(found.uploads) != uploads:
            self.tally.reasons.append(f"{where}: does not have one upload for each client")

    def judge(
        self,
        where: str,
        found: ServerRound,
        parameters: Rounded,
        state: Mapping[str, Rounded],
        last: bool,
        beside: frozenset[str] = frozenset(),
    ) -> None:
        """What the server sent next, and the published weights, must be what is expected.

        Args:
            where: which round, for the reasons.
            found: what was kept of it.
            parameters: as they should be after it.
            state: the server's further tensors, likewise.
            last: whether the weights that were published are those after this round.
            beside: names of tensors that another check judges.
        """
        self.tally.rounds += 1
        if last:
            left = published(ServerValues(parameters, state))
            judge_weights(self.bundle, found.coordinates, left, self.tally)
        if found.combined is None:
            return
        sent = {name: value for name, value in named(found.combined).items() if name not in beside}
        what = f"{where}: what the server sent next"
        self.tally.compare_all(what, sent, {UPDATE: parameters, **state})


def named(sent: Sent) -> dict[str, Floats]:
    """A message's tensors as an algorithm calls them."""
    return {name.removeprefix(_STATE): value for name, value in sent.tensors.items()}


def combine(
    servers: ServerRounds,
    item: Round,
    found: ServerRound,
    setting: Conditions,
    replay: Replay,
    names: frozenset[str] | None,
    last: bool,
) -> None:
    """Replay what the server made of a round's uploads, and compare.

    Args:
        servers: the run's.
        item: the round.
        found: what was kept of it.
        setting: what spec and ledger say of the round, at the coordinates that were kept.
        replay: the algorithm.
        names: tensors that an upload of the algorithm has; None where no upload was replayed yet.
        last: whether it is the last in which anybody took part.
    """
    where, tally = f"round {item.round}", servers.tally
    sent = [named(one) for one in found.uploads]
    for upload in sent:
        for name in sorted(set(upload) - names if names is not None else ()):
            tally.reasons.append(
                f"{where}: an upload holds a tensor {shown(name)} that the algorithm does not have"
            )
    _on_grid(servers, where, sent, len(setting.partition.of_coordinate))
    before = named(found.broadcast)
    uploads = [exactly(upload) for upload in sent]
    try:
        parameters = before.pop(UPDATE)
        if setting.earlier_steps == 0:
            start = replay.start(setting, parameters)
            begun = {name: known(value, ROUNDING) for name, value in start.items()}
            tally.compare_all(f"{where}: the first broadcast", before, begun)
        after = replay.combine(setting, ServerValues(exact(parameters), exactly(before)), uploads)
    except NeedsWholeVectorsError as error:
        tally.unjudged.append(f"pieces of the server's vectors were kept, but {error}")
        return
    except (KeyError, ValueError):
        tally.reasons.append(f"{where}: a tensor of the server is missing or misshapen")
        return
    compare_released(item, after, tally)
    servers.judge(where, found, after.parameters, after.state, last)


def _on_grid(
    servers: ServerRounds, where: str, sent: Sequence[Mapping[str, Floats]], size: int
) -> None:
    places = Places(servers.bundle.header.grid, size)
    for upload in sent:
        for name, value in upload.items():
            bits = places.bits(name, UPDATE, value.size)
            if bits is not None and off_grid(value, bits).any():
                servers.tally.reasons.append(
                    f"{where}: an upload, tensor {shown(name)}, lies off the public grid"
                )


def agrees(found: Sent, coordinates: Integers | None, upload: Message, at: Integers | None) -> bool:
    """Whether an upload that was kept for its replay is the one that the server combined.

    Args:
        found: as the server had it.
        coordinates: where; None for everywhere.
        upload: as it was kept for its replay.
        at: where; None for everywhere.
    """
    left, right = named(found), upload.named()
    if set(left) != set(right):
        return False
    if coordinates is not None and at is not None:
        _, own, other = np.intersect1d(coordinates, at, return_indices=True)
        take: tuple[Callable[[Floats], Floats], ...] = (lambda v: v[own], lambda v: v[other])
    else:
        take = (
            lambda v: v if at is None else v[at],
            lambda v: v if coordinates is None else v[coordinates],
        )
    lengths = (len(left.get(UPDATE, ())), len(right[UPDATE]))
    for name, value in left.items():
        pair = (value, right[name])
        if (len(pair[0]), len(pair[1])) == lengths:
            pair = (take[0](value), take[1](right[name]))
        if not np.array_equal(*pair, equal_nan=True):
            return False
    return True


def another_key(bundle: Bundle) -> bool:
    """Whether the key that draws what is kept is not the one that the header committed to."""
    noted = bundle.header.selection
    return noted is not None and hashlib.sha256(bundle.salt()).hexdigest() != noted


ANOTHER_KEY = "evidence/salt is not the key that the ledger's header committed to"
