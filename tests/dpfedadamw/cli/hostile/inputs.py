"""What a stranger may put in the place of a file or a folder, by the kind of file that is due.

Each input is a function that spoils a good file, so that what is hostile lies among what is well
formed. `OUTSIDE` holds what nobody may read or write, and `CANARY` in it appears if code ran.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import re
import shutil
import socket
import sqlite3
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.audit.synthetic_run import chain

SECRET = "what nobody outside may read 8d1f"
ESCAPES = "\x1b[31mred\x1b]0;title\x07\x1b]52;c;ZWNobw==\x07\x1b]8;;http://x.example\x07x\x9b2J"
BIDI = "safe\u202etxt.exe\u2066\u2069\u200f\ufeff"
MARKUP = "<script>alert(1)</script><img src=x onerror=alert(1)>[bold red]x[/][x](javascript:1)"
FORMULA = "=cmd|'/c calc'!A1"
PATHS = "../../../../../../etc/passwd\n-rf\n$(touch CANARY)`touch CANARY`"
TEXTS = {
    "escapes": ESCAPES,
    "bidi": BIDI,
    "markup": MARKUP,
    "formula": FORMULA,
    "path": PATHS,
    "long": "x" * 200_000,
    "surrogate": "\ud800\udfff",
    "nothing": "",
    "newlines": "a\nerror: b\r\n\tc\x00\x0b\x85\u2028d",
}
VALUES: dict[str, Any] = {
    "none": None,
    "true": True,
    "negative": -1,
    "zero": 0,
    "large": 2**63,
    "larger": 10**4000,
    "fraction": 0.5,
    "huge float": 1e308,
    "list": [],
    "lists": [[1], {"a": []}],
    "mapping": {},
    "text": "1",
}
# Written where JSON is due, but none of its numbers.
NUMBERS = ("NaN", "-Infinity", "1e999", "1" * 10_000, "-0", "1.0000000000000000000001e-400")


@dataclass(frozen=True)
class Around:
    """Where a case plays.

    Attributes:
        here: The folder in which commands are called.
        outside: A folder that belongs to somebody else.
        canary: Appears if code of the input ran.
    """

    here: Path
    outside: Path
    canary: Path


Spoil = Callable[[Path, Around], None]


@dataclass(frozen=True)
class Input:
    """One hostile thing.

    Attributes:
        name: For messages.
        kinds: The kinds of file that it can stand for; "any" for all, "folder" for folders.
        spoil: Puts it in the place of the good file or folder.
    """

    name: str
    kinds: tuple[str, ...]
    spoil: Spoil

    def fits(self, kind: str) -> bool:
        """Whether it can stand for a file of a kind."""
        return kind in self.kinds or ("any" in self.kinds and kind not in ("folder", "word"))


def _gone(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _link(target: str | None) -> Spoil:
    def spoil(path: Path, around: Around) -> None:
        place = {None: str(path), "moved": str(around.outside / "moved")}.get(
            target, (target or "").replace("OUTSIDE", str(around.outside))
        )
        if target == "moved":
            if path.is_dir():
                shutil.copytree(path, around.outside / "moved", symlinks=True)
            else:
                content = path.read_bytes() if path.is_file() else b""
                (around.outside / "moved").write_bytes(content)
        _gone(path)
        path.symlink_to(place)

    return spoil


def _instead(make: Callable[[Path], object]) -> Spoil:
    def spoil(path: Path, _around: Around) -> None:
        _gone(path)
        make(path)

    return spoil


def _content(make: Callable[[bytes], bytes]) -> Spoil:
    def spoil(path: Path, _around: Around) -> None:
        before = path.read_bytes() if path.is_file() else b""
        _gone(path)
        path.write_bytes(make(before))

    return spoil


def _socket(path: Path) -> None:
    # A socket's address is short, a test's folder is not.
    here = os.getcwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def _sparse(path: Path, size: int = 100 << 30) -> None:
    with path.open("r+b" if path.exists() else "wb") as file:
        file.truncate(size)


def _sparse_behind(path: Path, _around: Around) -> None:
    _sparse(path)


def _folder_with(path: Path) -> None:
    path.mkdir()
    (path / "a").write_text("a")


_LONG_LINE = b"a" * (100 << 20)
_DEEP = 200_000

ANY = (
    Input("link to a system file", ("any", "folder"), _link("/etc/passwd")),
    Input("link to a file outside", ("any",), _link("OUTSIDE/secret")),
    Input("link to itself", ("any", "folder"), _link(None)),
    Input("link to nothing", ("any", "folder"), _link("nothing")),
    Input("link to a device", ("any", "folder"), _link("/dev/zero")),
    Input("link to another place with the good content", ("any", "folder"), _link("moved")),
    Input("link to a folder outside", ("any", "folder"), _link("OUTSIDE")),
    Input("link to the root", ("folder",), _link("/")),
    Input("named pipe", ("any", "folder"), _instead(os.mkfifo)),
    Input("socket", ("any", "folder"), _instead(_socket)),
    Input("folder", ("any",), _instead(_folder_with)),
    Input("file", ("folder",), _instead(lambda path: path.write_text("x"))),
    Input("nothing", ("any", "folder"), _instead(lambda path: None)),
    Input("empty", ("any",), _content(lambda _: b"")),
    Input("empty folder", ("folder",), _instead(Path.mkdir)),
    Input("half", ("any",), _content(lambda raw: raw[: len(raw) // 2])),
    Input("all but a byte", ("any",), _content(lambda raw: raw[:-1])),
    Input("twice", ("any",), _content(lambda raw: raw + raw)),
    Input("100 GB of zeros behind it", ("any",), _sparse_behind),
    Input("100 GB of zeros", ("any",), _instead(_sparse)),
    Input("a line of 100 MB", ("any",), _content(lambda _: _LONG_LINE)),
    Input("zero bytes in it", ("any",), _content(lambda raw: raw.replace(b"a", b"\0"))),
    Input("no UTF-8", ("any",), _content(lambda raw: raw.replace(b"e", b"\xff\xfe"))),
    Input(
        "UTF-16",
        ("any",),
        _content(lambda raw: b"\xff\xfe" + raw.decode("latin-1").encode("utf-16-le")),
    ),
    Input("mark of UTF-8 before it", ("any",), _content(lambda raw: b"\xef\xbb\xbf" + raw)),
    Input("random bytes", ("any",), _content(lambda _: np.random.default_rng(1).bytes(4096))),
    Input("bits flipped", ("any",), _content(lambda raw: bytes(b ^ (i % 7 == 3) for i, b in enumerate(raw)))),
    Input("deep lists", ("any",), _content(lambda _: b"[" * _DEEP + b"]" * _DEEP)),
    Input("deep mappings", ("any",), _content(lambda _: b'{"a":' * _DEEP)),
    Input("deep YAML", ("any",), _content(lambda _: b"".join(b" " * i + b"a:\n" for i in range(600)))),
    Input("JSON of a number", ("any",), _content(lambda _: b"1" * 10_000)),
    Input("JSON of null", ("any",), _content(lambda _: b"null\n")),
    Input("JSON of an empty list", ("any",), _content(lambda _: b"[]\n")),
    Input("JSON of an empty mapping", ("any",), _content(lambda _: b"{}\n")),
    Input("escapes in lines", ("any",), _content(lambda _: (ESCAPES + "\n").encode() * 3)),
)  # fmt: skip


# --- JSON ---------------------------------------------------------------------------------------


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where anything stands in a value, by keys and numbers."""
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, below in items:
        yield (*at, key)
        yield from places(below, (*at, key))


