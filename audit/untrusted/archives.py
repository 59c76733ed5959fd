"""Arrays from hostile bytes: archives (.npz), tensors (safetensors), and typed reading of both.

Both formats must be exactly what a plain writer makes. Of an archive, sizes are checked from the
headers before anything is decompressed, and nothing is unpickled; a gap, a trailing byte, or local
and central headers that disagree are refused. Together with each member's CRC this leaves no byte
of the file that could be altered by accident unnoticed, save the up to seven padding bits behind a
compressed stream, which carry no data. Of tensors, which travel between server and clients and are
what a run publishes, bytes that belong to no tensor are refused, as something might travel in them;
so is a header that holds more than type, shape and place of each tensor.
`integers`, `floats`, `bytes_of` and `texts` are to arrays what `fields` is to mappings: a wrong
type, shape or range becomes one sentence.
"""

from __future__ import annotations

import io
import math
import re
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from audit.untrusted import UntrustedError, fields
from audit.untrusted.documents import DocumentError, is_plain_json, parse_json
from audit.untrusted.fields import FieldError

Arrays = Mapping[str, NDArray[np.generic]]
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


def _shaped(
    arrays: Arrays, name: str, shape: tuple[int | None, ...], kinds: str
) -> NDArray[np.generic]:
    if name not in arrays:
        raise FieldError(f"{name} is missing")
    array = arrays[name]
    if array.dtype.kind not in kinds:
        raise FieldError(f"{name} has type {array.dtype.name}")
    fits = len(array.shape) == len(shape) and all(
        want is None or want == have for want, have in zip(shape, array.shape, strict=True)
    )
    if not fits:
        raise FieldError(f"{name} does not have the shape that the other arrays ask for")
    return array


def integers(arrays: Arrays, name: str, shape: tuple[int | None, ...]) -> Integers:
    """The array `name` of whole numbers from 0, of this shape (None: any length)."""
    array = _shaped(arrays, name, shape, "iu")
    if array.size and (array.max() > np.int64(2**53) or array.min() < np.int64(0)):
        raise FieldError(f"{name} has a number outside 0 to 2^53")
    return array.astype(np.int64)


def byte_rows(arrays: Arrays, name: str, shape: tuple[int | None, ...]) -> Integers:
    """The array `name` of bytes as whole numbers, of this shape (None: any length).

    Digests of larger numbers would cover their last bytes alone.
    """
    array = integers(arrays, name, shape)
    if array.max(initial=0) > 255:
        raise FieldError(f"{name} has a number above 255, which is no byte")
    return array


def floats(
    arrays: Arrays, name: str, shape: tuple[int | None, ...], *, finite: bool = True
) -> Floats:
    """The array `name` of numbers, of this shape (None: any length), all finite if asked for."""
    array = _shaped(arrays, name, shape, "f").astype(np.float64)
    if finite and not np.isfinite(array).all():
        raise FieldError(f"{name} has a number that is not finite")
    return array


def bytes_of(arrays: Arrays, name: str) -> bytes:
    """The bytes of the array `name`."""
    array = _shaped(arrays, name, (None,), "u")
    if array.dtype.itemsize != 1:
        raise FieldError(f"{name} has type {array.dtype.name}")
    return array.tobytes()


def texts(arrays: Arrays, name: str, count: int | None) -> tuple[str, ...]:
    """The `count` short texts (None: any number) of the array `name`."""
    array = _shaped(arrays, name, (count,), "U")
    if array.dtype.itemsize > 4 * 256:
        raise FieldError(f"{name} has texts of more than 256 characters")
    return tuple(str(item) for item in array)


MAXIMUM_MEMBERS = 64
MAXIMUM_MEMBER_BYTES = 1 << 29
MAXIMUM_ARCHIVE_BYTES = 1 << 30
# What an archive may inflate to: so many bytes, and so many times its own size. Bombs inflate a
# thousandfold; a folder of many small ones is bounded by what it takes on the disk.
_INFLATED_BYTES = 1 << 20
_INFLATION = 64

