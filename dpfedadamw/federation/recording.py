"""An oracle that notes what it is asked and what it hands out, for the audit."""

from __future__ import annotations

from torch import Tensor

from dpfedadamw.algorithms.base import GradientOracle
from dpfedadamw.evidence.commitments import Commitment
from dpfedadamw.evidence.exchanges import Exchange
from dpfedadamw.profiling import part


class RecordingOracle:
    """Hands on every question to the real oracle and notes question and answer.

    Attributes:
        noise_variance: The real oracle's.
    """

    def __init__(self, oracle: GradientOracle, exchange: Exchange, commitment: Commitment) -> None:
        self.noise_variance = oracle.noise_variance
        self._oracle = oracle
        self._exchange = exchange
        self._commitment = commitment

    def next_batch(self) -> None:
        """Draw the records of the next local step."""
        self._oracle.next_batch()

    def gradient(self, parameters: Tensor) -> Tensor:
        """The noised mean gradient [d] of the current batch at the flat parameters [d]."""
        self._note_question(parameters)
        gradient = self._oracle.gradient(parameters)
        self._note_answer(gradient)
        return gradient

    @part("evidence")
    def _note_question(self, point: Tensor) -> None:
        self._commitment.point(self._exchange.asked(point))

    @part("evidence")
    def _note_answer(self, gradient: Tensor) -> None:
        self._commitment.gradient(self._exchange.answered(gradient))
