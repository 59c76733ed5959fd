"""The trusted core stays as small as is promised, and its page says what it holds."""

from __future__ import annotations

from pathlib import Path

from tests.tiers import ROOT, lines, third_parties, tier, written_into

PAGE = Path("docs/trusted-core.md")


def test_the_trusted_core_has_at_most_6000_lines_in_40_files() -> None:
    core = tier("trusted core")
    assert len(core) <= 40
    assert lines(core) <= 6_000


def test_the_trusted_core_needs_no_package_but_these() -> None:
    assert set(third_parties(tier("trusted core"))) <= {
        "cryptography",
        "numpy",
        "safetensors",
        "torch",
    }


def test_the_page_has_the_tables_as_they_are() -> None:
    page = (ROOT / PAGE).read_text("utf-8")
    assert page == written_into(page), f"run: python -m tests.tiers {PAGE}"
