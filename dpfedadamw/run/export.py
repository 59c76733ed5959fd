"""A finished run's model in the form that other tools load: by transformers, by peft, or by hand.

The run directory stays as it was signed. What is written beside the weights is what their loaders
need, and nothing of the training.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from dpfedadamw import spec as specs
from dpfedadamw.models import registry
from dpfedadamw.run import checkpoints
from dpfedadamw.run.header import origin_of
from dpfedadamw.rundir import RunDirectory, RunDirectoryError
from dpfedadamw.spec.task_section import CLASSIFICATION
from dpfedadamw.storage.disk import DISK
from dpfedadamw.storage.foreign import parse
from dpfedadamw.tasks import Task

ADAPTERS, WHOLE, OWN = "adapters", "whole", "own"


@dataclass(frozen=True)
class Exported:
    """What was written.

    Attributes:
        form: "adapters" (low-rank pairs and head, for peft), "whole" (a model of transformers) or
            "own" (tensors of one of the package's own architectures).
        reads: "images", "text", or "records" where the model does not say.
        base: Where the frozen backbone came from, with its digest; None where there is none.
        base_folder: Where a backbone with random weights was written to; None otherwise.
    """

    form: str
    reads: str
    base: Mapping[str, str] | None
    base_folder: Path | None


def load_model(run: RunDirectory) -> nn.Module:
    """The trained model of a run, in evaluation mode, on the CPU.

    Raises:
        DpfedadamwError: If the run is not finished, its files do not fit each other, or published
            weights that it builds on are missing or have changed.
    """
    model = _load(run, _read(run))[0]
    assert model is not None
    return model


def _read(run: RunDirectory) -> dict[str, bytes]:
    """The files of the model, each read once: what is judged of them is what is used."""
    if not run.weights.is_file() or not run.model_config.is_file():
        raise RunDirectoryError(
            f"{run.path}: the run has no model yet; finish it with `dpfedadamw run --resume`"
        )
    return {path.name: DISK.read(path) for path in (run.weights, run.model_config)}


def _load(
    run: RunDirectory, files: Mapping[str, bytes], build: bool = True
) -> tuple[nn.Module | None, dict[str, Any]]:
    """The model, with its config; None where its keys cannot build it and it need not be built."""
    weights = files[run.weights.name]
    try:
        config = dict(parse(files[run.model_config.name], run.model_config.name))
        section = specs.model_of(config["model"])
        shape, classes = tuple(config["input_shape"]), int(config["classes"])
        task = Task(specs.task_of(config.get("task", {"kind": CLASSIFICATION})))
    except (OSError, ValueError, KeyError, TypeError) as error:
        # Of a wrong value several lines are told, the last of which is an address.
        lines = [line.strip() for line in str(error).splitlines() if "https://" not in line]
        raise RunDirectoryError(
            f"{run.model_config}: cannot be read ({'; '.join(lines)})"
        ) from None
    if "canaries" in config:
        raise RunDirectoryError(
            f"{run.path}: is an audit run with planted canaries, and its model is not for release; "
            "export the run that it audits"
        )
    entry = registry.MODELS[section.name]
    if not build and (not entry.rebuilt or entry.names_code(section) is not None):
        checkpoints.check_weights(run.weights, config.get("tensors"), weights)
        return None, config
    if not entry.rebuilt:
        # Names and shapes are judged below; where its class stands and how it began is no matter.
        section = section.replace(type=None, sha256=None, weights_sha256=None)
    model = registry.build(section, shape, classes, 0, task)
    base = config.get("base")
    if base != origin_of(model):
        raise RunDirectoryError(
            f"{run.model_config}: the published weights are not those that the run began with "
            f"({base}); put the right ones in their place"
        )
    checkpoints.read_weights(run.weights, model, weights)
    return model.eval(), config


def export(run: RunDirectory, output: Path, signed: Mapping[str, str] | None = None) -> Exported:
    """Write a run's model into a new folder.

    Args:
        run: A finished run.
        output: The folder; must not exist, or be empty.
        signed: Sha256 (hex) of the model's files as their signatures were checked, by name. What is
            written is made of these bytes, whatever happened to the files since. None takes the
            files as they are.

    Raises:
        DpfedadamwError: As `load_model`; or if the folder is in use.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise RunDirectoryError(f"--output {output}: exists and is not empty; name a new folder")
    files = _read(run)
    for name, content in files.items():
        if signed is not None and hashlib.sha256(content).hexdigest() != signed.get(name):
            raise RunDirectoryError(
                f"{run.path / name}: is not what its signatures were checked for; was it changed "
                "meanwhile?"
            )
    model, config = _load(run, files, build=False)
    section = specs.model_of(config["model"])
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
    )
