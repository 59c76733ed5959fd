"""What the cells of a sweep read, looked at once before any of them is begun.

Data or a published model that are not there would fail every cell that reads them, one after
another, each with a folder and a line of its own.
"""

from __future__ import annotations

from collections.abc import Iterable

from dpfedadamw import experiment
from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.extensions.sweeps.folder import SweepError
from dpfedadamw.spec.data_section import EvenPartition, GivenPartition
from dpfedadamw.spec.matrix import Cell


def check_inputs(cells: Iterable[Cell]) -> None:
    """Read the data and build the published models of cells, each once.

    What differs only in how records are divided among clients, or in a seed, is read alike.

    Args:
        cells: The cells that are to be run.

    Raises:
        SweepError: If some cannot be read; the message is that of the run, and says how many cells
            it concerns where others could be run.
    """
    readers: dict[str, list[Cell]] = {}
    for cell in cells:
        readers.setdefault(_reads(cell), []).append(cell)
    concerned: dict[str, int] = {}
    for alike in readers.values():
        try:
            experiment.read_inputs(alike[0].spec)
        except DpfedadamwError as error:
            concerned[str(error)] = concerned.get(str(error), 0) + len(alike)
    total = sum(map(len, readers.values()))
    for message, count in concerned.items():
        if count == total:
            raise SweepError(message)
        raise SweepError(f"{message} ({count} of {total} cells read it; --only leaves them out)")


def _reads(cell: Cell) -> str:
    """What a cell reads, without what draws from it alone: seeds, and who gets which record.

    As text: the arguments of a model of one's own may be of any kind.
    """
    data, model = cell.spec.data, cell.spec.model
    if not isinstance(data.partition, GivenPartition):
        data = data.replace(partition=EvenPartition(), clients=1)
    return repr((data.replace(seed=0), model.replace(seed=None)))
