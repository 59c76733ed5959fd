"""Files that are damaged, swapped, hostile or forbidden: one clear line each, and no traceback."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import struct
import subprocess
import sys
import tempfile
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest

from dpfedadamw.data import files as files_module
from dpfedadamw.data.datasets import load
from dpfedadamw.data.formats import arrays as arrays_module
from dpfedadamw.data.images import decode_stream
from dpfedadamw.data.lines import lines as text_lines
from dpfedadamw.data.lines import rows
from dpfedadamw.errors import DataError
from dpfedadamw.spec import GivenPartition
from tests.dpfedadamw.data import published
from tests.dpfedadamw.data.published import TOY_TEXT, data_spec, write_folder, write_tar

IMAGES, LABELS = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"


def packed(content: bytes) -> bytes:
    """As gzip packs it, without the time: names of tests are made of it, in each process anew."""
    return gzip.compress(content, mtime=0)


def refusal(spec, preprocessing=None) -> str:
    """What is said; one line of it."""
    with pytest.raises(DataError) as caught:
        load(spec, preprocessing)
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith(("data.", "model"))
    return text


def header(*sizes: int, magic: int = 0x0803) -> bytes:
    return struct.pack(f">I{len(sizes)}I", magic, *sizes)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (IMAGES, packed(header(12, 28, 28) + bytes(500)), "ends within the images"),
        (IMAGES, packed(header(12, 28, 28) + bytes(9408))[:-30], "damaged or cut off"),
        (IMAGES, packed(header(12, 28, 28) + bytes(9409)), "goes on after its last record"),
        (IMAGES, packed(header(9, 28, 28) + bytes(7056)), "do not belong together"),
        (IMAGES, packed(header(12, magic=0x0801) + bytes(12)), "found IDX labels"),
        (IMAGES, b"<html>not found</html>" * 99, "found magic number 0x3C68746D"),
        (IMAGES, b"", "ends within its header"),
        (IMAGES, packed(header(2**31, 28, 28)), "cannot hold"),
        (IMAGES, packed(header(12, 2**30, 28)), "cannot hold"),
        (IMAGES, packed(header(0, 28, 28)), "cannot hold"),
        (LABELS, packed(header(12, 28, 28) + bytes(9408)), "found IDX images"),
        (LABELS, packed(header(12, magic=0x0801) + bytes([10] * 12)), "the label 10"),
        (LABELS, packed(header(100_000_000, magic=0x0801)), "cannot hold"),
    ],
)
def test_a_damaged_idx_file_says_what_is_wrong(name, content, message, tmp_path):
    published.write_mnist(tmp_path)
    (tmp_path / name).write_bytes(content)
    text = refusal(data_spec("mnist", tmp_path))
    assert message in text
    assert name in text


def test_swapped_files_are_noticed(tmp_path):
    published.write_mnist(tmp_path)
    images, labels = tmp_path / IMAGES, tmp_path / LABELS
    content = images.read_bytes()
    images.write_bytes(labels.read_bytes())
    labels.write_bytes(content)
    assert "swapped" in refusal(data_spec("mnist", tmp_path))


def test_what_unpacks_beyond_reason_is_refused_before_it_fills_the_disk(tmp_path, monkeypatch):
    # 64 MiB in earnest; less, so that the test need not write that much.
    monkeypatch.setattr(files_module, "_UNPACKED_FREELY", 2**16)
    published.write_mnist(tmp_path)
    bomb = packed(header(100_000, 28, 28) + bytes(78_400_000 // 8))
    (tmp_path / IMAGES).write_bytes(bomb)
    (tmp_path / LABELS).write_bytes(published.idx(np.zeros(100_000)))
    assert "cannot hold" in refusal(data_spec("mnist", tmp_path))
    write_tar(tmp_path / "c.tar.gz", {"data_batch_1.bin": bytes(3073 * 5000)})
    assert "unpacks to more than" in refusal(data_spec("cifar10", tmp_path / "c.tar.gz"))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({**published.CIFAR10, "data_batch_3.bin": b"\1" * 3000}, "ends within a record"),
        ({**published.CIFAR10, "data_batch_3.bin": b"\x0a" * 3073}, "the label 10"),
        ({**published.CIFAR10, "data_batch_3.bin": b""}, "is empty"),
        ({"test_batch.bin": b""}, "holds no data_batch_1.bin"),
        ({**published.CIFAR10, "data_batch_3.bin": pickle.dumps({b"data": 1})}, "Python pickle"),
        ({"data_batch_1": pickle.dumps({b"data": 1})}, "download the binary version"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_a_damaged_cifar_says_what_is_wrong(files, message, packed, tmp_path):
    path = (
        write_tar(tmp_path / "c.tar.gz", files) if packed else write_folder(tmp_path / "c", files)
    )
    assert message in refusal(data_spec("cifar10", path))


class Explosive:
    """Would leave a trace, were it ever unpickled."""

    def __reduce__(self):
        return (os.mkdir, (os.environ["TRACE"],))


def test_a_pickle_is_never_loaded(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACE", str(tmp_path / "trace"))
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps(Explosive()))
    assert "pickles" in refusal(data_spec("cifar10", tmp_path / "data_batch_1"))
    assert "pickles" in refusal(data_spec("cifar10", tmp_path))
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize("keep", [40, 400, -20])
def test_a_cut_off_archive_says_so(keep, tmp_path):
    path = write_tar(tmp_path / "c.tar.gz", published.CIFAR10)
    path.write_bytes(path.read_bytes()[:keep])
    text = refusal(data_spec("cifar10", path))
    assert "cut off" in text or "not a whole tar archive" in text or "holds no" in text


def huge_png() -> bytes:
    """A few bytes that announce 60,000 x 60,000 pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        check = zlib.crc32(kind + content)
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check)

    size = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    data = chunk(b"IDAT", zlib.compress(bytes(1000)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + data + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train/n01/images/n01_0.JPEG": b"GIF89a nothing"}, "not an image of the kinds"),
        ({"train/n01/images/n01_0.JPEG": published.picture(1)[:700]}, "a damaged image"),
        ({"train/n01/images/n01_0.JPEG": huge_png()}, "announces more than"),
        ({"train/n01/images/n01_0.JPEG": published.picture(1, (32, 64))}, "others are 32 x 64"),
        ({"val/val_annotations.txt": b"val_0.JPEG\tn09\n"}, "line 1: its class is not in"),
        ({"val/val_annotations.txt": b"../../secret\tn01\n"}, "line 1: needed are"),
        ({"val/val_annotations.txt": b"gone.JPEG\tn01\n"}, "there is no such file"),
        ({"val/val_annotations.txt": b"val_0\xff\tn01\n"}, "0xFF is not UTF-8"),
        ({"wnids.txt": b""}, "two or more classes"),
    ],
)
def test_a_damaged_tiny_imagenet_says_what_is_wrong(change, message, tmp_path):
    write_folder(tmp_path, {**published.tiny_imagenet_files(), **change})
    assert message in refusal(data_spec("tiny-imagenet", tmp_path))


