"""One line for the person who can fix it: what is wrong, where, and not more than can be read."""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from dpfedadamw.errors import SpecError, SpecProblem, taken_name

HERE = Path(__file__).resolve().parents[2]


def test_the_packages_of_this_distribution_are_its_own() -> None:
    assert taken_name() is None


@pytest.mark.parametrize("name", ["audit", "reports", "specs"])
def test_a_package_that_is_missing_or_another_of_its_name_is_named(name, monkeypatch) -> None:
    find = importlib.util.find_spec
    others: list[ModuleSpec | None] = [None]
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda one: others[0] if one == name else find(one)
    )
    assert taken_name() == f"the package {name} of dpfedadamw is missing; reinstall dpfedadamw"
    module = ModuleSpec(name, None, origin=f"/elsewhere/{name}.py")
    package = ModuleSpec(name, None, origin=f"/elsewhere/{name}/__init__.py", is_package=True)
    package.submodule_search_locations = [f"/elsewhere/{name}"]
    for others[0], place in ((module, f"{name}.py"), (package, name)):
        assert taken_name() == (
            f"the package {name} of dpfedadamw is hidden by another package of that name "
            f"(/elsewhere/{place}); remove it, or install dpfedadamw in a separate environment"
        )
    package.submodule_search_locations = [str(HERE / name)]
    assert taken_name() is None


def test_a_problem_of_a_spec_is_told_with_its_place_as_far_as_it_is_known() -> None:
    assert str(SpecProblem("a.yaml", "is empty")) == "a.yaml: is empty"
    assert str(SpecProblem("--set x=1", "is no key", "x")) == "--set x=1: x: is no key"
    assert str(SpecProblem("a.yaml", "is no key", "x.y", 3, 7)) == "a.yaml:3:7: x.y: is no key"
    assert str(SpecProblem("a.yaml", "is no text", line=3, column=1)) == "a.yaml:3:1: is no text"


def test_of_a_hopeless_spec_fifty_problems_are_told_and_the_rest_is_counted() -> None:
    problems = [SpecProblem("a.yaml", f"problem {n}", f"key{n}", n, 1) for n in range(1, 54)]
    assert SpecError(problems[:50]).problems == tuple(problems[:50])
    refused = SpecError(problems)
    assert refused.problems[:50] == tuple(problems[:50])
    assert [str(one) for one in refused.problems[50:]] == ["a.yaml:50:1: … and 3 more problems"]
    assert str(refused) == "\n".join(str(one) for one in refused.problems)
    assert refused.args == (refused.problems,)
