"""Causal models at a size for tests, with a tokeniser of single letters: folders, and records."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dpfedadamw.models.transformers import language
from dpfedadamw.models.transformers.keys import (
    AnyTransformerSpec,
    FineTuningSpec,
    LoraSpec,
    PlainTuningSpec,
)
from dpfedadamw.models.transformers.language import LanguageModel
from dpfedadamw.preprocessing import in_sequences, next_tokens
from dpfedadamw.spec.task_section import LanguageTask
from dpfedadamw.tasks import IGNORED, Task

LETTERS = "abcdefghijklmnopqrstuvwxyz .\n<>"
SPECIAL = ("<pad>", "<s>", "</s>")
VOCABULARY = len(SPECIAL) + len(LETTERS)
LENGTH, SEQUENCES, PADDING = 10, 3, 0
TASK = Task(LanguageTask(sequences=SEQUENCES))
ALL, PAIRS = PlainTuningSpec(kind="all"), LoraSpec(rank=2, alpha=4.0, dropout=0.0)
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
_OF_LLAMA = {
    "model_type": "llama", "vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 24,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "initializer_range": 0.1,
}  # fmt: skip
SMALLEST = {
    **_OF_LLAMA, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1,
}  # fmt: skip
CONFIGURATIONS = {
    "llama": {**_OF_LLAMA, "tie_word_embeddings": False},
    "tied llama": {**_OF_LLAMA, "tie_word_embeddings": True},
    # Its layers are Conv1D, its weights are tied, and its positions are learnt.
    "gpt2": {
        "model_type": "gpt2", "vocab_size": VOCABULARY, "n_embd": 16, "n_layer": 2, "n_head": 4,
        "n_positions": 64, "bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.1,
    },
}  # fmt: skip


def folder_of(
    kind: str,
    parent: Path,
    template: str | None = TEMPLATE,
    configuration: Mapping[str, Any] | None = None,
    letters: str = LETTERS,
) -> Path:
    """A folder with the configuration of a small model and a tokeniser of some letters."""
    pytest.importorskip("tokenizers")
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    folder = parent / kind.replace(" ", "-")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(configuration or CONFIGURATIONS[kind]))
    numbers = {token: number for number, token in enumerate([*SPECIAL, *letters])}
    tokeniser = Tokenizer(models.BPE(vocab=numbers, merges=[], unk_token="<s>"))
    tokeniser.decoder = decoders.Fuse()
    whole = PreTrainedTokenizerFast(
        tokenizer_object=tokeniser, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    whole.chat_template = template
    whole.save_pretrained(folder)
    return folder


def spec_of(folder: Path, tuning: FineTuningSpec = ALL, again: bool = False) -> AnyTransformerSpec:
    return AnyTransformerSpec(
        name="transformers", weights="random", source=str(folder), revision=None,
        fine_tuning=tuning, length=LENGTH, gradient_checkpointing=again,
    )  # fmt: skip


def small(kind: str, tuning: FineTuningSpec, parent: Path, again: bool = False) -> LanguageModel:
    """A small model in float64, every trained parameter off zero.

    Args:
        kind: Of `CONFIGURATIONS`.
        tuning: What is trained.
        parent: Where its folder is made.
        again: Whether its layers are computed a second time on the way back.
    """
    torch.manual_seed(0)
    spec = spec_of(folder_of(kind, parent), tuning, again)
    model = language.build(spec, (2, LENGTH * SEQUENCES)).double().train()
    model.record_task = TASK
    for parameter in model.parameters():
        if parameter.requires_grad:
            # A factor at zero would hide the gradient of its partner.
            parameter.data += 0.1 * torch.randn_like(parameter)
    return model


def records_of(sizes: list[int], answers: list[int] | None = None) -> tuple[Tensor, Tensor]:
    """Records of so many tokens, and their targets; the last tokens alone where answers say."""
    generator = np.random.default_rng(1)
    records = np.stack(
        [
            in_sequences(
                generator.integers(3, VOCABULARY, size).tolist(),
                [place >= size - answer for place in range(size)],
                LENGTH, SEQUENCES, PADDING,
            )
            for size, answer in zip(sizes, answers or sizes, strict=True)
        ]
    )  # fmt: skip
    return torch.from_numpy(records), torch.from_numpy(next_tokens(records, IGNORED))