_NAME = re.compile(r"[A-Za-z0-9_]+([.-][A-Za-z0-9_]+)*")
_LOCAL = struct.Struct("<4s5H3L2H")
_END = struct.Struct("<4s4H2LH")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_PLAIN_MODES = {0o600, 0o644, 0}
_VERSIONS = {20, 45}
# By version of the format: where the header's text begins, and NumPy's reader. Archives of a run
# repeat a few headers thousands of times, so what was read of them is kept.
_HEADERS = {
    (1, 0): (10, npy.read_array_header_1_0),
    (2, 0): (12, npy.read_array_header_2_0),
}
# What the parsers of zip, deflate and NumPy's header raise on damaged bytes.
_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    OSError,
    ValueError,
    LookupError,
    RuntimeError,
    OverflowError,
    MemoryError,
    SyntaxError,
    tokenize.TokenError,
    TypeError,
)


class ArchiveError(UntrustedError):
    """Bytes that are not an acceptable archive; the message says why."""


def read_archive(raw: bytes) -> Mapping[str, NDArray[np.generic]]:
    """Read all arrays of an archive.

    Args:
        raw: the whole file.

    Returns:
        Arrays by name; read-only views, never of object type.

    Raises:
        ArchiveError: anything at all is wrong with the archive.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            members = archive.infolist()
            _check_sizes(members, len(raw))
            _check_structure(raw, members, archive.start_dir)
            arrays = {}
            for member in members:
                arrays[member.filename.removesuffix(".npy")] = _unpacked(
                    member.filename, _content(raw, member)
                )
            return arrays
    except ArchiveError:
        raise
    except _DAMAGE as error:
        raise ArchiveError(f"is not a readable archive ({type(error).__name__})") from error


def _check_sizes(members: list[zipfile.ZipInfo], size: int) -> None:
    if not 0 < len(members) <= MAXIMUM_MEMBERS:
        raise ArchiveError(f"has {len(members)} members, not 1 to {MAXIMUM_MEMBERS}")
    names = [member.filename for member in members]
    if len(set(names)) != len(names):
        raise ArchiveError("has two members of one name")
    for member in members:
        stem = member.filename.removesuffix(".npy")
        if stem == member.filename or not _NAME.fullmatch(stem):
            raise ArchiveError("has a member that is not a plainly named array")
        if member.file_size > MAXIMUM_MEMBER_BYTES:
            raise ArchiveError(f"member {stem} is larger than {MAXIMUM_MEMBER_BYTES} bytes")
    inflated = sum(member.file_size for member in members)
    if inflated > MAXIMUM_ARCHIVE_BYTES:
        raise ArchiveError(f"is larger than {MAXIMUM_ARCHIVE_BYTES} bytes when decompressed")
    if inflated > _INFLATED_BYTES + _INFLATION * size:
        raise ArchiveError(f"is {inflated // size} times as large when decompressed")


def _check_structure(raw: bytes, members: list[zipfile.ZipInfo], directory: int) -> None:
    """Refuse bytes that no member covers, and headers that disagree with each other."""
    position = 0
    for member in members:
        if member.header_offset != position:
            raise ArchiveError("has bytes between its members")
        (signature, version, flags, method, time, date, crc, packed, size, name, extra) = (
            _LOCAL.unpack_from(raw, position)
        )
        tail = raw[position + _LOCAL.size + name : position + _LOCAL.size + name + extra]
        if size == packed == 0xFFFFFFFF or tail:
            if len(tail) != 20 or tail[:4] != b"\x01\x00\x10\x00":
                raise ArchiveError("has a malformed size field")
            wide = struct.unpack("<QQ", tail[4:])
            # Python before 3.11.4 and 3.12 writes small sizes in both places.
            if (size, packed) not in ((0xFFFFFFFF, 0xFFFFFFFF), wide):
                raise ArchiveError("has two sizes for one member")
            size, packed = wide
        year, month, day, hour, minute, second = member.date_time
        stamp = (hour << 11 | minute << 5 | second // 2, (year - 1980) << 9 | month << 5 | day)
        agree = (
            signature == b"PK\x03\x04"
            and version in _VERSIONS
            and flags == member.flag_bits == 0
            and method == member.compress_type
            and method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
            and (time, date) == stamp
            and (crc, packed, size) == (member.CRC, member.compress_size, member.file_size)
        )
        plain = (
            member.create_system in (0, 3)
            and member.create_version in _VERSIONS
            and member.extract_version in _VERSIONS
            and member.reserved == member.volume == member.internal_attr == 0
            and member.external_attr >> 16 in _PLAIN_MODES
            and member.external_attr & 0xFFFF == 0
            and not member.extra
            and not member.comment
        )
        if not (agree and plain):
            raise ArchiveError("has a header that is damaged or not plain")
        position += _LOCAL.size + name + extra + packed
    count = len(members)
    end = len(raw) - _END.size
    entry = directory
    for member in members:
        fields = _CENTRAL.unpack_from(raw, entry)
        if fields[10] != len(member.filename) or fields[11] or fields[12]:
            raise ArchiveError("has a directory entry that is damaged or not plain")
        entry += _CENTRAL.size + len(member.filename)
    if entry != end:
        raise ArchiveError("has bytes outside its members and directory")
    footer = _END.unpack_from(raw, end)
    if position != directory or footer != (
        b"PK\x05\x06",
        0,
        0,
        count,
        count,
        end - directory,
        directory,
        0,
    ):
        raise ArchiveError("has bytes outside its members and directory")


def _content(raw: bytes, member: zipfile.ZipInfo) -> bytes:
    """One member's bytes, never more than its header promised; CRC and stream end checked."""
    start = member.header_offset + _LOCAL.size
    name, extra = struct.unpack_from("<2H", raw, start - 4)
    stored = raw[start : start + name]
    start += name + extra
    packed = raw[start : start + member.compress_size]
    if stored != member.filename.encode("ascii"):
        raise ArchiveError("has a member of two names")
    content = packed
    if member.compress_type == zipfile.ZIP_DEFLATED:
        stream = zlib.decompressobj(-zlib.MAX_WBITS)
        content = stream.decompress(packed, member.file_size + 1)
        if not stream.eof or stream.unused_data or stream.unconsumed_tail:
            raise ArchiveError(f"member {member.filename} does not end where it should")
    if len(content) != member.file_size or zlib.crc32(content) != member.CRC:
        raise ArchiveError(f"member {member.filename} does not match its checksum")
    return content


