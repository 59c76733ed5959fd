"""A stranger who checks a run with VERIFY.md alone: no package, no keys, a shell and its tools."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

needs_shell = pytest.mark.skipif(
    not all(shutil.which(tool) for tool in ("bash", "sed", "find", "sha256sum", "openssl")),
    reason="needs bash, sed, find, sha256sum and openssl",
)
# The line of VERIFY.md that lets the page run itself.
_PIPELINE = "sed -n '/^```sh$/,/^```$/p' {page} | sed '/^```/d' | bash"


@dataclass(frozen=True)
class Said:
    """What the script said.

    Attributes:
        code: Its exit code.
        last: Its last line.
        text: All of it.
    """

    code: int
    last: str
    text: str


def check(
    folder: Path, page: Path | None = None, *, shell: tuple[str, ...] = ("sh",), **variables: str
) -> Said:
    """Run a page's script in a folder.

    Args:
        folder: What to check.
        page: A copy of the page that the stranger trusts; the folder's own if not given.
        shell: The shell that the stranger types into.
        variables: Of the environment: TRAINER, AUDITOR, TSA_ROOT.
    """
    own = {name: value for name, value in os.environ.items() if name in ("PATH", "TMPDIR")}
    done = subprocess.run(
        [*shell, "-c", _PIPELINE.format(page=page or "VERIFY.md")],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=120,
        env={**own, **variables},
    )
    text = done.stdout.decode("utf-8", "replace")
    return Said(done.returncode, text.rstrip("\n").split("\n")[-1], text)


def block(page: Path) -> str:
    """Return the page's one block, as the stranger copies it from the screen."""
    parts = page.read_text("utf-8").split("```sh\n")
    assert len(parts) == 2
    return parts[1].split("```")[0]