@pytest.mark.parametrize(
    ("name", "file", "content", "message"),
    [
        (
            "sst2",
            "train.tsv",
            b"sentence\tlabel\nfine\t2\n",
            "line 2: its label is not",
        ),
        ("sst2", "train.tsv", b"sentence\tlabel\nfine\n", "line 2: 1 cells, expected 2"),
        ("sst2", "train.tsv", b"sentence\tlabel\n\xfcber\t1\n", "line 2: the byte 0xFC"),
        ("sst2", "train.tsv", b"sentence\tlabel\na\0b\t1\n", "line 2: holds a null character"),
        ("sst2", "train.tsv", b"index\tsentence\n0\tfine\n", "no column 'label'"),
        ("sst2", "train.tsv", b"sentence\tlabel\n", "holds no records"),
        ("sst2", "train.tsv", b"x" * (2**20 + 2), "longer than"),
        ("cola", "train.tsv", b"gj04\t7\t\tHe ran.\n", "line 1: its label is not one of 0, 1"),
        ("qqp", "train.tsv", published.GLUE["qqp"][0]["dev.tsv"] + b"1\n" * 5, "cells, expected 6"),
    ],
)
def test_a_damaged_table_of_glue_says_which_line(name, file, content, message, tmp_path):
    write_folder(tmp_path, {**published.GLUE[name][0], file: content})
    text = refusal(data_spec(name, tmp_path), TOY_TEXT)
    assert message in text
    assert file in text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("age,sick\n1,no\nx,yes\n", "line 3: the column age holds no finite number"),
        ("age,sick\n1,no\nnan,yes\n", "line 3: the column age holds no finite number"),
        ("age,sick\n1,no\n2,yes,3\n", "line 3: 3 cells, the header has 2"),
        ("age,ill\n1,no\n", "none of the 2 columns that its first line names is 'sick'"),
        (
            "age,Sick\n1,no\n",
            "names is 'sick'; did you mean 'Sick'?",
        ),
        ("age,sick,sick\n1,no,no\n", "2 of its columns are called 'sick'"),
        ("age,sick\n1,no\n", "holds 1 different labels"),
        ('age,sick\n1,"no\n', "unexpected end of data"),
        ("", "is empty"),
    ],
)
def test_a_damaged_table_says_which_line(content, message, tmp_path):
    (tmp_path / "t.csv").write_text(content)
    spec = data_spec("table", tmp_path / "t.csv", label="sick", text=(), numbers=("age",))
    assert message in refusal(spec)


