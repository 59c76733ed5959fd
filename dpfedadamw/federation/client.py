"""One client's part of a round: read the broadcast, take the local steps, answer."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from dpfedadamw.algorithms.base import Broadcast, LocalRule, Upload
from dpfedadamw.evidence import ClientEvidence, Unobserved
from dpfedadamw.federation.messages import pack, unpack
from dpfedadamw.parameters import FlatParameters
from dpfedadamw.privacy.clipping import ClippedSumEngine
from dpfedadamw.privacy.oracle import Charge, PrivateOracle
from dpfedadamw.privacy.plan import PrivacyPlan
from dpfedadamw.privacy.randomness import RandomSource


@dataclass(frozen=True)
class ClientData:
    """One client's records.

    Attributes:
        inputs: [R_i, …].
        labels: int64 [R_i].
    """

    inputs: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Worker:
    """What every client of this process shares: the model is rebuilt for none of them.

    Attributes:
        plan: The privacy plan.
        rule: The local rule.
        engine: Computes clipped sums for the module in ``flat``.
        flat: The module, overwritten at every query.
        randomness: Gives each client and round its own streams.
    """

    plan: PrivacyPlan
    rule: LocalRule
    engine: ClippedSumEngine
    flat: FlatParameters
    randomness: RandomSource

    def take_part(
        self,
        client: int,
        data: ClientData,
        message: bytes,
        broadcast: Broadcast,
        round_index: int,
        attempt: int,
        evidence: ClientEvidence | None,
    ) -> tuple[bytes, int, int]:
        """Run one client's local steps.

        Args:
            client: Its index.
            data: Its records.
            message: The serialised broadcast.
            broadcast: The round's plain numbers; its tensors are taken from the message.
            round_index: t, from 0.
            attempt: 1, or more after a resume: a repeated round draws fresh noise.
            evidence: Where to note what happened; None without privacy.

        Returns:
            The serialised upload, the steps taken and the queries made.
        """
        parameters, state = unpack(message, self.flat.vector)
        oracle = PrivateOracle(
            self.plan,
            client,
            Charge(broadcast.local_steps, self.rule.queries_per_step),
            self.engine,
            self.flat,
            data.inputs,
            data.labels,
            self.randomness.stream("batches", round_index, client, attempt),
            self.randomness.stream("noise", round_index, client, attempt),
            evidence,
        )
        upload: Upload = self.rule.run(
            replace(broadcast, parameters=parameters, state=state),
            oracle,
            evidence if evidence is not None else Unobserved(),
        )
        return pack(upload.update, upload.state), oracle.steps, oracle.queries
