"""A package from elsewhere brings an algorithm, a model and a data set: run by name, audited.

It is built as a wheel and installed by pip into a folder of its own, so that nothing but its entry
points makes it known.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = Path(__file__).parent / "acme_fl"
ENTRY_POINTS = """\
[dpfedadamw.algorithms]
heavy-ball = acme_fl.heavy_ball
[dpfedadamw.models]
tanh = acme_fl.tanh_model
[dpfedadamw.datasets]
rings = acme_fl.rings
"""
REPLAYS = """\
[dpfedadamw.replays]
acme-heavy-ball = acme_fl.replay:REPLAY
"""
SPEC = """\
version: 1
name: rings
data: {dataset: acme-rings, points: 1500, clients: 4, partition: {kind: iid}}
model: {name: acme-tanh, width: 12}
algorithm: {name: acme-heavy-ball, learning_rate: 0.2, momentum: 0.4}
federation: {rounds: 3, clients_per_round: 3, local_steps: 4}
privacy:
  unit: record
  clipping_norm: 1.0
  noise_multiplier: 2.0
  delta: 1.0e-5
  sampling: {kind: poisson, expected_batch_size: 24}
randomness: {mode: reproducible, seed: 5}
"""


def install(folder: Path, entry_points: str) -> Path:
    """Build the package's wheel and install it into a folder, without any index."""
    files = {f"acme_fl/{path.name}": path.read_text("utf-8") for path in SOURCES.glob("*.py")}
    info = "acme_fl-1.2.dist-info"
    files[f"{info}/METADATA"] = "Metadata-Version: 2.1\nName: acme-fl\nVersion: 1.2\n"
    files[f"{info}/WHEEL"] = (
        "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    files[f"{info}/entry_points.txt"] = entry_points
    record = [f"{name},sha256={_digest(text)},{len(text.encode())}" for name, text in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,"]) + "\n"
    folder.mkdir(parents=True)
    wheel = folder / "acme_fl-1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    target = folder / "installed"
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps"]
    subprocess.run([*command, "--target", str(target), str(wheel)], check=True)
    return target


def naming(entry_points: str, installed: Path, target: Path) -> Path:
    """Copy the installed package, with other entry points."""
    shutil.copytree(installed, target)
    (found,) = target.glob("*.dist-info/entry_points.txt")
    found.write_text(entry_points, "utf-8")
    return target


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


LISTED = """
import sys
from dpfedadamw import cli
for kind in sys.argv[1:]:
    try:
        cli.main(["list", kind])
    except SystemExit as end:
        assert not end.code
    print("END", flush=True)
"""
# As dpfedadamw run, but with a report of one page: here it only needs to be there.
RUN_SHORTLY = """
import sys
from dpfedadamw import cli
from reports.content import parts
from reports.render import pdf
from tests.runs import PAGE, PICTURE
compiled = pdf._compile
def short(folder, moment):
    (folder / "report.typ").write_text(PAGE, "utf-8")
    return compiled(folder, moment)
parts.draw, pdf._compile = lambda *_: PICTURE, short
cli.main(["run", *sys.argv[1:]])
"""


def call(installed: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a module's command line, or a program, where the package is installed."""
    paths = os.pathsep.join([str(installed), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": paths, "COLUMNS": "200", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *(() if arguments[0] == "-c" else ("-m",)), *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package with everything it brings."""
    return install(tmp_path_factory.mktemp("whole") / "acme", ENTRY_POINTS + REPLAYS)


@pytest.fixture(scope="module")
def without_replay(tmp_path_factory: pytest.TempPathFactory, whole: Path) -> Path:
    """The package without a replay."""
    return naming(ENTRY_POINTS, whole, tmp_path_factory.mktemp("without") / "installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, whole: Path) -> Path:
    """A folder in which a spec was run that names what the package brings."""
    made = tmp_path_factory.mktemp("work")
    (made / "spec.yaml").write_text(SPEC, "utf-8")
    ended = call(whole, made, "-c", RUN_SHORTLY, "spec.yaml")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return made


@pytest.mark.slow
def test_a_run_of_an_outside_algorithm_passes_where_its_package_brings_a_replay(folder, whole):
    ended = call(whole, folder, "audit", "runs/latest", "--json")
    found = json.loads(ended.stdout)
    assert (ended.returncode, found["verdict"]) == (0, "PASS")
    uploads = next(check for check in found["checks"] if check["name"] == "uploads")
    assert uploads["verdict"] == "PASS"
    # Whose replay it was stands beside the verdict.
    assert any("acme-fl 1.2" in text for text in found["qualifications"])


def test_without_a_replay_it_is_not_verified_and_that_is_the_reason(folder, without_replay):
    ended = call(without_replay, folder, "audit", "runs/latest", "--json")
    found = json.loads(ended.stdout)
    assert (ended.returncode, found["verdict"]) == (1, "NOT VERIFIED")
    open_questions = ("NOT VERIFIED", "FAIL")
    reasons = {
        check["name"]: check["measurement"]
        for check in found["checks"]
        if check["verdict"] in open_questions
    }
    # That nothing was computed again is said of every run, and of no weight in the verdict.
    assert list(reasons) == ["uploads", "reexecution"]
    assert "acme-heavy-ball" in reasons["uploads"]


def test_what_comes_from_elsewhere_is_listed_with_its_package(whole, tmp_path):
    brought = {"algorithms": "acme-heavy-ball", "models": "acme-tanh", "datasets": "acme-rings"}
    listed = call(whole, tmp_path, "-c", LISTED, *brought)
    assert listed.returncode == 0, listed.stderr
    *tables, rest = listed.stdout.split("END\n")
    assert rest == ""
    for table, name in zip(tables, brought.values(), strict=True):
        assert name in table
        assert "acme-fl 1.2" in table


def test_keys_from_elsewhere_are_checked_like_our_own(whole, tmp_path):
    wrong = SPEC.replace("momentum: 0.4", "momentun: 0.4").replace("width: 12", "width: 0")
    (tmp_path / "spec.yaml").write_text(wrong, "utf-8")
    ended = call(whole, tmp_path, "dpfedadamw", "spec", "validate", "spec.yaml")
    assert ended.returncode == 2
    assert "did you mean momentum?" in ended.stderr
    assert "model.width: found 0; must be an integer from 1 to 1024" in ended.stderr


@pytest.mark.thorough
def test_where_the_package_is_not_installed_its_names_are_unknown(tmp_path):
    (tmp_path / "spec.yaml").write_text(SPEC, "utf-8")
    ended = call(tmp_path, tmp_path, "dpfedadamw", "spec", "validate", "spec.yaml")
    assert ended.returncode == 2
    assert "acme-heavy-ball" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_package_that_does_not_load_is_one_line(whole, tmp_path):
    broken = ENTRY_POINTS.replace("acme_fl.heavy_ball", "acme_fl.no_such_module")
    installed = naming(broken, whole, tmp_path / "installed")
    ended = call(installed, tmp_path, "dpfedadamw", "spec", "validate", "quickstart")
    assert ended.returncode == 2
    assert "acme-fl 1.2" in ended.stderr
    assert "Traceback" not in ended.stderr
