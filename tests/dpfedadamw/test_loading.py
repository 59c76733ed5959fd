"""Modules are loaded without a search for garbage among them, the first time alone."""

from __future__ import annotations

import gc

from dpfedadamw.loading import loading


def test_modules_that_are_loaded_for_the_first_time_are_loaded_without_collecting():
    with loading("no such module"):
        inside = gc.isenabled()
    kept = gc.get_freeze_count()
    gc.unfreeze()
    assert (inside, kept > 0, gc.isenabled()) == (False, True, True)
    with loading("dpfedadamw"):
        assert gc.isenabled()
    assert gc.get_freeze_count() == 0
