"""What varies together, and what is said where it cannot."""

from __future__ import annotations

import pytest

from tests.sweeps import problems_of


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "matrix: 3\n",
            "matrix: must be a section of axes, such as algorithm.learning_rate: [0.02, 0.05]",
        ),
        (
            "matrix: {federation.rounds: 3}\n",
            "matrix.federation.rounds: must be a list of values, or a section of fields with a "
            "list each",
        ),
        (
            "matrix: {federation.rounds: []}\n",
            "matrix.federation.rounds: must be a list of at least one value",
        ),
        (
            "matrix: {federation.rounds: [2, 2]}\n",
            "matrix.federation.rounds: 2 is listed twice; give every value and every label once",
        ),
        (
            "matrix: {federation.rounds: [2, 0]}\n",
            "federation.rounds: found 0; must be an integer from 1 to 1000000",
        ),
        (
            "matrix: {federation.turns: [2]}\n",
            "federation.turns: unknown key",
        ),
        (
            "matrix: {size: {federation.rounds: [2, 3], federation.local_steps: [1]}}\n",
            "lists that vary together must have equal length; federation.rounds has "
            "2, federation.local_steps has 1",
        ),
        (
            "matrix: {size: {federation.rounds: [2, 3], label: [a, 7]}}\n",
            "a label must be text of 1 to 100 characters",
        ),
        (
            "matrix: {algorithm: [{name: dp-fedavg}], algorithm.learning_rate: [1.0]}\n",
            "algorithm.learning_rate is also set by algorithm; only one axis may set a field",
        ),
    ],
)
def test_axes_that_cannot_be_swept_are_told_with_their_place(text, message, tmp_path):
    said = problems_of(tmp_path, text)
    assert message in said
    assert said.startswith("sweep.yaml:")
