"""Writes the files of this folder again: `python requirements/make.py`.

Needs uv, and nothing else: it reads PyPI's index and installs nothing. Each file has the versions
of constraints.txt, and the SHA-256 of every file that PyPI has of each package. `torch-cpu.txt` is
the exception: it is copied by hand from https://download.pytorch.org/whl/cpu/torch/.

A lock is complete by itself, except that torch has files of its own (with CUDA or without), and
that `extra-….txt` holds only what an extra needs in addition to `runtime.txt`.

The package's bill of materials (CycloneDX) is made of the locks. It names the licence of what is
installed where this runs: run it in an environment that `install.py` made.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
import uuid
from importlib import metadata
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
# Of these, torch alone is needed without CUDA. PyPI's torch for Linux asks for all of them.
CUDA = re.compile(r"torch|triton|(nvidia|cuda)-.*")
EXTRAS = ("gguf", "hub", "model-signing", "parquet", "pkcs11", "transformers")
BACKEND = "hatchling"
BILL = HERE / "dpfedadamw.cdx.json"
# The licence as the package states it, where that is one word or an SPDX expression.
_LICENCE = re.compile(r"[A-Za-z0-9.+()-]+( (AND|OR|WITH) [A-Za-z0-9.+()-]+)*")
_NAMESPACE = uuid.UUID("0d6f4d0a-7a3c-5f44-9a52-3f3d1a0c5b1e")
_UV = ("uv", "pip", "compile", "--universal", "--no-header", "--python-version", "3.11", "--quiet")

Entries = dict[str, str]


def entries(text: str) -> Entries:
    """Split a lock into its requirements: name, as PyPI writes it, to line and hashes."""
    parts = re.split(r"^(?=[A-Za-z0-9])", text, flags=re.MULTILINE)
    named = ((re.match(r"[A-Za-z0-9._-]+", part), part) for part in parts)
    return {re.sub(r"[-_.]+", "-", name[0]).lower(): part for name, part in named if name}


def resolve(*names: str, extra: str = "", constraints: str = "constraints.txt") -> Entries:
    """Let uv find what the names need, or the package itself and the backend that builds it."""
    more = ("pyproject.toml", *(("--extra", extra) if extra else ())) if not names else ()
    done = subprocess.run(
        [*_UV, "--generate-hashes", "--no-annotate", "-c", constraints, *more, "-"],
        input="\n".join(names or (BACKEND,)),
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        check=True,
    )
    return entries(done.stdout)


def needs() -> dict[str, set[str]]:
    """Let uv say which package needs which, without the backend: name to names; `` is our own."""
    done = subprocess.run(
        [*_UV, "--annotation-style", "line", "-c", "constraints.txt", "pyproject.toml"],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        check=True,
    )
    found: dict[str, set[str]] = {"": set()}
    for name, via in re.findall(r"^([a-z0-9-]+)==.*# via (.*)$", done.stdout, re.MULTILINE):
        found.setdefault(name, set())
        for other in via.split(", "):
            if "(pyproject.toml)" in other:
                found[""].add(name)
            elif not other.startswith("-"):
                found.setdefault(other, set()).add(name)
    return found


def licence(name: str, version: str) -> list[dict[str, Any]]:
    """Return what the package itself says of its licence, if it is installed here and says it."""
    try:
        said = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return []
    if said["Version"].partition("+")[0] != version:
        return []
    if expression := said.get("License-Expression"):
        return [{"expression": expression}]
    text = said.get("License") or ""
    return [{"license": {"name": text}}] if _LICENCE.fullmatch(text) else []


def component(name: str, lock: Entries, required: set[str]) -> dict[str, Any]:
    """Return a package of a lock as a component; the hashes are those of its published files."""
    line = lock[name].splitlines()[0].rstrip("\\ ")
    version, _, marker = line.partition("==")[2].partition(";")
    version = version.strip()
    hashes = re.findall(r"sha256:([0-9a-f]{64})", lock[name])
    # What only builds the package is not part of it.
    scope = "excluded" if name not in required else "optional" if is_cuda(name) else "required"
    found: dict[str, Any] = {
        "type": "library",
        "bom-ref": f"pkg:pypi/{name}@{version}",
        "name": name,
        "version": version,
        "scope": scope,
        "licenses": licence(name, version),
        "purl": f"pkg:pypi/{name}@{version}",
        "externalReferences": [
            {
                "type": "distribution",
                "url": f"https://pypi.org/simple/{name}/",
                "comment": "Any of the published files of this version",
                "hashes": [{"alg": "SHA-256", "content": one} for one in hashes],
            }
        ],
    }
    if marker:
        found["properties"] = [{"name": "dpfedadamw:marker", "value": marker.strip()}]
    return {key: value for key, value in found.items() if value}


def is_cuda(name: str) -> bool:
    """Whether only torch with CUDA needs it."""
    return name != "torch" and CUDA.fullmatch(name) is not None


def bill(lock: Entries, edges: dict[str, set[str]], cpu: str) -> str:
    """Return the bill of materials of the package as JSON: CycloneDX 1.6, without a date.

    Args:
        lock: What runtime.txt and torch-cuda.txt hold.
        edges: Which package needs which.
        cpu: The text of torch-cpu.txt, whose files for Linux have hashes of their own.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    own = f"pkg:pypi/{project['name']}@{project['version']}"
    components = [component(name, lock, set(edges)) for name in sorted(lock)]
    reference = {one["name"]: one["bom-ref"] for one in components} | {"": own}
    linux = re.findall(r"sha256:([0-9a-f]{64})", cpu.split("torch==")[1])
    next(one for one in components if one["name"] == "torch")["externalReferences"].append(
        {
            "type": "distribution",
            "url": "https://download.pytorch.org/whl/cpu/torch/",
            "comment": "Any of the published files without CUDA of this version",
            "hashes": [{"alg": "SHA-256", "content": one} for one in linux],
        }
    )
    found = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "lifecycles": [{"phase": "pre-build"}],
            "component": {
                "type": "application",
                "bom-ref": own,
                "name": project["name"],
                "version": project["version"],
                "description": project["description"],
                "licenses": [{"expression": project["license"]}],
                "purl": own,
            },
        },
        "components": components,
        "dependencies": [
            {"ref": reference[name], "dependsOn": sorted(reference[one] for one in edges[name])}
            for name in sorted(edges)
        ],
    }
    number = uuid.uuid5(_NAMESPACE, json.dumps(found, sort_keys=True))
    return json.dumps(found | {"serialNumber": f"urn:uuid:{number}"}, indent=1) + "\n"


