"""Published transformers as the rest of the package sees models: records in, class scores out.

Builds a model of the library transformers from its published configuration, with pretrained or
random weights, gives it a fresh head, and says what is trained. Dropout inside the published model
is off: clipped and noised gradients need no further noise, and the tables of DP-FedAdamW know a
dropout of the low-rank pairs only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from dpfedadamw.errors import ModelError
from dpfedadamw.models.networks.dropout import dropping, number_layers
from dpfedadamw.models.transformers import pooling
from dpfedadamw.models.transformers.attention_roles import roles_of
from dpfedadamw.models.transformers.keys import LoraSpec, TransformerSpec
from dpfedadamw.models.transformers.lora import add_pairs
from dpfedadamw.models.transformers.padding import (
    BLIND_TO_PADDING,
    can_be_cut,
    groups_of_like_length,
    places_in_use,
)
from dpfedadamw.models.transformers.published import IMAGES, PUBLISHED, TEXT
from dpfedadamw.models.transformers.sources import Source, libraries, locate, quiet, sha256_of

# What one more pass costs, in places of one text (measured on one CPU core): launching operations,
# and writing a gradient of as many coordinates as there are parameters.
_PASS, _GRADIENT = 32, 36


class TransformerClassifier(nn.Module):
    """A model of transformers behind the interface of all models here.

    Attributes:
        network: The model, wrapped by peft where low-rank pairs are trained.
        reads: "images" or "text".
        vocabulary: Number of tokens; 0 for images.
        origin: Where pretrained weights came from, with their digest; empty for random ones.
        parameter_roles: For blocks.
        cuts_padding: Whether batches of texts are cut to their longest record, which changes time
            and memory alone.
        pooling: What class scores are taken from: "published" or "mean".

    Args:
        network: The model.
        reads: What it reads.
        origin: Where its weights came from.
        output_layers: Names inside ``network`` of the layers that give class scores.
        pooled: "published" or "mean": what class scores are taken from.
    """

    def __init__(
        self,
        network: nn.Module,
        reads: str,
        origin: Mapping[str, str],
        output_layers: Sequence[str],
        pooled: str = "published",
    ) -> None:
        super().__init__()
        self.network = network
        self.pooling = pooled
        self.reads = reads
        self.origin = dict(origin)
        configuration: Any = network.config
        self.vocabulary: int = configuration.vocab_size if reads == TEXT else 0
        self.padding: int = configuration.pad_token_id if reads == TEXT else 0
        self._types = getattr(configuration, "type_vocab_size", 0) if reads == TEXT else 0
        self.cuts_padding = reads == TEXT and configuration.model_type in BLIND_TO_PADDING
        self.parameter_roles = roles_of(self, [f"network.{name}" for name in output_layers])
        # Of all trained tensors the last is the head's, and small.
        self._watched = [name for name, p in self.named_parameters() if p.requires_grad][-1]
        number_layers(self)
        trained = sum(p.numel() for p in self.parameters() if p.requires_grad)
        self._overhead = _PASS + _GRADIENT * trained / sum(p.numel() for p in self.parameters())

    @property
    def fetched(self) -> frozenset[str]:
        """Names of the tensors that need not be stored: they come from the pinned weights."""
        if not self.origin:
            return frozenset()
        # A frozen A was drawn here: no published file has it.
        return frozenset(
            name
            for name, p in self.named_parameters()
            if not p.requires_grad and ".lora_A." not in name
        )

    def keep_padding(self) -> None:
        """Compute on whole records from now on."""
        self.cuts_padding = False

    def forward(self, inputs: Tensor) -> Tensor:
        """Class scores [b, classes].

        Args:
            inputs: Images, float [b, channels, height, width]; or texts, whole numbers
                [b, 2, length] with token numbers, padded at the end, and token types.
        """
        places: list[int] | None = None
        cut = inputs
        if self.cuts_padding and can_be_cut(inputs):
            places = places_in_use(inputs[:, 0], self.padding).tolist()
            cut = inputs[:, :, : max(places)]
        with dropping(self, inputs, attrgetter(self._watched)(self), places):
            if self.pooling == pooling.MEAN:
                return pooling.scores_of_mean(self.network, self._arguments(cut))
            scores: Tensor = self.network(**self._arguments(cut)).logits
        return scores

    def record_groups(self, inputs: Tensor) -> list[Tensor]:
        """Rows of records [b, …] that are best computed on together, int64; each row once.

        Texts of like length, where a pass over fewer places is worth a pass more.
        """
        rows = torch.arange(len(inputs), device=inputs.device)
        if not self.cuts_padding or not can_be_cut(inputs) or inputs.device.type != "cpu":
            return [rows]
        places = places_in_use(inputs[:, 0], self.padding).tolist()
        found = groups_of_like_length(places, self._overhead)
        return [torch.tensor(group) for group in found] if len(found) > 1 else [rows]

    def _arguments(self, inputs: Tensor) -> dict[str, Tensor]:
        if self.reads == IMAGES:
            return {"pixel_values": inputs}
        tokens = inputs[:, 0].long()
        arguments = {"input_ids": tokens, "attention_mask": (tokens != self.padding).long()}
        if self._types:
            types = inputs[:, 1].long()
            # RoBERTa has one type only, whatever a tokeniser writes.
            arguments["token_type_ids"] = types if self._types > 1 else torch.zeros_like(types)
        return arguments


def build(
    spec: TransformerSpec, input_shape: Sequence[int], classes: int, **overrides: Any
) -> TransformerClassifier:
    """Build the published model that a spec names. Random weights come from torch's generator.

    Args:
        spec: The spec's section ``model``.
        input_shape: Shape of one record.
        classes: Number of classes.
        overrides: Entries of the configuration to replace, such as a smaller depth, for tests.

    Raises:
        ModelError: If files are missing, or the model cannot read such records.
    """
    libraries()
    source = locate(spec)
    configuration, reads = configure(spec, source, classes, overrides)
    _check_records(configuration, reads, input_shape)
    with quiet():
        network, fresh = _network(spec, source, configuration, reads)
        if configuration.model_type == "swin":
            from dpfedadamw.models.transformers.swin import keep_records_first

            keep_records_first(network)
        # A folder's path is nobody else's business, and would stand in an exported model.
        network.name_or_path = configuration.name_or_path = source.name if source else ""
        tuning = spec.fine_tuning
        if isinstance(tuning, LoraSpec):
            revision = source.revision if source is not None else ""
            task = "SEQ_CLS" if reads == TEXT else None
            network = add_pairs(network, tuning, fresh, task=task, revision=revision)
        elif tuning.kind == "head":
            network.requires_grad_(False)
            for name in fresh:
                network.get_submodule(name).requires_grad_(True)
    scores = [
        name
        for name, module in network.named_modules()
        if isinstance(module, nn.Linear)
        and module.out_features == classes
        and any(part in fresh for part in name.split("."))
    ]
    pooled = spec.pooling or "published"
    if pooled == pooling.MEAN:
        pooling.check(configuration.model_type)
    model = TransformerClassifier(network, reads, origin_of(spec, source), scores, pooled)
    if tuning.kind == "all" and spec.name not in PUBLISHED:
        _freeze_unused(model, input_shape)
    return model


def origin_of(spec: TransformerSpec, source: Source | None) -> dict[str, str]:
    """Where a model's weights came from, with their digest; empty for random ones."""
    if source is None or spec.weights != "pretrained":
        return {}
    return {
        "source": source.name or source.kind,
        "revision": source.revision,
        "weights_sha256": sha256_of(source.weights()),
    }


