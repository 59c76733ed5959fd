"""Ways to spoil a run directory, and a trainer's digests written with the library alone."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import io
import json
import os
import random
import shutil
import socket
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from audit import auditor
from audit.auditor import audit_run
from audit.checks import checks_for
from audit.probe.probing import Probe
from audit.reading.bundle import open_bundle
from audit.verdict import Finding, Findings

ATTESTED = ("spec.yaml", "ledger.jsonl", "metrics.jsonl", "model.safetensors", "model.json")
ENVELOPE = "training.attestation.json"
_HUGE = 2**26


def attest(run: Path) -> Path:
    """Write the trainer's envelope; its signature is void, for no auditor reads it."""
    (run / "trainer.pub").write_text("-----BEGIN PUBLIC KEY-----\n-----END PUBLIC KEY-----\n")
    evidence = run / "evidence"
    lines = sorted(
        f"{_sha256(path)}  {path.relative_to(evidence)}\n"
        for path in evidence.rglob("*")
        if path.is_file() and path.name not in ("salt", "findings.json")
    )
    salted = hmac.new((evidence / "salt").read_bytes(), "".join(lines).encode(), hashlib.sha256)
    subjects: list[dict[str, Any]] = [
        {"name": name, "digest": {"sha256": _sha256(run / name)}}
        for name in (*ATTESTED, "trainer.pub")
    ]
    subjects.append({"name": "evidence", "digest": {"hmacSha256": salted.hexdigest()}})
    payload = json.dumps({"subject": subjects, "predicate": {"role": "trainer"}}).encode()
    envelope = {
        "payloadType": "application/vnd.in-toto+json",
        "payload": base64.b64encode(payload).decode(),
        "signatures": [{"keyid": "none", "sig": ""}],
    }
    (run / ENVELOPE).write_text(json.dumps(envelope))
    return run


def audit_attested(run: Path, probe: Probe | None = None) -> Findings:
    """Audit a run as its trainer signed it just now: most faults here are older than that."""
    if (run / "evidence" / "salt").exists():
        attest(run)
    return audit_run(run, probe)


def finding_of(run: Path, name: str) -> Finding:
    """What one check finds, without a whole audit."""
    bundle = open_bundle(run)
    header = bundle.ledger.header if bundle.ledger is not None else None
    (check,) = (one for one in checks_for(header) if one.name == name)
    return auditor._run(check, bundle)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def files(run: Path) -> list[Path]:
    """Every file of a run, in a fixed order."""
    return sorted(path for path in run.rglob("*") if path.is_file() and not path.is_symlink())


def corrupt(run: Path, other: Path, rng: random.Random) -> str:
    """Spoil one file of `run` in one way; `other` is another run. Says what was done."""
    while True:
        # What was made huge before is not read again.
        path = rng.choice([one for one in files(run) if one.stat().st_size < _HUGE])
        name = str(path.relative_to(run))
        how = rng.choice(_ALL)
        before = path.read_bytes()
        how(path, other / name, rng)
        if _size(path) != len(before) or path.is_symlink() or path.read_bytes() != before:
            return f"{how.__name__} {name}"


def _size(path: Path) -> int | None:
    """The size of a plain file; None for anything else."""
    return path.stat().st_size if path.is_file() else None


def flip(path: Path, other: Path, rng: random.Random) -> None:
    raw = bytearray(path.read_bytes())
    for _ in range(rng.choice([1, 1, 1, 5])):
        if raw:
            raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    path.write_bytes(bytes(raw))


def truncate(path: Path, other: Path, rng: random.Random) -> None:
    raw = path.read_bytes()
    path.write_bytes(raw[: rng.randrange(max(1, len(raw)))])


def empty(path: Path, other: Path, rng: random.Random) -> None:
    path.write_bytes(b"")


def delete(path: Path, other: Path, rng: random.Random) -> None:
    path.unlink()


def append(path: Path, other: Path, rng: random.Random) -> None:
    path.write_bytes(path.read_bytes() + rng.randbytes(rng.randrange(1, 40)))


def swap_runs(path: Path, other: Path, rng: random.Random) -> None:
    # Runs keep different participations: one without a counterpart takes another file's place.
    found = other if other.exists() else min(p for p in other.parent.iterdir() if p.is_file())
    path.write_bytes(found.read_bytes())


def swap_files(path: Path, other: Path, rng: random.Random) -> None:
    second = rng.choice([one for one in path.parent.iterdir() if one.is_file()])
    first, raw = path.read_bytes(), second.read_bytes()
    path.write_bytes(raw)
    second.write_bytes(first)


def link(path: Path, other: Path, rng: random.Random) -> None:
    path.unlink()
    path.symlink_to(rng.choice([other, Path("/dev/zero"), path.parent, Path("nowhere"), path]))


def directory(path: Path, other: Path, rng: random.Random) -> None:
    path.unlink()
    path.mkdir()


def pipe(path: Path, other: Path, rng: random.Random) -> None:
    path.unlink()
    os.mkfifo(path)


def nudge_number(path: Path, other: Path, rng: random.Random) -> None:
    """Change one number of a text by one unit of its last digit, or its sign."""
    raw = path.read_bytes()
    places = [i for i, byte in enumerate(raw) if 48 <= byte <= 57]
    if path.suffix in (".npz", ".safetensors") or not places:
        return flip(path, other, rng)
    at = rng.choice(places)
    if rng.random() < 0.3:
        path.write_bytes(raw[:at] + b"-" + raw[at:])
    else:
        digit = bytes([48 + (raw[at] - 48 + rng.choice([1, 9])) % 10])
        path.write_bytes(raw[:at] + digit + raw[at + 1 :])
    return None


