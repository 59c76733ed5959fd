"""The engineer of docs/serving.md: trained in a script, served by another, and by torch alone."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dpfedadamw import api

PAGE = Path(__file__).parents[3] / "docs" / "serving.md"
WITHOUT = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("dpfedadamw", "audit", "reports"):
            raise ImportError(name)

sys.meta_path.insert(0, Refuse())
"""


def write_table(path: Path, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    lines = ["stays,readmitted,age,crp,name"]
    for _ in range(count):
        age, stays, crp = rng.uniform(0, 1), rng.uniform(0, 1), rng.normal()
        told = "yes" if age + crp + rng.normal() * 0.3 > 1.2 else "no"
        lines.append(f"{stays},{told},{age},{crp},somebody")
    path.write_text("\n".join(lines) + "\n")


def called(folder: Path, *words: str) -> str:
    told = subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert told.returncode == 0, told.stderr[-2000:]
    return told.stdout


@pytest.mark.slow
def test_the_engineers_files_run_as_they_are_printed(tmp_path):
    page = PAGE.read_text(encoding="utf-8")
    files = dict(re.findall(r"`(\S+)`:\n\n```\w+\n(.*?)```", page, re.DOTALL))
    assert set(files) == {"train.py", "spec.yaml", "serve.py"}
    lines = sum(
        len([line for line in text.splitlines() if line.strip()]) for text in files.values()
    )
    assert f"{lines} lines in all" in page
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    write_table(tmp_path / "visits.csv", 600, 1)
    write_table(tmp_path / "held_out.csv", 90, 2)
    commands = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)[0].split("\n")[:-1]
    assert commands == ["python train.py", "python serve.py"]

    said = called(tmp_path, "train.py")
    assert said.startswith("PASS")
    # The class of the script, in a module of the service's own.
    found = re.search(r"class Net.*?\n\n\n", files["train.py"], re.DOTALL)
    assert found is not None
    (tmp_path / "nets.py").write_text(f"from torch import nn\n\n\n{found[0].rstrip()}\n")
    served = called(tmp_path, "serve.py")
    assert served.startswith("('no', 'yes')")

    card = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    assert "**Intended use.** Planning of beds." in card
    assert "Visits of adults in four hospitals." in card
    (snippet,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    (tmp_path / "alone.py").write_text(WITHOUT + snippet.replace("FOLDER", "model"))
    (tmp_path / "rows.csv").write_text((tmp_path / "held_out.csv").read_text())
    alone = [ast.literal_eval(line) for line in called(tmp_path, "alone.py").splitlines()]

    scope: dict[str, object] = {}
    exec((tmp_path / "nets.py").read_text(), scope)
    run = api.Run(next((tmp_path / "runs").glob("readmission-*")), scope["Net"]())  # type: ignore[operator]
    chances = run.predict(tmp_path / "held_out.csv").probabilities
    assert chances is not None
    assert len(alone) == len(chances) == 90
    ours = np.array([[one["no"], one["yes"]] for one in alone])
    assert np.allclose(ours, chances, atol=1e-5)
    # What was served is what was tested.
    targets = [line.split(",")[1] for line in (tmp_path / "held_out.csv").read_text().split()[1:]]
    right = [
        ("no", "yes")[row.argmax()] == told for row, told in zip(chances, targets, strict=True)
    ]
    assert np.mean(right) == run.accuracy
