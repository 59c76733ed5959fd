"""The weakenings of tests/weakenings.py still fit the code; the command runs them."""

from __future__ import annotations

import pytest

from tests.weakenings import WEAKENINGS, Weakening, applied
from tests.weakenings.__main__ import ROOT


@pytest.mark.parametrize("one", WEAKENINGS, ids=lambda one: one.name)
def test_a_weakening_fits_the_code_and_names_tests_that_are_there(one, tmp_path):
    path = tmp_path / one.file
    path.parent.mkdir(parents=True)
    path.write_text((ROOT / one.file).read_text("utf-8"), "utf-8")
    applied(one, tmp_path)
    if path.suffix == ".py":
        compile(path.read_text("utf-8"), one.file, "exec")
    for file, _, test in (named.partition("::") for named in one.tests):
        assert f"def {test}" in (ROOT / file).read_text("utf-8")


def test_a_weakening_that_no_longer_fits_is_an_error(tmp_path):
    (tmp_path / "a.py").write_text("x = 1\n")
    gone = Weakening("gone", "a.py", "x = 2", "x = 3", "nothing", ())
    with pytest.raises(ValueError, match="stands 0 times in"):
        applied(gone, tmp_path)