def put(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    """The value with something else at a place; what is on the way is copied."""
    if not place:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[place[0]] = put(copy[place[0]], place[1:], new)
    return copy


def at(value: Any, place: tuple[Any, ...]) -> Any:
    """What stands at a place."""
    for key in place:
        value = value[key]
    return value


def replaced_texts(value: Any, text: str) -> Any:
    """The value with a text in the place of every text but short names of what there is."""
    if isinstance(value, dict):
        return {key: replaced_texts(below, text) for key, below in value.items()}
    if isinstance(value, list):
        return [replaced_texts(below, text) for below in value]
    return text if isinstance(value, str) else value


def json_of(value: Any) -> bytes:
    """JSON that may hold what JSON may not."""
    # YAML has dates, which are texts here.
    return json.dumps(value, ensure_ascii=False, default=str).encode("utf-8", "surrogatepass")


def lines_of(raw: bytes) -> list[Any]:
    """The values of a file of JSON, or of JSON lines."""
    try:
        return [json.loads(raw)]
    except ValueError:
        return [json.loads(line) for line in raw.splitlines() if line.strip()]


def relinked(lines: list[Any], ledger: bool) -> bytes:
    """Lines as a file; a ledger's chain of digests is made to fit, as its forger would."""
    if ledger and all(isinstance(line, dict) for line in lines):
        with contextlib.suppress(ValueError, TypeError):
            return chain(lines)
    return b"".join(json_of(line) + b"\n" for line in lines)


def _json(change: Callable[[Any], Any], which: str = "all") -> Spoil:
    def spoil(path: Path, _around: Around) -> None:
        lines = lines_of(path.read_bytes())
        every = range(len(lines))
        # A file without lines stays as it is.
        chosen = {"all": every, "first": every[:1], "last": every[-1:]}[which]
        for index in chosen:
            lines[index] = change(lines[index])
        path.write_bytes(relinked(lines, path.name == "ledger.jsonl"))

    return spoil


def _raw_json(change: Callable[[bytes], bytes]) -> Spoil:
    return _content(lambda raw: b"\n".join(change(line) for line in raw.splitlines()) + b"\n")


def _each_key(new: Any) -> Callable[[Any], Any]:
    def change(value: Any) -> Any:
        return dict.fromkeys(value, new) if isinstance(value, dict) else new

    return change


def _deepest(new: Any) -> Callable[[Any], Any]:
    def change(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: change(below) for key, below in value.items()}
        return [change(below) for below in value] if isinstance(value, list) else new

    return change


_NUMBER = re.compile(rb"(?<=[:,\[ ])-?\d+(\.\d+)?(e-?\d+)?(?=[,\]} \n])")
_JSONS = ("json", "jsonl")
JSONS = (
    *(
        Input(f"{name} in each text", _JSONS, _json(lambda value, text=text: replaced_texts(value, text)))
        for name, text in TEXTS.items()
    ),
    *(
        Input(f"{text[:12]} for each number", _JSONS, _content(lambda raw, text=text: _NUMBER.sub(text.encode(), raw)))
        for text in NUMBERS
    ),
    *(
        Input(f"{name} at each key", _JSONS, _json(_each_key(value)))
        for name, value in VALUES.items()
    ),
    *(
        Input(f"{name} at each key of the last line", ("jsonl",), _json(_each_key(value), "last"))
        for name, value in VALUES.items()
    ),
    *(
        Input(f"{name} at each end", _JSONS, _json(_deepest(value)))
        for name, value in VALUES.items()
    ),
    Input("each key twice", _JSONS, _raw_json(lambda raw: raw[:-1] + b"," + raw[1:] if raw.strip() not in (b"{", b"}") else raw)),
    Input("a million keys", _JSONS, _content(lambda raw: b"{" + b",".join(b'"k%d":0' % i for i in range(300_000)) + b"}\n")),
    Input("names for keys", _JSONS, _json(lambda value: {ESCAPES + str(key): below for key, below in value.items()} if isinstance(value, dict) else value)),
)  # fmt: skip

# --- YAML ---------------------------------------------------------------------------------------

_LAUGHS = "a0: &a0 [x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12)
)