def configure(
    spec: TransformerSpec, source: Source | None, classes: int, overrides: Mapping[str, Any]
) -> tuple[Any, str]:
    """The model's configuration without dropout, and what it reads: "images" or "text".

    Raises:
        ModelError: If transformers does not know such a model for classification.
    """
    published = PUBLISHED.get(spec.name)
    if source is None:
        assert published is not None
        kind, given = published.kind, dict(published.configuration)
    else:
        given = source.configuration()
        kind = given.pop("model_type")
        if published is not None and kind != published.kind:
            raise ModelError(
                f"model.source: it holds a {kind}, but model.name is {spec.name}; use name: "
                "transformers for it"
            )
    reads = reads_of(kind)
    configuration = configuration_of(kind, {**given, **overrides}, num_labels=classes)
    if reads == TEXT:
        _set_padding(configuration)
        limit = getattr(configuration, "max_position_embeddings", None)
        if kind in _OFFSET_POSITIONS and limit is not None:
            limit -= configuration.pad_token_id + 1
        if limit is not None and (spec.length or 0) > limit:
            raise ModelError(
                f"model.length: {spec.length}; this model reads at most {limit} tokens"
            )
    return configuration, reads


def configuration_of(kind: str, given: Mapping[str, Any], **more: Any) -> Any:
    """The configuration of an architecture, without dropout and without labels of its own.

    Raises:
        ModelError: If transformers cannot use it.
    """
    from transformers import AutoConfig

    of_its_task = ("num_labels", "id2label", "label2id", "problem_type")
    dropped = (*of_its_task, "architectures", "torch_dtype", "dtype")
    kept = {key: value for key, value in given.items() if key not in dropped}
    try:
        configuration = AutoConfig.for_model(kind, **kept, **more)
    except Exception as error:
        raise ModelError(f"model.source: its config.json cannot be used ({error})") from None
    for name, value in list(configuration.to_dict().items()):
        if isinstance(value, float) and ("drop" in name or name.endswith("_pdrop")):
            setattr(configuration, name, 0.0)
    return configuration


