"""Memory of long vectors is used again, and never while anything still refers to it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch

from dpfedadamw.vectors import memory

SIZE = 300_007


@pytest.fixture(autouse=True)
def _nothing_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_idle", memory._Idle())


def address(array: np.ndarray) -> int:
    return int(array.ctypes.data)


HOLDERS: dict[str, Callable[[np.ndarray], object]] = {
    "the array": lambda array: array,
    "a view": lambda array: array[5:9],
    "a view of a view": lambda array: array.reshape(1, -1)[:, 7:][:, 1:],
    "a tensor": torch.from_numpy,
    "a view of a tensor": lambda array: torch.from_numpy(array)[3:].view(-1, 1),
    "an array of a tensor": lambda array: torch.from_numpy(array).detach()[1:].numpy(),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_memory_is_used_again_only_once_nothing_refers_to_it(holder: str) -> None:
    array = memory.recycled(SIZE, np.float32)
    first = address(array)
    held = HOLDERS[holder](array)
    del array
    other = memory.recycled(SIZE, np.float32)
    assert address(other) != first
    del held
    assert address(memory.recycled(SIZE, np.float32)) == first


def test_it_may_be_written_and_has_the_size_and_type_asked_for() -> None:
    for kind in (np.float32, np.float64):
        for size in (0, 3, SIZE):
            array = memory.recycled(size, kind)
            assert array.shape == (size,)
            assert array.dtype == kind
            array[:] = 1.0
            assert array.sum() == size


def test_another_size_gets_other_memory() -> None:
    first = address(memory.recycled(SIZE, np.float32))
    held = memory.recycled(SIZE + 1, np.float32)
    assert address(held) != first


def test_what_lies_idle_stays_below_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_IDLE_BYTES", 8 * SIZE)
    held = [memory.recycled(SIZE, np.float32) for _ in range(4)]
    places = [address(array) for array in held]
    while held:
        held.pop(0)
    # The oldest goes first.
    assert [address(array) for array in memory._idle._arrays] == places[2:]
    assert [array.nbytes for array in memory._idle._arrays] == [4 * SIZE] * 2
    # One too long to be kept is not, and those that are stay.
    memory.recycled(3 * SIZE, np.float32)
    assert len(memory._idle._arrays) == 2


def test_threads_never_share_a_vector() -> None:
    wrong: list[str] = []

    def work(mark: int) -> None:
        for _ in range(200):
            array = memory.recycled(SIZE, np.float32)
            array[::1000] = mark
            if not (array[::1000] == mark).all():
                wrong.append(f"thread {mark} lost its vector")

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_memory_is_the_processs_own_on_every_system(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, object]] = []

    def mapped(*places: int, **options: int) -> bytearray:
        asked.append((places, options))
        return bytearray(places[1])

    monkeypatch.setattr(memory.mmap, "mmap", mapped)
    for platform in ("win32", "darwin"):
        monkeypatch.setattr(memory.sys, "platform", platform)
        assert memory._mapped(64).tolist() == [0] * 64
    private = {"flags": memory.mmap.MAP_PRIVATE | memory.mmap.MAP_ANONYMOUS}
    assert asked == [((-1, 64), {}), ((-1, 64), private)]


def test_memory_that_the_system_refuses_is_a_lack_of_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(memory.mmap, "mmap", refuse)
    with pytest.raises(MemoryError, match=f"{4 * SIZE} bytes"):
        memory.recycled(SIZE, np.float32)


def test_idle_memory_goes_back_to_the_system_after_long_models_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(memory, "_trim", lambda: asked.append)
    memory.return_idle(memory._LEAST_RETURNED - 1)
    assert not asked
    memory.return_idle(memory._LEAST_RETURNED)
    assert asked == [0]
    monkeypatch.setattr(memory, "_trim", lambda: None)
    memory.return_idle(memory._LEAST_RETURNED)
