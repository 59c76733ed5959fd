"""What became of each batch that a loader drew: a step, a look without one, or nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from torch.utils.data import Sampler

from dpfedadamw.extensions.recorders.opacus.batches import Batches


class Given(Sampler[list[int]]):
    """Draws the batches that are given, one list of them for each pass."""

    def __init__(self, *passes: list[list[int]]) -> None:
        self.passes = [*passes]

    def __iter__(self) -> Any:
        yield from self.passes.pop(0)


def heard(what: str, workers: int = 0) -> list[Any]:
    """What a loop's batches come to.

    Args:
        what: Of the loop, in words: a number draws a batch of so many records, `look` passes it
            through the model, `pass` begins another pass, `none` finds it over, `step N` makes a
            step of N gradients, and `end` asks what is left over.
        workers: Processes that draw ahead.

    Returns:
        What each step and end gave; records are numbered as they were drawn.
    """
    loader = SimpleNamespace(batch_sampler=Given(), num_workers=workers)
    batches, found, drawn = Batches(loader), [], 0
    undo = batches.listen()
    words = iter(what.split())
    sizes: list[list[int]] = [[]]
    for word in what.replace("step ", "step-").split():
        if word == "pass":
            sizes.append([])
        elif word.isdigit():
            sizes[-1].append(int(word))
    for one in sizes:
        rows = []
        for size in one:
            rows.append([*range(drawn, drawn + size)])
            drawn += size
        loader.batch_sampler.passes.append(rows)
    current = iter(loader.batch_sampler)
    for word in words:
        if word == "pass":
            current = iter(loader.batch_sampler)
        elif word == "none":
            assert next(current, None) is None
        elif word == "look":
            batches.forward()
        elif word == "step":
            rows, unused, skipped = batches.of_step(int(next(words)))
            found.append((None if rows is None else rows.tolist(), unused, skipped))
        elif word == "end":
            found.append(batches.left_over())
        else:
            next(current)
    undo()
    return found


@pytest.mark.parametrize(
    ("what", "due"),
    [
        ("2 look step 2", [([0, 1], 0, 0)]),
        ("2 look step 2 3 look step 3 end", [([0, 1], 0, 0), ([2, 3, 4], 0, 0), (0, 0)]),
        # Of a batch that was looked at, and one that was not, no step was made.
        ("2 look 3 look step 3", [([2, 3, 4], 1, 0)]),
        ("2 3 look step 3", [([2, 3, 4], 0, 1)]),
        ("1 1 look 1 1 look step 1 end", [([3], 1, 2), (0, 0)]),
        # One that the end of a pass left undone is neither.
        ("2 pass 3 look step 3", [([2, 3, 4], 0, 0)]),
        ("2 look pass 3 look step 3", [([2, 3, 4], 1, 0)]),
        ("2 2 pass 3 look step 3", [([4, 5, 6], 0, 1)]),
        # A step of several batches, one after another, and what was drawn before it.
        ("2 look 3 look step 5", [([0, 1, 2, 3, 4], 0, 0)]),
        ("1 look 2 look 3 look step 5", [([1, 2, 3, 4, 5], 1, 0)]),
        ("1 2 look 3 look step 5", [([1, 2, 3, 4, 5], 0, 1)]),
        # An empty batch is one too.
        ("2 look step 2 0 look step 0", [([0, 1], 0, 0), ([], 0, 0)]),
        ("2 look 0 look step 0", [([], 1, 0)]),
        # A step of what nobody drew.
        ("step 3", [(None, 0, 0)]),
        ("2 look step 2 step 2", [([0, 1], 0, 0), (None, 0, 0)]),
        # More than was drawn.
        ("2 look step 9", [([0, 1], 0, 0)]),
        # What is left at the end.
        ("end", [(0, 0)]),
        ("2 end", [(0, 0)]),
        ("2 pass none end", [(0, 0)]),
        ("2 look end", [(1, 0)]),
        ("2 2 end", [(0, 1)]),
        ("2 look 2 2 look 2 pass 2 look end", [(3, 1)]),
    ],
)
def test_a_batch_is_a_steps_or_was_looked_at_or_passed_over(what: str, due: list[Any]) -> None:
    assert heard(what) == due


@pytest.mark.parametrize(
    ("what", "due"),
    [
        ("2 3 1 look step 2 look step 3 end", [([0, 1], 0, 0), ([2, 3, 4], 0, 0), (0, 0)]),
        ("2 3 1 look look step 5 look step 1", [([0, 1, 2, 3, 4], 0, 0), ([5], 0, 0)]),
        ("0 3 look step 0 look step 3", [([], 0, 0), ([0, 1, 2], 0, 0)]),
        ("2 3 end", [(0, 0)]),
    ],
)
def test_where_processes_draw_ahead_the_oldest_batch_is_the_one_that_came(
    what: str, due: list[Any]
) -> None:
    assert heard(what, workers=1) == due


def test_a_sampler_is_what_it_was_once_nobody_listens() -> None:
    sampler = Given([[5, 6]], [[7]])
    batches = Batches(SimpleNamespace(batch_sampler=sampler))
    undo = batches.listen()
    assert isinstance(sampler, Given)
    assert type(sampler).__name__ == "Given"
    assert [*sampler] == [[5, 6]]
    undo()
    assert type(sampler) is Given
    assert [*sampler] == [[7]]
    batches.forward()
    assert batches.of_step(2)[0].tolist() == [5, 6]
