"""NumPy archives (.npz) from hostile bytes, without pickle and without surprises in memory.

Sizes are checked from the
headers before anything is decompressed. The archive must be exactly what a plain writer makes: no
gap, no trailing byte, local and central headers in agreement. Together with each member's CRC
this leaves no byte of the file that could be altered by accident unnoticed, save the up to seven
padding bits behind a compressed stream, which carry no data.
"""

from __future__ import annotations

import io
import re
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from audit.untrusted.errors import UntrustedError

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
                arrays[member.filename.removesuffix(".npy")] = _array(
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


def _array(name: str, raw: bytes) -> NDArray[np.generic]:
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
        raise ArchiveError(f"member {name} holds another number of bytes than it declares")
    if kind.itemsize == 0:
        raise ArchiveError(f"member {name} has empty elements")
    values = np.frombuffer(data, dtype=kind, count=count)
    return values.reshape(shape, order="F" if fortran else "C")
