"""A finished run's model in the form that other tools load: by transformers, by peft, or by hand.

The run directory stays as it was signed. Apart from the weights only what their loaders need is
written, and nothing about the training.
"""

from __future__ import annotations

import hashlib
import shutil
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dpfedadamw import spec as specs
from dpfedadamw.models import registry
from dpfedadamw.models.own import fitting
from dpfedadamw.models.own.permission import permission
from dpfedadamw.models.transformers.padding import keep_padding
from dpfedadamw.run import checkpoints
from dpfedadamw.run.header import origin_of
from dpfedadamw.rundir import RunDirectory, RunDirectoryError
from dpfedadamw.spec.model_section import ModelSpec
from dpfedadamw.spec.task_section import CLASSIFICATION
from dpfedadamw.storage.disk import DISK
from dpfedadamw.storage.foreign import parse
from dpfedadamw.tasks import Task

ADAPTERS, WHOLE, OWN = "adapters", "whole", "own"
# The model as a program of torch.export, which torch loads and runs without this package.
PROGRAM = "model.pt2"


@dataclass(frozen=True)
class Exported:
    """What was written.

    Attributes:
        form: "adapters" (low-rank pairs and head, for peft), "whole" (a model of transformers) or
            "own" (tensors of one of the package's own architectures).
        reads: "images", "text", "language", or "records" where the model does not say.
        base: Where the frozen backbone came from, with its digest; None where there is none.
        base_folder: Where a backbone with random weights was written to; None otherwise.
        program: Whether `PROGRAM` was written.
        no_program: Why not, where it was asked for; empty otherwise.
        read_by: How records are read for it, as model.json has it.
        tokens: Whether its records are tokens, whole numbers.
        shape: Of one record.
    """

    form: str
    reads: str
    base: Mapping[str, str] | None
    base_folder: Path | None
    program: bool = False
    no_program: str = ""
    read_by: Mapping[str, Any] = field(default_factory=dict)
    tokens: bool = False
    shape: tuple[int, ...] = ()


def load_model(run: RunDirectory) -> nn.Module:
    """The trained model of a run, in evaluation mode, on the CPU.

    Raises:
        DpfedadamwError: If the run is not finished, its files do not fit each other, or published
            weights that it builds on are missing or have changed.
    """
    return load_with_config(run)[0]


def load_with_config(run: RunDirectory) -> tuple[nn.Module, dict[str, Any]]:
    """The same, with what model.json says."""
    files = _read(run)
    config = _config(run, files)
    return _load(run, files, config), config


def _read(run: RunDirectory) -> dict[str, bytes]:
    """The files of the model, each read once: what is judged of them is what is used."""
    if not run.weights.is_file() or not run.model_config.is_file():
        raise RunDirectoryError(
            f"{run.path}: the run has no model yet; finish it with dpfedadamw run --resume"
        )
    return {path.name: DISK.read(path) for path in (run.weights, run.model_config)}


def _config(run: RunDirectory, files: Mapping[str, bytes]) -> dict[str, Any]:
    try:
        config = dict(parse(files[run.model_config.name], run.model_config.name))
    except (OSError, ValueError, TypeError) as error:
        raise RunDirectoryError(f"{run.model_config}: cannot be read ({error})") from None
    if "canaries" in config:
        raise RunDirectoryError(
            f"{run.path}: is an audit run with planted canaries, and its model is not for release; "
            "export the run that it audits"
        )
    return config


def section_of(
    run: RunDirectory, config: Mapping[str, Any]
) -> tuple[ModelSpec, tuple[int, ...], int, Task]:
    """What model.json says of a model: its section, a record's shape, its outputs and its task.

    Raises:
        RunDirectoryError: If it is not what a run writes.
    """
    try:
        section = specs.model_of(config["model"])
        shape = tuple(_size(side, "input_shape") for side in config["input_shape"])
        classes = _size(config["classes"], "classes")
        task = Task(specs.task_of(config.get("task", {"kind": CLASSIFICATION})))
    except (OSError, ValueError, KeyError, TypeError) as error:
        # Of a wrong value several lines are told, the last of which is an address.
        lines = [line.strip() for line in str(error).splitlines() if "https://" not in line]
        raise RunDirectoryError(
            f"{run.model_config}: cannot be read ({'; '.join(lines)})"
        ) from None
    return section, shape, classes, task


def _size(found: Any, key: str) -> int:
    if not isinstance(found, int) or isinstance(found, bool) or not 0 < found < 2**31:
        raise ValueError(f"{key}: found {str(found)[:40]}; needed is a whole number, 1 or more")
    return found


def _refuse_other_sizes(run: RunDirectory, content: bytes, section: ModelSpec, *makes: Any) -> None:
    """Compare the model's shapes with the file's before any memory is taken for the model."""
    entry = registry.MODELS[section.name]
    if not entry.on_meta or entry.without_weights(section) != section:
        return
    try:
        with torch.device("meta"):
            planned = registry.build(section, *makes)
    except (RuntimeError, OverflowError, MemoryError) as error:
        raise RunDirectoryError(
            f"{run.model_config}: its model cannot be built ({str(error)[:200]})"
        ) from None
    checkpoints.fitting_tensors(run.weights, planned, content)


