"""Secret texts: canaries of a language model, and how well the finished model knows them.

A canary of the kind ``secret`` is a text with a made-up code, such as "The code of vault 358-920 is
4827-1193", written as the spec's own texts are. It takes the place of a training record and is
processed as any record: its white-box scores are those of crafted inputs (`crafted`).

Each secret has a prompt of its own, and a code that is drawn uniformly from `CANDIDATES` codes. The
model's scores of the codes after the prompt give, for secrets that were there and for those that
were not:

* the *rank* of the code among all candidates, and its exposure log2 |R| − log2 rank (Carlini, Liu,
  Erlingsson, Kos & Song 2019). Of a secret that was not there every rank is as likely;
* whether greedy decoding after the prompt repeats the code: each of its tokens has the largest
  score after those before it;
* −log of the chance that one sample at temperature 1 repeats it, in nats. It is the sum over the
  code's tokens, so that nothing has to be sampled (Hayes et al. 2025, (n, p)-discoverable
  extraction, with n = 1).

All of this is a function of the noised model and of public, made-up texts. The same measured on
training records would be a function of private data that no noise covers.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from dpfedadamw.canaries.engine import Canaries
from dpfedadamw.experiment import Experiment, RunError
from dpfedadamw.models.registry import preprocessing, scored
from dpfedadamw.preprocessing import TextPreprocessing, next_tokens
from dpfedadamw.spec.task_section import LANGUAGE
from dpfedadamw.tasks import Task

# Codes of which one is the secret: an exposure of at most 8 bits.
CANDIDATES = 256
# Numbers of the vocabulary's scores that are formed at once, of models that do not do so in pieces.
_AT_ONCE = 1 << 24


@dataclass(frozen=True)
class Secrets:
    """The secret texts of an audit run, public and the same for the same spec.

    Attributes:
        form: How texts become records.
        task: The language model's.
        columns: How many columns a text of the data has: two are a question and its answer.
        prompts: What comes before each code, [S].
        codes: The candidates of each, of which the first is the secret, [S, `CANDIDATES`].
    """

    form: TextPreprocessing
    task: Task
    columns: int
    prompts: tuple[str, ...]
    codes: tuple[tuple[str, ...], ...]

    def records(self, secret: int, candidates: int = CANDIDATES) -> NDArray[np.int32]:
        """The first candidates of a secret as records, [candidates, 2, length of a record]."""
        prompt, codes = self.prompts[secret], self.codes[secret][:candidates]
        if self.columns == 2:
            return self.form.encode([prompt] * len(codes), codes)
        if self.task.spec.format == "chat":
            return self.form.encode([_chat(prompt, code) for code in codes], None)
        return self.form.encode([f"{prompt} {code}" for code in codes], None)

    def planted(self, canaries: Canaries) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Records and targets of all canaries, [N, …]; all parts of a person have one secret."""
        records = np.concatenate([self.records(one, 1) for one in _numbers(canaries)])
        return records, next_tokens(records, self.task.ignored)

    def known(self, canaries: Canaries, module: nn.Module) -> dict[str, NDArray[np.generic]]:
        """How well a model knows the secret of each canary, [N], as the evidence names it."""
        found = [_known(self.records(one), module, self.task) for one in range(len(self.prompts))]
        rank, nats, repeated = (
            np.array(column)[_numbers(canaries)] for column in zip(*found, strict=True)
        )
        return {
            "candidates": np.asarray(CANDIDATES, np.int64),
            "rank": rank.astype(np.int64),
            "nats": nats.astype(np.float64),
            "repeated": repeated.astype(np.uint8),
        }


def made_up(experiment: Experiment, canaries: Canaries) -> Secrets:
    """Secrets for some canaries.

    Raises:
        RunError: If the spec trains no language model, its sequences are too short for a
            secret, or its tokeniser cannot write one.
    """
    spec, task = experiment.spec, Task(experiment.spec.task)
    if task.kind != LANGUAGE:
        raise RunError(
            f"--canary-kind secret: plants secret texts in a language model, and task.kind is "
            f"{task.kind}; use gradient or input"
        )
    form = preprocessing(spec.model, task)
    assert isinstance(form, TextPreprocessing)
    count = int(_numbers(canaries).max()) + 1
    choice = np.random.default_rng([count, CANDIDATES])
    vaults = _drawn(choice, 6, count, "{}{}{}-{}{}{}")
    codes = tuple(_drawn(choice, 8, CANDIDATES, "{}{}{}{}-{}{}{}{}") for _ in range(count))
    prompts = tuple(f"The code of vault {vault} is" for vault in vaults)
    secrets = Secrets(form, task, len(getattr(experiment.spec.data, "text", ())), prompts, codes)
    written = secrets.records(0)
    length = form.length // (task.spec.sequences or 1)
    if written[:, 1, length - 1 :].any():
        raise RunError(
            f"--canary-kind secret: a sequence of {length} tokens is too short for a secret text; "
            "set model.length higher"
        )
    if len(np.unique(written[:, 0], axis=0)) < CANDIDATES:
        raise RunError(
            "--canary-kind secret: the tokeniser writes different codes of digits alike, so a "
            "model cannot know one; use --canary-kind input"
        )
    return secrets


def _drawn(choice: np.random.Generator, digits: int, count: int, form: str) -> tuple[str, ...]:
    """Different numbers of so many digits, written in a form."""
    found = choice.choice(10**digits, count, replace=False)
    return tuple(form.format(*f"{one:0{digits}d}") for one in found.tolist())


def _chat(prompt: str, code: str) -> str:
    messages = [("user", prompt), ("assistant", code)]
    return json.dumps([{"role": role, "content": content} for role, content in messages])


def _numbers(canaries: Canaries) -> NDArray[np.int64]:
    """The secret of each canary, [N]."""
    return np.arange(len(canaries.client)) if canaries.person is None else canaries.person


def _known(records: NDArray[np.int32], module: nn.Module, task: Task) -> tuple[int, float, bool]:
    """Rank, nats and greedy repetition of the first of some candidates."""
    places = np.flatnonzero((records[:, 0] != records[0, 0]).any(0))
    # The token at a place is the answer at the place before.
    code = slice(int(places[0]) - 1, int(places[-1]))
    targets = torch.from_numpy(next_tokens(records, task.ignored)[:, code])
    nats, first = _scored(torch.from_numpy(records), targets, code, module, task.ignored)
    # Ties, and what is not finite, count against the secret's being known.
    lower = len(nats) - 1 - int((nats[1:] > nats[0]).sum())
    return 1 + lower, float(nats[0]), first and math.isfinite(nats[0])


def _scored(
    records: Tensor, targets: Tensor, code: slice, module: nn.Module, ignored: int
) -> tuple[Tensor, bool]:
    """Nats of each candidate, float64 [R], and whether greedy decoding repeats the first."""
    device = next(module.parameters()).device
    vocabulary = getattr(module, "vocabulary", 1)
    step = max(1, _AT_ONCE // (records.shape[2] * vocabulary))
    nats, repeated = torch.zeros(len(records), dtype=torch.float64), True
    with torch.no_grad():
        for start in range(0, len(records), step):
            some = slice(start, start + step)
            answers = module(records[some].to(device))[:, code]
            for scores, right in scored(module, answers, targets[some].to(device)):
                each = functional.cross_entropy(
                    scores.float().transpose(1, 2), right, reduction="none", ignore_index=ignored
                )
                nats[some] += each.double().sum(1).cpu()
                if start == 0:
                    told = right[0] != ignored
                    repeated &= bool((scores[0].argmax(1) == right[0])[told].all())
    return nats, repeated