def _yaml_text(text: str) -> Spoil:
    return _content(lambda raw: raw + text.encode("utf-8", "surrogatepass"))


def _yaml(change: Callable[[Any], Any]) -> Spoil:
    def make(raw: bytes) -> bytes:
        import yaml

        found = yaml.safe_load(raw)
        # JSON is YAML, and holds texts that YAML's own writer would not write.
        return json_of(change(found))

    return _content(make)


def _named(texts: dict[str, str]) -> Iterator[Input]:
    for name, text in texts.items():
        yield Input(
            f"{name} as name and description",
            ("yaml",),
            _yaml(lambda value, text=text: {**value, "name": text, "description": text}),
        )
        yield Input(
            f"{name} in each text",
            ("yaml",),
            _yaml(lambda value, text=text: replaced_texts(value, text)),
        )
        yield Input(
            f"{name} as a key", ("yaml",), _yaml(lambda value, text=text: {**value, text: text})
        )


def python_target(canary: Path) -> dict[str, Any]:
    """A model that a spec names, whose making runs a command."""
    return {
        "name": "python",
        "target": "subprocess:getoutput",
        "arguments": {"cmd": f"touch {canary}"},
    }


def _with_target(target: Callable[[Path], dict[str, Any]], planted: bool = False) -> Spoil:
    def spoil(path: Path, around: Around) -> None:
        import yaml

        found = yaml.safe_load(path.read_bytes())
        if planted:
            # Where commands are called, and where the spec lies.
            for folder in {path.parent, around.here}:
                (folder / "planted.py").write_text(f"open({str(around.canary)!r}, 'w').close()\n")
        path.write_bytes(yaml.safe_dump({**found, "model": target(around.canary)}).encode())

    return spoil


