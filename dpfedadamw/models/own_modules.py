"""A model of one's own: named by its place in Python, or handed over as a module."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from dpfedadamw.errors import ModelError
from dpfedadamw.models.own.permission import OF_PYTHON, of_python
from dpfedadamw.models.registry import ModelEntry, register
from dpfedadamw.preprocessing import ImagePreprocessing, Preprocessing, TextPreprocessing
from dpfedadamw.spec.model_section import ModelSpec
from dpfedadamw.spec.section import Contradictions, Free, Values, key
from dpfedadamw.spec.task_section import CLASSIFICATION, MULTI_LABEL, REGRESSION, TOKENS
from dpfedadamw.tasks import CLASSES, Task

if TYPE_CHECKING:
    from torch import nn

    from dpfedadamw.models.own.sources import PythonSource

PADDING = 0
_WORD = re.compile(r"\w+|[^\w\s]")
_EVERY_TASK = (CLASSIFICATION, REGRESSION, MULTI_LABEL, TOKENS)
_NAME = r"[A-Za-z_][A-Za-z0-9_]{0,99}"
_Digest = Annotated[
    str | None,
    key(
        None,
        "Digest (sha256) of the source that the model is built by; filled in when a run is "
        "prepared. Another source is refused.",
        title="Digest of the source",
        pattern=r"^[0-9a-f]{64}$",
        expected="64 hexadecimal digits, or null",
        examples=(None, "0" * 64),
    ),
]


class ForeignModelSpec(ModelSpec, title="Model of one's own"):
    """What every model that is not of this package has."""

    replace_batch_norm: Literal["never", "group_norm"] = key(
        "never",
        "How to treat normalisation over the batch, through which one record changes the gradients "
        "of all others. never: a model with such a layer is refused. group_norm: each is replaced "
        "by GroupNorm over a record's own channels; scale and shift are kept.",
        title="Replace BatchNorm",
        examples=("never", "group_norm"),
    )
    loss: str | None = key(
        None,
        "Function of the outputs [b, classes] and labels [b] that gives one loss per record, [b]; "
        "package.module:function. Null for the task's own, cross-entropy by default; with another "
        "task it gets that task's outputs and targets. It is pinned with the source, imported only "
        "where the user allows its module, and published as test_loss.",
        title="Loss",
        pattern=rf"^{_NAME}(\.{_NAME})*:{_NAME}(\.{_NAME})*$",
        expected="package.module:function, such as losses:focal, or null",
        examples=(None, "losses:focal"),
    )
    vocabulary: int = key(
        0,
        "Number of tokens the model knows, if it reads texts or tokens: its forward gets whole "
        "numbers [batch, length], and 0 is padding. 0 if it reads numbers or images.",
        title="Vocabulary",
        unit="tokens",
        ge=0,
        le=100_000_000,
        examples=(0, 5000),
    )
    length: int = key(
        128,
        "Tokens per record, if the model reads tokens: longer texts are cut, shorter ones padded.",
        title="Length",
        unit="tokens",
        ge=1,
        le=1_000_000,
        examples=(128, 64),
    )
    tokeniser: Literal["words", "bytes"] = key(
        "words",
        "How texts become tokens: words (lower case, each by its digest, so that nothing is learnt "
        "from the records) or bytes. Bytes are of UTF-8, each plus 1, and need a vocabulary of 257."
        " Arrays may hold tokens from your own tokeniser.",
        title="Tokeniser",
        examples=("words", "bytes"),
    )
    sha256: _Digest = None


class PythonModelSpec(ForeignModelSpec, title="Python module"):
    """A `torch.nn.Module` of your own, named by its place in Python."""

    name: Literal["python"] = "python"
    target: str = key(
        ...,
        "Class or function that returns the module, package.module:Name. It is imported only where "
        "the user allows its module (--allow-code), and searched as Python does, then in the "
        "current folder.",
        title="Target",
        pattern=rf"^{_NAME}(\.{_NAME})*:{_NAME}(\.{_NAME})*$",
        expected="package.module:Name, such as nets:Net",
        examples=("nets:Net", "my_package.models:build"),
    )
    arguments: Free = key(
        {},
        "Arguments of the target, by name: any YAML values. Parameters of the target called "
        "classes, num_classes or input_shape that are not given here come from the data.",
        title="Arguments",
        expected="a section of names and values",
        examples=({}, {"width": 64, "layers": [1, 2]}),
    )


class ModuleSpec(ForeignModelSpec, title="Module from Python"):
    """A `torch.nn.Module` that `api.run(spec, model=net)` is given.

    No file can build it again: pass it again to resume the run.
    """

    name: Literal["module"] = "module"
    type: str | None = key(
        None,
        "Its class; filled in when a run is prepared.",
        title="Class",
        max_length=400,
        examples=(None, "__main__:Net"),
    )
    weights_sha256: str | None = key(
        None,
        "Digest (sha256) of the weights that it was passed with, from which training starts; "
        "filled in when a run is prepared. Other weights are refused.",
        title="Digest of the weights",
        pattern=r"^[0-9a-f]{64}$",
        expected="64 hexadecimal digits, or null",
        examples=(None, "0" * 64),
    )

    loss_sha256: str | None = key(
        None,
        "Digest (sha256) of the source of its loss; filled in when a run is prepared, null for "
        "cross-entropy.",
        title="Digest of the loss",
        pattern=r"^[0-9a-f]{64}$",
        expected="64 hexadecimal digits, or null",
        examples=(None, "0" * 64),
    )


def _build_python(
    keys: PythonModelSpec, input_shape: Sequence[int], classes: int, task: Task = CLASSES
) -> nn.Module:
    import inspect

    from torch import nn

    from dpfedadamw.models.own import fitting
    from dpfedadamw.models.own.sources import LOSS, load

    _pinned(keys)
    target, place = load(keys.target), f"model.target: {keys.target}"
    arguments: dict[str, Any] = keys.to_mapping()["arguments"]
    known = {"classes": classes, "num_classes": classes, "input_shape": tuple(input_shape)}
    try:
        wanted = inspect.signature(target).parameters
    except (TypeError, ValueError):
        wanted = {}  # type: ignore[assignment]  # an empty mapping of parameters
    more = {name: value for name, value in known.items() if name in wanted}
    try:
        module = target(**{**more, **arguments})
    except Exception as error:
        raise ModelError(
            f"{place}: cannot be built with model.arguments ({type(error).__name__}: "
            f"{str(error).partition(chr(10))[0]})"
        ) from error
    if not isinstance(module, nn.Module):
        raise ModelError(f"{place}: returns {type(module).__name__}; it must be a torch.nn.Module")
    loss = load(keys.loss, LOSS) if keys.loss is not None else None
    return fitting.fit(
        module, place, input_shape, classes, keys.replace_batch_norm, keys.vocabulary, loss, task
    )


def _target(keys: PythonModelSpec) -> str:
    return keys.target


def _pinned(keys: PythonModelSpec) -> PythonModelSpec:
    found = _source(keys).sha256
    if keys.sha256 not in (None, found):
        raise ModelError(
            f"model.sha256: the spec pins {keys.sha256}, but the source of {keys.target} has "
            f"{found}; restore the source, or leave the key out for a new run"
        )
    return keys.replace(sha256=found)


def _python_source(keys: PythonModelSpec) -> dict[str, str]:
    return dict(_source(keys).files)


def _source(keys: PythonModelSpec) -> PythonSource:
    """The source of the module, and of its loss."""
    from dpfedadamw.models.own.sources import LOSS, PythonSource, source_of

    found = source_of(keys.target)
    if keys.loss is None:
        return found
    return PythonSource({**found.files, **source_of(keys.loss, LOSS).files})


def _build_module(
    keys: ModuleSpec, input_shape: Sequence[int], classes: int, task: Task = CLASSES
) -> nn.Module:
    from dpfedadamw.models.own import fitting

    _checked_module(keys)
    loss = fitting.given_loss()
    if keys.loss is not None and loss is None:
        from dpfedadamw.models.own.sources import LOSS, load

        loss = load(keys.loss, LOSS)
    module = fitting.given()
    return fitting.fit(
        module, "model", input_shape, classes, keys.replace_batch_norm, keys.vocabulary, loss, task
    )


def _checked_module(keys: ModuleSpec) -> ModuleSpec:
    """The keys with what the module is filled in; refuses another than they say."""
    from dpfedadamw.models.own import fitting

    module = fitting.given()
    kind = f"{type(module).__module__}:{type(module).__qualname__}"
    if keys.type not in (None, kind):
        raise ModelError(f"model.type: the run's module is {keys.type}, and {kind} was given")
    code, weights = fitting.code_digest(module), fitting.weights_digest(module)
    if keys.sha256 not in (None, code):
        raise ModelError(
            f"model.sha256: the layers or the source of the module ({kind}) are not those that the "
            "run started with; pass the same module again, or start a new run"
        )
    if keys.weights_sha256 not in (None, weights):
        raise ModelError(
            "model.weights_sha256: the module does not have the weights that the run started with; "
            "build it the same way, with the same seed or from the same file"
        )
    return keys.replace(type=kind, sha256=code, weights_sha256=weights)


def _pinned_module(keys: ModuleSpec) -> ModuleSpec:
    """The same before training, which the loss matters to."""
    from dpfedadamw.models.own import fitting
    from dpfedadamw.models.own.sources import LOSS, source_of

    given = fitting.given_loss()
    if keys.loss is not None:
        found: str | None = source_of(keys.loss, LOSS).sha256
    else:
        found = None if given is None else fitting.loss_digest(given)
    begun = keys.weights_sha256 is not None
    if found != keys.loss_sha256 and (begun or keys.loss_sha256 is not None):
        raise ModelError(
            "model.loss_sha256: the loss is not the one that the run started with; pass that one "
            "again as loss=, or start a new run"
        )
    return _checked_module(keys).replace(loss_sha256=found)


def _preprocessing(keys: ForeignModelSpec) -> Preprocessing:
    if not keys.vocabulary:
        return ImagePreprocessing()
    return plain_tokens(keys.tokeniser, keys.vocabulary, keys.length)


def _enough_tokens(get: Values) -> Contradictions:
    """Bytes are 256 tokens, and padding is one more; words need one besides padding."""
    vocabulary, least = get("model", "vocabulary"), 2
    if get("model", "tokeniser") == "bytes":
        least = 257
    if vocabulary and vocabulary < least:
        message = f"found {vocabulary}; {get('model', 'tokeniser')} need {least} or more"
        yield ("model", "vocabulary"), message


def _of_ones_own(get: Values) -> Contradictions:
    """Python's own library holds no model, and what it holds instead can do anything."""
    yield from _enough_tokens(get)
    for name in ("target", "loss"):
        named = get("model", name)
        if isinstance(named, str) and of_python(named.partition(":")[0]):
            yield ("model", name), f"{named} is {OF_PYTHON}"


