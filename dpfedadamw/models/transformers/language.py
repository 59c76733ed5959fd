"""Causal language models of transformers: records of tokens in, scores of every next token out.

A record is a text in one or more sequences (`preprocessing.TextPreprocessing`), which stand one
behind another in one row of the batch. A token sees those before it in its own sequence and nothing
else, and positions restart with each sequence. So a record's gradient is that of its sequences
computed one by one. It is clipped once, and neither padding nor another record has any part in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dpfedadamw.errors import ModelError
from dpfedadamw.models.networks.dropout import dropping
from dpfedadamw.models.transformers import pieces
from dpfedadamw.models.transformers.classifier import (
    TransformerClassifier,
    check_loaded,
    configuration_of,
    loaded,
    origin_of,
)
from dpfedadamw.models.transformers.keys import AnyTransformerSpec, LoraSpec, TransformerSpec
from dpfedadamw.models.transformers.lora import add_pairs
from dpfedadamw.models.transformers.padding import can_be_cut, groups_of_like_length
from dpfedadamw.models.transformers.published import TEXT
from dpfedadamw.models.transformers.sources import Source, libraries, locate, quiet
from dpfedadamw.tasks import Task, within

# What is told of a model that continues texts, where others say "text" or "images".
LANGUAGE = "language"
# How far two ways to compute one score may differ, as a share of the largest score.
_TOLERANCE = 1e-3


class LanguageModel(TransformerClassifier):
    """A causal model of transformers behind the interface of all models here.

    Attributes:
        length: Tokens of a sequence.
        in_pieces: Whether answers are what the frozen output layer reads, and scores of few tokens
            at a time are formed where they are needed.

    Args:
        network: The model, wrapped by peft where low-rank pairs are trained.
        origin: Where its weights came from.
        output_layers: Names inside ``network`` of the layers that score tokens.
        length: Tokens of a sequence.
    """

    def __init__(
        self, network: nn.Module, origin: dict[str, str], output_layers: Sequence[str], length: int
    ) -> None:
        super().__init__(network, TEXT, origin, output_layers)
        self.length = length
        self.in_pieces = False
        self.cuts_padding = True
        self.reads = LANGUAGE

    def forward(self, inputs: Tensor) -> Tensor:
        """Scores of the token that follows each, [b, up to length of a record, tokens].

        With `in_pieces` what the output layer reads in their place, [b, …, width]. What no record
        of the batch reaches is left out; scores of padding are 0, so that nothing is learnt from
        them.

        Args:
            inputs: Whole numbers [b, 2, length of a record]: tokens and marks.
        """
        cut, places = inputs, None
        if self.cuts_padding and can_be_cut(inputs):
            places = _places_in_use(inputs[:, 1])
            cut = inputs[:, :, : max(places)]
        tokens, sequences = cut[:, 0].long(), sequences_of(cut[:, 1])
        seen = visible(sequences)
        apart = self.in_pieces
        with dropping(self, inputs, attrgetter(self._watched)(self), places):
            answered = (self._body() if apart else self.network)(
                input_ids=tokens,
                attention_mask=self._mask(seen),
                position_ids=self._positions(seen, sequences),
                use_cache=False,
            )
        found: Tensor = answered.last_hidden_state if apart else answered.logits
        return found.masked_fill((sequences == 0)[..., None], 0.0)

    def answer_with_scores(self) -> None:
        """Answer with scores from now on: who loads a model wants them, and so does a program."""
        self.in_pieces = False

    @property
    def record_loss_in_pieces(self) -> Callable[[Tensor, Tensor], Tensor] | None:
        """The task's loss of a model that answers in pieces; None for others."""
        return self._losses if self.in_pieces else None

    def record_scores(self, answers: Tensor, targets: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Scores [b, some, tokens] and targets [b, some] of what the model answered."""
        if not self.in_pieces:
            yield answers, targets
            return
        network: Any = self.network
        head = network.get_output_embeddings()
        for run in pieces.ranges(answers.shape[1], len(answers) * self.vocabulary):
            yield head(answers[:, run]), within(answers, targets)[:, run]

    def _losses(self, answers: Tensor, targets: Tensor) -> Tensor:
        """The loss of each record, [b], of what the output layer reads."""
        network: Any = self.network
        head, task = network.get_output_embeddings(), cast(Task, self.record_task)
        if not can_be_cut(answers):
            # Under vmap, which places count is hidden, so that all of them are scored.
            return task.loss(head(answers), targets)
        shares = answers.new_ones(len(answers))
        if task.spec.reduction != "sum":
            shares /= (targets != task.ignored).sum(1).clamp(min=1)
        told = within(answers, targets)
        return pieces.losses(answers, head.weight, head.bias, told, shares, task.ignored)

    def _body(self) -> Any:
        """The network without its output layer."""
        network: Any = self.network
        whole = network.get_base_model() if hasattr(network, "get_base_model") else network
        return whole.base_model

    def record_groups(self, inputs: Tensor) -> list[Tensor]:
        """Rows of records [b, …] that are best computed on together: see the base class."""
        rows = torch.arange(len(inputs), device=inputs.device)
        if not self.cuts_padding or not can_be_cut(inputs) or inputs.device.type != "cpu":
            return [rows]
        found = groups_of_like_length(_places_in_use(inputs[:, 1]), self._overhead)
        return [torch.tensor(group) for group in found] if len(found) > 1 else [rows]

    def made_up_marks(self, values: Tensor) -> Tensor:
        """Marks [b, length of a record] for made-up records of all lengths.

        Args:
            values: Arbitrary numbers [b, 2, length of a record]. How long a record is follows from
                those of its second row; where a value of the first is 0, there is padding.
        """
        bits = values[:, 1].contiguous().view(torch.int32).long() & 0x7FFFFFFF
        whole = values.shape[2]
        ends = 2 + bits.sum(1) % max(1, whole - 1)
        place = torch.arange(whole, device=values.device)
        used = (place < ends[:, None]) & (values[:, 0] != 0)
        return (2 * (1 + place // self.length) * used).to(torch.int32)

    def _mask(self, seen: Tensor) -> Tensor:
        """What may be seen [b, m, m] as the network's attention takes it, [b, 1, m, m]."""
        configuration: Any = self.network.config
        mask = seen[:, None]
        if configuration._attn_implementation == "sdpa":
            return mask
        kind = next(self.network.parameters()).dtype
        nothing = torch.zeros_like(mask, dtype=kind)
        return nothing.masked_fill(~mask, torch.finfo(kind).min)

    def _positions(self, seen: Tensor, sequences: Tensor) -> Tensor:
        """The place of each token in its own sequence, int64 [b, m]; 0 of padding."""
        before = (seen.sum(2) - 1).clamp(max=self.length - 1)
        return before.masked_fill(sequences == 0, 0)


def sequences_of(marks: Tensor) -> Tensor:
    """The sequence of a record that each token belongs to, from 1; 0 of padding."""
    return (marks.long() + 1) // 2


def visible(sequences: Tensor) -> Tensor:
    """Which tokens each token sees, bool [b, m, m]: itself, and those before it in its sequence."""
    same = sequences[:, :, None] == sequences[:, None, :]
    past = torch.ones(same.shape[1:], dtype=torch.bool, device=same.device).tril()
    return same & past


def _places_in_use(marks: Tensor) -> list[int]:
    """Places up to the last token of each record, at least one."""
    counted = torch.arange(1, marks.shape[1] + 1, device=marks.device)
    return ((marks > 0) * counted).amax(1).clamp(min=1).tolist()


def build(spec: TransformerSpec, input_shape: Sequence[int], **overrides: Any) -> LanguageModel:
    """Build the causal model that a spec names. Random weights come from torch's generator.

    Args:
        spec: The spec's section ``model``.
        input_shape: Shape of one record, [2, length of a record].
        overrides: Entries of the configuration to replace, for tests.

    Raises:
        ModelError: If files are missing, or the model is no causal one whose sequences can be kept
            apart.
    """
    from transformers import AutoModelForCausalLM

    libraries()
    source = locate(spec)
    configuration = configure(spec, source, **overrides)
    length = spec.length or 128
    with quiet():
        if source is None or spec.weights == "random":
            network: Any = AutoModelForCausalLM.from_config(configuration).float()
        else:
            network, found = loaded(AutoModelForCausalLM, source, configuration)
            check_loaded(found, ())
        network.name_or_path = configuration.name_or_path = source.name if source else ""
        head = network.get_output_embeddings()
        scores = [name for name, module in network.named_modules() if module is head]
        _check_sequences(network, length, input_shape[1], configuration.model_type)
        plain = _scores_are_products(network)
        tuning = spec.fine_tuning
        if isinstance(tuning, LoraSpec):
            revision = source.revision if source is not None else ""
            network = add_pairs(network, tuning, (), task="CAUSAL_LM", revision=revision)
    if isinstance(spec, AnyTransformerSpec) and spec.gradient_checkpointing:
        _check_point(network, configuration.model_type)
    model = LanguageModel(network, origin_of(spec, source), scores, length)
    # A head that got a pair is no plain layer any more.
    frozen = not any(one.requires_grad for one in head.parameters())
    model.in_pieces = plain and frozen and network.get_output_embeddings() is head
    return model


def _check_point(network: nn.Module, kind: str) -> None:
    """Have each layer keep its inputs alone while it trains, and be computed again on the way back.

    Raises:
        ModelError: If the architecture has no layers that can.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers: list[Any] = [
        one for one in network.modules() if isinstance(one, GradientCheckpointingLayer)
    ]
    if not layers:
        raise ModelError(
            f"model.gradient_checkpointing: transformers cannot compute the layers of this {kind} "
            "a second time; leave it out"
        )
    for layer in layers:
        layer.gradient_checkpointing = True
        layer._gradient_checkpointing_func = _computed_again


def _computed_again(layer: Callable[..., Any], hidden: Tensor, *more: Any) -> Any:
    """A layer's answer, of whose computation nothing is kept."""
    if not can_be_cut(hidden):
        # Under vmap nothing can be computed a second time.
        return layer(hidden, *more)
    return checkpoint(layer, hidden, *more, use_reentrant=False, preserve_rng_state=False)


def _scores_are_products(network: Any) -> bool:
    """Whether scores are what a plain output layer makes of the last hidden states, and no more.

    Some architectures scale or cap them afterwards.
    """
    head, body = network.get_output_embeddings(), network.base_model
    if type(head) is not nn.Linear or body is network or head.weight.is_meta:
        return False
    tokens = torch.arange(min(4, len(head.weight)))[None]
    network.eval()
    with torch.no_grad():
        whole = network(input_ids=tokens, use_cache=False).logits
        hidden = getattr(body(input_ids=tokens, use_cache=False), "last_hidden_state", None)
        parts = None if hidden is None else head(hidden)
    network.train()
    return parts is not None and torch.allclose(whole, parts, rtol=1e-5, atol=1e-5)


def configure(spec: TransformerSpec, source: Source | None, **overrides: Any) -> Any:
    """The configuration of a causal model, without dropout.

    Raises:
        ModelError: If transformers has no causal model of that type, or it reads fewer tokens.
    """
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    )

    if source is None:
        raise ModelError(
            f"model.name: {spec.name} is no language model; use name: transformers with a source"
        )
    given = source.configuration()
    kind = given.pop("model_type")
    if given.get("is_encoder_decoder") or kind in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES:
        raise ModelError(
            f"model.source: it holds a {kind}, an encoder with a decoder (seq2seq); causal_lm "
            "needs a causal model, such as llama or gpt2"
        )
    if kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise ModelError(
            f"model.source: transformers has no causal language model of type {kind!r}; use one "
            "that it supports, such as llama or gpt2"
        )
    configuration = configuration_of(kind, {**given, **overrides})
    configuration.use_cache = False
    limit = getattr(configuration, "max_position_embeddings", None)
    if limit is not None and (spec.length or 0) > limit:
        raise ModelError(f"model.length: {spec.length}; this model reads at most {limit} tokens")
    configuration.pad_token_id = padding_of(configuration)
    return configuration


