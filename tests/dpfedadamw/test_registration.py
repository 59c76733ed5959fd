"""How algorithms of other packages are found, and what is said where they cannot be."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint
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


COMMANDS = """
import contextlib, io, json, sys
from dpfedadamw.__main__ import start
answers = []
for line in json.loads(sys.argv[1]):
    sys.argv = ["dpfedadamw", *line.split()]
    told, code = (io.StringIO(), io.StringIO()), None
    with contextlib.redirect_stdout(told[0]), contextlib.redirect_stderr(told[1]):
        try:
            start()
        except SystemExit as end:
            code = end.code
    answers.append((code, *(one.getvalue() for one in told)))
print(json.dumps(answers))
"""


def commands(folder: Path, *lines: str) -> list[tuple[int, str, str]]:
    """What commands end with and print, in one process where that package is installed."""
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, json.dumps(lines)],
        env={"PYTHONPATH": f"{ROOT}:{folder}", "COLUMNS": "300", "PATH": ""},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [tuple(answer) for answer in json.loads(done.stdout)]


@pytest.mark.sampled(2)
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
    (tmp_path / "clash.yaml").write_text(SPEC.replace("FACTOR", "4"))
    shown, bad, clash, listed = commands(
        tmp_path,
        "spec show good.yaml",
        "spec validate bad.yaml",
        "spec validate clash.yaml",
        "list algorithms --json",
    )
    assert "  factor: 3.0\n" in shown[1], shown
    assert bad[0] == clash[0] == 2
    assert "bad.yaml:3:35: algorithm.factor: found 30; must be a number" in bad[2]
    assert "clash.yaml:3:35: algorithm.factor: found 4.0; not for ten clients" in clash[2]
    (source,) = [row["source"] for row in json.loads(listed[1]) if row["name"] == "scaled"]
    assert source == "nobody; from other-algorithms 1.2"


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("module", "value", "reason"),
    [
        (
            ALGORITHM.replace("NAME", "dp-fedavg") + "register(ENTRY)\n",
            "other_algorithms",
            "dp-fedavg is registered twice: by dpfedadamw and by other-algorithms 1.2",
        ),
        ("import no_such_module\n", "other_algorithms", "No module named 'no_such_module'"),
        ("", "other_algorithms:ENTRY", "has no attribute 'ENTRY'"),
        ("ENTRY = 3\n", "other_algorithms:ENTRY", "it is no module and no AlgorithmEntry"),
    ],
    ids=["a name that is taken", "broken", "without the entry", "something else"],
)
def test_a_package_that_cannot_be_used_is_named_in_one_line(tmp_path, module, value, reason):
    installed(tmp_path, module, value)
    ((code, _, told),) = commands(tmp_path, "spec validate quickstart")
    assert code == 2
    (line,) = told.splitlines()
    assert reason in line
    assert "other-algorithms 1.2" in line


PACKAGE = "things_of_a_test"


def written(folder: Path, name: str, *registered: str) -> None:
    """A module of the package, which registers things of these names."""
    lines = [
        f"sys.modules['the_registry'].register(sys.modules['Thing']('{n}'))" for n in registered
    ]
    (folder / f"{name}.py").write_text("\n".join(["import sys", *lines, ""]))


@pytest.fixture
def package(tmp_path, monkeypatch) -> Iterator[Path]:
    """A package with two modules, each of which registers its own name."""
    folder = tmp_path / PACKAGE
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    for name in ("one", "two"):
        written(folder, name, name)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "Thing", Thing)
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]
    importlib.invalidate_caches()


@pytest.fixture
def registry(package, monkeypatch) -> Registry[Thing]:
    """The registry of that package, without a table of its files."""
    found: Registry[Thing] = Registry("thing", PACKAGE, Thing)
    monkeypatch.setitem(sys.modules, "the_registry", found)
    return found


@pytest.fixture
def tabled(package, monkeypatch) -> Registry[Thing]:
    """A registry with a table, in which the file that comes last by name stands first."""
    written(package, "one", "one", "first")
    files = {"two": ("two",), "one": ("one", "first")}
    found: Registry[Thing] = Registry("thing", PACKAGE, Thing, files=files)
    monkeypatch.setitem(sys.modules, "the_registry", found)
    return found


def imported() -> set[str]:
    """The modules of the package that are imported."""
    return {name.partition(".")[2] for name in sys.modules if name.startswith(f"{PACKAGE}.")}


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


def test_a_name_of_the_table_imports_its_file_alone(tabled):
    assert "first" in tabled
    assert tabled.get("one") == Thing("one")
    assert tabled.origin("one") == ""
    assert imported() == {"one"}
    assert list(tabled) == ["two", "one", "first"]
    assert imported() == {"one", "two"}


@pytest.mark.parametrize("first", ["two", "one", None])
def test_names_stand_as_the_table_has_them_whichever_file_was_imported_first(tabled, first):
    importlib.import_module(f"{PACKAGE}.one")
    assert first is None or tabled[first] == Thing(first)
    tabled.register(Thing("of a notebook"))
    assert list(tabled) == ["two", "one", "first", "of a notebook"]


def test_a_file_without_a_line_in_the_table_is_found(package, tabled):
    written(package, "a_new_one", "new")
    assert tabled["new"] == Thing("new")
    assert list(tabled) == ["two", "one", "first", "new"]
    with pytest.raises(KeyError):
        tabled["another"]


@pytest.mark.parametrize("look", [lambda found: found["one"], list], ids=["by name", "as a whole"])
@pytest.mark.parametrize(
    ("registered", "message"),
    [
        (("one", "first", "more"), "thing more: registered by a file whose line in the table"),
        (("one",), "thing first: things_of_a_test.one does not register it"),
    ],
    ids=["another name", "a name too few"],
)
def test_a_file_that_registers_other_names_than_the_table_says_is_refused(
    package, tabled, registered, message, look
):
    written(package, "one", *registered)
    if "more" not in registered and look is not list:
        assert look(tabled) == Thing("one")
        look = lambda found: found["first"]  # noqa: E731
    for _ in range(2):
        with pytest.raises(RegistrationError, match=message):
            look(tabled)


def test_a_name_of_the_table_that_somebody_took_is_refused_at_any_look(tabled):
    tabled.register(Thing("two"))
    for _ in range(2):
        with pytest.raises(RegistrationError, match="the thing two is registered twice"):
            tabled["one"]


def test_where_another_package_brings_entries_everything_is_imported_at_the_first_look(
    tabled, monkeypatch
):
    monkeypatch.setitem(sys.modules, "somebody_elses", Thing("two"))  # type: ignore[arg-type]
    points = [EntryPoint("theirs", "somebody_elses", "things")]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points)
    with pytest.raises(RegistrationError, match="the thing two is registered twice"):
        tabled["one"]
    assert imported() == {"one", "two"}


NAMES = """
import importlib, sys
from dpfedadamw.registration import RegistrationError
from dpfedadamw.algorithms.registry import ALGORITHMS
from dpfedadamw.data.registry import DATASETS
from dpfedadamw.models.registry import MODELS
for registry in (ALGORITHMS, MODELS, DATASETS):
    for file, names in registry.files.items():
        known = set(registry._entries)
        importlib.import_module(f"{registry.package}.{file}")
        new = registry._entries.keys() - known
        # A file may have been imported by one before it.
        assert set(names) <= registry._entries.keys(), file
        assert new <= {n for f, of_file in registry.files.items() for n in of_file}, file
    listed = list(registry)
    assert set(listed) == {n for names in registry.files.values() for n in names}, "no line"
    places = [getattr(registry[name], "place", 0) for name in listed]
    assert places == sorted(places)
"""
PARTIAL = """
import sys
from dpfedadamw import spec
from dpfedadamw.algorithms.registry import ALGORITHMS
from dpfedadamw.data.registry import DATASETS
from dpfedadamw.models.registry import MODELS
names = ["quickstart", "digits-dp-fedsam-topk", "digits-cnn"]
def files(registry):
    return {file for file in registry.files if f"{registry.package}.{file}" in sys.modules}
texts = [spec.dump(spec.load(names[0]))]
loaded = [files(registry) for registry in (ALGORITHMS, MODELS, DATASETS)]
assert loaded == [{"adamw"}, {"mlp"}, {"digits"}], loaded
texts += [spec.dump(spec.load(name)) for name in names[1:]]
assert "published_transformers" not in files(MODELS)
for registry in (ALGORITHMS, MODELS, DATASETS):
    list(registry)
assert texts == [spec.dump(spec.load(name)) for name in names]
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "program", [NAMES, PARTIAL], ids=["tables name what files register", "a spec loads its own"]
)
def test_the_registries_of_the_package(program):
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