@pytest.mark.parametrize("behind", [b"", b"3,no\n"])
def test_a_file_with_a_hole_is_refused_before_its_zeros_are_read(behind, tmp_path):
    with (tmp_path / "t.csv").open("wb") as file:
        file.write(b"age,sick\n1,no\n2,yes\n")
        file.truncate(100 * 2**30)
        file.seek(0, os.SEEK_END)
        file.write(behind)
    spec = data_spec("table", tmp_path / "t.csv", label="sick", numbers=("age",))
    assert "a hole in a sparse file" in refusal(spec)


def test_labels_outside_the_declared_classes_are_refused(tmp_path):
    (tmp_path / "t.csv").write_text("age,sick\n1,no\n2,maybe\n")
    spec = data_spec(
        "table", tmp_path / "t.csv", label="sick", numbers=("age",), classes=("no", "yes")
    )
    assert "line 3: its label is not one of data.classes (no, yes)" in refusal(spec)


SECRET = "Maria Muster has AIDS"


@pytest.mark.parametrize(
    "content",
    [
        f"7\t8\t9\t{SECRET}\t{SECRET}\t0\n",
        f"id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n7\t8\t9\tfine\tgood\t{SECRET}\n",
        f"{SECRET}\n",
    ],
)
def test_no_message_on_a_table_of_glue_shows_a_record(content, tmp_path):
    """Where the header is missing, the first line is a record."""
    write_folder(tmp_path, {**published.GLUE["qqp"][0], "train.tsv": content.encode()})
    text = refusal(data_spec("qqp", tmp_path), TOY_TEXT)
    assert "train.tsv" in text
    assert "Maria" not in text


@pytest.mark.parametrize(
    "content",
    [f"{SECRET},7\n{SECRET},8\n", f"age,sick\n{SECRET},no\n", f"age,sick\n7,{SECRET}\n"],
)
def test_no_message_on_a_table_shows_a_record(content, tmp_path):
    (tmp_path / "t.csv").write_text(content)
    spec = data_spec(
        "table", tmp_path / "t.csv", label="sick", numbers=("age",), classes=("no", "yes")
    )
    text = refusal(spec)
    assert "t.csv" in text
    assert "Maria" not in text


def npz(change=None, packed=False) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED if packed else 0) as archive:
        for name in ("x_train", "y_train", "x_test", "y_test"):
            part = io.BytesIO()
            np.save(part, np.ones((4, 3), np.float32) if name[0] == "x" else np.arange(4) % 2)
            content = part.getvalue()
            archive.writestr(f"{name}.npy", (change or {}).get(name, content))
    return stream.getvalue()


