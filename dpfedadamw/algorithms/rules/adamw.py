"""Local AdamW with second-moment aggregation, noise debiasing and global alignment.

DP-FedAdamW (Algorithm 1, corrected: see ERRATA.md), FedAdamW (Algorithms 2 and 3), DP-LocalAdamW,
LocalAdamW and Local Adam are this one rule with parts switched on and off. Symbols: m and v first
and second moment, g̃ the noised gradient, Φ its noise variance, τ the steps behind v since the start
of the run, k the local step.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dpfedadamw.algorithms.base import (
    FIRST_MOMENT,
    GLOBAL_UPDATE,
    SECOND_MOMENT,
    Broadcast,
    GradientOracle,
    Observer,
    SecondMoment,
    Upload,
)
from dpfedadamw.vectors.flat import Blocks, copy_of, empty, in_pieces, zeros_like


@dataclass(frozen=True, kw_only=True)
class _Vectors:
    """Everything of length d that a step reads or moves.

    Attributes:
        parameters: θ, moved.
        first: m, moved.
        second: v; moved unless ``shared`` is given, for which it was moved already.
        gradient: g̃.
        shared: v̂ shared by blocks, or None.
        global_update: Δ_G, or None.
    """

    parameters: Tensor
    first: Tensor
    second: Tensor
    gradient: Tensor
    shared: Tensor | None
    global_update: Tensor | None


@dataclass(frozen=True)
class AdamW:
    """The local rule of the AdamW family.

    One step (k = 1…K):

        m ← β1·m + (1−β1)·g̃          v ← β2·v + (1−β2)·g̃²
        m̂ = m / (1−β1^k)             v̂ = v / (1−β2^τ)
        d = sqrt(max(v̂ − Φ, floor)) + ϵ
        θ ← θ − η·(α·m̂/d + γ·Δ_G) − η·λ·θ

    Attributes:
        beta1: Decay of the first moment, in [0, 1).
        beta2: Decay of the second moment, in [0, 1).
        epsilon: ϵ > 0, added to the denominator.
        weight_decay: λ ≥ 0; it shrinks weights (Algorithm 1 line 17 has it grow them).
        alignment: γ ≥ 0, weight of the previous round's global update Δ_G.
        blocks: Partition over whose blocks v is averaged before upload (eq. (7)); None where whole
            vectors are uploaded or v restarts.
        aggregate_first: Upload m and start from the server's mean of it.
        aggregate_second: Upload v, or its block means, and start from the server's mean of it.
        debias: Subtract Φ from v̂ (eq. (8)).
        counter: "global" corrects v by 1−β2^τ with τ counted over the whole run; "local" by
            1−β2^k as Algorithm 1 line 15 prints it, which over-corrects an aggregated v.
        relative_floor: Floor of v̂ − Φ as a multiple of Φ, or None.
        absolute_floor: Floor of v̂ − Φ as a number, or None. One of the two is given.
        block_denominator: Use one denominator a block, from the block mean of v̂.
        decay: "decoupled" as above, or "coupled": plain L2, g̃ + λθ in place of g̃ and no last term.
        local_weight: α ≥ 0, weight of the local direction; below 1 in FedAdamW's Algorithm 3 alone.
    """

    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    alignment: float
    blocks: Blocks | None
    aggregate_first: bool
    aggregate_second: bool
    debias: bool
    counter: str
    relative_floor: float | None
    absolute_floor: float | None
    block_denominator: bool
    decay: str = "decoupled"
    local_weight: float = 1.0
    queries_per_step: int = 1

    def run(self, broadcast: Broadcast, oracle: GradientOracle, observer: Observer) -> Upload:
        """Take the local steps of one client."""
        start = broadcast.parameters
        parameters = copy_of(start)
        first = self._start_first(broadcast)
        second = self._start_second(broadcast)
        global_update = broadcast.state.get(GLOBAL_UPDATE)
        rate = broadcast.learning_rate
        coupled = self.decay == "coupled"
        for step in range(1, broadcast.local_steps + 1):
            oracle.next_batch()
            gradient = oracle.gradient(parameters)
            if coupled:
                gradient = gradient.add(parameters, alpha=self.weight_decay)
            behind_first = self._steps_behind(
                step, broadcast.earlier_steps, self.aggregate_first, "global"
            )
            behind_second = self._steps_behind(
                step, broadcast.earlier_steps, self.aggregate_second, self.counter
            )
            correction = 1.0 - self.beta2**behind_second
            shared = self._share(second, gradient, correction)
            corrections = (1.0 - self.beta1**behind_first, correction)
            vectors = _Vectors(
                parameters=parameters,
                first=first,
                second=second,
                gradient=gradient,
                shared=shared,
                global_update=global_update,
            )
            self._advance(vectors, corrections, rate, oracle.noise_variance)
            # Else the gradient would stay while the next one is formed.
            del gradient, shared, vectors
        if not coupled:
            # With λθ inside, v is no longer the recursion over gradients that evidence shadows.
            observer.second_moment(
                lambda: self._seen(
                    (first, second), correction, behind_second, oracle.noise_variance
                )
            )
        in_pieces(parameters, lambda part, _: parameters[part].sub_(start[part]))
        return Upload(parameters, self._upload_state(first, second))

    def _seen(
        self, moments: tuple[Tensor, Tensor], correction: float, steps: int, noise_variance: float
    ) -> SecondMoment:
        """What there is to see of m and v [d] after the last step."""
        first, second = moments
        corrected = empty(len(second), second.dtype, second.device)
        in_pieces(second, lambda part, _: torch.div(second[part], correction, out=corrected[part]))
        floored = self._floored(corrected, noise_variance)
        subtracted = noise_variance if self.debias else 0.0
        return SecondMoment(second, corrected, subtracted, steps, floored, first)

    def _shared_by_blocks(self, corrected: Tensor) -> Tensor:
        """v̂ as the denominator sees it: its block's mean where blocks share one."""
        if not self.block_denominator or self.blocks is None:
            return corrected
        return self.blocks.spread(self.blocks.mean(corrected)).to(corrected.dtype)

    def _floored(self, corrected: Tensor, noise_variance: float) -> Tensor:
        """Where v̂ − Φ of a corrected v̂ [d] lies below the floor, bool [d]."""
        floored = torch.zeros(len(corrected), dtype=torch.bool, device=corrected.device)
        if not self.debias:
            return floored
        shared, floor = self._shared_by_blocks(corrected), self._floor(noise_variance)

        def compare(part: slice, memory: Tensor) -> None:
            torch.lt(torch.sub(shared[part], noise_variance, out=memory), floor, out=floored[part])

        in_pieces(corrected, compare)
        return floored

    def _advance(
        self,
        vectors: _Vectors,
        corrections: tuple[float, float],
        rate: float,
        noise_variance: float,
    ) -> None:
        """Take one step, in place."""
        of_first, of_second = corrections
        shrink = 1.0 if self.decay == "coupled" else 1.0 - rate * self.weight_decay
        parameters, first, second = vectors.parameters, vectors.first, vectors.second
        gradient, shared, global_update = vectors.gradient, vectors.shared, vectors.global_update

        def advance(part: slice, memory: Tensor) -> None:
            first[part].mul_(self.beta1).add_(gradient[part], alpha=1.0 - self.beta1)
            if shared is None:
                followed = self._follow(second[part], gradient[part])
                estimate = torch.div(followed, of_second, out=memory)
            else:
                estimate = shared[part]
            denominator = self.denominator(estimate, noise_variance)
            scale = rate * self.local_weight / of_first
            parameters[part].mul_(shrink).addcdiv_(first[part], denominator, value=-scale)
            if global_update is not None and self.alignment:
                parameters[part].sub_(global_update[part], alpha=rate * self.alignment)

        in_pieces(parameters, advance)

    def _follow(self, second: Tensor, gradient: Tensor) -> Tensor:
        """Move v along a gradient, in place."""
        return second.mul_(self.beta2).addcmul_(gradient, gradient, value=1.0 - self.beta2)

    def _share(self, second: Tensor, gradient: Tensor, correction: float) -> Tensor | None:
        """Move v and return v̂ shared by blocks; None where each coordinate has its own."""
        if not self.block_denominator or self.blocks is None:
            return None
        in_pieces(gradient, lambda part, _: self._follow(second[part], gradient[part]))
        means = self.blocks.mean(second) / correction
        return self.blocks.spread(means).to(second.dtype)

    def _floor(self, noise_variance: float) -> float:
        """The least value of a debiased estimate."""
        if self.relative_floor is not None:
            return self.relative_floor * noise_variance
        return self.absolute_floor or 0.0

    def denominator(self, estimate: Tensor, noise_variance: float) -> Tensor:
        """The step's denominator: root of v̂, debiased and floored, plus ϵ; in place of v̂.

        v̂ − Φ is an estimate and often negative; its floor scales with Φ, the noise it must
        withstand (an absolute one is DP-AdamBC's form, Tang et al. 2024).

        Args:
            estimate: v̂, [d] or a part of it, which is overwritten.
            noise_variance: Φ of the oracle.
        """
        if self.debias:
            estimate.sub_(noise_variance).clamp_(min=self._floor(noise_variance))
        return estimate.sqrt_().add_(self.epsilon)

    @staticmethod
    def _steps_behind(step: int, earlier: int, aggregated: bool, counter: str) -> int:
        """EMA steps to correct for: those of earlier rounds count where their moment goes on."""
        return step + earlier if aggregated and counter == "global" else step

    def _start_first(self, broadcast: Broadcast) -> Tensor:
        if self.aggregate_first:
            return copy_of(broadcast.state[FIRST_MOMENT])
        return zeros_like(broadcast.parameters)

    def _start_second(self, broadcast: Broadcast) -> Tensor:
        if not self.aggregate_second:
            return zeros_like(broadcast.parameters)
        received = broadcast.state[SECOND_MOMENT]
        return self.blocks.spread(received) if self.blocks is not None else copy_of(received)

    def _upload_state(self, first: Tensor, second: Tensor) -> dict[str, Tensor]:
        state: dict[str, Tensor] = {}
        if self.aggregate_first:
            state[FIRST_MOMENT] = first
        if self.aggregate_second:
            if self.blocks is not None:
                second = self.blocks.mean(second).to(second.dtype)
            state[SECOND_MOMENT] = second
        return state
