"""The unit of a run that claims no privacy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NoReturn

from dpfedadamw.accounting.record_level import no_claim
from dpfedadamw.errors import PrivacyError
from dpfedadamw.spec import Spec
from dpfedadamw.units.plan import PrivacyUnit, RunPlan, common_fields, plain_batches
from dpfedadamw.vectors.sparsification import Sparsification


class Nothing(PrivacyUnit):
    """Protects nothing: gradients are plain, and there is no ε."""

    name: ClassVar[str] = "none"

    def plan(
        self,
        spec: Spec,
        records: tuple[int, ...],
        queries_per_step: int,
        _sparsification: Sparsification | None,
    ) -> RunPlan:
        """A plan under which nothing is clipped or noised."""
        return RunPlan(
            unit=self,
            adjacency="none",
            clipping_norm=math.inf,
            noise_multiplier=0.0,
            delta=None,
            sampling=plain_batches(spec),
            **common_fields(spec, records, queries_per_step),
        )

    def realised_claim(
        self, _plan: RunPlan, _entries: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        """That there is none."""
        return no_claim()

    def check_cost(self, _plan: RunPlan) -> None:
        """Refuse nothing: nothing is spent."""

    def check_target(self, _view: str, _solve: str) -> NoReturn:
        """Refuse."""
        raise PrivacyError("privacy.unit: none: this spec claims no privacy to calibrate")
