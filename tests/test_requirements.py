"""What users, images and continuous integration install is what this repository names by hash."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema
import pytest
import referencing
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from dpfedadamw.extensions.deployment import templates
from tests.published import schema

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "requirements").glob("*.txt"))
EXTRAS = ("gguf", "hub", "model-signing", "parquet", "pkcs11", "transformers")
# Their versions are those of the user's own server; no MLflow fits constraints.txt.
UNLOCKED = {"mlflow", "tensorboard", "wandb"}
# torch without CUDA is a version of its own of the same release.
VERSION = re.compile(r"^([A-Za-z0-9._-]+)==([^\s+]+)(?:\+cpu)?", re.MULTILINE)


def pins(text: str) -> dict[str, str]:
    return {canonicalize_name(name): version for name, version in VERSION.findall(text)}


def locked(*names: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in names:
        found |= pins((ROOT / "requirements" / f"{name}.txt").read_text("utf-8"))
    return found


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "requirements" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_pins_agree_and_each_has_its_hashes(path: Path) -> None:
    text = path.read_text("utf-8")
    named = pins(text)
    of = "constraints-flower.txt" if path.stem == "flower" else "constraints.txt"
    constrained = pins((ROOT / of).read_text("utf-8"))
    assert named
    assert named.items() <= constrained.items()
    entries = re.split(r"^(?=[A-Za-z0-9])", text, flags=re.MULTILINE)[1:]
    assert len(entries) == len(VERSION.findall(text))
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}\b", entry) for entry in entries)
    # An address or an option in a lock could bring something that has no hash.
    lines = [line for line in text.splitlines() if not line.startswith(("#", "    --hash=sha256:"))]
    assert all(VERSION.match(line) for line in lines)


def test_the_files_are_there_and_used() -> None:
    assert [path.stem for path in FILES] == [
        "auditor", "docs", *(f"extra-{extra}" for extra in EXTRAS), "flower", "runtime", "tools",
        "torch-cpu", "torch-cuda",
    ]  # fmt: skip
    workflow = (ROOT / ".github" / "workflows" / "tests.yml").read_text("utf-8")
    assert "pip install --require-hashes -r requirements/tools.txt" in workflow
    assert "pip install tox" not in workflow
    environments = (ROOT / "tox.ini").read_text("utf-8")
    assert "requirements{/}auditor.txt" in environments
    assert "requirements{/}docs.txt" in environments


def test_readme_image_and_continuous_integration_install_by_the_lock() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    line = next(line for line in readme.splitlines() if line.startswith("    python3 -m venv"))
    assert ".venv/bin/python requirements/install.py &&" in line
    workflow = (ROOT / ".github" / "workflows" / "tests.yml").read_text("utf-8")
    assert f"run: {line.strip()}\n" in workflow
    image = (ROOT / "Dockerfile").read_text("utf-8")
    assert "python /source/requirements/install.py" in image
    assert "pip install" not in image


def test_every_extra_has_a_lock_or_is_known_to_have_none() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = set(project["optional-dependencies"])
    assert extras == {*EXTRAS, "flower", *UNLOCKED}
    for extra, wanted in project["optional-dependencies"].items():
        if extra in UNLOCKED:
            continue
        lock = locked("flower") if extra == "flower" else locked("runtime", f"extra-{extra}")
        for one in map(Requirement, wanted):
            assert one.specifier.contains(lock[canonicalize_name(one.name)]), (extra, one)


@pytest.mark.parametrize("torch", ["torch-cpu", "torch-cuda"])
def test_the_lock_has_all_that_the_package_needs_and_all_that_this_needs(torch: str) -> None:
    """By what the packages say that are installed here; on Linux, CUDA is in one of the two."""
    lock = locked("runtime", torch)
    about = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    backend = about["build-system"]["requires"]
    for one in map(Requirement, [*about["project"]["dependencies"], *backend]):
        assert one.specifier.contains(lock[canonicalize_name(one.name)]), one
    looked = 0
    for name, version in lock.items():
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        assert found.version.partition("+")[0] == version, name
        for one in map(Requirement, found.requires or ()):
            if one.marker is None or one.marker.evaluate({"extra": ""}):
                looked += 1
                assert one.specifier.contains(lock[canonicalize_name(one.name)]), (name, one)
    assert looked > 50


def test_no_file_is_installed_that_no_lock_names(tmp_path: Path) -> None:
    """A package of the right name and version, and of another content, as a mirror could send it.

    With `-c constraints.txt`, which has versions alone, pip would take it.
    """
    name, version = "mdurl", locked("runtime")["mdurl"]
    wheel = tmp_path / f"{name}-{version}-py3-none-any.whl"
    about = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr(f"{name}/__init__.py", "print('not what was published')\n")
        file.writestr(
            f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        file.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(f"{about}/RECORD", "")
    text = (ROOT / "requirements" / "runtime.txt").read_text("utf-8")
    (tmp_path / "lock.txt").write_text(script("make").entries(text)[name], "utf-8")
    offline = [sys.executable, "-m", "pip", "--isolated", "install", "--dry-run", "--no-deps",
               "--ignore-installed", "--no-index", "--find-links", str(tmp_path)]  # fmt: skip

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*offline, *arguments], capture_output=True, text=True)

    refused = run("-r", str(tmp_path / "lock.txt"))
    assert refused.returncode == 1
    assert "DO NOT MATCH THE HASHES" in refused.stderr
    taken = run("-c", str(ROOT / "constraints.txt"), name)
    assert taken.returncode == 0, taken.stderr


def test_the_installer_asks_for_hashes_everywhere_and_builds_nothing_foreign() -> None:
    install = script("install")
    for extras, cuda in (([], False), (["hub", "transformers"], False), (["flower"], True)):
        *locks, own = install.steps(extras, cuda, install.CPU_INDEX)
        assert all(one[:3] == ["--require-hashes", "--only-binary", ":all:"] for one in locks)
        # Nothing is resolved or fetched for the package itself.
        assert own == ["--no-deps", "--no-build-isolation", str(ROOT)]
        torch, rest = locks
        assert "--no-deps" in torch
        assert [Path(one).stem for one in torch if one.endswith(".txt")] == [
            "torch-cuda" if cuda else "torch-cpu"
        ]
        # An index that is not PyPI is asked for torch alone.
        assert (install.CPU_INDEX in torch) is not cuda
        assert install.CPU_INDEX not in rest
        lock = "flower" if "flower" in extras else "runtime"
        assert [Path(one).stem for one in rest if one.endswith(".txt")] == [
            lock, *(f"extra-{extra}" for extra in extras if extra != "flower")
        ]  # fmt: skip
    assert tuple(install.LOCKED) == EXTRAS


def test_the_installer_says_which_python_it_needs_and_which_extras_it_has(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install = script("install")
    monkeypatch.setattr(install.subprocess, "run", lambda *_, **__: pytest.fail("pip was called"))
    monkeypatch.setattr(install.sys, "argv", ["install.py", "mlflow"])
    with pytest.raises(SystemExit) as ended:
        install.main()
    assert ended.value.code == 2
    assert (
        "mlflow: no lock has it; it must be one of gguf, hub, model-signing"
        in capsys.readouterr().err
    )
    monkeypatch.setattr(install.sys, "version_info", (3, 10, 13))
    assert install.main() == 2
    assert capsys.readouterr().err == "dpfedadamw needs Python 3.11 or newer; this is Python 3.10\n"


def test_the_installer_ends_where_pip_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    install = script("install")
    called: list[Any] = []

    def refuse(arguments: list[str]) -> subprocess.CompletedProcess[bytes]:
        called.append(arguments)
        return subprocess.CompletedProcess(arguments, 1)

    monkeypatch.setattr(install.subprocess, "run", refuse)
    monkeypatch.setattr(install.sys, "argv", ["install.py"])
    assert install.main() == 1
    assert len(called) == 1


def test_actions_are_named_by_commit_and_base_images_by_digest() -> None:
    used = [
        line.strip()
        for path in sorted((ROOT / ".github" / "workflows").glob("*.y*ml"))
        for line in path.read_text("utf-8").splitlines()
        if re.search(r"\buses:", line)
    ]
    assert len(used) > 5
    by_commit = re.compile(r"- uses: [\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
    assert [line for line in used if not by_commit.fullmatch(line)] == []
    texts = [path.read_text("utf-8") for path in sorted(ROOT.glob("Dockerfile*"))]
    images = [
        line
        for text in [*texts, templates.DOCKERFILE]
        for line in text.splitlines()
        if line.upper().startswith("FROM ")
    ]
    # The repository's image and a federation's are made from one.
    assert len(images) == 2
    assert len(set(images)) == 1
    by_digest = re.compile(r"FROM [\w./:-]+@sha256:[0-9a-f]{64}( AS \w+)?")
    assert [line for line in images if not by_digest.fullmatch(line)] == []


def bill() -> Any:
    return json.loads((ROOT / "requirements" / "dpfedadamw.cdx.json").read_text("utf-8"))


def test_the_bill_of_materials_lists_exactly_the_packages_of_the_lock() -> None:
    found = {one["name"]: one for one in bill()["components"]}
    assert {name: one["version"] for name, one in found.items()} == locked("runtime", "torch-cuda")
    for name, one in found.items():
        assert one["purl"] == one["bom-ref"] == f"pkg:pypi/{name}@{one['version']}"
    entries = script("make").entries
    hashes: dict[str, set[str]] = {}
    for file in ("runtime", "torch-cuda"):
        for name, entry in entries(
            (ROOT / "requirements" / f"{file}.txt").read_text("utf-8")
        ).items():
            hashes[name] = set(re.findall(r"sha256:([0-9a-f]{64})", entry))
    cpu = (ROOT / "requirements" / "torch-cpu.txt").read_text("utf-8")
    hashes["torch"] |= set(re.findall(r"sha256:([0-9a-f]{64})", cpu))
    assert {
        name: {one["content"] for way in found[name]["externalReferences"] for one in way["hashes"]}
        for name in found
    } == hashes


def test_the_bill_of_materials_says_what_needs_what() -> None:
    found = bill()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    own = found["metadata"]["component"]
    assert (own["name"], own["version"]) == (project["name"], project["version"])
    assert own["licenses"] == [{"expression": project["license"]}]
    needs = {one["ref"]: one["dependsOn"] for one in found["dependencies"]}
    direct = {canonicalize_name(Requirement(one).name) for one in project["dependencies"]}
    assert {one.split("/")[1].split("@")[0] for one in needs[own["bom-ref"]]} == direct
    scopes = {one["bom-ref"]: one["scope"] for one in found["components"]}
    reached, ahead = set[str](), [own["bom-ref"]]
    while ahead:
        reached.add(one := ahead.pop())
        ahead += [other for other in needs[one] if other not in reached]
    # What builds the package is listed, and is no part of it.
    assert reached - {own["bom-ref"]} == {
        one for one, scope in scopes.items() if scope != "excluded"
    }
    licensed = [one for one in found["components"] if "licenses" in one]
    assert len(licensed) > 50


def test_the_wheel_has_the_bill_of_materials() -> None:
    """PEP 770. An editable installation has no wheel."""
    file = "requirements/dpfedadamw.cdx.json"
    about = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert about["tool"]["hatch"]["build"]["targets"]["wheel"]["sbom-files"] == [file]
    installed = metadata.distribution("dpfedadamw")
    if "editable" in (installed.read_text("direct_url.json") or ""):
        pytest.skip("dpfedadamw is installed as editable")
    found = [one for one in installed.files or () if one.parent.name == "sboms"]
    assert [one.name for one in found] == ["dpfedadamw.cdx.json"]
    assert found[0].read_text("utf-8") == (ROOT / file).read_text("utf-8")


def test_the_bill_of_materials_fits_the_published_schema() -> None:
    registry: Any = referencing.Registry().with_resources(
        (f"http://cyclonedx.org/schema/{name}", referencing.Resource.from_contents(schema(name)))
        for name in ("spdx.schema.json", "jsf-0.82.schema.json")
    )
    validator = jsonschema.Draft7Validator(schema("bom-1.6.schema.json"), registry=registry)
    found = bill()
    validator.validate(found)
    found["components"][0]["because"] = "no such key"
    assert not validator.is_valid(found)


def test_nothing_is_named_after_a_domain_that_the_project_does_not_own() -> None:
    """Anyone who registers it could publish what our identifiers seem to point to."""
    texts = [ROOT / name for name in ("pyproject.toml", "mkdocs.yml", "CITATION.cff", "README.md")]
    texts += [
        path
        for folder in ("dpfedadamw", "audit", "reports", "specs")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".json", ".yaml", ".sh", ".typ", ".md", ".html", ".mjs")
    ]
    assert len(texts) > 500
    named = [path for path in texts if "dpfedadamw.org" in path.read_text("utf-8")]
    # Those that read what was signed under the earlier names.
    assert {path.relative_to(ROOT).as_posix() for path in named} == {
        "reports/signatures/dsse.py", "reports/signatures/templates/verify.sh",
        "reports/verifier/verify.mjs", "reports/verifier/verify.html",
    }  # fmt: skip
    assert "urls" not in tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