YAMLS = (
    Input("a tag that calls", ("yaml",), lambda path, around: path.write_text(f"!!python/object/apply:os.system ['touch {around.canary}']\n")),
    Input("a tag that calls, below", ("yaml",), lambda path, around: path.write_text(f"version: 1\nname: !!python/object/apply:os.system ['touch {around.canary}']\n")),
    Input("a tag of its own", ("yaml",), _yaml_text("report: !x {a: 1}\n")),
    Input("laughs", ("yaml",), _content(lambda _: _LAUGHS.encode())),
    Input("an anchor", ("yaml",), _yaml_text("x: &a {b: 1}\ny: *a\n")),
    Input("an anchor in itself", ("yaml",), _yaml_text("x: &a [*a]\n")),
    Input("merged keys", ("yaml",), _yaml_text("x: &a {b: 1}\ny: {<<: *a}\n")),
    Input("each key twice", ("yaml",), _content(lambda raw: raw + raw)),
    Input("two documents", ("yaml",), _content(lambda raw: raw + b"---\n" + raw)),
    Input("deep flow", ("yaml",), _yaml_text("x: " + "[" * 5000)),
    Input("deep mappings", ("yaml",), _content(lambda _: b"{a: " * 5000)),
    Input("a long key", ("yaml",), _yaml_text("? " + "k" * 100_000 + "\n: 1\n")),
    Input("dates and numbers", ("yaml",), _yaml_text("x: 2001-12-14t21:59:43.10-05:00\ny: 0o777\nz: 190:20:30\n")),
    Input("a number of 10,000 digits", ("yaml",), _yaml_text("seeds: [" + "1" * 10_000 + "]\n")),
    Input("many lines", ("yaml",), _content(lambda raw: raw + b"# x\n" * 200_000)),
    *_named(TEXTS),
    *(Input(f"{name} at each key", ("yaml",), _yaml(_each_key(value))) for name, value in VALUES.items()),
    *(Input(f"{name} at each end", ("yaml",), _yaml(_deepest(value))) for name, value in VALUES.items()),
)  # fmt: skip

# What runs if a spec's model is made: code is not installed by whoever calls the command.
CODE = (
    Input("python target with arguments", ("yaml",), _with_target(python_target)),
    Input("python target of a module that lies there", ("yaml",), _with_target(lambda _: {"name": "python", "target": "planted:Net"}, True)),
    Input("python target of an attribute's attribute", ("yaml",), _with_target(lambda canary: {"name": "python", "target": "os:path.os.system", "arguments": {"command": f"touch {canary}"}})),
    Input("python loss that calls", ("yaml",), _with_target(lambda canary: {"name": "python", "target": "torch.nn:Linear", "arguments": {"in_features": 64, "out_features": 10}, "loss": "subprocess:getoutput"})),
)  # fmt: skip

# --- archives -----------------------------------------------------------------------------------


def bomb(size: int = 1 << 30) -> bytes:
    """About 1 MB, an archive of one array of so many zeros."""
    packed = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    header = io.BytesIO()
    count = (size - 128) // 8
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f8", "fortran_order": False, "shape": (count,)}
    )
    head, zeros = header.getvalue(), bytes(1 << 20)
    crc, parts, left = zlib.crc32(head), [packed.compress(head)], count * 8
    while left:
        piece = zeros[:left]
        crc, left = zlib.crc32(piece, crc), left - len(piece)
        parts.append(packed.compress(piece))
    data = b"".join((*parts, packed.flush()))
    return zipped("a.npy", data, crc, len(head) + count * 8)


def zipped(name: str, data: bytes, crc: int, size: int, method: int = 8, flags: int = 0) -> bytes:
    """An archive of one member, whose headers say what they are told."""
    raw = name.encode()
    common = (20, flags, method, 0, 0x21, crc, len(data), size & 0xFFFFFFFF, len(raw), 0)
    local = struct.pack("<4s5H3L2H", b"PK\x03\x04", *common) + raw + data
    central = struct.pack(
        "<4s6H3L5H2L", b"PK\x01\x02", 20, *common, 0, 0, 0, 0o600 << 16, 0
    ) + raw  # fmt: skip
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 1, 1, len(central), len(local), 0)
    return local + central + end


_BOMB: list[bytes] = []


def _bomb(_raw: bytes = b"") -> bytes:
    if not _BOMB:
        _BOMB.append(bomb())
    return _BOMB[0]


def twenty_bombs(path: Path, _around: Around) -> None:
    """A bomb in the place of every archive of the folder, and until there are twenty."""
    names = [one.name for one in path.parent.glob("*.npz")]
    names += [f"round-{index:05d}.npz" for index in range(2, 22)]
    for name in names[: max(20, len(names))]:
        _gone(path.parent / name)
        (path.parent / name).write_bytes(_bomb())


class _Calls:
    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.canary}",)


def _pickled(path: Path, around: Around) -> None:
    values = np.empty(1, dtype=object)
    values[0] = _Calls(around.canary)
    names = list(np.load(path).files) if path.suffix == ".npz" and path.stat().st_size else ["a"]
    np.savez(path.with_suffix(""), **dict.fromkeys(names, values))
    made = path.with_suffix("").with_name(path.with_suffix("").name + ".npz")
    if made != path:
        made.replace(path)


def _bare_pickle(path: Path, around: Around) -> None:
    path.write_bytes(pickle.dumps(_Calls(around.canary)))


