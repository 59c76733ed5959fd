"""Models: what training by record makes of one before a run, and one that was trained, at work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfedadamw import rundir
from dpfedadamw.api import specs
from dpfedadamw.api.options import changes_by_objects
from dpfedadamw.api.tables import Table, html_of
from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.rundir import RunDirectory

if TYPE_CHECKING:
    from torch import nn

    from dpfedadamw.models.own.fitting import Loss
    from dpfedadamw.run.prediction import Predictions, Served


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
    handed = changes_by_objects(spec, model, loss, data, changes=changes)
    wanted = specs.read(spec, [*handed, *changes])
    from dpfedadamw.data.handed_over import handed_over as holding
    from dpfedadamw.filing.allowed_code import listed
    from dpfedadamw.models.own.fitting import handed_over
    from dpfedadamw.models.own.permission import allowing
    from dpfedadamw.run.model_check import check_model as check

    with allowing(allow_code, listed), handed_over(model, loss), holding(data):
        found = check(wanted, engine)
    rows = Table(asdict(one) for one in found.layers)
    return CheckedModel(found.engine, found.explanation, rows, found.ratio, found.refused)


def load_model(
    folder: str | Path, model: nn.Module | None = None, allow_code: Sequence[str] = ()
) -> nn.Module:
    """A trained model of the package's own kinds or of your own, in evaluation mode, on the CPU.

    Args:
        folder: A run's folder, or what ``export`` wrote of one (``model.safetensors`` and
            ``model.json``). Adapters and whole transformers are loaded by peft and transformers.
        model: Where the run was given a module, one of the same architecture: its tensors have the
            run's names and shapes. Where its class stands and which weights it has does not matter,
            and that its forward computes the same is yours to see to. It is not changed.
        allow_code: Modules whose code the folder may name; as of `run`.

    Raises:
        DpfedadamwError: If there is none, or the files do not fit each other.
    """
    from dpfedadamw.filing.allowed_code import listed
    from dpfedadamw.models.own.fitting import handed_over
    from dpfedadamw.models.own.permission import allowing
    from dpfedadamw.run.export import load_model as load

    with allowing(allow_code, listed, [Path(folder)]), handed_over(model):
        return load(with_a_model(Path(folder)))


def predict(
    folder: str | Path,
    rows: Any,
    model: nn.Module | None = None,
    allow_code: Sequence[str] = (),
) -> Predictions:
    """What a trained model answers to further records, as `dpfedadamw predict`.

    Records are read, prepared and answered as the run's test records were: of the same rows in the
    same order, the answers are the run's own to the last bit, on the same machine.

    Args:
        folder: As of `predictor`.
        rows: A file's path (a table with the run's columns, found by their names; or an .npz with
            the array x), a frame with these columns, or an array [n, …].
        model: As of `predictor`.
        allow_code: As of `predictor`.

    Returns:
        Its `outputs`, `probabilities`, `classes`, the `labels` that these are called by, and
        `table()`, which is what the command writes.

    Raises:
        DpfedadamwError: If there is no model, or the records are not such as it reads.
    """
    return predictor(folder, model, allow_code).predict(rows)


def predictor(
    folder: str | Path, model: nn.Module | None = None, allow_code: Sequence[str] = ()
) -> Served:
    """A trained model that is loaded once and asked often, by its `predict(rows)`.

    Args:
        folder: A run's folder, or what ``export`` wrote of one of the package's own kinds.
        model: Where the run was given a module, one of the same architecture; as of `load_model`.
        allow_code: Modules whose code the folder may name; as of `run`.

    Raises:
        DpfedadamwError: If there is none, or the files do not fit each other.
    """
    from dpfedadamw.filing.allowed_code import listed
    from dpfedadamw.models.own.fitting import handed_over
    from dpfedadamw.models.own.permission import allowing
    from dpfedadamw.run.prediction import load

    with allowing(allow_code, listed, [Path(folder)]), handed_over(model):
        return load(with_a_model(Path(folder)))


def with_a_model(path: Path) -> RunDirectory:
    """A folder as one that a model can be loaded from.

    Raises:
        DpfedadamwError: If there is none, with what loads it.
    """
    if (path / "ledger.jsonl").exists() or (path / "spec.yaml").exists():
        return rundir.open_existing(path)
    if (path / "adapter_config.json").exists():
        raise DpfedadamwError(
            f"{path}: holds low-rank pairs; load them with peft.PeftModel.from_pretrained"
        )
    if (path / "config.json").exists():
        raise DpfedadamwError(
            f"{path}: holds a model of transformers; load it with from_pretrained of its class"
        )
    if not (path / "model.json").exists():
        raise DpfedadamwError(
            f"{path}: neither a run nor an exported model; give the folder of a run, or of "
            "dpfedadamw export"
        )
    return RunDirectory(path)
