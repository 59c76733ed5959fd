"""Archives of arrays: every damaged byte is noticed, and nothing is ever unpickled."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import tracemalloc
import zipfile
import zlib
from typing import Any

import numpy as np
import pytest

from audit.untrusted.archives import (
    ArchiveError,
    MessageError,
    byte_rows,
    floats,
    integers,
    read_archive,
    read_names,
    read_stored,
    read_tensors,
    texts,
)
from audit.untrusted.fields import FieldError


def packed(**arrays: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def test_every_changed_byte_of_an_archive_is_noticed() -> None:
    raw = packed(first=np.arange(4), second=np.ones((2, 2), np.float32))
    for position in range(len(raw)):
        for mask in (1, 0x80):
            damaged = bytearray(raw)
            damaged[position] ^= mask
            with pytest.raises(ArchiveError):
                read_archive(bytes(damaged))


def as_older_pythons_write_it(raw: bytes) -> bytes:
    """The first member's small sizes in both places, as zipfile had it before 3.11.4."""
    name, extra = struct.unpack_from("<HH", raw, 26)
    assert extra == 20
    size, held = struct.unpack_from("<QQ", raw, 30 + name + 4)
    return raw[:18] + struct.pack("<II", held, size) + raw[26:]


def test_archives_of_older_pythons_are_read_and_checked_as_closely() -> None:
    older = as_older_pythons_write_it(packed(a=np.arange(3)))
    assert read_archive(older)["a"].tolist() == [0, 1, 2]
    header = 30 + struct.unpack_from("<H", older, 26)[0] + 20
    for position in range(header):
        changed = bytearray(older)
        changed[position] ^= 1
        with pytest.raises(ArchiveError):
            read_archive(bytes(changed))


def test_two_sizes_of_one_member_are_named() -> None:
    older = bytearray(as_older_pythons_write_it(packed(a=np.arange(3))))
    older[18] ^= 1
    with pytest.raises(ArchiveError, match="two sizes for one member"):
        read_archive(bytes(older))


@pytest.mark.parametrize("change", [b"x", b"PK"])
def test_bytes_outside_the_members_are_refused(change: bytes) -> None:
    raw = packed(first=np.arange(4))
    for damaged in (raw + change, change + raw, raw[:-1], b""):
        with pytest.raises(ArchiveError):
            read_archive(damaged)


def test_pickled_arrays_are_never_loaded() -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (os.system, ("exit 1",))

    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=True, bad=np.array([Trap()], dtype=object))
    with pytest.raises(ArchiveError, match="not an array of numbers"):
        read_archive(buffer.getvalue())
    with pytest.raises(ArchiveError):
        read_archive(pickle.dumps([1, 2]))


def test_a_header_that_promises_more_than_the_file_holds_is_refused() -> None:
    member = io.BytesIO()
    header = {"descr": "<f8", "fortran_order": False, "shape": (10**12,)}
    np.lib.format.write_array_header_1_0(member, header)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(zipfile.ZipInfo("huge.npy"), member.getvalue())
    with pytest.raises(ArchiveError, match="not hold the number of bytes"):
        read_archive(buffer.getvalue())