def _npy(header: str, data: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    text = header.encode("latin-1") + b"\n"
    length = len(text).to_bytes(2 if version[0] == 1 else 4, "little")
    return b"\x93NUMPY" + version + length + text + data


def _members(make: Callable[[str, bytes], tuple[str, bytes]]) -> Spoil:
    """Change the name and the content of every member of an archive."""

    def change(raw: bytes) -> bytes:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as new:
            try:
                with zipfile.ZipFile(io.BytesIO(raw)) as old:
                    found = [(one.filename, old.read(one)) for one in old.infolist()]
            except zipfile.BadZipFile:
                found = [("a.npy", b"")]
            for name, content in found:
                new.writestr(*make(name, content))
        return buffer.getvalue()

    return _content(change)


def _header(text: str, data: bytes = bytes(64), version: bytes = b"\x01\x00") -> Spoil:
    return _members(lambda name, _: (name, _npy(text, data, version)))


_SHAPE = "{'descr': '%s', 'fortran_order': False, 'shape': %s, }"
_DATA = b"\x00" * 4096


def _as_array(change: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]) -> Spoil:
    def make(raw: bytes) -> bytes:
        with np.load(io.BytesIO(raw)) as file:
            found = {name: file[name] for name in file.files}
        buffer = io.BytesIO()
        with np.errstate(all="ignore"):
            np.savez(buffer, **{name: change(values) for name, values in found.items()})
        return buffer.getvalue()

    return _content(make)


def _filled(value: float) -> Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]:
    return lambda old: np.full_like(old, value) if old.dtype.kind in "fiu" else old


ARCHIVES = (
    Input("a bomb", ("npz",), _content(_bomb)),
    Input("twenty bombs", ("npz",), twenty_bombs),
    Input("pickled members", ("npz",), _pickled),
    Input("a pickle", ("npz", "safetensors", "table"), _bare_pickle),
    Input("a path for a name", ("npz",), _members(lambda name, raw: (f"../../{name}", raw))),
    Input("an absolute path for a name", ("npz",), _members(lambda name, raw: (f"/tmp/{name}", raw))),
    Input("a negative shape", ("npz",), _header(_SHAPE % ("<f8", "(-1,)"), _DATA)),
    Input("shapes that overflow", ("npz",), _header(_SHAPE % ("<f8", "(4294967296, 4294967296, 8)"), _DATA)),
    Input("a shape far beyond the data", ("npz",), _header(_SHAPE % ("<f8", "(137438953472,)"), _DATA)),
    Input("no elements of many", ("npz",), _header(_SHAPE % ("<f8", "(0, 9223372036854775807)"), b"")),
    Input("a shape of truths", ("npz",), _header(_SHAPE % ("<f8", "(True,)"), bytes(8))),
    Input("a shape of many numbers", ("npz",), _header(_SHAPE % ("<f8", "(" + "1, " * 5000 + ")"), bytes(8), b"\x02\x00")),
    Input("texts without length", ("npz",), _header(_SHAPE % ("<U0", "(1000000000000,)"), b"")),
    Input("records for numbers", ("npz",), _header("{'descr': [('a', '<f8'), ('b', '|O')], 'fortran_order': False, 'shape': (1,), }", bytes(16))),
    Input("a header of a huge mapping", ("npz",), _header("{" + ", ".join(f"'k{i}': {i}" for i in range(200_000)) + "}", b"", b"\x02\x00")),
    Input("a header of deep lists", ("npz",), _header("(" * 9000 + ")" * 9000)),
    Input("a header that never closes", ("npz",), _header("{'shape': (2")),
    Input("a header of many signs", ("npz",), _header("{'shape': (" + "-" * 9000 + "1,)}")),
    Input("a header that calls", ("npz",), _header("__import__('os').system('touch CANARY')")),
    Input("a header of another version", ("npz",), _header(_SHAPE % ("<f8", "(1,)"), bytes(8), b"\x03\x00")),
    Input("a size that is a lie", ("npz",), _content(lambda _: zipped("a.npy", b"\x03\x00", 0, 1 << 31))),
    Input("a member that is encrypted", ("npz",), _content(lambda _: zipped("a.npy", bytes(64), 0, 64, 0, 1))),
    Input("a member packed otherwise", ("npz",), _content(lambda _: zipped("a.npy", bytes(64), 0, 64, 14))),
    Input("many members", ("npz",), _content(lambda _: _many_members())),
    Input("members twice", ("npz",), _members(lambda _name, raw: ("a.npy", raw))),
    Input("texts for numbers", ("npz",), _as_array(lambda old: np.array([ESCAPES] * max(1, len(np.atleast_1d(old)))))),
    Input("none of the arrays", ("npz",), _members(lambda name, raw: ("x" + name, raw))),
    Input("NaN everywhere", ("npz",), _as_array(_filled(np.nan))),
    Input("infinity everywhere", ("npz",), _as_array(_filled(np.inf))),
    Input("negative everywhere", ("npz",), _as_array(lambda old: np.full_like(old, -1) if old.dtype.kind in "fi" else old)),
    Input("the largest everywhere", ("npz",), _as_array(lambda old: np.full_like(old, np.finfo(old.dtype).max if old.dtype.kind == "f" else np.iinfo(old.dtype).max) if old.dtype.kind in "fiu" else old)),
    Input("one element of each", ("npz",), _as_array(lambda old: np.atleast_1d(old).reshape(-1)[:1])),
    Input("no element of each", ("npz",), _as_array(lambda old: np.atleast_1d(old).reshape(-1)[:0])),
    Input("no dimension", ("npz",), _as_array(lambda old: np.atleast_1d(old).reshape(-1)[:1].sum() if old.dtype.kind in "fiu" else old)),
    Input("other types", ("npz",), _as_array(lambda old: old.astype("<c16") if old.dtype.kind in "fiu" else old)),
)  # fmt: skip