@lru_cache(maxsize=1024)
def _header(
    version: tuple[int, int], raw: bytes
) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    """Shape, whether columns come first, and element type; NumPy refuses more than 10,000 bytes."""
    shape, fortran, kind = _HEADERS[version][1](io.BytesIO(raw))
    return shape, fortran, kind


def _unpacked(name: str, raw: bytes) -> NDArray[np.generic]:
    version = npy.read_magic(io.BytesIO(raw))
    if version not in _HEADERS:
        raise ArchiveError(f"member {name} has an unknown format version")
    begin, _ = _HEADERS[version]
    end = begin + int.from_bytes(raw[npy.MAGIC_LEN : begin], "little")
    shape, fortran, kind = _header(version, raw[npy.MAGIC_LEN : end])
    if kind.hasobject or kind.kind not in "biufU":
        raise ArchiveError(f"member {name} is not an array of numbers or plain text")
    count = 1
    for length in shape:
        count *= length
    data = raw[end:]
    # Compared before any allocation: a header could promise far more than the file holds.
    if count < 0 or count * kind.itemsize != len(data):
        raise ArchiveError(f"member {name} does not hold the number of bytes that it declares")
    if kind.itemsize == 0:
        raise ArchiveError(f"member {name} has empty elements")
    values = np.frombuffer(data, dtype=kind, count=count)
    return values.reshape(shape, order="F" if fortran else "C")