def padding_of(configuration: Any) -> int:
    """The token that stands where nothing is. No model sees it, so any will do."""
    for name in ("pad_token_id", "eos_token_id"):
        found = getattr(configuration, name, None)
        for one in found if isinstance(found, list) else [found]:
            if isinstance(one, int) and 0 <= one < configuration.vocab_size:
                return one
    return 0


def _check_sequences(network: Any, length: int, whole: int, kind: str) -> None:
    """Refuse a model that answers a sequence differently within a record than by itself.

    A state that is carried along, a window of its own, or attention to what comes later would carry
    one sequence, or padding, into another.

    Raises:
        ModelError: If it does.
    """
    if next(network.parameters()).is_meta:
        return
    model = LanguageModel(network, {}, (), length)
    generator = torch.Generator().manual_seed(0)
    short = max(2, length // 4)
    sizes = [length] if whole < length + short else [short, length]
    tokens = [torch.randint(model.vocabulary, (size,), generator=generator) for size in sizes]
    record = torch.zeros(1, 2, whole, dtype=torch.int32)
    record[0, 0, : sum(sizes)] = torch.cat(tokens)
    record[0, 1, : sum(sizes)] = torch.cat(
        [torch.full((size,), 2 * number) for number, size in enumerate(sizes, start=1)]
    )
    network.eval()
    try:
        with torch.no_grad():
            together = model(record)[0]
            alone = torch.cat([network(input_ids=one[None]).logits[0] for one in tokens])
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelError(
            f"model.source: this {kind} cannot be told which tokens see one another ({reason}), so "
            "that sequences and padding cannot be kept apart; use a model such as llama or gpt2"
        ) from None
    finally:
        network.train()
    apart = float((together[: len(alone)] - alone).abs().max())
    if not apart <= _TOLERANCE * float(alone.abs().max()):
        raise ModelError(
            f"model.source: this {kind} does not keep the sequences of a record apart: its answers "
            "within a record differ from those to a sequence alone. Use a model with full causal "
            "attention, such as llama or gpt2, or a smaller model.length if it attends to a window"
        )
