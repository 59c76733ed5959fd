"""What CONTRIBUTING.md names is there."""

from __future__ import annotations

import re

import pytest

from tests.tiers import ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
# Paths from the root whose names are not to be filled in.
NAMED = sorted(
    {
        path
        for path in re.findall(r"`((?:dpfedadamw|audit|reports|tests|specs|docs)/[\w./-]+)`", PAGE)
        if "NAME" not in path
    }
)


def test_every_path_that_it_names_is_there() -> None:
    assert len(NAMED) > 60
    assert [path for path in NAMED if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("anchor", sorted(set(re.findall(r"\]\(#([\w-]+)\)", PAGE))))
def test_every_link_within_it_leads_to_a_heading(anchor: str) -> None:
    headings = re.findall(r"^#+ (.+)$", PAGE, re.MULTILINE)
    assert anchor in {re.sub(r"[^\w -]", "", one).lower().replace(" ", "-") for one in headings}
