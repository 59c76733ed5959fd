"""Tiny data sets in the formats of their publishers, and the spec sections that read them."""

from __future__ import annotations

import gzip
import io
import tarfile
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

from dpfedadamw.data.registry import DATASETS
from dpfedadamw.preprocessing import TextPreprocessing
from dpfedadamw.spec import DataSpec, EvenPartition


def data_spec(dataset: str, path: Path | None = None, **changes) -> DataSpec:
    """A section ``data``, two clients."""
    values = {
        "dataset": dataset,
        "path": str(path) if path else None,
        "clients": 2,
        "partition": EvenPartition(),
        "test_fraction": 0.2,
    }
    return DATASETS[dataset].keys(**{**values, **changes})


def idx(array: np.ndarray) -> bytes:
    """An array of bytes as an IDX file."""
    sizes = b"".join(side.to_bytes(4, "big") for side in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()


def write_mnist(folder: Path, pack=gzip.compress, end=".gz", prefix="", test="t10k", first=0):
    """Twelve training and six test images; returns the training images and labels."""
    generator = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    kept = None
    for part, count in (("train", 12), (test, 6)):
        images = generator.integers(0, 256, (count, 28, 28))
        labels = np.arange(count) % 10
        kept = kept or (images, labels)
        (folder / f"{prefix}{part}-images-idx3-ubyte{end}").write_bytes(pack(idx(images)))
        (folder / f"{prefix}{part}-labels-idx1-ubyte{end}").write_bytes(pack(idx(labels + first)))
    return kept


def cifar_records(count: int, labels: int, seed: int = 0, classes: int = 10) -> bytes:
    """Records of CIFAR's binary version."""
    generator = np.random.default_rng(seed)
    table = generator.integers(0, 256, (count, labels + 3072))
    table[:, :labels] = (np.arange(count) % classes)[:, None]
    return table.astype(np.uint8).tobytes()


CIFAR10 = {
    **{f"data_batch_{n}.bin": cifar_records(3, 1, n) for n in range(1, 6)},
    "test_batch.bin": cifar_records(4, 1, 9),
}
CIFAR100 = {"train.bin": cifar_records(8, 2, 1, 100), "test.bin": cifar_records(4, 2, 2, 100)}


def write_tar(path: Path, members: dict[str, bytes]) -> Path:
    """A tar.gz with a folder, members in reverse order as in the publisher's."""
    with tarfile.open(path, "w:gz") as archive:
        for name, content in reversed(members.items()):
            member = tarfile.TarInfo(f"batches/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def write_folder(folder: Path, files: dict[str, bytes]) -> Path:
    """Files in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def picture(seed: int, size=(64, 64), mode="RGB", form="JPEG") -> bytes:
    """An encoded image."""
    generator = np.random.default_rng(seed)
    shape = (size[1], size[0], 3) if mode == "RGB" else (size[1], size[0])
    image = Image.fromarray(generator.integers(0, 256, shape).astype(np.uint8), mode)
    stream = io.BytesIO()
    image.save(stream, form)
    return stream.getvalue()


def tiny_imagenet_files() -> dict[str, bytes]:
    """Two classes, three training images each (one grey), two validation images."""
    names = ("n02", "n01")
    files = {"wnids.txt": "\n".join(names).encode() + b"\n", "words.txt": b"n01\tfish\n"}
    for number, name in enumerate(names):
        for image in range(3):
            grey = "L" if image == 2 else "RGB"
            file = f"train/{name}/images/{name}_{image}.JPEG"
            files[file] = picture(10 * number + image, mode=grey)
        files[f"train/{name}/{name}_boxes.txt"] = b"a\t0\t0\t1\t1\n"
    files["val/images/val_0.JPEG"] = picture(40)
    files["val/images/val_1.JPEG"] = picture(41)
    files["val/val_annotations.txt"] = b"val_0.JPEG\tn02\t0\t0\t1\t1\nval_1.JPEG\tn01\t0\t0\t1\t1\n"
    return files


def _lines(*lines: str) -> bytes:
    return "".join(f"{line}\n" for line in lines).replace(" | ", "\t").encode()


_MNLI = _lines(
    "index | promptID | sentence1 | sentence2 | label1 | gold_label",
    "0 | 9 | a b | c | neutral | neutral",
)
_PAIRS = _lines(
    "index | sentence1 | sentence2 | label",
    "0 | Der „Hund“ | no | entailment",
    "1 | y | z | not_entailment",
)
_QNLI = _lines("index | question | sentence | label", "0 | who? | me | entailment")
_MRPC = _lines(
    "\ufeffQuality | #1 ID | #2 ID | #1 String | #2 String",
    '1 | 1 | 2 | "He said | the other',
    "0 | 3 | 4 | c | d",
)
_QQP = _lines(
    "id | qid1 | qid2 | question1 | question2 | is_duplicate",
    "1 | 2 | 3 | why | how | 0",
    "1 | 2 | 3 | why | why | 1",
)
# Files by task, and the numbers of training and test records in them.
GLUE = {
    "sst2": (
        {
            "train.tsv": b'sentence\tlabel\na fine "film \t1\ndull\t0\n',
            "dev.tsv": b"sentence\tlabel\nso so\t0\n",
        },
        2,
        1,
    ),
    "cola": (
        {
            "train.tsv": b"gj04\t1\t\tHe ran.\ngj04\t0\t*\tRan he the.\n",
            "val.tsv": b"gj04\t1\t\tShe ran.\n",
            "dev.tsv": b"gj04\t0\t*\tThey the.",
        },
        3,
        1,
    ),
    "rte": ({"train_full.tsv": _PAIRS, "dev.tsv": _PAIRS}, 2, 2),
    "qnli": ({"train.tsv": _QNLI, "dev.tsv": _QNLI}, 1, 1),
    "mrpc": (
        {
            "msr_paraphrase_train.txt": _MRPC,
            "msr_paraphrase_test.txt": _MRPC.replace(b"\n", b"\r\n"),
        },
        2,
        2,
    ),
    "qqp": ({"train.tsv": _QQP + b"1\t2\n", "dev.tsv": _QQP}, 2, 2),
    "mnli-matched": ({"train.tsv": _MNLI, "dev_matched.tsv": _MNLI}, 1, 1),
    "mnli-mismatched": ({"train.tsv": _MNLI, "dev_mismatched.tsv": _MNLI}, 1, 1),
}


def _encode(first, second):
    tokens = np.zeros((len(first), 2, 8), np.int32)
    for row, text in enumerate(first):
        words = text.split() + (["|", *second[row].split()] if second else [])
        numbers = [1 + zlib.crc32(word.encode()) % 999 for word in words][:8]
        tokens[row, 0, : len(numbers)] = numbers
    return tokens


TOY_TEXT = TextPreprocessing(_encode, 8, 0, "toy")
