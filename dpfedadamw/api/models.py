"""What training by record makes of a model, before a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from dpfedadamw.api import specs
from dpfedadamw.api.running import handing_over
from dpfedadamw.api.tables import Table, html_of

if TYPE_CHECKING:
    from torch import nn

    from dpfedadamw.models.own.fitting import Loss


@dataclass(frozen=True)
class CheckedModel:
    """A model, layer by layer, as ``dpfedadamw model check`` shows it.

    Attributes:
        engine: How clipped sums will be formed: "book-keeping", "opacus", "vmap" or "loop";
            "whole update" where whole clients are protected, "none" without privacy.
        explanation: The same in one line, and why no faster one.
        layers: A row a layer: name, kind, parameters, how, note.
        ratio: How many times a plain gradient a clipped sum costs; None where none was timed.
        refused: Why a run would be refused, with the mend; None where it would not.
    """

    engine: str
    explanation: str
    layers: Table = field(repr=False)
    ratio: float | None
    refused: str | None

    def _repr_html_(self) -> str:
        cost = "" if self.ratio is None else f"{self.ratio:.1f} times a plain gradient"
        facts = [("engine", self.explanation), ("a clipped sum", cost)]
        facts += [("refused", self.refused)] if self.refused is not None else []
        return html_of((), facts) + self.layers._repr_html_()


def check_model(
    spec: specs.SpecLike,
    *,
    model: nn.Module | None = None,
    loss: Loss | None = None,
    data: Any = None,
    changes: Sequence[str] = (),
    engine: str = "auto",
    allow_code: Sequence[str] = (),
) -> CheckedModel:
    """Look through a spec's model, or a module of your own, as its run would train it.

    Args:
        spec: A YAML file, a shipped spec's name, or what a YAML file would hold.
        model: A module in place of the spec's model.
        loss: What the module is trained by; as of `run`.
        data: Records that Python holds already; as of `run`. They are read for their shape alone.
        changes: Fields to change, ``"model.replace_batch_norm=group_norm"`` each.
        engine: The clipped-sum engine that would be asked for.
        allow_code: Modules whose code the spec may name; as of `run`.

    Raises:
        DpfedadamwError: If the spec is wrong, or the model cannot be built.
    """
    wanted = specs.read(spec, [*handing_over(spec, model, loss, data), *changes])
    from dpfedadamw.data.handed_over import handed_over as holding
    from dpfedadamw.filing.allowed_code import listed
    from dpfedadamw.models.own.fitting import handed_over
    from dpfedadamw.models.own.permission import allowing
    from dpfedadamw.run.model_check import check_model as check

    with allowing(allow_code, listed), handed_over(model, loss), holding(data):
        found = check(wanted, engine)
    rows = Table(asdict(one) for one in found.layers)
    return CheckedModel(found.engine, found.explanation, rows, found.ratio, found.refused)
