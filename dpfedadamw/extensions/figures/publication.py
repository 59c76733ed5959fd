"""Who may see a figure, and its files.

What is made from private evidence says so in the picture, in its file's name and in its numbers; it
is readable by its owner alone, in a folder of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dpfedadamw.extensions.figures.errors import FigureError
from dpfedadamw.storage.disk import DISK, PRIVATE_MODE, PUBLIC_MODE, write_atomically


@dataclass(frozen=True)
class Exposure:
    """From what a figure is made, and so who may see it.

    Attributes:
        private: Whether it is for those alone who may see the run's evidence.
        made_from: In the numbers, in short.
        sentence: In the picture.
    """

    private: bool
    made_from: str
    sentence: str


PRIVATE = Exposure(True, "private evidence", "From private evidence; not for publication.")
RELEASED = Exposure(False, "released values", "From released values alone.")
TESTED = Exposure(
    False,
    "released model and test records",
    "From the released model and test records alone; no privacy claim covers test records.",
)


def check_folder(folder: Path) -> None:
    """Refuse a folder that cannot take figures, before anything is computed.

    Raises:
        FigureError: If it is no folder, or lies in a run: what no run writes there would spoil its
            audit.
    """
    if DISK.exists(folder) and not folder.is_dir():
        raise FigureError(f"--out {folder}: is no folder; name a folder, which need not exist")
    for above in (folder.resolve(), *folder.resolve().parents):
        if (above / "ledger.jsonl").exists():
            raise FigureError(
                f"--out {folder}: lies in the run {above.name}, whose audit accepts no files but "
                "its own; name another folder"
            )


def open_folder(folder: Path) -> None:
    """Make the folder, for its owner alone; one that is there stays as it is.

    Raises:
        FigureError: If it cannot be made.
    """
    try:
        for missing in reversed([one for one in (folder, *folder.parents) if not one.exists()]):
            DISK.make_folder(missing)
    except OSError as error:
        raise FigureError(
            f"--out {folder}: cannot be made ({error.strerror}); name a folder that you may "
            "write to"
        ) from None


def write(folder: Path, name: str, exposure: Exposure, contents: dict[str, bytes]) -> list[Path]:
    """Write a figure's files, one for each ending, and return where they are.

    Raises:
        OSError: If one cannot be written.
    """
    paths = []
    for ending, content in contents.items():
        path = folder / f"{'private-' if exposure.private else ''}{name}.{ending}"
        write_atomically(path, content, PRIVATE_MODE if exposure.private else PUBLIC_MODE)
        paths.append(path)
    return paths
