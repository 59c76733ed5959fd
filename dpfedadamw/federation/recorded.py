"""An answer as named arrays: what a client noted comes back from a process of its own.

A client that runs in another process of the same machine hands back what one in this process would:
its upload, what it keeps for itself, and the evidence that it noted. All of it is arrays, so that
nothing is ever unpickled. Only the upload is for the server; the rest is as private as the evidence
that is made of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfedadamw.algorithms.base import Upload
from dpfedadamw.evidence.commitments import SealedCommitment
from dpfedadamw.evidence.record_level import ClientEvidence, MomentRecord, joined
from dpfedadamw.federation.participation import Answer, LocalResult
from dpfedadamw.privacy.updates import ClippedUpdate
from dpfedadamw.vectors.packing import packed, views

Arrays = dict[str, NDArray[Any]]

# Lists of a client's evidence, one entry a query: numbers, and rows of numbers.
_NUMBERS = ("batch_sizes", "norm_counts", "nonfinite", "divisors", "silent", "largest")
_ROWS = ("noise_sum_squares", "noise_sample", "clean_sum_squares")
_SEEN = ("seen_batches", "seen_rows", "seen_contents")
_EXCHANGED = ("points", "gradients", "square_sums", "clean")


def recorded(answer: Answer) -> Arrays:
    """What stays with a client of its answer, as arrays: all but the upload.

    Args:
        answer: What its part in a round came to; what was noted of its queries is finished.
    """
    result = answer.result
    arrays: Arrays = {
        "counts": np.asarray([result.steps, result.queries], np.int64),
        "memory": _bytes(packed(result.upload.memory)),
        # Evidence tells the names of what was uploaded, and nothing else of it.
        "uploaded": np.asarray(sorted(result.upload.state), dtype=np.str_),
    }
    if result.rows is not None:
        arrays["rows"] = result.rows
    arrays |= result.seen
    if result.evidence is not None:
        arrays |= _noted(result.evidence)
    if answer.clipped is not None:
        clipped = answer.clipped
        norms = np.asarray([clipped.raw_norm, clipped.clipped_norm], np.float64)
        arrays |= {"clipped": _bytes(packed({"update": clipped.update})), "norms": norms}
        arrays["commitment"] = _bytes(answer.commitment)
    if answer.kept is not None:
        arrays["kept"] = answer.kept.cpu().numpy()
    return arrays


def answered(
    message: bytes,
    arrays: Mapping[str, NDArray[Any]],
    evidence: ClientEvidence | None,
    device: torch.device,
) -> Answer:
    """The answer that `recorded` wrote down, but for vectors that nobody reads again.

    Args:
        message: The client's upload, serialised.
        arrays: What stayed with it.
        evidence: A new collector, which gets what the client noted; None where nothing is noted.
        device: Where tensors live.
    """
    steps, queries = arrays["counts"].tolist()
    nothing = torch.zeros(0, device=device)
    state = {str(name): nothing for name in arrays["uploaded"]}
    result = LocalResult(
        upload=Upload(nothing, state, _tensors(arrays["memory"], device)),
        state={},
        steps=steps,
        queries=queries,
        evidence=None if evidence is None else _filled(evidence, arrays),
        rows=arrays.get("rows"),
        seen={name: arrays[name] for name in _SEEN if name in arrays},
    )
    if "clipped" not in arrays:
        return Answer(message=message, result=result)
    raw, norm = arrays["norms"].tolist()
    return Answer(
        message=message,
        result=result,
        clipped=ClippedUpdate(_tensors(arrays["clipped"], device)["update"], raw, norm),
        kept=torch.from_numpy(arrays["kept"]).to(device) if "kept" in arrays else None,
        commitment=arrays["commitment"].tobytes(),
    )


def _noted(evidence: ClientEvidence) -> Arrays:
    """What a client noted of its queries."""
    exchange, rows = evidence.exchange, evidence.rows
    arrays: Arrays = {name: np.asarray(getattr(evidence, name)) for name in _NUMBERS}
    arrays |= {name: _stacked(getattr(evidence, name)) for name in _ROWS}
    arrays |= {f"exchange.{name}": _stacked(getattr(exchange, name)) for name in _EXCHANGED}
    arrays |= {
        "raw_norms": joined(evidence.raw_norms),
        "clipped_norms": joined(evidence.clipped_norms),
        "inclusions": evidence.inclusions,
        "participation": _bytes(evidence.commitment.digest()),
    }
    if evidence.rows_used is not None:
        arrays["rows_used"] = evidence.rows_used
    known = [one for one in rows if one is not None]
    if len(known) == len(rows):
        arrays["batch_rows"] = np.concatenate([np.zeros(0, np.int64), *known])
    if (moment := evidence.moment) is not None:
        numbers = np.asarray([moment.subtracted, moment.steps], np.float64)
        arrays |= {
            "moment": np.stack([moment.noisy, moment.corrected]),
            "moment.floored": moment.floored,
            "moment.numbers": numbers,
        }
    return arrays


def _filled(evidence: ClientEvidence, arrays: Mapping[str, NDArray[Any]]) -> ClientEvidence:
    """A new collector with what `_noted` wrote down of another."""
    for name in _NUMBERS:
        getattr(evidence, name).extend(arrays[name].tolist())
    for name in _ROWS:
        getattr(evidence, name).extend(arrays[name])
    for name in _EXCHANGED:
        getattr(evidence.exchange, name).extend(arrays[f"exchange.{name}"])
    evidence.raw_norms.append(arrays["raw_norms"])
    evidence.clipped_norms.append(arrays["clipped_norms"])
    evidence.inclusions = arrays["inclusions"]
    evidence.rows_used = arrays.get("rows_used")
    evidence.commitment = SealedCommitment(arrays["participation"].tobytes())
    evidence.rows.append(arrays.get("batch_rows"))
    if "moment" in arrays:
        (noisy, corrected), (subtracted, steps) = arrays["moment"], arrays["moment.numbers"]
        evidence.moment = MomentRecord(
            noisy=noisy,
            corrected=corrected,
            subtracted=float(subtracted),
            steps=int(steps),
            floored=arrays["moment.floored"],
        )
    return evidence


def _bytes(content: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(content, np.uint8)


def _tensors(content: NDArray[np.uint8], device: torch.device) -> dict[str, Tensor]:
    # A copy: what is read where it lies may not be written to.
    return {name: value.clone().to(device) for name, value in views(content.tobytes()).items()}


def _stacked(rows: list[NDArray[Any]]) -> NDArray[Any]:
    return np.stack(rows) if rows else np.zeros((0, 0))