def lying_header() -> bytes:
    part = io.BytesIO()
    layout = {"descr": "<f4", "fortran_order": False, "shape": (2**40, 3)}
    np.lib.format.write_array_header_1_0(part, layout)
    return part.getvalue() + bytes(48)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (npz({"x_train": lying_header()}), "does not match its header"),
        (npz({"x_train": b"\x93NUMPY\x01\x00\x10\x00not a dictionary"}), "not a readable .npz"),
        (npz()[:300], "not a readable .npz"),
        (npz(packed=True)[:60] + b"\xff" * 20 + npz(packed=True)[80:], "damaged"),
    ],
)
def test_a_damaged_npz_says_so(content, message, tmp_path):
    (tmp_path / "a.npz").write_bytes(content)
    assert message in refusal(data_spec("arrays", tmp_path / "a.npz"))


def test_a_wrong_kind_of_path_is_told(tmp_path):
    assert "cannot be read (File name too long)" in refusal(data_spec("cifar10", Path("x" * 300)))
    (tmp_path / "file").write_bytes(b"x")
    assert "there is no such folder" in refusal(data_spec("mnist", tmp_path / "gone"))
    assert "give the folder that holds it" in refusal(data_spec("mnist", tmp_path / "file"))
    assert "holds no train-images" in refusal(data_spec("mnist", tmp_path))
    assert "a folder; give a file" in refusal(data_spec("arrays", tmp_path))
    os.mkfifo(tmp_path / "pipe.npz")
    assert "not a plain file" in refusal(data_spec("arrays", tmp_path / "pipe.npz"))
    assert "not a plain file" in refusal(data_spec("arrays", Path("/dev/zero")))


_AS_NOBODY = """
import os, sys
from dpfedadamw.data import files
from dpfedadamw.errors import DataError
from pathlib import Path
if os.geteuid() == 0:
    os.setuid(65534)
try:
    files.fingerprint([Path(sys.argv[1])], Path(sys.argv[1]))
except DataError as error:
    print(error)
"""


def test_a_file_that_may_not_be_read_is_told():
    # The root user may read everything, so the reading is done as somebody else, and the file lies
    # where everybody may look.
    with tempfile.NamedTemporaryFile() as file:
        os.chmod(file.name, 0)
        done = subprocess.run(
            [sys.executable, "-c", _AS_NOBODY, file.name],
            capture_output=True,
            text=True,
            check=False,
        )
    assert "may not be read; check its permissions" in done.stdout, done.stderr


def test_texts_need_a_model_that_reads_them_and_images_one_that_does_not(tmp_path):
    write_folder(tmp_path / "sst2", published.GLUE["sst2"][0])
    assert "holds texts" in refusal(data_spec("sst2", tmp_path / "sst2"))
    published.write_mnist(tmp_path / "mnist")
    assert "holds images" in refusal(data_spec("mnist", tmp_path / "mnist"), TOY_TEXT)


def test_data_that_changed_are_an_error_with_both_digests(tmp_path):
    published.write_mnist(tmp_path)
    digest = load(data_spec("mnist", tmp_path)).sha256
    assert load(data_spec("mnist", tmp_path, sha256=digest)).sha256 == digest
    (tmp_path / LABELS).write_bytes(packed(published.idx(np.zeros(12))))
    text = refusal(data_spec("mnist", tmp_path, sha256=digest))
    assert digest in text
    assert load(data_spec("mnist", tmp_path)).sha256 in text


