"""Who reads hostile files through this package loads no auditor with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import audit
import audit.untrusted

_MODULES = sorted(path.stem for path in Path(audit.untrusted.__file__).parent.glob("*.py"))


def _loaded(statement: str) -> set[str]:
    """Modules that a fresh interpreter has loaded after one statement."""
    code = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_readers_load_neither_the_checks_nor_scipy() -> None:
    names = ", ".join(f"audit.untrusted.{name}" for name in _MODULES if name != "__init__")
    loaded = _loaded(f"import {names}")
    assert {name for name in loaded if name.startswith("audit.")} == {
        "audit.untrusted",
        *(f"audit.untrusted.{name}" for name in _MODULES if name != "__init__"),
    }
    assert not loaded & {"scipy", "jsonschema", "torch", "cryptography"}


def test_reading_files_needs_no_numerical_library() -> None:
    statement = "import audit.untrusted.documents, audit.untrusted.files, audit.untrusted.documents"
    assert "numpy" not in _loaded(statement)


def test_every_public_name_of_the_auditor_is_there_when_it_is_asked_for() -> None:
    assert all(getattr(audit, name, None) is not None for name in audit.__all__)
    assert not hasattr(audit, "no_such_name")
    assert "audit.auditor" in _loaded("from audit import audit_run")
