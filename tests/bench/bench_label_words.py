"""How often a causal model answers with the right one of two words, before and after tuning.

    python tests/bench/bench_label_words.py prepare SST-2 FOLDER
    python tests/bench/bench_label_words.py measure MODEL TABLE.csv [ADAPTER …] [--every 1]

`prepare` writes train.tsv (its first 20,000 reviews) and dev.tsv of SST-2 as tables of questions
and answers, sst2-train.csv and sst2-dev.csv, which tests/bench/label-words.yaml reads. `measure`
compares what a model, and each exported adapter with it, gives the two words after each question.
Not collected by pytest.
"""

from __future__ import annotations

import argparse
import csv
import math
import time
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

WORDS = ("negative", "positive")


def question(review: str) -> str:
    """What the model is asked of a review."""
    return f"Review: {review.strip()}\nSentiment:"


def prepare(source: Path, folder: Path) -> None:
    for part in ("train", "dev"):
        with (source / f"{part}.tsv").open(encoding="utf-8", newline="") as stream:
            rows = list(csv.reader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))[1:20_001]
        with (folder / f"sst2-{part}.csv").open("w", encoding="utf-8", newline="") as stream:
            written = csv.writer(stream, lineterminator="\n")
            written.writerow(["question", "answer"])
            written.writerows([question(review), WORDS[int(label)]] for review, label in rows)


@torch.inference_mode()
def word_of(model: Any, tokeniser: Any, asked: str) -> str:
    """The word that is likelier after a question; each word is one token."""
    (first,), (second,) = (tokeniser(word, add_special_tokens=False)["input_ids"] for word in WORDS)
    scores = model(**tokeniser(f"{asked}\n", return_tensors="pt")).logits[0, -1]
    return WORDS[int(scores[second] > scores[first])]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("prepare")
    one.add_argument("source", type=Path)
    one.add_argument("folder", type=Path)
    two = commands.add_parser("measure")
    two.add_argument("model")
    two.add_argument("table", type=Path)
    two.add_argument("adapters", nargs="*")
    two.add_argument("--every", type=int, default=1, help="of the table, each row of so many")
    options = parser.parse_args()
    if options.command == "prepare":
        prepare(options.source, options.folder)
        return
    torch.set_num_threads(1)
    with options.table.open(encoding="utf-8", newline="") as stream:
        rows = [(row["question"], row["answer"]) for row in csv.DictReader(stream)][
            :: options.every
        ]
    tokeniser = AutoTokenizer.from_pretrained(options.model)
    for adapter in (None, *options.adapters):
        model = AutoModelForCausalLM.from_pretrained(options.model)
        if adapter:
            model = PeftModel.from_pretrained(model, adapter)
        begun = time.process_time()
        given = [word_of(model, tokeniser, asked) for asked, _ in rows]
        share = sum(word == right for word, (_, right) in zip(given, rows, strict=True)) / len(rows)
        error = math.sqrt(share * (1 - share) / len(rows))
        print(
            f"{adapter or 'before'}: {share:.1%} of {len(rows)} right "
            f"(standard error {error:.1%}), "
            f"{given.count(WORDS[1]) / len(rows):.1%} answered {WORDS[1]}, "
            f"{time.process_time() - begun:.0f} s of processor time"
        )


if __name__ == "__main__":
    main()