# Their positions begin behind the padding token's number.
_OFFSET_POSITIONS = ("roberta", "xlm-roberta", "camembert")


def reads_of(kind: str) -> str:
    """What an architecture of transformers classifies: "images" or "text".

    Raises:
        ModelError: If neither.
    """
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
        MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    )

    if kind in MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES:
        return IMAGES
    if kind in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES:
        return TEXT
    raise ModelError(
        f"model.source: transformers has no classifier of images or texts of type {kind!r}; use "
        "one that it supports, such as vit, swin, bert or roberta"
    )


def _set_padding(configuration: Any) -> None:
    if getattr(configuration, "pad_token_id", None) is None:
        end = getattr(configuration, "eos_token_id", None)
        if not isinstance(end, int):
            raise ModelError("model.source: its config.json has no pad_token_id; add one")
        configuration.pad_token_id = end


def _check_records(configuration: Any, reads: str, input_shape: Sequence[int]) -> None:
    if reads == TEXT:
        if len(input_shape) != 2 or input_shape[0] != 2:
            raise ModelError(
                f"model.name: this model reads texts, but records have shape {tuple(input_shape)}; "
                "needed are token numbers and types [2, length]"
            )
        return
    channels = getattr(configuration, "num_channels", 3)
    size = getattr(configuration, "image_size", None)
    sides = (size, size) if isinstance(size, int) else tuple(size or input_shape[1:])
    if tuple(input_shape) != (channels, *sides):
        raise ModelError(
            f"model.name: this model reads images of shape {(channels, *sides)}, but records have "
            f"shape {tuple(input_shape)}; have the data resized, or choose another model"
        )


def _network(
    spec: TransformerSpec, source: Source | None, configuration: Any, reads: str
) -> tuple[Any, list[str]]:
    """The model, and the names of its modules that are no part of what was published."""
    from transformers import AutoModelForImageClassification, AutoModelForSequenceClassification

    kind: Any = AutoModelForSequenceClassification
    if reads == IMAGES:
        kind = AutoModelForImageClassification
    if spec.weights == "random" or source is None:
        network = kind.from_config(configuration)
        return network.float(), _heads(network)
    network, found = loaded(kind, source, configuration)
    heads = _heads(network)
    check_loaded(found, heads)
    for name in heads:
        _restart(network.get_submodule(name), getattr(configuration, "initializer_range", 0.02))
    return network, heads


def loaded(kind: Any, source: Source, configuration: Any) -> tuple[Any, Mapping[str, Any]]:
    """A model of transformers with its published weights, and what it says of their names.

    Raises:
        ModelError: If they are missing or cannot be loaded.
    """
    source.weights()
    try:
        network, found = kind.from_pretrained(
            str(source.folder),
            config=configuration,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            dtype=torch.float32,
        )
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelError(f"model.source: the weights cannot be loaded ({reason})") from None
    return network, found


def check_loaded(found: Mapping[str, Any], heads: Sequence[str]) -> None:
    """Only the head may be fresh."""
    absent = [*found["missing_keys"], *(entry[0] for entry in found["mismatched_keys"])]
    absent = sorted(name for name in absent if not name.startswith(tuple(heads)))
    if absent:
        raise ModelError(
            f"model.source: the weights do not fit config.json: {absent[0]} and {len(absent) - 1} "
            "more tensors are missing or of another size"
        )


def _heads(network: nn.Module) -> list[str]:
    """Names of the modules outside the published body that have parameters."""
    body = getattr(network, "base_model_prefix", "")
    return [
        name
        for name, child in network.named_children()
        if name != body and any(True for _ in child.parameters())
    ]


def _restart(head: nn.Module, spread: float) -> None:
    """Give a head fresh weights, even where the published model came with one of its size."""
    for module in head.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=spread)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def _freeze_unused(model: TransformerClassifier, input_shape: Sequence[int]) -> None:
    """Freeze what no output depends on: noise would be added to it for nothing."""
    records = torch.zeros(1, *input_shape)
    if model.reads == TEXT:
        records = torch.full((1, *input_shape), 3 if model.padding != 3 else 4, dtype=torch.int32)
        records[:, 1] = 0
    trained = [p for p in model.parameters() if p.requires_grad]
    found: Sequence[Tensor | None] = torch.autograd.grad(
        model.eval()(records).sum(), trained, allow_unused=True
    )
    for parameter, gradient in zip(trained, found, strict=True):
        if gradient is None:
            parameter.requires_grad_(False)
    model.train()
