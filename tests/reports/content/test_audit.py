"""What the audit's section says of a single block, and when it has a picture of the noise."""

from __future__ import annotations

import pytest

from reports.content.audit import Audit, Block, NoiseQuantile, _describe_quantiles, _one_shift
from reports.content.parts import INTERNAL, Report


@pytest.mark.parametrize(
    ("released", "where", "found"),
    [
        # The noise's share is 2; with 99.9 % it alone would end within 0.5 of that.
        (2.0, "0 % above", "That is within what noise alone explains."),
        (2.5, "25 % above", "That is within what noise alone explains."),
        (1.5, "25 % below", "That is within what noise alone explains."),
        (2.75, "37.5 % above", "What is above that is signal of the gradients, as it should be."),
        (1.25, "37.5 % below", "That is less noise than was charged."),
    ],
)
def test_a_block_is_said_to_have_less_noise_than_charged_only_below_all_that_noise_explains(
    released: float, where: str, found: str
) -> None:
    block = Block(name="all", size=3, predicted=2.0, released=released, half_width=0.5)
    assert _one_shift(block) == (
        f"The released mean is {where} the noise’s share. Noise alone would end within "
        f"25 % of it, with 99.9 %. {found}"
    )


@pytest.mark.parametrize(
    ("verdicts", "shown"),
    [
        ([], None),
        (["inside"], None),
        (
            ["inside", "inside"],
            "2 quantiles from probability 0.125 to 0.25; all of them are inside.",
        ),
        (
            ["inside", "below", "above"],
            "3 quantiles from probability 0.125 to 0.375; 2 are outside, the first at probability "
            "0.25.",
        ),
    ],
)
def test_two_quantiles_of_the_noise_are_enough_for_a_picture(
    verdicts: list[str], shown: str | None
) -> None:
    rows = tuple(
        NoiseQuantile.model_validate(
            {"level": place / 8, "expected": 0.0, "low": -1.0, "high": 1.0, "verdict": verdict}
        )
        for place, verdict in enumerate(verdicts, start=1)
    )
    audit = Audit(auditor=(), checks=(), second_moment=None, noise_quantiles=rows)
    text = _describe_quantiles(Report(INTERNAL, {Audit: audit}))
    if shown is None:
        assert text is None
    else:
        assert text is not None
        assert text.identifier == "noise-quantiles"
        assert text.alternative_text == f"Interval chart of {shown}"
