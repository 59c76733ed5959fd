"""The clients of a round are drawn without regard to their data and to earlier rounds.

The draw must not depend on the data, nor on earlier rounds: the third party's view depends on this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpfedadamw.errors import PrivacyError

if TYPE_CHECKING:
    from dpfedadamw.privacy.noise.streams import Stream

__all__ = ["FixedClients", "PoissonClients"]


@dataclass(frozen=True)
class FixedClients:
    """Exactly S clients a round, every subset equally likely; rounds are independent.

    Attributes:
        clients_per_round: S, from 1 to the number of clients.
    """

    clients_per_round: int

    def rate(self, clients: int) -> float:
        """Return the participation l = S/N.

        Raises:
            PrivacyError: if S is not in 1 … N.
        """
        if not 1 <= self.clients_per_round <= clients:
            raise PrivacyError(
                f"{self.clients_per_round} clients per round cannot be drawn from {clients}"
            )
        return self.clients_per_round / clients

    def draw(self, clients: int, stream: Stream) -> NDArray[np.int64]:
        """Draw one round's clients, in ascending order."""
        self.rate(clients)
        return np.sort(stream.choice(clients, self.clients_per_round))


@dataclass(frozen=True)
class PoissonClients:
    """Every client independently with probability S/N; a round may have none.

    Attributes:
        expected_clients_per_round: S, above 0 and at most the number of clients.
    """

    expected_clients_per_round: float

    def rate(self, clients: int) -> float:
        """Return the participation l = S/N.

        Raises:
            PrivacyError: if S is not above 0 and at most N.
        """
        if not 0 < self.expected_clients_per_round <= clients:
            raise PrivacyError(
                f"{self.expected_clients_per_round:g} expected clients per round cannot be drawn "
                f"from {clients}"
            )
        return self.expected_clients_per_round / clients

    def draw(self, clients: int, stream: Stream) -> NDArray[np.int64]:
        """Draw one round's clients, in ascending order."""
        return np.flatnonzero(stream.bernoulli(self.rate(clients), clients)).astype(np.int64)
