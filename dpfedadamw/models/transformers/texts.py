"""Texts as records of a language model: tokens by the publisher's tokeniser, in sequences."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfedadamw.errors import DataError
from dpfedadamw.models.transformers.keys import TransformerSpec
from dpfedadamw.models.transformers.language import configure, padding_of
from dpfedadamw.models.transformers.records import read_tokeniser
from dpfedadamw.models.transformers.sources import Source, libraries, locate
from dpfedadamw.preprocessing import TextPreprocessing, in_sequences
from dpfedadamw.tasks import Task

_CHAT, _ANSWER = "chat", "answer"
_ASSISTANT = "assistant"

_Told = tuple[list[int], list[bool]]
"""Tokens, and whether each is to be predicted."""


def preprocessing_of(spec: TransformerSpec, task: Task) -> TextPreprocessing:
    """What a language model needs of its records.

    Raises:
        ModelError: If its files are missing.
    """
    libraries()
    source = locate(spec)
    configuration = configure(spec, source)
    assert source is not None
    length, sequences = spec.length or 128, task.spec.sequences or 1
    padding = padding_of(configuration)
    of_task = json.dumps(task.spec.to_mapping(), sort_keys=True)
    fingerprint = f"{source.tokeniser_digest(length)} {padding} {of_task}"
    return TextPreprocessing(
        encode=_Encoder(source, task, length, sequences, padding),
        length=length * sequences,
        padding=padding,
        fingerprint=hashlib.sha256(fingerprint.encode()).hexdigest(),
        vocabulary=configuration.vocab_size,
        types=2 * sequences + 1,
    )


class _Encoder:
    """Turns texts into records with the publisher's tokeniser, which is read at the first call."""

    def __init__(
        self, source: Source, task: Task, length: int, sequences: int, padding: int
    ) -> None:
        self._source = source
        self._chat = task.spec.format == _CHAT
        self._answer = task.spec.loss_on == _ANSWER
        self._size = length, sequences, padding
        self._tokeniser: Any = None
        # Texts that were read before: they come a chunk at a time, in the order of the table.
        self._before = 0

    def __call__(
        self, texts: Sequence[str], second_texts: Sequence[str] | None
    ) -> NDArray[np.int32]:
        """Texts, and second texts or None, to records int32 [n, 2, length of a record].

        Raises:
            ModelError: If the model came without a tokeniser.
            DataError: If a text is no list of messages where it must be one.
        """
        if self._tokeniser is None:
            self._tokeniser = read_tokeniser(self._source)
        seconds: Sequence[str | None] = second_texts or [None] * len(texts)
        found = self._chats(texts, seconds) if self._chat else self._plain(texts, seconds)
        length, sequences, padding = self._size
        records = [in_sequences(*one, length, sequences, padding) for one in found]
        self._before += len(texts)
        return np.stack(records) if records else np.zeros((0, 2, length * sequences), np.int32)

    def _plain(self, texts: Sequence[str], seconds: Sequence[str | None]) -> Iterator[_Told]:
        """The text as it is; of two, one after another with a line break between them."""
        end = self._tokeniser.eos_token_id
        for first, second in zip(texts, seconds, strict=True):
            tokens = self._tokens(first if second is None else f"{first}\n", True)
            told = [not (self._answer and second is not None)] * len(tokens)
            if second is not None:
                more = self._tokens(second, False)
                tokens, told = tokens + more, told + [True] * len(more)
            if end is not None and tokens[-1:] != [end]:
                tokens, told = [*tokens, end], [*told, True]
            yield tokens, told

    def _tokens(self, text: str, special: bool) -> list[int]:
        found = self._tokeniser(text, add_special_tokens=special, verbose=False)["input_ids"]
        return [int(one) for one in found]

    def _chats(self, texts: Sequence[str], seconds: Sequence[str | None]) -> Iterator[_Told]:
        """Messages by the chat template, and which tokens are the assistant's."""
        if not self._tokeniser.chat_template:
            raise DataError(
                "task.format: found chat, but the tokeniser in model.source has no chat template; "
                "use plain, or a model that was made for chats"
            )
        pairs = zip(texts, seconds, strict=True)
        for row, (first, second) in enumerate(pairs, start=self._before + 1):
            if second is None:
                messages = _messages(first, row)
            else:
                messages = [
                    {"role": "user", "content": first},
                    {"role": _ASSISTANT, "content": second},
                ]
            yield self._told(messages, row)

    def _told(self, messages: list[dict[str, str]], row: int) -> _Told:
        tokens = self._rendered(messages, row)
        if not self._answer:
            return tokens, [True] * len(tokens)
        told = [False] * len(tokens)
        for place, message in enumerate(messages):
            if message["role"] != _ASSISTANT:
                continue
            before = self._rendered(messages[:place], row, begun=True)
            after = self._rendered(messages[: place + 1], row)
            if tokens[: len(before)] != before or tokens[: len(after)] != after:
                raise DataError(
                    "task.loss_on: found answer, but the tokeniser's chat template changes a "
                    "message once others follow, so that answers cannot be told apart; use text"
                )
            told[len(before) : len(after)] = [True] * (len(after) - len(before))
        return tokens, told

    def _rendered(self, messages: list[dict[str, str]], row: int, begun: bool = False) -> list[int]:
        """Tokens of messages; with the beginning of an answer where one is asked for."""
        try:
            text = self._tokeniser.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=begun
            )
        except Exception as error:
            # What the template says of messages may quote them.
            raise DataError(
                f"data.text: text {row}: the tokeniser's chat template cannot write its messages "
                f"({type(error).__name__}); use the roles that it knows, such as user and "
                "assistant by turns"
            ) from None
        return self._tokens(text, False)


def _messages(text: str, row: int) -> list[dict[str, str]]:
    """A JSON list of messages.

    Raises:
        DataError: If it is none; nothing of it is shown.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    right = isinstance(found, list) and found and all(isinstance(one, dict) for one in found)
    if not right or not all(
        isinstance(one.get("role"), str) and isinstance(one.get("content"), str) for one in found
    ):
        raise DataError(
            f"data.text: text {row} is no JSON list of messages, each with role and content as "
            'text: [{"role": "user", "content": "…"}, …]'
        )
    return [{"role": one["role"], "content": one["content"]} for one in found]