def test_a_file_of_owners_must_have_a_line_a_record(tmp_path):
    published.write_mnist(tmp_path)
    (tmp_path / "owners.txt").write_text("a\nb\n")
    given = GivenPartition(file=str(tmp_path / "owners.txt"))
    assert "has 2 lines" in refusal(data_spec("mnist", tmp_path, partition=given))


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize("size", [0, 1, 2, 3, 1000])
def test_a_file_is_read_whole_up_to_its_end_and_in_the_sizes_asked_for(pack, size, tmp_path):
    content = bytes(range(1, 1 + min(size, 250))) * (size // 250 or 1)
    (tmp_path / "file").write_bytes(pack(content))
    with (tmp_path / "file").open("rb") as stream:
        unpacked = files_module.Unpacked(tmp_path / "file", stream)
        assert unpacked.read(0) == b""
        assert unpacked.read(1) == content[:1]
        assert unpacked.read() == content[1:]
        assert unpacked.read() == b""


def test_a_file_may_unpack_to_its_limit_and_not_beyond(tmp_path, monkeypatch):
    # 64 MiB in earnest.
    monkeypatch.setattr(files_module, "_UNPACKED_FREELY", 1000)
    monkeypatch.setattr(files_module, "_UNPACKED_RATIO", 0)
    for size in (1000, 1001):
        (tmp_path / "file").write_bytes(gzip.compress(bytes(size)))
        for ask in (-1, size):
            with (tmp_path / "file").open("rb") as stream:
                unpacked = files_module.Unpacked(tmp_path / "file", stream)
                assert unpacked.limit == 1000
                if size == 1000:
                    assert unpacked.read(ask) == bytes(1000)
                    continue
                with pytest.raises(DataError, match="unpacks to more than 1000 bytes"):
                    unpacked.read(ask)


@pytest.mark.parametrize("piece", [1, 24, 25, 48, 2**24])
def test_arrays_are_the_same_whatever_the_size_of_the_pieces_they_are_read_in(
    piece, tmp_path, monkeypatch
):
    """Smaller than a record, as one of an image of many channels may be; or several records."""
    monkeypatch.setattr(arrays_module, "_PIECE", piece)
    records = np.arange(21.0).reshape(7, 3)
    labels, people = np.array([0, 1, 2, 0, 1, 2, 0]), np.array([f"P{n}" for n in range(7)])
    np.savez(
        tmp_path / "a.npz",
        x_train=records, y_train=labels, who_train=people, x_test=records, y_test=labels,
    )  # fmt: skip
    parts = arrays_module.arrays(tmp_path / "a.npz", "who").read().parts
    for part, owners in (("train", people.tolist()), ("test", [])):
        chunks = list(parts[part])
        assert np.concatenate([one.content.values for one in chunks]).tolist() == records.tolist()
        assert np.concatenate([one.labels for one in chunks]).tolist() == labels.tolist()
        assert [name for one in chunks for name in one.people or ()] == owners


@pytest.mark.parametrize("beyond", [False, True])
@pytest.mark.parametrize("upright", [False, True])
def test_scanned_images_have_up_to_4096_pixels_a_side(upright, beyond, tmp_path):
    published.write_mnist(tmp_path)
    sides = (4096 + beyond, 1) if upright else (1, 4096 + beyond)
    (tmp_path / IMAGES).write_bytes(packed(header(12, *sides) + bytes(12 * 4096)))
    # What fits is another size than that of the test images.
    said = "cannot hold" if beyond else "they must agree"
    assert said in refusal(data_spec("mnist", tmp_path))


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_a_line_has_up_to_a_mebibyte_with_its_end(end, tmp_path):
    line = b"x" * (2**20 - len(end))
    (tmp_path / "t.txt").write_bytes(line + end)
    assert list(text_lines(tmp_path / "t.txt")) == [line.decode()]
    (tmp_path / "t.txt").write_bytes(b"x" + line + end)
    with pytest.raises(DataError, match="line 1: longer than 1048576 bytes"):
        list(text_lines(tmp_path / "t.txt"))


def test_a_cell_of_a_table_may_be_a_long_document(tmp_path):
    document = "word, " * 30_000
    (tmp_path / "t.csv").write_text(f'text,label\n"{document}",1\n')
    assert list(rows(tmp_path / "t.csv", True))[1] == (2, [document, "1"])


def test_an_archive_of_arrays_that_unpacks_to_far_more_than_it_has_is_refused(tmp_path):
    part = {"y_train": np.arange(2), "x_test": np.ones((2, 3)), "y_test": np.arange(2)}
    # Zeros pack a thousand to one.
    np.savez_compressed(tmp_path / "bomb.npz", x_train=np.zeros((2, 9_000_000)), **part)
    with pytest.raises(DataError, match=r"unpacks to more than .* not what it claims to be"):
        arrays_module.arrays(tmp_path / "bomb.npz").read()


@pytest.mark.parametrize(
    ("label", "said"), [(999_999, None), (1_000_000, "found a label of 1,000,000 or more")]
)
def test_labels_of_arrays_are_below_a_million(label, said, tmp_path):
    part = {"x_train": np.ones((2, 3)), "y_train": np.array([0, label])}
    test = {"x_test": np.ones((2, 3)), "y_test": np.array([0, 1])}
    np.savez(tmp_path / "a.npz", **part, **test)
    chunks = arrays_module.arrays(tmp_path / "a.npz").read().parts["train"]
    if said is None:
        assert next(chunks).labels.tolist() == [0, 999_999]
        return
    with pytest.raises(DataError, match=said):
        next(chunks)


@pytest.mark.parametrize(
    ("height", "said"), [(5_000, "a damaged image"), (5_001, "announces more than 50000000 pixels")]
)
def test_an_image_has_up_to_fifty_million_pixels(height, said):
    size = struct.pack(">IIBBBBB", 10_000, height, 8, 0, 0, 0, 0)
    content = b"\x89PNG\r\n\x1a\n"
    for kind, part in ((b"IHDR", size), (b"IDAT", zlib.compress(bytes(1000))), (b"IEND", b"")):
        check = struct.pack(">I", zlib.crc32(kind + part))
        content += struct.pack(">I", len(part)) + kind + part + check
    with pytest.raises(DataError, match=said):
        decode_stream(io.BytesIO(content), "here", 1, None)


@pytest.mark.parametrize("beyond", [0, 1])
def test_a_file_may_have_a_hole_of_a_gibibyte_and_no_larger_one(beyond, tmp_path):
    with (tmp_path / "file").open("wb") as file:
        file.truncate(2**30 + beyond)
    if not beyond:
        with files_module.opened(tmp_path / "file") as stream:
            assert stream.tell() == 0
        return
    with (
        pytest.raises(DataError, match=f"no content from byte 0 to {2**30 + 1}, a hole"),
        files_module.opened(tmp_path / "file"),
    ):
        pass


def test_what_a_file_may_unpack_to_follows_from_its_size(tmp_path):
    for content, limit in (
        (b"x" * 1000, 1000),
        (packed(b"x" * 1000), 64 * 2**20 + 200 * len(packed(b"x" * 1000))),
    ):
        (tmp_path / "file").write_bytes(content)
        with (tmp_path / "file").open("rb") as stream:
            assert files_module.Unpacked(tmp_path / "file", stream).limit == limit


@pytest.mark.parametrize(
    ("endings", "said"),
    [
        ("xlsx xlsm xls ods XLSX", "a workbook; save its sheet as CSV UTF-8"),
        ("dta sav sas7bdat rds rdata Rdata", "a statistics program's file; save it as CSV"),
        ("json jsonl ndjson xml", "not a table; save it as CSV or Parquet"),
    ],
)
def test_each_file_that_is_no_table_is_known_by_its_ending(endings, said, tmp_path):
    for ending in endings.split():
        for name in (f"t.{ending}", f"t.{ending}.gz"):
            (tmp_path / name).write_bytes(b"a,b\n1,2\n")
            with pytest.raises(DataError, match=said):
                list(rows(tmp_path / name, quoting=True))


@pytest.mark.parametrize(
    ("ending", "form"),
    [
        ("jpeg", "JPEG"),
        ("jpg", "JPEG"),
        ("JPG", "JPEG"),
        ("png", "PNG"),
        ("bmp", "BMP"),
        ("webp", "WEBP"),
    ],
)
def test_images_of_each_kind_are_read_from_a_folder_and_other_files_are_left_there(
    ending, form, tmp_path
):
    files = {
        f"{name}/{number}.{ending}": published.picture(number, (8, 8), form=form)
        for name in ("cat", "dog")
        for number in range(4)
    }
    others = {"cat/notes.txt": b"x", "dog/.hidden.png": b"x", "cat/more.gif": b"x"}
    data = load(data_spec("image-folder", write_folder(tmp_path, {**files, **others}), channels=3))
    assert (len(data.train) + len(data.test), data.input_shape) == (8, (3, 8, 8))
