"""Whether what a client handed in of one participation is what a client notes.

A client may hand in anything. What is of another type or shape, or holds noise that is not finite,
would end the collection with an error of NumPy's, or stay in evidence that nobody can judge.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfedadamw.evidence.record_level import ClientEvidence
from dpfedadamw.vectors.packing import views

Arrays = Mapping[str, NDArray[Any]]
# Any length.
_ANY = None
_MOST = 2.0**53


class NotedError(ValueError):
    """An array is missing, or is not what a client notes."""


def check_noted(
    arrays: Arrays, collector: ClientEvidence | None, counts: tuple[int, int], update: int
) -> None:
    """Refuse what no client notes of a participation.

    Args:
        arrays: What it handed in.
        collector: Where its queries are noted; None where gradients are not noised.
        counts: Local steps of the round, and queries.
        update: Numbers of an update that the server adds up.

    Raises:
        NotedError: With the first array that is wrong.
    """
    said = _array(arrays, "counts", "i", (2,)).tolist()
    if said != list(counts):
        raise NotedError("counts: says other steps or queries than the round has")
    _array(arrays, "uploaded", "U", (_ANY,))
    _tensors(arrays, "memory")
    _check_witnessed(arrays)
    if collector is None:
        _check_update(arrays, update)
    else:
        _check_queries(arrays, collector, counts[1])


def _check_update(arrays: Arrays, size: int) -> None:
    """What a client notes of a whole update."""
    _array(arrays, "norms", "f", (2,))
    _array(arrays, "commitment", "u", (32,), np.uint8)
    found = _tensors(arrays, "clipped").get("update")
    if found is None or tuple(found.shape) != (size,) or not found.is_floating_point():
        raise NotedError("clipped: holds no update of the run's model")
    if not bool(found.isfinite().all()):
        raise NotedError("clipped: has a number that is not finite")
    if "kept" in arrays:
        _array(arrays, "kept", "i", (_ANY,), np.int64)
    if "rows" in arrays:
        _array(arrays, "rows", "i", (_ANY,))


def _check_queries(arrays: Arrays, collector: ClientEvidence, queries: int) -> None:
    """What a client notes of each noised gradient."""
    blocks, kept = collector.blocks, collector.exchange.coordinates
    sizes = (queries, len(blocks.names))
    sampled = (queries, len(collector.sample))
    for name in ("batch_sizes", "norm_counts", "nonfinite", "silent"):
        _array(arrays, name, "i", (queries,))
    for name in ("divisors", "largest"):
        _finite(arrays, name, (queries,))
    for name in ("noise_sum_squares", "clean_sum_squares"):
        _finite(arrays, name, sizes)
    _finite(arrays, "noise_sample", sampled, np.float32)
    _finite(arrays, "shared.squares", (blocks.parameters,), np.float32)
    _array(arrays, "exchange.clean", "f", sampled)
    for name in ("points", "gradients"):
        width = blocks.parameters if kept is None else len(kept)
        _rows_or_none(arrays, f"exchange.{name}", (queries, width))
    _rows_or_none(arrays, "exchange.square_sums", sizes)
    norms = (int(arrays["norm_counts"].sum()),)
    for name in ("raw_norms", "clipped_norms"):
        _array(arrays, name, "f", norms)
    _array(arrays, "participation", "u", (32,), np.uint8)
    _array(arrays, "inclusions", "i", (_ANY,))
    for name in ("rows_used", "batch_rows"):
        if name in arrays:
            _array(arrays, name, "i", (_ANY,))
    if "moment" in arrays:
        _array(arrays, "moment", "f", (2, sizes[1]))
        _array(arrays, "moment.floored", "i", (sizes[1],))
        if np.abs(_finite(arrays, "moment.numbers", (2,))).max() > _MOST:
            raise NotedError("moment.numbers: has a number that is too large")


def _check_witnessed(arrays: Arrays) -> None:
    """What a witness saw of batches, where there was one."""
    if not any(name.startswith("seen_") for name in arrays):
        return
    seen = len(_array(arrays, "seen_rows", "i", (_ANY,)))
    _array(arrays, "seen_contents", "u", (seen, 16), np.uint8)
    if "seen_batches" in arrays:
        _array(arrays, "seen_batches", "u", (seen, 8), np.uint8)


def _array(
    arrays: Arrays,
    name: str,
    kinds: str,
    shape: tuple[int | None, ...],
    exact: type[np.generic] | None = None,
) -> NDArray[Any]:
    """An array of one of these kinds and this shape.

    Raises:
        NotedError: If it is missing, or another.
    """
    if name not in arrays:
        raise NotedError(f"{name}: is missing")
    found = arrays[name]
    kind = found.dtype
    if kind.kind not in kinds or not kind.isnative or (exact is not None and kind != exact):
        raise NotedError(f"{name}: has the type {kind.name}")
    if len(found.shape) != len(shape) or any(
        want not in (_ANY, have) for want, have in zip(shape, found.shape, strict=True)
    ):
        raise NotedError(f"{name}: has the shape {list(found.shape)}")
    return found


def _finite(
    arrays: Arrays,
    name: str,
    shape: tuple[int | None, ...],
    exact: type[np.generic] | None = None,
) -> NDArray[Any]:
    found = _array(arrays, name, "f", shape, exact)
    if not np.isfinite(found).all():
        raise NotedError(f"{name}: has a number that is not finite")
    return found


def _rows_or_none(arrays: Arrays, name: str, shape: tuple[int, int]) -> None:
    """Rows of numbers; none of them where they are not kept."""
    none = name in arrays and arrays[name].shape == (0, 0)
    _array(arrays, name, "f", (0, 0) if none else shape)


def _tensors(arrays: Arrays, name: str) -> Mapping[str, Any]:
    content = _array(arrays, name, "u", (_ANY,), np.uint8).tobytes()
    try:
        return views(content)
    except Exception as error:
        # What is no serialised tensor may raise nearly anything.
        raise NotedError(f"{name}: holds no tensors ({type(error).__name__})") from None
