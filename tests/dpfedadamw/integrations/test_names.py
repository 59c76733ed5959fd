"""Programs import recorders and trackers by names that stay, wherever the code is."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

from dpfedadamw import integrations

ROOT = Path(__file__).parents[3]
NAMES = ("evidence", "flower", "gradients", "opacus", "tracking", "trainer", "updates")


def test_there_is_a_name_for_each_recorder_and_for_trackers() -> None:
    assert sorted(found.name for found in pkgutil.iter_modules(integrations.__path__)) == [*NAMES]


@pytest.mark.parametrize("name", NAMES)
def test_each_name_has_the_very_objects_of_the_extension(name: str) -> None:
    needs = {"trainer": "transformers", "flower": "flwr"}
    if name in needs:
        pytest.importorskip(needs[name])
    folder = "trackers" if name == "tracking" else "recorders"
    alias = importlib.import_module(f"dpfedadamw.integrations.{name}")
    real = importlib.import_module(f"dpfedadamw.extensions.{folder}.{name}")
    assert alias.__all__
    for one in alias.__all__:
        assert getattr(alias, one) is getattr(real, one)
    assert sorted(alias.__all__) == sorted(getattr(real, "__all__", alias.__all__))


def test_every_import_that_a_page_shows_is_among_them() -> None:
    found = set()
    for page in [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]:
        shown = r"^ *(from dpfedadamw\.integrations[.\w]* import [\w, ]+)$"
        for line in re.findall(shown, page.read_text("utf-8"), re.MULTILINE):
            (node,) = ast.parse(line.strip()).body
            assert isinstance(node, ast.ImportFrom)
            source = (ROOT / f"{node.module}".replace(".", "/")).with_suffix(".py").read_text()
            for alias in node.names:
                assert f'"{alias.name}"' in source, line
            found.add(node.module)
    assert len(found) == 5