def _many_members() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as new:
        for index in range(20_000):
            new.writestr(f"a{index}.npy", b"")
    return buffer.getvalue()


# --- tensors ------------------------------------------------------------------------------------


def _tensors(change: Callable[[dict[str, Any], bytes], tuple[Any, bytes]]) -> Spoil:
    def make(raw: bytes) -> bytes:
        length = int.from_bytes(raw[:8], "little")
        header, data = change(json.loads(raw[8 : 8 + length]), raw[8 + length :])
        text = header if isinstance(header, bytes) else json_of(header)
        return len(text).to_bytes(8, "little") + text + data

    return _content(make)


def _of_each(**new: Any) -> Spoil:
    return _tensors(
        lambda header, data: (
            {name: {**entry, **new} if name != "__metadata__" else entry for name, entry in header.items()},
            data,
        )
    )  # fmt: skip


TENSORS = (
    Input("a header longer than the file", ("safetensors",), _content(lambda raw: b"\xff" * 8 + raw[8:])),
    Input("a header of 2^40 bytes", ("safetensors",), _content(lambda raw: (1 << 40).to_bytes(8, "little") + raw[8:])),
    Input("a header of nothing", ("safetensors",), _content(lambda raw: bytes(8) + raw[8:])),
    Input("tensors over each other", ("safetensors",), _of_each(data_offsets=[0, 8])),
    Input("offsets backwards", ("safetensors",), _of_each(data_offsets=[8, 0])),
    Input("negative offsets", ("safetensors",), _of_each(data_offsets=[-8, 0])),
    Input("offsets beyond the file", ("safetensors",), _of_each(data_offsets=[0, 2**62])),
    Input("a huge shape", ("safetensors",), _of_each(shape=[2**62, 2**62])),
    Input("a negative shape of a tensor", ("safetensors",), _of_each(shape=[-1])),
    Input("a type that there is not", ("safetensors",), _of_each(dtype=ESCAPES)),
    Input("a deep header", ("safetensors",), _tensors(lambda _header, data: (b'{"a":' * 100_000, data))),
    Input("a huge header", ("safetensors",), _tensors(lambda _header, data: ({f"k{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(100_000)}, data))),
    Input("names that steer", ("safetensors",), _tensors(lambda header, data: ({ESCAPES + name: entry for name, entry in header.items()}, data))),
    Input("texts that steer", ("safetensors",), _tensors(lambda header, data: ({**header, "__metadata__": {"a": ESCAPES}}, data))),
    Input("not-a-numbers", ("safetensors",), _tensors(lambda header, data: (header, b"\xff" * len(data)))),
    Input("infinite numbers", ("safetensors",), _tensors(lambda header, data: (header, b"\x00\x00\x80\x7f" * (len(data) // 4)))),
    Input("bytes behind the tensors", ("safetensors",), _content(lambda raw: raw + b"behind")),
)  # fmt: skip

# --- tables, keys and other texts ---------------------------------------------------------------


def _cells(text: str) -> Spoil:
    def make(raw: bytes) -> bytes:
        import csv

        rows = list(csv.reader(io.StringIO(raw.decode())))
        buffer = io.StringIO()
        writer = csv.writer(buffer)
        writer.writerow(rows[0])
        numeric = re.compile(r"-?[\d.e-]+|")
        for row in rows[1:]:
            writer.writerow([one if numeric.fullmatch(one) else text for one in row])
        return buffer.getvalue().encode("utf-8", "surrogatepass")

    return _content(make)


def _heads(text: str) -> Spoil:
    return _content(
        lambda raw: (
            b",".join([text.replace("\n", " ").encode("utf-8", "surrogatepass")] * 3)
            + raw[raw.find(b",") :]
        )
    )


TABLES = (
    *(Input(f"{name} in each cell", ("csv",), _cells(text)) for name, text in TEXTS.items()),
    *(Input(f"{name} in the heading", ("csv",), _heads(text)) for name, text in TEXTS.items()),
    Input("an open quote", ("csv",), _content(lambda raw: raw + b'"' + b"x" * 1_000_000)),
    Input("a field of 10 MB", ("csv",), _content(lambda raw: raw + b"x" * 10_000_000 + b"\n")),
    Input("columns of all sorts", ("csv",), _content(lambda raw: raw + b"," * 200_000 + b"\n")),
    Input("numbers that are none", ("csv",), _content(lambda raw: re.sub(rb"(?<=,)[\d.e-]+(?=,)", b"nan", raw))),
    Input("numbers too long", ("csv",), _content(lambda raw: re.sub(rb"(?<=,)[\d.e-]+(?=,)", b"9" * 5000, raw))),
)  # fmt: skip

# --- budgets ------------------------------------------------------------------------------------


def _sql(*statements: str) -> Spoil:
    def spoil(path: Path, _around: Around) -> None:
        with contextlib.closing(sqlite3.connect(path)) as database:
            for statement in statements:
                database.execute(statement)
            database.commit()

    return spoil


def _quoted(text: str) -> str:
    return "'" + text.encode("utf-8", "replace").decode().replace("\0", "").replace("'", "''") + "'"


_ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT"
BUDGETS = (
    *(Input(f"{name} in each text", ("sqlite",), _sql(f"UPDATE account SET dataset = {_quoted(text)}", f"UPDATE reservation SET run = {_quoted(text)}, directory = {_quoted(text)}, machine = {_quoted(text)}")) for name, text in TEXTS.items()),
    *(Input(f"{name} for its cost", ("sqlite",), _sql(f"UPDATE reservation SET cost = {_quoted(text)}")) for name, text in {"deep": "[" * 100_000, "null": "null", "numbers": "[" + "1" * 5000 + "]", "NaN": "[[NaN, NaN, NaN]]", "huge": "[[1e308, 1e308, 9007199254740993]]", **TEXTS}.items()),
    Input("an endless view for a table", ("sqlite",), _sql("PRAGMA foreign_keys = OFF", "DROP TABLE account", f"CREATE VIEW account AS {_ENDLESS} x AS data_sha256, x AS dataset, x AS unit, x AS adjacency, x AS partition_sha256, x AS epsilon, x AS delta FROM c")),
    Input("a trigger", ("sqlite",), _sql("CREATE TRIGGER t BEFORE UPDATE ON reservation BEGIN DELETE FROM account; END")),
    Input("numbers for texts", ("sqlite",), _sql("UPDATE reservation SET run = 1, directory = x'ff', machine = 1.5")),
    Input("an infinite budget", ("sqlite",), _sql("UPDATE account SET epsilon = 9e999, delta = 1e-320")),
    Input("a huge text", ("sqlite",), _sql("UPDATE reservation SET run = hex(zeroblob(50000000))")),
    Input("a run elsewhere", ("sqlite",), _sql("UPDATE reservation SET directory = '/proc/self/fd', state = 'running'")),
    Input("another version", ("sqlite",), _sql("PRAGMA user_version = 2147483647")),
    Input("no tables", ("sqlite",), _sql("PRAGMA foreign_keys = OFF", "DROP TABLE reservation", "DROP TABLE account")),
)  # fmt: skip

# --- folders ------------------------------------------------------------------------------------


def _also(make: Callable[[Path, Around], object]) -> Spoil:
    def spoil(path: Path, around: Around) -> None:
        make(path, around)

    return spoil


def _deep(path: Path, _around: Around) -> None:
    here = os.open(path, os.O_RDONLY)
    try:
        for _ in range(1500):
            os.mkdir("d", dir_fd=here)
            here, before = os.open("d", os.O_RDONLY, dir_fd=here), here
            os.close(before)
    finally:
        os.close(here)


def _modules(path: Path, around: Around) -> None:
    code = f"open({str(around.canary)!r}, 'w').close()\n"
    names = (
        "planted",
        "sitecustomize",
        "torch",
        "yaml",
        "numpy",
        "json",
        "dpfedadamw",
        "audit",
        "small",
        "mlp",
    )
    for name in names:
        (path / f"{name}.py").write_text(code)
    (path / "conftest.py").write_text(code)
    (path / "x.pth").write_text(f"import os; {code}")


def _many(path: Path, _around: Around) -> None:
    (path / "many").mkdir()
    for index in range(20_000):
        (path / "many" / str(index)).touch()


def _every_file(make: Callable[[Path], object]) -> Spoil:
    def spoil(path: Path, _around: Around) -> None:
        for one in [one for one in path.rglob("*") if one.is_file() and not one.is_symlink()]:
            make(one)

    return spoil


def _moved(one: Path) -> None:
    one.replace(one.with_name("x"))
    one.symlink_to("x")


FOLDERS = (
    Input("modules", ("folder",), _also(_modules)),
    Input("names with a line's end", ("folder",), _also(lambda path, _: (path / "a\nerror: b").write_text("x"))),
    Input("names that are options", ("folder",), _also(lambda path, _: [(path / name).write_text("x") for name in ("-rf", "--out=x", "-")])),
    Input("names that steer", ("folder",), _also(lambda path, _: [(path / name.replace("/", "")[:80]).write_text("x") for name in (ESCAPES, BIDI, MARKUP, FORMULA)])),
    Input("names that are no UTF-8", ("folder",), _also(lambda path, _: (path / os.fsdecode(b"\xff\xfe.npz")).write_text("x"))),
    Input("a folder with a name that steers", ("folder",), _also(lambda path, _: (path / "\x1b[31m\n").mkdir())),
    Input("1,500 folders deep", ("folder",), _also(_deep)),
    Input("20,000 files", ("folder",), _also(_many)),
    Input("a link to the folder above", ("folder",), _also(lambda path, _: (path / "up").symlink_to(".."))),
    Input("a link to the root in it", ("folder",), _also(lambda path, _: (path / "root").symlink_to("/"))),
    Input("a link to secrets in it", ("folder",), _also(lambda path, around: (path / "more.json").symlink_to(around.outside / "secret"))),
    Input("a named pipe in it", ("folder",), _also(lambda path, _: os.mkfifo(path / "more.npz"))),
    Input("a socket in it", ("folder",), _also(lambda path, _: _socket(path / "more"))),
    Input("a link for what is unfinished", ("folder",), _also(lambda path, around: (_gone(path / ".unfinished"), (path / ".unfinished").symlink_to(around.outside)))),
    Input("something unfinished", ("folder",), _also(lambda path, _: ((path / ".unfinished").mkdir(), (path / ".unfinished" / "lock").write_text("{")))),
    Input("a pipe for the lock", ("folder",), _also(lambda path, _: ((path / ".unfinished").mkdir(), os.mkfifo(path / ".unfinished" / "lock")))),
    Input("a link for the lock", ("folder",), _also(lambda path, around: ((path / ".unfinished").mkdir(), (path / ".unfinished" / "lock").symlink_to(around.outside / "made")))),
    Input("each file a link to itself", ("folder",), _every_file(lambda one: (one.unlink(), one.symlink_to(one.name)))),
    Input("each file a named pipe", ("folder",), _every_file(lambda one: (one.unlink(), os.mkfifo(one)))),
    Input("each file a folder", ("folder",), _every_file(lambda one: (one.unlink(), one.mkdir()))),
    Input("each file empty", ("folder",), _every_file(lambda one: one.write_bytes(b""))),
    Input("each file 100 GB", ("folder",), _every_file(lambda one: _sparse(one))),
    Input("each file a link to /dev/zero", ("folder",), _every_file(lambda one: (one.unlink(), one.symlink_to("/dev/zero")))),
    Input("each file a link to the terminal", ("folder",), _every_file(lambda one: (one.unlink(), one.symlink_to("/dev/stdin")))),
    Input("each file null", ("folder",), _every_file(lambda one: one.write_bytes(b"null"))),
    Input("each file an empty mapping", ("folder",), _every_file(lambda one: one.write_bytes(b"{}"))),
    Input("each file a list", ("folder",), _every_file(lambda one: one.write_bytes(b"[1]"))),
    Input("each file random", ("folder",), _every_file(lambda one: one.write_bytes(np.random.default_rng(2).bytes(1000)))),
    Input("each file deep", ("folder",), _every_file(lambda one: one.write_bytes(b"[" * _DEEP))),
    Input("each file truncated", ("folder",), _every_file(lambda one: os.truncate(one, one.stat().st_size // 2))),
    Input("each file somewhere else", ("folder",), _every_file(lambda one: one.rename(one.with_name(one.name + "~")))),
    Input("files beside it", ("folder",), _also(lambda path, _: [(path / name).write_text("[]") for name in ("results.csv", "results.json", "sweep.json", "report.json", "model.json")])),
)  # fmt: skip

# More words on the command line, for commands that read no file; their text is the name.
WORDS = tuple(
    Input(before + text, ("word",), lambda _path, _around: None)
    for text in (*TEXTS.values(), "/etc/passwd", "@/etc/passwd")
    for before in ("", "-", "--", "--json=")
)
INPUTS = (*WORDS, *ANY, *JSONS, *YAMLS, *ARCHIVES, *TENSORS, *TABLES, *BUDGETS, *FOLDERS)

_KINDS = {
    ".jsonl": "jsonl", ".json": "json", ".npz": "npz", ".yaml": "yaml", ".yml": "yaml",
    ".safetensors": "safetensors", ".csv": "csv", ".sqlite": "sqlite",
}  # fmt: skip


def kind_of(path: Path) -> str:
    """What kind of file a good file is."""
    if path.name == "ARGUMENT":
        return "word"
    return "folder" if path.is_dir() else _KINDS.get(path.suffix, "other")
