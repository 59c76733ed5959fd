"""Causal models from GGUF files: the numbers that the file stands for, in float32, once."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from dpfedadamw.errors import ModelError
from dpfedadamw.models.transformers import language
from dpfedadamw.models.transformers.keys import AnyTransformerSpec
from dpfedadamw.models.transformers.sources import locate
from tests.dpfedadamw.models.small_language_models import PAIRS

gguf = pytest.importorskip("gguf")

WIDTH, INNER, HEADS, KEYS, WORDS = 64, 96, 4, 2, 40
# By their names in a file: the shape, and what transformers calls them.
LAYER = {
    "attn_norm": ((WIDTH,), "input_layernorm"),
    "ffn_norm": ((WIDTH,), "post_attention_layernorm"),
    "attn_q": ((WIDTH, WIDTH), "self_attn.q_proj"),
    "attn_k": ((WIDTH // 2, WIDTH), "self_attn.k_proj"),
    "attn_v": ((WIDTH // 2, WIDTH), "self_attn.v_proj"),
    "attn_output": ((WIDTH, WIDTH), "self_attn.o_proj"),
    "ffn_gate": ((INNER, WIDTH), "mlp.gate_proj"),
    "ffn_up": ((INNER, WIDTH), "mlp.up_proj"),
    "ffn_down": ((WIDTH, INNER), "mlp.down_proj"),
}
ARRAYS = {
    "token_embd.weight": ((WORDS, WIDTH), "model.embed_tokens.weight"),
    "output_norm.weight": ((WIDTH,), "model.norm.weight"),
    **{
        f"blk.0.{name}.weight": (shape, f"model.layers.0.{known}.weight")
        for name, (shape, known) in LAYER.items()
    },
}


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A file of a Llama with one layer, whose matrices have 8 bits a number."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path, random = tmp_path / "model.gguf", np.random.default_rng(0)
    made = gguf.GGUFWriter(path, "llama")
    made.add_context_length(64)
    made.add_embedding_length(WIDTH)
    made.add_block_count(1)
    made.add_feed_forward_length(INNER)
    made.add_head_count(HEADS)
    made.add_head_count_kv(KEYS)
    made.add_rope_dimension_count(WIDTH // HEADS)
    made.add_layer_norm_rms_eps(1e-5)
    made.add_vocab_size(WORDS)
    made.add_tokenizer_model("gpt2")
    made.add_token_list(["<s>", "</s>", "ab", *map(chr, range(97, 97 + WORDS - 3))])
    made.add_token_merges(["a b"])
    made.add_bos_token_id(0)
    made.add_eos_token_id(1)
    for name, (shape, _) in ARRAYS.items():
        numbers = random.normal(0, 0.1, shape).astype(np.float32)
        if len(shape) == 1:
            made.add_tensor(name, numbers)
        else:
            kind = gguf.GGMLQuantizationType.Q8_0
            made.add_tensor(name, gguf.quantize(numbers, kind), raw_dtype=kind)
    made.write_header_to_file()
    made.write_kv_data_to_file()
    made.write_tensors_to_file()
    made.close()
    return path


def spec_of(source):
    return AnyTransformerSpec(source=str(source), length=8, fine_tuning=PAIRS)


def paired(values, heads):
    """Rows of queries and keys as transformers has them; a file pairs the halves of each head."""
    halves = values.reshape(heads, -1, 2, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)


def test_the_model_has_the_numbers_that_the_file_stands_for(file):
    found = load_file(locate(spec_of(file)).folder / "model.safetensors")
    for one in gguf.GGUFReader(file).tensors:
        values = gguf.dequantize(one.data, one.tensor_type)
        if "attn_q" in one.name or "attn_k" in one.name:
            values = paired(values, HEADS if "attn_q" in one.name else KEYS)
        np.testing.assert_array_equal(found[ARRAYS[one.name][1]].numpy(), values, one.name)
    assert {one.dtype for one in found.values()} == {torch.float32}


def test_a_run_is_told_what_its_model_was_made_of_and_trains_pairs_next_to_it(file):
    model = language.build(spec_of(file), (2, 8))
    assert model.origin["source"] == "a local GGUF file, dequantised"
    scores = model(torch.tensor([[[5, 6, 7, 8, 9, 10, 11, 12], [0] * 8]], dtype=torch.int32))
    assert torch.isfinite(scores).all()
    assert {name.split(".")[-3] for name, one in model.named_parameters() if one.requires_grad} == {
        "lora_A",
        "lora_B",
    }


def test_a_file_is_read_once_without_a_word(file, capfd):
    folder = locate(spec_of(file)).folder
    assert capfd.readouterr() == ("", "")
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert locate(spec_of(file)).folder == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == before
    assert [one.name for one in folder.parent.iterdir()] == [folder.name]


@pytest.mark.parametrize("content", [b"", b"GGUF", b"GGUF" + bytes(range(200)), b"no model"])
def test_a_broken_file_is_refused_in_one_line_and_leaves_nothing(content, file, tmp_path):
    file.write_bytes(content)
    with pytest.raises(ModelError, match=r"model\.source: .*model\.gguf cannot be read") as told:
        locate(spec_of(file))
    assert "\n" not in str(told.value)
    assert list((tmp_path / "cache" / "dpfedadamw" / "gguf").iterdir()) == []


def test_what_would_be_right_is_said(file, monkeypatch):
    with pytest.raises(ModelError, match=rf"holds no config\.json; give {file}$"):
        locate(spec_of(file.parent)).configuration()
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ModelError, match=r"pip install 'dpfedadamw\[transformers,gguf\]'"):
        locate(spec_of(file))