MAXIMUM_HEADER_BYTES = 1 << 24
_ENTRY = {"dtype", "shape", "data_offsets"}
_MOST_PADDING = 7
_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}
_WHOLE = {"I64": "<i8", "I32": "<i4"}
_BYTES = {
    **dict.fromkeys(("F64", "I64", "U64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 2),
    **dict.fromkeys(("BOOL", "I8", "U8", "F8_E4M3", "F8_E5M2"), 1),
}


@dataclass(frozen=True)
class Stored:
    """A tensor as it is stored: its type's name, its shape and its bytes."""

    dtype: str
    shape: tuple[int, ...]
    content: memoryview


class MessageError(UntrustedError):
    """Bytes that are not plain serialised tensors; the message says why."""


def read_tensors(
    raw: bytes, *, metadata: bool = False, whole: str | None = None
) -> dict[str, Floats]:
    """All tensors by name, each flat and in float64.

    Args:
        raw: the whole message.
        metadata: whether texts in addition to the tensors are allowed.
        whole: the one tensor that may hold whole numbers.

    Raises:
        MessageError: the message is malformed, or holds more than its tensors.
    """
    try:
        header, data = _opened(raw)
        if header.pop("__metadata__", None) is not None and not metadata:
            raise MessageError("holds texts in addition to its tensors")
        return _tensors(header, data, whole)
    except (DocumentError, FieldError) as error:
        raise MessageError(f"has a malformed header ({error})") from error


def read_stored(raw: bytes) -> dict[str, Stored]:
    """All tensors by name as they are stored, of any type; texts in addition to them are allowed.

    Raises:
        MessageError: the message is malformed, or holds bytes that belong to no tensor.
    """
    try:
        header, data = _opened(raw)
        header.pop("__metadata__", None)
        return dict(_stored(header, data))
    except (DocumentError, FieldError) as error:
        raise MessageError(f"has a malformed header ({error})") from error


def read_names(raw: bytes) -> tuple[dict[str, bool], Mapping[str, Any]]:
    """All tensors by name, each with whether it holds real numbers; and the texts stored with them.

    Raises:
        MessageError: the message is malformed.
    """
    try:
        header, _ = _opened(raw)
        texts = fields.mapping(header, "__metadata__") if "__metadata__" in header else {}
        names = {
            name: "F" in fields.text(entry, "dtype")
            for name, entry in header.items()
            if name != "__metadata__"
        }
    except (DocumentError, FieldError) as error:
        raise MessageError(f"has a malformed header ({error})") from error
    return names, texts


def _opened(raw: bytes) -> tuple[dict[str, Any], memoryview]:
    """The parsed header, and the numbers behind it, which are not copied."""
    length = int.from_bytes(raw[:8], "little")
    if len(raw) < 8 or length > min(MAXIMUM_HEADER_BYTES, len(raw) - 8):
        raise MessageError("is not a serialised message")
    text = raw[8 : 8 + length].rstrip(b" ")
    header = parse_json(text)
    if not isinstance(header, dict):
        raise MessageError("has a header that is not a mapping")
    # What no writer spells like that, or is padded further than to eight bytes, may say something.
    if length - len(text) > _MOST_PADDING or not is_plain_json(text, header):
        raise MessageError("has a header with padding, digits or white space that no writer makes")
    for name, entry in header.items():
        if name != "__metadata__" and (not isinstance(entry, dict) or entry.keys() != _ENTRY):
            raise MessageError("has more or less than type, shape and place of a tensor")
    return header, memoryview(raw)[8 + length :]


def _tensors(header: Mapping[str, Any], data: memoryview, whole: str | None) -> dict[str, Floats]:
    tensors: dict[str, Floats] = {}
    for name, stored in _stored(header, data):
        types = _WHOLE if name == whole else _TYPES
        kind = np.dtype(types[fields.choice(header[name], "dtype", tuple(types))])
        tensors[name] = np.frombuffer(stored.content, dtype=kind).astype(np.float64)
    return tensors


def _stored(header: Mapping[str, Any], data: memoryview) -> Iterator[tuple[str, Stored]]:
    """Tensors in the order of their bytes, which they must share out among them."""
    covered = 0
    places = {name: fields.integers(entry, "data_offsets") for name, entry in header.items()}
    if any(len(place) != 2 for place in places.values()):
        raise MessageError("has a tensor without a place")
    for name, (start, stop) in sorted(places.items(), key=lambda item: item[1]):
        dtype = fields.choice(header[name], "dtype", tuple(_BYTES))
        shape = fields.integers(header[name], "shape")
        size = math.prod(shape) * _BYTES[dtype]
        if start != covered or stop - start != size or stop > len(data):
            raise MessageError("has bytes that belong to no tensor, or to two")
        covered = stop
        yield name, Stored(dtype, tuple(shape), data[start:stop])
    if covered != len(data):
        raise MessageError("has bytes that belong to no tensor")