def write(name: str, what: str, lock: Entries) -> None:
    """Write a lock with its heading."""
    heading = (
        f"# {what}, with the SHA-256 of every published file, at the versions of constraints"
        f"{'-flower' if name == 'flower' else ''}.txt.\n# Made by: python requirements/make.py\n"
    )
    (HERE / f"{name}.txt").write_text(heading + "".join(lock.values()), "utf-8")


def main() -> None:
    """Write all of them."""
    tools = resolve("tox", "ruff", "import-linter")
    write("tools", "For tox, style and import contracts", tools)
    auditor = resolve("numpy", "scipy", "pyyaml", "jsonschema", "pytest", "pytest-xdist")
    write("auditor", "For the auditor where nothing else is installed, and its tests", auditor)
    docs = resolve("mkdocs-material", "mkdocstrings[python]")
    write("docs", "For the documentation site", docs)

    whole = resolve()
    runtime = {name: entry for name, entry in whole.items() if not CUDA.fullmatch(name)}
    write("runtime", "What dpfedadamw needs and what builds it, but for torch", runtime)
    cuda = {name: entry for name, entry in whole.items() if CUDA.fullmatch(name)}
    write("torch-cuda", "torch as PyPI has it, on Linux with CUDA", cuda)
    BILL.write_text(bill(whole, needs(), (HERE / "torch-cpu.txt").read_text("utf-8")), "utf-8")
    for extra in EXTRAS:
        more = {n: e for n, e in resolve(extra=extra).items() if n not in whole}
        write(f"extra-{extra}", f"What the extra {extra} needs in addition to runtime.txt", more)
    flower = resolve(extra="flower", constraints="constraints-flower.txt")
    flower = {name: entry for name, entry in flower.items() if not CUDA.fullmatch(name)}
    write("flower", "What dpfedadamw[flower] needs and what builds it, but for torch", flower)


if __name__ == "__main__":
    sys.exit(main())
