"""A model from a GGUF file, whose numbers are mostly quantised: as float32, in a folder.

transformers reads such files by the package gguf. What it makes of a file is written once, as
`save_pretrained` writes it, to the user's cache under the file's digest.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from dpfedadamw.errors import ModelError

SUFFIX = ".gguf"


def dequantised(file: Path, digest: str) -> Path:
    """A folder with the model and its tokeniser, in float32.

    Args:
        file: The GGUF file.
        digest: Its SHA-256, hexadecimal.

    Raises:
        ModelError: If gguf is not installed, or transformers cannot make a model of the file.
    """
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        raise ModelError(
            "model.source: you have no home folder to put what a GGUF file holds; set "
            "XDG_CACHE_HOME"
        ) from None
    cache = cache / "dpfedadamw" / "gguf"
    place = cache / digest
    if (place / "config.json").is_file():
        return place
    if importlib.util.find_spec("gguf") is None:
        raise ModelError(
            f"model.source: {file} is GGUF, which needs the package gguf; install it with "
            "pip install 'dpfedadamw[transformers,gguf]'"
        )
    try:
        cache.mkdir(parents=True, exist_ok=True, mode=0o700)
        made = Path(tempfile.mkdtemp(prefix=".", dir=cache))
    except OSError as error:
        raise ModelError(f"model.source: {cache} cannot be written ({error.strerror})") from None
    try:
        # Its bar heeds no setting.
        with contextlib.redirect_stderr(io.StringIO()):
            _write(file, made)
        # Another run may have been faster; what it wrote is the same.
        if not place.exists():
            os.rename(made, place)
    # Whatever the readers of a stranger's file raise.
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelError(f"model.source: {file} cannot be read ({reason})") from None
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return place


def _write(file: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source: dict[str, Any] = {
        "pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name,
        "local_files_only": True,
    }  # fmt: skip
    tokeniser = AutoTokenizer.from_pretrained(**source)
    read: Any = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    configuration = read.config
    # transformers does not write a model that it takes for quantised, though its numbers no longer
    # are.
    if hasattr(configuration, "quantization_config"):
        del configuration.quantization_config
    model: Any = AutoModelForCausalLM.from_config(configuration, dtype=torch.float32)
    model.load_state_dict(read.state_dict())
    model.save_pretrained(str(folder))
    tokeniser.save_pretrained(str(folder))
