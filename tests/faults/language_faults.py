"""Language models: what one record does to the gradient of another, and what counts as a record."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import numpy as np
import torch

from dpfedadamw import spec as specs
from dpfedadamw.clipping.engines import ClippedSum
from dpfedadamw.federation.rounds import Federation
from dpfedadamw.models.transformers.language import sequences_of
from dpfedadamw.preprocessing import next_tokens
from dpfedadamw.privacy import oracle
from dpfedadamw.run import checkpoints
from dpfedadamw.tasks import IGNORED
from tests.dpfedadamw.models.small_language_models import LENGTH, SEQUENCES, SMALLEST, folder_of
from tests.faults.fault import Fault, FaultGroup, Patch
from tests.runs import PRIVATE, SMALL

_WORDS = ("a cat sees the sea", "the dog finds bread", "we go", "no", "an old song of the moon")


@functools.cache
def _files() -> tempfile.TemporaryDirectory:
    """A folder with a small model and a table of texts, which lasts as long as the process."""
    kept = tempfile.TemporaryDirectory()
    folder_of("llama", Path(kept.name), configuration=SMALLEST)
    generator = np.random.default_rng(0)
    rows = ["author,text"]
    for row in range(120):
        words = generator.choice(_WORDS, int(generator.integers(1, 3)))
        rows.append(f"person{row // 2},{' '.join(words)}")
    (Path(kept.name) / "texts.csv").write_text("\n".join(rows) + "\n")
    return kept


def language_spec(overrides: tuple[str, ...] = (), rounds: int = 1) -> specs.Spec:
    """A language model of texts that trains in about a second."""
    folder = _files().name
    text = SMALL.format(
        algorithm="dp-fedavg", rounds=rounds, clients_per_round=2, privacy=PRIVATE,
        mode="reproducible", seed=", seed: 1",
    )  # fmt: skip
    data = (
        f"{{dataset: table, path: {folder}/texts.csv, text: [text], cache: {folder}/cache, "
        "clients: 2, partition: {kind: iid}}"
    )
    model = (
        f"{{name: transformers, source: {folder}/llama, weights: random, length: {LENGTH}, "
        "fine_tuning: all}"
    )
    replaced = (f"data={data}", f"model={model}", "name=texts")
    task = f"task={{kind: causal_lm, sequences: {SEQUENCES - 1}}}"
    batch = "privacy.sampling.expected_batch_size=8"
    return specs.loads(text, overrides=(*replaced, task, batch, *overrides))


PAIRS = "model.fine_tuning={{kind: lora, rank: {rank}, alpha: 4, dropout: 0.0}}"
_WIDE = {
    **SMALLEST, "hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2,
}  # fmt: skip


def adapter():
    """Pairs of 672 parameters on a small model."""
    return language_spec((PAIRS.format(rank=24),))


def wide_adapter():
    """Pairs of 21,504 parameters on a wider one."""
    folder = folder_of("wide", Path(_files().name), configuration=_WIDE)
    return language_spec((PAIRS.format(rank=16), f"model.source={folder}"))


def another_backbone(patch: Patch) -> None:
    """The run begins with one backbone, trains on another, and writes out the first again."""
    one_round, write, kept = Federation._round, checkpoints.write_weights, {}

    def frozen(module):
        return {name: one for name, one in module.named_parameters() if not one.requires_grad}

    def on_another(self, *asked):
        if not kept:
            generator = torch.Generator().manual_seed(1)
            for name, one in frozen(self.worker.flat.module).items():
                kept[name] = one.detach().clone()
                one.data += 0.05 * torch.randn(one.shape, generator=generator)
        return one_round(self, *asked)

    def put_back(path, model):
        for name, one in frozen(model).items():
            one.data.copy_(kept[name])
        write(path, model)

    patch.setattr(Federation, "_round", on_another)
    patch.setattr(checkpoints, "write_weights", put_back)


def _gradient(flat, loss):
    trained = [one for one in flat.module.parameters() if one.requires_grad]
    parts = torch.autograd.grad(loss, trained)
    return torch.cat([part.reshape(-1) for part in parts])


def _summed(flat, gradients, limit=1.0):
    """The sum of clipped gradients, whose author believes in what was done."""
    if not gradients:
        zero = torch.zeros(sum(p.numel() for p in flat.module.parameters() if p.requires_grad))
        return ClippedSum(zero, torch.zeros(0), torch.zeros(0), 0)
    whole = torch.stack(gradients)
    norms = whole.norm(dim=1).double()
    factors = (limit / norms.clamp(min=1e-30)).clamp(max=1.0)
    return ClippedSum((whole * factors[:, None].float()).sum(0), norms, norms * factors, 0)


def _loss(flat, records, targets, mean=True):
    task = flat.module.record_task
    losses = task.loss(flat.module(records), targets)
    return losses if mean else losses * (targets != IGNORED).sum(1)


def over_the_batch(engine, flat, parameters, batch, physical_batch_size):
    """The loss is the mean over the tokens of the batch, as `CrossEntropyLoss()` takes it."""
    flat.assign(parameters)
    records, targets = batch[0][:], batch[1]
    tokens = max(1, int((targets != IGNORED).sum()))
    found = [
        # Times the public number of records, so that its size is that of a mean over a record.
        _gradient(flat, _loss(flat, records[row : row + 1], targets[row : row + 1], False).sum()
                  * 8 / tokens)
        for row in range(len(targets))
    ]  # fmt: skip
    return _summed(flat, found)


def by_sequence(engine, flat, parameters, batch, physical_batch_size):
    """Each sequence of a document is clipped as if it were a record of its own."""
    flat.assign(parameters)
    records, found = batch[0][:], []
    for record in records:
        of = sequences_of(record[1])
        for number in range(1, int(of.max()) + 1):
            one = record.clone()
            one[1][of != number] = 0
            if int((of == number).sum()) < 2:
                continue
            targets = torch.from_numpy(next_tokens(one[None].numpy(), IGNORED))
            found.append(_gradient(flat, _loss(flat, one[None], targets).sum()))
    return _summed(flat, found)


def padding_seen(engine, flat, parameters, batch, physical_batch_size):
    """Texts are padded in front to the longest of the batch, and every token sees the padding."""
    flat.assign(parameters)
    records, targets = batch[0][:], batch[1]
    used = (records[:, 1] > 0).sum(1)
    longest, found = max(1, int(used.max())) if len(used) else 1, []
    for record, target, own in zip(records, targets, used.tolist(), strict=True):
        tokens = torch.zeros(1, longest, dtype=torch.int64)
        right = torch.full((1, longest), IGNORED)
        tokens[0, longest - own :], right[0, longest - own :] = record[0, :own], target[:own]
        scores = flat.module.network(input_ids=tokens, use_cache=False).logits
        found.append(_gradient(flat, flat.module.record_task.loss(scores, right).sum()))
    return _summed(flat, found)


def of(clipped_sum):
    def patch(patch: Patch) -> None:
        patch.setattr(oracle, "clipped_sum", clipped_sum)

    return patch


def one_sequence():
    return language_spec(("task.sequences=1", "model.length=20"))


GROUP = FaultGroup(
    27,
    "Language models",
    (
        Fault(
            "loss-over-the-tokens-of-the-batch",
            "a record's loss is divided by the tokens of the whole batch, so that a long record "
            "changes the weight of all others before they are clipped",
            "training loops with the default reduction of a cross-entropy over tokens",
            ("sensitivity",),
            one_sequence,
            of(over_the_batch),
        ),
        Fault(
            "padding-attended",
            "texts are padded in front to the longest of their batch without a mask, so that a "
            "long record moves what the others mean",
            "collators that pad to the left, and drop the attention mask",
            ("sensitivity",),
            one_sequence,
            of(padding_seen),
        ),
        Fault(
            "documents-split-into-records",
            "each sequence of a long document is clipped as a record of its own, so that one "
            "document has several times the influence that is claimed",
            "preprocessing that cuts texts into blocks before records are counted",
            ("sensitivity",),
            language_spec,
            of(by_sequence),
        ),
        *(
            Fault(
                f"adapter-on-another-backbone{where}",
                "low-rank pairs are trained on another release of the frozen backbone than the one "
                "that the run is committed to and the adapter is published for",
                "federations whose clients load a backbone by a name that can move",
                ("weights",),
                spec,
                another_backbone,
                says="are not those that the run began with",
            )
            for where, spec in (("", adapter), ("-in-a-larger-model", wide_adapter))
        ),
    ),
)
