"""Sentences in the files of SST-2 and a small BERT that reads them; a fixture for several tests."""

from __future__ import annotations

import random

import pytest
import torch

from tests.dpfedadamw.data import published

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
GOOD, BAD = ("fine", "great", "warm"), ("dull", "flat", "cold")
WORDS = ("a", "the", "film", "play", "very", *GOOD, *BAD)
LENGTH = 8

SPEC = """
version: 1
name: texts
data:
  dataset: sst2
  path: {folder}/sst2
  clients: 2
  partition: {{kind: iid}}
model:
  name: transformers
  source: {folder}/encoder
  length: 8
  fine_tuning: {{kind: lora, rank: 2, alpha: 4, dropout: 0.1}}
algorithm: {{name: dp-fedadamw, learning_rate: 0.05}}
federation: {{rounds: 8, clients_per_round: 2, local_steps: 6}}
privacy:
  {{unit: record, clipping_norm: 1.0, noise_multiplier: 2.0, delta: 1.0e-5,
   sampling: {{kind: poisson, expected_batch_size: 3}}}}
"""


def sentences(neutral: int) -> bytes:
    """A table of 40 sentences, each of so many neutral words and one that tells the label."""
    drawn = random.Random(0)
    rows = ["sentence\tlabel"]
    for number in range(40):
        words = [*drawn.choices(WORDS[:5], k=neutral), drawn.choice((BAD, GOOD)[number % 2])]
        rows.append(f"{' '.join(words)}\t{number % 2}")
    return "".join(f"{row}\n" for row in rows).encode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small BERT with its tokeniser, and sentences in the files of SST-2."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("peft")
    place = tmp_path_factory.mktemp("texts")
    encoder = place / "encoder"
    encoder.mkdir()
    (encoder / "vocab.txt").write_text("".join(f"{word}\n" for word in (*SPECIAL, *WORDS)))
    transformers.BertTokenizer(vocab=str(encoder / "vocab.txt")).save_pretrained(encoder)
    torch.manual_seed(0)
    transformers.BertModel(
        transformers.BertConfig(
            vocab_size=len(SPECIAL) + len(WORDS),
            hidden_size=12,
            num_hidden_layers=1,
            num_attention_heads=3,
            intermediate_size=24,
            max_position_embeddings=16,
        )
    ).save_pretrained(encoder)
    # Sentences of other lengths, so that no test record was trained on.
    tables = {"train.tsv": sentences(3), "dev.tsv": sentences(4)}
    published.write_folder(place / "sst2", tables)
    (place / "texts.yaml").write_text(SPEC.format(folder=place))
    return place