def test_an_archive_that_inflates_a_thousandfold_is_refused_by_its_headers() -> None:
    """Many small ones in a folder would fill memory one after another, and take a minute."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, zeros=np.zeros(1 << 22, np.uint8))
    with pytest.raises(ArchiveError, match=r"is \d{3,4} times as large when decompressed"):
        read_archive(buffer.getvalue())
    # Evidence of few clients is smooth too, and small.
    small = io.BytesIO()
    np.savez_compressed(small, zeros=np.zeros(1 << 19, np.uint8))
    assert read_archive(small.getvalue())["zeros"].size == 1 << 19


@pytest.mark.parametrize(("beyond", "taken"), [(0, True), (1, False)])
def test_an_archive_inflates_to_a_mebibyte_and_64_times_its_size_and_no_more(
    beyond: int, taken: bool
) -> None:
    def archive_of(numbers: int) -> bytes:
        buffer = io.BytesIO()
        np.savez_compressed(buffer, zeros=np.zeros(numbers, np.uint8))
        return buffer.getvalue()

    numbers, header = 1_200_000, 128
    for _ in range(5):
        numbers = (1 << 20) + 64 * len(archive_of(numbers)) - header
    raw = archive_of(numbers + beyond)
    # The last number does not lengthen what zeros are packed into.
    assert header + numbers == (1 << 20) + 64 * len(raw)
    if taken:
        assert read_archive(raw)["zeros"].size == numbers
    else:
        with pytest.raises(ArchiveError, match="times as large when decompressed"):
            read_archive(raw)


@pytest.mark.parametrize(("members", "taken"), [(64, True), (65, False)])
def test_an_archive_has_64_members_at_most(members: int, taken: bool) -> None:
    raw = packed(**{f"array{number}": np.arange(2) for number in range(members)})
    if taken:
        assert len(read_archive(raw)) == members
    else:
        with pytest.raises(ArchiveError, match="65 members"):
            read_archive(raw)


def declaring(sizes: list[int]) -> bytes:
    """An archive whose directory declares members of these sizes, of which none is there."""
    names = [f"array{number}.npy" for number in range(len(sizes))]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            archive.writestr(zipfile.ZipInfo(name), b"")
    raw = bytearray(buffer.getvalue())
    for name, size in zip(names, sizes, strict=True):
        entry = raw.rindex(name.encode()) - 46
        raw[entry + 24 : entry + 28] = size.to_bytes(4, "little")
    return bytes(raw)


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ([2**29 + 1], "member array0 is larger than 536870912 bytes"),
        ([2**29], r"is \d+ times as large when decompressed"),
        ([2**29, 2**29, 1], "is larger than 1073741824 bytes when decompressed"),
        ([2**29, 2**29], r"is \d+ times as large when decompressed"),
    ],
)
def test_what_an_archive_declares_is_refused_before_any_of_it_is_unpacked(
    sizes: list[int], said: str
) -> None:
    with pytest.raises(ArchiveError, match=said):
        read_archive(declaring(sizes))


@pytest.mark.parametrize("header", ["{'shape': (2", "{'shape': (" + "-" * 9000 + "1,)}"])
def test_a_header_that_python_cannot_take_apart_is_refused(header: str) -> None:
    member = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(zipfile.ZipInfo("odd.npy"), member)
    with pytest.raises(ArchiveError, match="is not a readable archive"):
        read_archive(buffer.getvalue())


def test_a_bomb_is_refused_by_its_declared_size() -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for index in range(70):
            archive.writestr(f"member{index}.npy", b"")
    with pytest.raises(ArchiveError, match="70 members"):
        read_archive(buffer.getvalue())


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def message(header: object, padding: int = 0) -> bytes:
    """Two numbers as tensors are serialised, with a header as it is given."""
    text = json.dumps(header, separators=(",", ":")).encode() + b" " * padding
    return len(text).to_bytes(8, "little") + text + b"\0" * 8


@pytest.mark.parametrize("read", [read_tensors, read_stored, read_names])
def test_a_header_of_tensors_holds_type_shape_and_place_and_nothing_else(read: Any) -> None:
    for padding in (0, 7):
        assert len(read(message({"mean": ENTRY}, padding)))
    for wrong in (
        message({"mean": {**ENTRY, "clean_gradient": "AAAA"}}),
        message({"mean": {"dtype": "F32", "data_offsets": [0, 8]}}),
        message({"mean": [ENTRY]}),
    ):
        with pytest.raises(MessageError, match="more or less than type, shape and place"):
            read(wrong)
    compact = json.dumps({"mean": ENTRY}, separators=(",", ":"))
    for spelled in (
        compact.replace(":", ":   "),
        compact.replace("8]", "8 ]"),
        compact.replace("F32", "F\\u00332"),
        compact + " " * 8,
    ):
        text = spelled.encode()
        with pytest.raises(MessageError, match="no writer makes"):
            read(len(text).to_bytes(8, "little") + text + b"\0" * 8)


def test_texts_that_lie_with_tensors_are_told_apart_from_them() -> None:
    whole = {"dtype": "I64", "shape": [0], "data_offsets": [8, 8]}
    said = {"format": "pt"}
    found = read_names(message({"__metadata__": said, "mean": ENTRY, "steps": whole}))
    assert found == ({"mean": True, "steps": False}, said)
    assert read_names(message({"mean": ENTRY})) == ({"mean": True}, {})


@pytest.mark.parametrize("read", [read_tensors, read_stored, read_names])
def test_a_header_ends_within_its_message(read: Any) -> None:
    read((2).to_bytes(8, "little") + b"{}")
    for raw in (b"", b"{}", (3).to_bytes(8, "little") + b"{}", (1 << 63).to_bytes(8, "little")):
        with pytest.raises(MessageError, match="not a serialised message"):
            read(raw)


@pytest.mark.parametrize("options", [{"separators": (",", ":")}, {}, {"indent": 2}])
def test_a_header_of_tensors_is_read_as_usual_writers_spell_it(options: Any) -> None:
    for ascii_only in (True, False):
        text = json.dumps({"Größe": ENTRY}, ensure_ascii=ascii_only, **options).encode()
        raw = len(text).to_bytes(8, "little") + text + b"\0" * 8
        assert read_tensors(raw).keys() == {"Größe"}


@pytest.mark.parametrize("read", [read_stored, read_names])
def test_looking_at_a_model_copies_none_of_its_numbers(read: Any) -> None:
    """A model of many gigabytes is looked at by several checks."""
    values = np.zeros(2**20, np.float32)
    header = {"weight": {"dtype": "F32", "shape": [2**20], "data_offsets": [0, values.nbytes]}}
    text = json.dumps(header, separators=(",", ":")).encode()
    raw = struct.pack("<Q", len(text)) + text + values.tobytes()
    read(raw)
    tracemalloc.start()
    try:
        read(raw)
        assert tracemalloc.get_traced_memory()[1] < values.nbytes / 10
    finally:
        tracemalloc.stop()


# Bytes of a number, and how the package that serialises tensors names its type.
WIDTHS = {
    8: "F64 I64 U64", 4: "F32 I32 U32", 2: "F16 BF16 I16 U16", 1: "BOOL I8 U8 F8_E4M3 F8_E5M2",
}  # fmt: skip


@pytest.mark.parametrize(("width", "names"), WIDTHS.items())
def test_tensors_of_every_type_have_the_bytes_that_their_shape_asks_for(
    width: int, names: str
) -> None:
    def of(dtype: str, size: int) -> bytes:
        entry = {"dtype": dtype, "shape": [2, 3], "data_offsets": [0, size]}
        text = json.dumps({"weight": entry}, separators=(",", ":")).encode()
        return len(text).to_bytes(8, "little") + text + bytes(range(size))

    for dtype in names.split():
        found = read_stored(of(dtype, 6 * width))["weight"]
        assert (found.dtype, found.shape) == (dtype, (2, 3))
        assert bytes(found.content) == bytes(range(6 * width))
        for size in (6 * width - 1, 6 * width + 1, 6 * width + width):
            with pytest.raises(MessageError, match="belong to no tensor"):
                read_stored(of(dtype, size))
    with pytest.raises(MessageError, match="dtype"):
        read_stored(of("F128", 6 * width))


@pytest.mark.parametrize(
    ("dtype", "kind", "whole"),
    [
        ("F64", "<f8", False), ("F32", "<f4", False), ("F16", "<f2", False), ("I64", "<i8", True),
        ("I32", "<i4", True),
    ],
)  # fmt: skip
def test_numbers_of_a_message_are_read_in_their_type(dtype: str, kind: str, whole: bool) -> None:
    values = np.array([3, -2, 0, 7], kind)
    entry = {"dtype": dtype, "shape": [2, 2], "data_offsets": [0, values.nbytes]}
    text = json.dumps({"values": entry}, separators=(",", ":")).encode()
    raw = len(text).to_bytes(8, "little") + text + values.tobytes()
    found = read_tensors(raw, whole="values" if whole else None)["values"]
    assert (found.dtype, found.tolist()) == (np.float64, [3.0, -2.0, 0.0, 7.0])
    assert read_names(raw) == ({"values": not whole}, {})
    # Whole numbers stand in one tensor alone, and no others stand there.
    with pytest.raises(MessageError, match="dtype"):
        read_tensors(raw, whole=None if whole else "values")


@pytest.mark.parametrize(
    "array",
    [
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(24, dtype=np.int16).reshape(2, 3, 4),
        np.array([[True, False]]),
        np.array(7, np.uint8),
        np.array(["Größe", ""]),
        np.zeros((0, 3), np.float32),
    ],
    ids=["columns first", "three axes", "truth", "one number", "texts", "empty"],
)
def test_an_array_is_read_as_it_was_written(array: np.ndarray) -> None:
    found = read_archive(packed(values=array))["values"]
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert np.array_equal(found, array)
    assert not found.flags.writeable


@pytest.mark.parametrize("kind", ["complex128", "datetime64[s]", "S3", "V3"])
def test_an_array_of_anything_else_is_refused(kind: str) -> None:
    with pytest.raises(ArchiveError, match="not an array of numbers or plain text"):
        read_archive(packed(values=np.zeros(2, kind)))


def test_an_archive_of_any_time_of_day_is_read_and_a_changed_time_is_noticed() -> None:
    buffer = io.BytesIO()
    member = io.BytesIO()
    np.save(member, np.arange(3))
    with zipfile.ZipFile(buffer, "w") as archive:
        stamp = (2026, 11, 29, 23, 45, 58)
        archive.writestr(zipfile.ZipInfo("values.npy", stamp), member.getvalue())
    raw = bytearray(buffer.getvalue())
    assert read_archive(bytes(raw))["values"].tolist() == [0, 1, 2]
    for position in range(10, 14):
        changed = bytearray(raw)
        changed[position] ^= 1
        with pytest.raises(ArchiveError, match="damaged or not plain"):
            read_archive(bytes(changed))


def test_a_packed_member_ends_where_its_array_does() -> None:
    """Bytes behind the stream, or a stream that goes on, could hold what nobody reads."""
    member = io.BytesIO()
    np.save(member, np.arange(3))
    held = member.getvalue()

    def archive_of(packs: bytes, declared: bytes) -> bytes:
        name = b"values.npy"
        crc = zlib.crc32(declared)
        sizes = struct.pack("<3L2H", crc, len(packs), len(declared), len(name), 0)
        local = struct.pack("<4s5H", b"PK\3\4", 20, 0, 8, 0, 33) + sizes + name
        entry = struct.pack("<4s6H", b"PK\1\2", 20, 20, 0, 8, 0, 33) + sizes
        entry += struct.pack("<3H2L", 0, 0, 0, 0, 0) + name
        start = len(local) + len(packs)
        end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, len(entry), start, 0)
        return local + packs + entry + end

    def deflated(content: bytes) -> bytes:
        stream = zlib.compressobj(wbits=-zlib.MAX_WBITS)
        return stream.compress(content) + stream.flush()

    good = archive_of(deflated(held), held)
    assert read_archive(good)["values"].tolist() == [0, 1, 2]
    for packs in (deflated(held) + b"more", deflated(held + b"more"), deflated(held)[:-1]):
        with pytest.raises(ArchiveError, match="does not end where it should"):
            read_archive(archive_of(packs, held))
    with pytest.raises(ArchiveError, match="does not match its checksum"):
        read_archive(archive_of(deflated(held[:-1] + b"\7"), held))


def test_arrays_have_the_shape_type_and_range_that_are_asked_for() -> None:
    arrays = {
        "whole": np.array([[0, 2**53]]), "too large": np.array([[0, 2**53 + 1]]),
        "below": np.array([[0, -1]]), "real": np.array([[0.5, np.nan]]),
        "long": np.array(["x" * 257]), "texts": np.array(["x" * 256, ""]),
        "flags": np.array([[True, False]]), "empty": np.zeros((1, 0), np.uint8),
    }  # fmt: skip
    assert integers(arrays, "whole", (1, None)).tolist() == [[0, 2**53]]
    assert integers(arrays, "empty", (None, 0)).shape == (1, 0)
    assert integers(arrays, "empty", (1, 0)).dtype == np.int64
    assert np.isnan(floats(arrays, "real", (1, 2), finite=False)[0, 1])
    assert texts(arrays, "texts", 2) == ("x" * 256, "")
    for name, said in (
        ("too large", "outside 0 to 2"), ("below", "outside 0 to 2"), ("real", "has type float64"),
        ("flags", "has type bool"), ("none", "is missing"),
    ):  # fmt: skip
        with pytest.raises(FieldError, match=said):
            integers(arrays, name, (1, 2))
    for shape in ((2, 1), (1, 3), (2,), (1, 2, 1), ()):
        with pytest.raises(FieldError, match="shape"):
            integers(arrays, "whole", shape)
    digests = {"bytes": np.array([[0, 255]]), "more": np.array([[256, 0]])}
    assert byte_rows(digests, "bytes", (1, None)).tolist() == [[0, 255]]
    assert byte_rows(arrays, "empty", (1, 0)).shape == (1, 0)
    with pytest.raises(FieldError, match="more has a number above 255"):
        byte_rows(digests, "more", (None, 2))
    with pytest.raises(FieldError, match="real"):
        floats(arrays, "real", (1, 2))
    with pytest.raises(FieldError, match="more than 256 characters"):
        texts(arrays, "long", 1)