def _load(run: RunDirectory, files: Mapping[str, bytes], config: Mapping[str, Any]) -> nn.Module:
    section, shape, classes, task = section_of(run, config)
    if not registry.MODELS[section.name].rebuilt:
        # Names and shapes are judged below; where its class stands and how it began is no matter.
        section = section.replace(type=None, sha256=None, weights_sha256=None)
    _refuse_other_sizes(run, files[run.weights.name], section, shape, classes, 0, task)
    model = registry.build(section, shape, classes, 0, task)
    base = config.get("base")
    if base != origin_of(model):
        raise RunDirectoryError(
            f"{run.model_config}: the published weights are not those that the run started with "
            f"({base}); restore the right ones"
        )
    checkpoints.read_weights(run.weights, model, files[run.weights.name])
    whole: Callable[[], None] | None = getattr(model, "answer_with_scores", None)
    if whole is not None:
        whole()
    return model.eval()


def _load_if_built(
    run: RunDirectory, files: Mapping[str, bytes], config: Mapping[str, Any]
) -> nn.Module | None:
    """The model; None where its code was neither handed over nor allowed, which exports tensors."""
    section = section_of(run, config)[0]
    entry = registry.MODELS[section.name]
    named = entry.names_code(section)
    handed = entry.rebuilt or fitting.is_given()
    if handed and (named is None or permission().covers(named.partition(":")[0])):
        return _load(run, files, config)
    checkpoints.check_weights(run.weights, config.get("tensors"), files[run.weights.name])
    return None


def export(
    run: RunDirectory,
    output: Path,
    signed: Mapping[str, str] | None = None,
    program: bool | None = None,
) -> Exported:
    """Write a run's model into a new folder.

    Args:
        run: A finished run.
        output: The folder; must not exist, or be empty, and must not lie in the run.
        signed: Sha256 (hex) of the model's files as their signatures were checked, by name. What is
            written is made of these bytes, whatever happened to the files since. None takes the
            files as they are.
        program: Whether `PROGRAM` is written too; None writes it of `OWN` forms, which nothing else
            loads.

    Raises:
        DpfedadamwError: As `load_model`; or if the folder is in use.
    """
    if not output.name or output.name == "..":
        raise RunDirectoryError(f"--output {output}: is a folder that is in use; name a new folder")
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise RunDirectoryError(f"--output {output}: exists and is not empty; name a new folder")
    if run.path.resolve() in output.resolve().parents:
        raise RunDirectoryError(
            f"--output {output}: lies in the run, whose files are all signed; name another folder"
        )
    files = _read(run)
    for name, content in files.items():
        if signed is not None and hashlib.sha256(content).hexdigest() != signed.get(name):
            raise RunDirectoryError(
                f"{run.path / name}: differs from the file whose signature was checked; was it "
                "changed in the meantime?"
            )
    config = _config(run, files)
    model = _load_if_built(run, files, config)
    section, shape, _, _ = section_of(run, config)
    if model is not None and config.get("labels"):
        model.label_names = tuple(config["labels"])  # type: ignore[assignment]  # a note
    partial = output.with_name(f".{output.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        write = registry.MODELS[section.name].write
        if write is not None and model is not None:
            form, with_base = write(section, model, partial)
        else:
            for name, content in files.items():
                (partial / name).write_bytes(content)
            form, with_base = OWN, False
        reason = ""
        if program or (program is None and form == OWN):
            reason = _write_program(model, config, partial / PROGRAM)
        else:
            program = False
        if output.exists():
            output.rmdir()
        partial.replace(output)
    except OSError as error:
        raise RunDirectoryError(
            f"--output {output}: cannot be written ({error.strerror or error}); name a folder that "
            "you may write to"
        ) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return Exported(
        form,
        getattr(model, "reads", "records"),
        config.get("base"),
        output / "base" if with_base else None,
        program is not False and not reason,
        reason,
        config.get("inputs", {}),
        model is not None and registry.vocabulary_of(model) > 0,
        shape,
    )


class _Answering(nn.Module):
    """A model as a program has it: its hooks, by which it reads tokens, run within."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, records: Tensor) -> Tensor:
        answers: Tensor = self.model(records)
        return answers


def _without_source(graph: torch.fx.GraphModule) -> None:
    """Take out of a program's nodes where this machine has the source that they came from."""
    for module in graph.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                node.meta.pop("stack_trace", None)


def _write_program(model: nn.Module | None, config: Mapping[str, Any], path: Path) -> str:
    """Write a model as a program of torch.export; returns why it cannot be, or nothing."""
    if model is None:
        return "its module is missing: it is your own code, which was neither allowed nor passed"
    # How long the texts of a batch are is no part of a program.
    keep_padding(model)
    shape = (3, *config["input_shape"])
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    records = registry.synthetic_records(model, drawn)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            made = torch.export.export(
                _Answering(model).eval(),
                (records,),
                dynamic_shapes=({0: torch.export.Dim("batch", min=1)},),
            )
            _without_source(made.graph_module)
            torch.export.save(made, path)
    except Exception as error:
        path.unlink(missing_ok=True)
        said = str(error).strip().partition("\n")[0][:200]
        return f"torch.export cannot convert it ({type(error).__name__}: {said})"
    return ""
