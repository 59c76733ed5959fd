"""How algorithms of other packages are found, and what is said where they cannot be."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from dpfedadamw.registration import RegistrationError, Registry

ROOT = Path(__file__).parents[2]
ALGORITHM = """
from dpfedadamw.algorithms.base import Algorithm
from dpfedadamw.algorithms.keys import DescentKeys
from dpfedadamw.algorithms.registry import AlgorithmEntry, AlgorithmSetup, register
from dpfedadamw.algorithms.server import Averaging
from dpfedadamw.algorithms.sgd import GradientDescent
from dpfedadamw.spec.section import key

class ScaledKeys(DescentKeys, title="Scaled descent"):
    \"\"\"Local descent, scaled.\"\"\"

    factor: float = key(2.0, "Factor of the weight decay.", unit="1", gt=0, le=10)

def scaled(setup: AlgorithmSetup[ScaledKeys]) -> Algorithm:
    return Algorithm(GradientDescent(setup.spec.factor), Averaging({}, False))

def check(get):
    if get("algorithm", "factor") == 4 and get("data", "clients") == 10:
        yield ("algorithm", "factor"), f"{get.found('algorithm', 'factor')}; not for ten clients"

ENTRY = AlgorithmEntry(name="NAME", keys=ScaledKeys, units=("record",), summary="scaled descent",
              source="nobody", assemble=scaled, check=check)
"""
SPEC = """\
data: {dataset: digits}
model: {name: mlp}
algorithm: {name: scaled, factor: FACTOR}
privacy:
  unit: record
  clipping_norm: 1
  noise_multiplier: 2
  delta: 1e-5
  sampling: {kind: poisson, expected_batch_size: 8}
"""


@dataclass(frozen=True)
class Thing:
    name: str


def installed(folder: Path, module: str, value: str = "other_algorithms") -> Path:
    """A folder that looks to Python like an installed package with one entry point."""
    (folder / "other_algorithms.py").write_text(module)
    information = folder / "other_algorithms-1.2.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Name: other-algorithms\nVersion: 1.2\n")
    points = f"[dpfedadamw.algorithms]\nscaled = {value}\n"
    (information / "entry_points.txt").write_text(points)
    return folder


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line where that package is installed."""
    return subprocess.run(
        [sys.executable, "-m", "dpfedadamw", *arguments],
        env={"PYTHONPATH": f"{ROOT}:{folder}", "COLUMNS": "300", "PATH": ""},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("ending", "value"),
    [("register(ENTRY)\n", "other_algorithms"), ("", "other_algorithms:ENTRY")],
    ids=["a module that registers", "the entry itself"],
)
def test_an_algorithm_of_another_package_has_its_keys_checked_and_its_origin_told(
    tmp_path, ending, value
):
    installed(tmp_path, ALGORITHM.replace("NAME", "scaled") + ending, value)
    (tmp_path / "good.yaml").write_text(SPEC.replace("FACTOR", "3"))
    (tmp_path / "bad.yaml").write_text(SPEC.replace("FACTOR", "30"))
    shown = command(tmp_path, "spec", "show", "good.yaml")
    assert "  factor: 3.0\n" in shown.stdout, shown.stderr
    refused = command(tmp_path, "spec", "validate", "bad.yaml")
    assert refused.returncode == 2
    assert "bad.yaml:3:35: algorithm.factor: found 30; must be a number" in refused.stderr
    (tmp_path / "clash.yaml").write_text(SPEC.replace("FACTOR", "4"))
    refused = command(tmp_path, "spec", "validate", "clash.yaml")
    assert refused.returncode == 2
    assert "clash.yaml:3:35: algorithm.factor: found 4.0; not for ten clients" in refused.stderr
    listed = json.loads(command(tmp_path, "list", "algorithms", "--json").stdout)
    (source,) = [row["source"] for row in listed if row["name"] == "scaled"]
    assert source == "nobody; from other-algorithms 1.2"


@pytest.mark.parametrize(
    ("module", "value", "reason"),
    [
        ("import no_such_module\n", "other_algorithms", "No module named 'no_such_module'"),
        ("", "other_algorithms:ENTRY", "has no attribute 'ENTRY'"),
        ("ENTRY = 3\n", "other_algorithms:ENTRY", "it is no module and no AlgorithmEntry"),
        (
            ALGORITHM.replace("NAME", "dp-fedavg") + "register(ENTRY)\n",
            "other_algorithms",
            "dp-fedavg is registered twice: by dpfedadamw and by other-algorithms 1.2",
        ),
    ],
    ids=["broken", "without the entry", "something else", "a name that is taken"],
)
def test_a_package_that_cannot_be_used_is_named_in_one_line(tmp_path, module, value, reason):
    installed(tmp_path, module, value)
    refused = command(tmp_path, "spec", "validate", "quickstart")
    assert refused.returncode == 2
    (line,) = refused.stderr.splitlines()
    assert reason in line
    assert "other-algorithms 1.2" in line


@pytest.fixture
def registry(tmp_path, monkeypatch) -> Registry[Thing]:
    """A registry of a package with two modules, each of which registers its own name."""
    folder = tmp_path / "things_of_a_test"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    for name in ("one", "two"):
        (folder / f"{name}.py").write_text(
            f"import sys\nsys.modules['the_registry'].register(sys.modules['Thing']('{name}'))\n"
        )
    monkeypatch.syspath_prepend(tmp_path)
    found: Registry[Thing] = Registry("thing", "things_of_a_test", Thing)
    monkeypatch.setitem(sys.modules, "the_registry", found)
    monkeypatch.setitem(sys.modules, "Thing", Thing)
    yield found
    for name in ("things_of_a_test", "things_of_a_test.one", "things_of_a_test.two"):
        sys.modules.pop(name, None)
    importlib.invalidate_caches()


def test_a_registry_finds_its_package_when_it_is_first_looked_into(registry):
    assert "things_of_a_test.one" not in sys.modules
    assert list(registry) == ["one", "two"]
    assert registry["two"] == Thing("two")
    assert registry.origin("two") == ""


def test_a_name_is_registered_once_and_the_same_entry_again_changes_nothing(registry):
    first = registry.register(Thing("three"))
    assert registry.register(first) is first
    with pytest.raises(RegistrationError, match="the thing three is registered twice"):
        registry.register(Thing("three"))
    assert len(registry) == 3


def test_another_edition_is_told_by_another_number_and_the_same_by_the_same(registry):
    seen = [registry.edition]
    assert list(registry) == ["one", "two"]
    assert registry.edition == seen[0]
    first = registry.register(Thing("three"))
    seen.append(registry.edition)
    registry.register(first)
    assert registry.edition == seen[1]
    for _ in range(2):
        # The same name means another entry the second time, as in a notebook.
        with registry.lent(Thing("four")):
            seen.append(registry.edition)
        seen.append(registry.edition)
    with registry.lent(first):
        assert registry.edition == seen[-1]
    assert registry.edition == seen[-1]
    assert len(set(seen)) == len(seen) == 6


def test_a_package_that_was_refused_is_refused_again(registry, monkeypatch):
    registry.register(Thing("two"))
    for _ in range(2):
        with pytest.raises(RegistrationError, match="the thing two is registered twice"):
            list(registry)
