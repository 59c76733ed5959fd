"""The trusted core stays as small as is promised, and its page says what it holds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.tiers import ROOT, TIERS, lines, third_parties, tier, written_into

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


def test_the_picture_of_the_tiers_has_their_sizes_within_ten_per_cent() -> None:
    picture = (ROOT / "CONTRIBUTING.md").read_text("utf-8").split("```")[1]
    names = "trusted core|core|engine|auditor|reports|extensions"
    sizes = rf"({names}) [─ ]+(\d+) files, ([\d,]+) lines"
    shown = {
        name: (int(files), int(size.replace(",", "")))
        for name, files, size in re.findall(sizes, picture)
    }
    core = [path for name in ("engine", "auditor", "reports") for path in tier(name)]
    tiers = {name: tier(name) for name in TIERS} | {"core": core}
    assert shown.keys() == tiers.keys()
    for name, paths in tiers.items():
        assert shown[name] == pytest.approx((len(paths), lines(paths)), rel=0.1), (
            f"{name}: write the sizes of python -m tests.tiers into the picture"
        )


def test_readme_has_the_trusted_cores_size() -> None:
    core = tier("trusted core")
    readme = " ".join((ROOT / "README.md").read_text("utf-8").split())
    assert f"{len(core)} files, {lines(core):,} lines with their docstrings" in readme