def _in_this_process(get: Values) -> Contradictions:
    """A module that was handed over is in this process alone."""
    yield from _of_ones_own(get)
    instead = "a module passed from Python exists in this process only; give its place as"
    if get("federation", "workers") not in (None, 1):
        yield ("federation", "workers"), f"{instead} model.name python, or use 1"
    if get("federation", "engine") == "flower":
        yield ("federation", "engine"), f"{instead} model.name python, or use inline"


def _utf8(text: str) -> bytes:
    """A text in UTF-8, of which half a pair of surrogates, as JSON may hold it, is no part."""
    return text.encode("utf-8", "surrogatepass")


def plain_tokens(kind: str, vocabulary: int, length: int) -> TextPreprocessing:
    """How texts become records int32 [2, length] for a model without a tokeniser of its own.

    By constants alone: nothing is learned from records.

    Args:
        kind: "words" (lower case; a word's token follows from its digest, so two may share one) or
            "bytes" (of UTF-8, each plus 1).
        vocabulary: How many tokens there are, padding included.
        length: Tokens of a record.
    """

    def words(text: str) -> Iterator[int]:
        for word in _WORD.findall(text.lower()):
            digest = hashlib.blake2b(_utf8(word), digest_size=8).digest()
            yield 1 + int.from_bytes(digest, "big") % (vocabulary - 1)

    def of_bytes(text: str) -> Iterator[int]:
        return (1 + byte for byte in _utf8(text))

    tokens: Callable[[str], Iterator[int]] = words if kind == "words" else of_bytes

    def encode(first: Sequence[str], second: Sequence[str] | None) -> NDArray[np.int32]:
        records = np.full((len(first), 2, length), PADDING, dtype=np.int32)
        records[:, 1] = 0
        for row, text in enumerate(first):
            found = [*tokens(text), *(tokens(second[row]) if second is not None else ())][:length]
            records[row, 0, : len(found)] = found
        return records

    fingerprint = hashlib.sha256(f"plain tokens 1 {kind} {vocabulary}".encode()).hexdigest()
    return TextPreprocessing(encode, length, PADDING, fingerprint, vocabulary)


register(
    ModelEntry(
        name="python",
        keys=PythonModelSpec,
        summary="a torch.nn.Module of your own: target: package.module:Name, and its arguments",
        source="yours",
        check=_of_ones_own,
        build=_build_python,
        build_for=_build_python,
        tasks=_EVERY_TASK,
        preprocessing=_preprocessing,
        pin=_pinned,
        made_of=_python_source,
        names_code=_target,
        on_meta=False,
        place=8,
    ),
    ModelEntry(
        name="module",
        keys=ModuleSpec,
        summary="a torch.nn.Module that api.run(spec, model=net) is given",
        source="yours",
        check=_in_this_process,
        build=_build_module,
        build_for=_build_module,
        tasks=_EVERY_TASK,
        preprocessing=_preprocessing,
        pin=_pinned_module,
        on_meta=False,
        rebuilt=False,
        place=9,
    ),
)