def shuffle_lines(path: Path, other: Path, rng: random.Random) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    how = rng.randrange(3)
    at = rng.randrange(max(1, len(lines)))
    if how == 0:
        lines[at:at] = lines[at : at + 1]
    elif how == 1:
        del lines[at : at + 1]
    else:
        rng.shuffle(lines)
    path.write_bytes(b"".join(lines))


def deep_json(path: Path, other: Path, rng: random.Random) -> None:
    depth = rng.choice([40, 5_000, 100_000])
    path.write_bytes(b'{"a":' * depth + b"1" + b"}" * depth)


def huge_json(path: Path, other: Path, rng: random.Random) -> None:
    text = rng.choice([b"[" + b"1," * 400_000 + b"1]", b'{"a":' + b"9" * 300_000 + b"}"])
    path.write_bytes(text + b"\n")


def rename_members(path: Path, other: Path, rng: random.Random) -> None:
    if path.suffix != ".npz":
        return flip(path, other, rng)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    names = list(members)
    victim = rng.choice(names)
    new = rng.choice([f"{victim.removesuffix('.npy')}x.npy", rng.choice(names), "../up.npy", "a"])
    content = [(new if name == victim else name, members[name]) for name in names]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, raw in content:
            archive.writestr(zipfile.ZipInfo(name), raw)
    path.write_bytes(buffer.getvalue())
    return None


def absurd_header(path: Path, other: Path, rng: random.Random) -> None:
    """An array that claims a shape, type or size that it does not have."""
    if path.suffix != ".npz":
        path.write_bytes(b"PK\x03\x04" + struct.pack("<Q", 2**60) + path.read_bytes())
        return
    shape: Any = rng.choice([(2**62,), (10**9, 10**9), (-1,), (0,) * 40, (1,) * 500])
    kind = rng.choice(["<f8", "|O", "<U1000000", "|V0", "<f2"])
    member = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        member, {"descr": kind, "fortran_order": False, "shape": shape}
    )
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members[rng.choice(list(members))] = member.getvalue() + bytes(16)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])) as a:
        for name, raw in members.items():
            a.writestr(zipfile.ZipInfo(name), raw)
    path.write_bytes(buffer.getvalue())


def nudge_array(path: Path, other: Path, rng: random.Random) -> None:
    """Change one element of one array and write the archive anew, all checksums right."""
    if path.suffix != ".npz":
        return nudge_number(path, other, rng)
    with np.load(path) as file:
        arrays = {name: file[name].copy() for name in file.files}
    numbers = [name for name, one in arrays.items() if one.dtype.kind in "iuf" and one.size]
    array = arrays[rng.choice(numbers)]
    at = rng.randrange(array.size)
    change = rng.choice(["unit", "sign", "huge", "nan"])
    if array.dtype.kind == "f" and change == "nan":
        array.flat[at] = np.nan
    elif change == "sign":
        array.flat[at] = -array.flat[at] if array.dtype.kind != "u" else 0
    elif change == "huge":
        array.flat[at] = 2**40 if array.dtype.itemsize >= 4 else 1
    else:
        array.flat[at] = array.flat[at] + 1
    np.savez(path, allow_pickle=False, **arrays)
    return None


def sparse(path: Path, other: Path, rng: random.Random) -> None:
    """A file that says it is huge and takes no room: longer, or nothing but a hole."""
    size = rng.choice([_HUGE, 2**29, 2**40])
    if rng.random() < 0.5:
        path.write_bytes(b"")
    os.truncate(path, max(size, path.stat().st_size + 1))


def edit_json(path: Path, other: Path, rng: random.Random) -> None:
    """Change one value of a JSON file, or of one line, and write it anew."""
    lines = path.read_bytes().splitlines() if path.suffix == ".jsonl" else [path.read_bytes()]
    at = rng.randrange(max(1, len(lines)))
    try:
        document = json.loads(lines[at])
    except (ValueError, IndexError):
        return flip(path, other, rng)
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        pairs = node.items() if isinstance(node, dict) else enumerate(node)
        for key, inner in list(pairs):
            places.append((node, key))
            if isinstance(inner, dict | list):
                walk(inner)

    if isinstance(document, dict | list):
        walk(document)
    if not places:
        return flip(path, other, rng)
    node, key = rng.choice(places)
    old = node[key]
    new: list[Any] = [None, [], {}, "", -1, 0, 1e308, 10**400, "\ud800", [old], {"a": old}, not old]
    node[key] = rng.choice([value for value in new if value != old])
    if rng.random() < 0.1:
        del node[key]
    lines[at] = json.dumps(document).encode()
    path.write_bytes(b"\n".join(lines) + b"\n")
    return None


def reformat_json(path: Path, other: Path, rng: random.Random) -> None:
    """The same JSON in other bytes."""
    try:
        documents = [json.loads(line) for line in path.read_bytes().splitlines()]
    except ValueError:
        return append(path, other, rng)
    path.write_bytes(b"".join(json.dumps(one).encode() + b"  \r\n" for one in documents))
    return None


def device(path: Path, other: Path, rng: random.Random) -> None:
    """A socket in the file's place."""
    path.unlink()
    with socket.socket(socket.AF_UNIX) as one, contextlib.suppress(OSError):
        one.bind(str(path))


_ALL: tuple[Callable[[Path, Path, random.Random], None], ...] = (
    flip,
    flip,
    truncate,
    empty,
    delete,
    append,
    swap_runs,
    swap_files,
    link,
    directory,
    pipe,
    nudge_number,
    nudge_number,
    shuffle_lines,
    deep_json,
    huge_json,
    rename_members,
    absurd_header,
    nudge_array,
    nudge_array,
    sparse,
    edit_json,
    edit_json,
    reformat_json,
    device,
)


def copy(run: Path, to: Path) -> Path:
    shutil.copytree(run, to)
    return to
