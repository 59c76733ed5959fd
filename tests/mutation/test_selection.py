"""Which mutants are drawn, and which tests are asked first."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.mutation.coverage_map import WHOLE, TestFile, imports_of
from tests.mutation.mutants import Mutant
from tests.mutation.processes import ROOT
from tests.mutation.selection import (
    COMPARES_DECLARATIONS,
    batches,
    dotted,
    matching,
    sampled,
    until_cut_off,
)

PATHS = ["audit/checks/noise.py", "audit/checks/record/views.py", "dpfedadamw/privacy/ledger.py"]


def test_modules_are_named_by_folder_file_or_pattern():
    assert matching(PATHS, ["audit/checks"]) == PATHS[:2]
    assert matching(PATHS, ["dpfedadamw/privacy/ledger.py"]) == PATHS[2:]
    assert matching(PATHS, ["*/noise.py"]) == PATHS[:1]
    with pytest.raises(ValueError, match=r"audit/check: no module"):
        matching(PATHS, ["audit/check"])


def population() -> list[Mutant]:
    sizes = {"a/x.py": 60, "b/y.py": 30, "b/z.py": 10}
    return [Mutant(p, n, n, "", 1, "constant") for p, size in sizes.items() for n in range(size)]


def test_each_folder_has_its_share_of_a_sample_and_the_seed_decides_which():
    drawn = sampled(population(), 20, seed=3)
    assert Counter(mutant.path[0] for mutant in drawn) == {"a": 12, "b": 8}
    assert len(set(drawn)) == 20
    assert drawn == sampled(population(), 20, seed=3)
    assert drawn != sampled(population(), 20, seed=4)


def test_without_a_size_all_are_tried_in_random_order():
    drawn = sampled(population(), None, seed=0)
    assert sorted(drawn) == sorted(population())
    assert drawn != sorted(population())


def test_what_was_noticed_before_counts_as_far_as_a_run_came_and_no_further():
    sample = sampled(population(), 20, seed=3)
    wanted = sample[::2]
    assert until_cut_off(sample, wanted, set(wanted)) == sample
    assert until_cut_off(sample, wanted, set(wanted[:4])) == sample[:7]
    assert until_cut_off(sample, wanted, set()) == []
    assert until_cut_off(sample, [], set()) == sample


MODULE = "dpfedadamw/privacy/ledger.py"
OWN = TestFile(
    "tests/dpfedadamw/privacy/test_ledger.py",
    ("own::slow", "own::fast", "own::elsewhere"),
    (5.0, 1.0, 1.0),
    {MODULE: {7: frozenset({0, 1}), 9: frozenset({2})}},
)
NEAR = TestFile(
    "tests/dpfedadamw/run/test_journal.py",
    ("near::a", "near::b"),
    (0.5, 30.0),
    {MODULE: {6: frozenset({0}), 8: frozenset({1, WHOLE})}},
)
USED = {9: frozenset({0})}
FAR = TestFile(
    "tests/faults/test_gallery.py", ("far::a",), (0.1,), {MODULE: {7: frozenset({WHOLE})}}
)


def test_tests_that_reach_the_line_come_first_those_of_the_modules_own_file_before_others():
    groups = batches(MODULE, (6, 7), [FAR, NEAR, OWN], 100.0)
    assert groups == [(["own::fast", "own::slow", "near::a"], 6.5)]


def test_files_that_import_the_module_come_before_others_that_are_as_near():
    reached = {MODULE: {7: frozenset({0})}}
    near = TestFile("tests/dpfedadamw/privacy/test_spends.py", ("a",), (0.1,), reached)
    far = TestFile("tests/test_all.py", ("b",), (9.0,), reached, frozenset({dotted(MODULE)}))
    assert batches(MODULE, (7, 7), [near, far], 100.0) == [(["b"], 9.0), (["a"], 0.1)]
    assert batches(MODULE, (7, 7), [near, far, OWN], 100.0)[0][0][0] == "own::fast"


def test_what_a_file_imports_is_told_by_module_and_by_what_is_taken_from_it():
    text = "import a.b\nfrom c import d, e as f\nfrom . import g\ndef h():\n    import i\n"
    assert imports_of(text) == {"a.b", "c", "c.d", "c.e"}


def test_a_file_that_reached_a_line_in_a_fixture_is_asked_as_a_whole_unless_it_only_imports():
    groups = batches(MODULE, (8, 8), [FAR, NEAR, OWN], 100.0)
    assert groups == [(["near::b"], 30.0), (["near::a"], 0.5)]


def test_a_file_that_imports_the_module_by_its_name_is_asked_what_it_reads_of_it():
    reached = {MODULE: {8: frozenset({WHOLE})}}
    table = TestFile("tests/test_table.py", ("t",), (0.1,), reached, frozenset({dotted(MODULE)}))
    assert batches(MODULE, (8, 8), [FAR, table], 100.0) == [(["t"], 0.1)]


def test_of_files_that_import_the_module_quick_ones_are_asked_before_those_that_run_much_of_it():
    name = frozenset({dotted(MODULE)})
    runs = {MODULE: {8: frozenset({WHOLE}), 9: frozenset({0})}}
    slow = TestFile("tests/test_slow.py", ("s",), (9.0,), runs, name)
    table = TestFile("tests/test_all.py", ("t",), (0.1,), {MODULE: {8: frozenset({WHOLE})}}, name)
    groups = batches(MODULE, (8, 8), [slow, table], 100.0)
    assert [test for tests, _ in groups for test in tests] == ["t", "s"]


@pytest.mark.parametrize(("seconds", "asked"), [(0.9, [(["t"], 0.9)]), (1.0, [])])
def test_a_quick_file_that_imports_the_package_is_asked_what_its_registry_holds(seconds, asked):
    package = frozenset({dotted(MODULE).rpartition(".")[0]})
    reached = {MODULE: {8: frozenset({WHOLE})}}
    registry = TestFile("tests/test_all.py", ("t",), (seconds,), reached, package)
    assert batches(MODULE, (8, 8), [registry], 100.0) == asked


@pytest.mark.parametrize("path", COMPARES_DECLARATIONS)
def test_files_that_compare_what_modules_declare_are_asked_before_others_that_run_the_module(path):
    reached = {MODULE: {8: frozenset({WHOLE})}}
    page = TestFile(path, ("page",), (8.0,), reached)
    runs = TestFile("tests/test_all.py", ("r",), (0.1,), {MODULE: {**reached[MODULE], **USED}})
    assert (ROOT / path).is_file()
    assert batches(MODULE, (8, 8), [runs, page], 100.0) == [(["page"], 8.0), (["r"], 0.1)]


def test_the_modules_own_file_is_asked_as_a_whole_before_single_tests_of_others():
    made = TestFile(OWN.path, ("own::any",), (3.0,), {MODULE: {7: frozenset({WHOLE})}})
    other = TestFile("tests/dpfedadamw/run/test_training.py", ("t",), (1.0,), OWN.lines)
    assert batches(MODULE, (7, 7), [other, made], 3.0) == [(["own::any"], 3.0)]


def test_tests_beyond_the_seconds_are_left_out_but_never_the_first():
    assert batches(MODULE, (7, 7), [OWN], 2.0) == [(["own::fast"], 1.0)]
    assert batches(MODULE, (8, 8), [NEAR], 2.0) == [(["near::b"], 30.0)]


def test_a_line_that_no_test_is_seen_to_reach_is_asked_of_the_modules_own_file_alone():
    """What runs in a process that a test starts is not seen."""
    asked = ["own::elsewhere", "own::fast", "own::slow"]
    assert batches(MODULE, (99, 99), [NEAR, FAR, OWN], 100.0) == [(asked, 7.0)]
    assert batches(MODULE, (99, 99), [NEAR, FAR], 100.0) == []
