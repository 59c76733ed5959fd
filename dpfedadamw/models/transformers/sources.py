"""Where a published model's files are: a local folder, or the hub at a pinned revision.

Only configuration, tokeniser and safetensors files are ever fetched or read. A pickled checkpoint
or a model that brings its own code could run anything, and is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import re
import socket
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dpfedadamw.errors import ModelError
from dpfedadamw.models.transformers import gguf
from dpfedadamw.models.transformers.keys import TransformerSpec
from dpfedadamw.models.transformers.published import PUBLISHED

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$")
_WANTED = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja")
# By a name of the hub's, transformers fetches and runs what computes attention.
_OF_THE_HUB = ("attn_implementation", "_attn_implementation", "_attn_implementation_internal")
TOKENISER_FILES = (
    "tokenizer",
    "vocab",
    "merges",
    "special_tokens",
    "added_tokens",
    "spiece",
    "sentencepiece",
    "chat_template",
)
_CHUNK = 2**20


@dataclass(frozen=True)
class Source:
    """A published model's files.

    Attributes:
        name: Its repository on the hub; "" for a local folder or file.
        revision: The commit of the repository; "" for a local folder or file.
        folder: Where the files lie.
        kind: What it is, for readers who have no business with a path.
    """

    name: str
    revision: str
    folder: Path
    kind: str = "a local folder"

    def configuration(self) -> dict[str, Any]:
        """What config.json says.

        Raises:
            ModelError: If there is none, it is no JSON, or the model brings its own code.
        """
        path = self.folder / "config.json"
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            quantised = sorted(self.folder.glob(f"*{gguf.SUFFIX}"))
            right = "a folder with config.json and model.safetensors, as save_pretrained writes it"
            raise ModelError(
                f"model.source: {self.folder} holds no config.json; give "
                f"{quantised[0] if quantised else right}"
            ) from None
        except (OSError, ValueError, RecursionError) as error:
            raise ModelError(f"model.source: {path} cannot be read ({error})") from None
        if not isinstance(content, dict) or not isinstance(content.get("model_type"), str):
            raise ModelError(f"model.source: {path} names no model_type")
        asking = _asking_for_code(content)
        if asking is not None:
            raise ModelError(
                f"model.source: {path} asks for its own code ({asking}), which is never run; use a "
                "model that transformers itself supports"
            )
        return content

    def weights(self) -> list[Path]:
        """The safetensors files, in order.

        Raises:
            ModelError: If there is none, or one is a link to nothing.
        """
        single = self.folder / "model.safetensors"
        files = [single] if single.is_file() else sorted(self.folder.glob("model-*.safetensors"))
        if not files:
            pickled = any(self.folder.glob("*.bin"))
            why = "only pickled weights, which can run code" if pickled else "no weights"
            raise ModelError(
                f"model.source: {self.folder} holds {why}; model.safetensors is needed"
            )
        return files

    def tokeniser_digest(self, length: int) -> str:
        """Digest of the tokeniser's files and of the records' length, hexadecimal."""
        digest = hashlib.sha256(f"length {length}\n".encode())
        for path in sorted(self.folder.iterdir()):
            if path.is_file() and path.name.startswith(TOKENISER_FILES):
                digest.update(f"{path.name} {sha256_of([path])}\n".encode())
        return digest.hexdigest()


def _asking_for_code(content: Any) -> str | None:
    """The key by which a configuration, or one within it, asks for code; None where none does."""
    waiting = [content]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += value
        elif isinstance(value, dict):
            if "auto_map" in value:
                return "auto_map"
            for key in _OF_THE_HUB:
                if "/" in str(value.get(key, "")):
                    return key
            waiting += value.values()
    return None


def sha256_of(paths: list[Path]) -> str:
    """Digest of the contents of files one after another, hexadecimal."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    return digest.hexdigest()


def locate(spec: TransformerSpec) -> Source | None:
    """The files that a spec's model is built from; None where constants are all it takes.

    A folder is taken as it is. A GGUF file is dequantised once, into the cache. A repository of the
    hub needs a revision, and comes from the local cache or is downloaded into it.

    Raises:
        ModelError: If there is nothing where the spec says; the message tells what to put where.
    """
    published = PUBLISHED.get(spec.name)
    if spec.source is None and spec.weights == "random" and published is not None:
        return None
    name = spec.source or (published.repository if published is not None else "")
    try:
        folder = Path(name).expanduser()
    except RuntimeError:
        raise ModelError(
            f"model.source: {name}: there is no such home folder; give a whole path"
        ) from None
    if folder.is_dir():
        if spec.revision is not None:
            raise ModelError(
                f"model.revision: {name} is a folder, which has no revisions; leave it out"
            )
        return Source("", "", folder)
    if folder.suffix == gguf.SUFFIX and folder.is_file():
        libraries()
        with quiet():
            made = gguf.dequantised(folder, sha256_of([folder]))
        return Source("", "", made, "a local GGUF file, dequantised")
    if not _HUB_NAME.match(name):
        raise ModelError(
            f"model.source: there is no folder {name}; give a folder with config.json and "
            "model.safetensors, a GGUF file, or a name on the hub such as "
            "google/vit-base-patch16-224-in21k"
        )
    if spec.revision is None and spec.source is not None:
        raise ModelError(
            f"model.source: there is no folder {name}; if it is a repository on the hub, which can "
            "change, a run must pin the commit: give model.revision (40 hexadecimal digits, see "
            f"https://huggingface.co/{name}/commits/main)"
        )
    if spec.revision is None:
        raise ModelError(
            f"model.revision: missing; {name} can change on the hub, so a run must pin the commit "
            f"(40 hexadecimal digits, see https://huggingface.co/{name}/commits/main), or use "
            "weights: random, or a folder as model.source"
        )
    return Source(name, spec.revision, _fetch(name, spec.revision, spec.weights == "pretrained"))


def _fetch(name: str, revision: str, with_weights: bool) -> Path:
    """The repository's files at a revision: from the cache, or else from the hub."""
    libraries()
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    for cached_only in (True, False):
        if not cached_only and not _reachable(constants.ENDPOINT):
            break
        try:
            folder = Path(
                snapshot_download(
                    name,
                    revision=revision,
                    allow_patterns=list(_WANTED),
                    local_files_only=cached_only,
                )
            )
        # Whatever the hub's client raises (no network, no such repository, gated, offline mode),
        # the files are not here, and the way out is the same.
        except Exception:
            continue
        weighted = any(folder.glob("model*.safetensors")) or not with_weights
        if (folder / "config.json").is_file() and (weighted or not cached_only):
            return folder
    raise ModelError(
        f"model.source: {name} at {revision[:12]} is neither in the local cache nor can it be "
        f"downloaded. Where there is a network run `hf download {name} --revision {revision} "
        "--local-dir FOLDER`, and give that FOLDER as model.source without a revision"
    )


def _reachable(endpoint: str) -> bool:
    """Whether the hub's name can be looked up: without it, its client would retry for a minute."""
    host = urlsplit(endpoint).hostname or ""
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        # Behind a proxy the name need not be known here.
        return any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy"))
    return True


def libraries() -> None:
    """Make sure that transformers and peft are installed.

    Raises:
        ModelError: If they are not.
    """
    try:
        for name in ("peft", "transformers"):
            importlib.import_module(name)
    except ImportError as error:
        raise ModelError(
            f"model.name: this model needs the package {error.name}; install it with "
            "pip install 'dpfedadamw[transformers]'"
        ) from None


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep the library from talking of fresh heads and showing bars."""
    from transformers.utils import logging

    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            # Its own parts call its own deprecated names.
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()
