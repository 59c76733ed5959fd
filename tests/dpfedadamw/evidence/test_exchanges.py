"""How much of a run is kept for replay, and which of it in any case."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch

from dpfedadamw.evidence.exchanges import Extent, UploadRecorder, extent, upload_file
from dpfedadamw.vectors.flat import Blocks


@pytest.mark.parametrize(
    ("parameters", "queries", "participations", "kept"),
    [
        # 64 MiB hold 1,198 participations of 1,000 parameters and 14 vectors; 500 files are most.
        (1_000, 3, 100, Extent(1.0, None)),
        (1_000, 3, 500, Extent(1.0, None)),
        (1_000, 3, 501, Extent(0.75 * 500 / 501, None)),
        # 119 of 10,000 parameters fit.
        (10_000, 3, 1_000, Extent(0.75 * 119 / 1_000, None)),
        # 11 of 100,000 parameters fit, which is all of 11 and fewer than 16 of 1,000.
        (100_000, 3, 11, Extent(1.0, None)),
        (100_000, 3, 1_000, Extent(0.75 * 16 / 1_000, 74_898)),
        # 16 fit exactly, of 32 vectors each; of a parameter more, as many coordinates are kept.
        (32_768, 12, 100, Extent(0.75 * 16 / 100, None)),
        (32_769, 12, 100, Extent(0.75 * 16 / 100, 32_768)),
        # Rounds of client level have eight vectors.
        (1_000_000, 0, 10, Extent(1.0, 209_715)),
        (10**9, 0, 1, Extent(1.0, 2_097_152)),
    ],
)
def test_what_is_kept_follows_from_public_sizes(
    parameters: int, queries: int, participations: int, kept: Extent
) -> None:
    found = extent(parameters, queries, participations)
    assert found.coordinates == kept.coordinates
    assert found.share == pytest.approx(kept.share, rel=1e-12)


def test_the_first_and_the_last_participation_are_kept_and_of_others_their_share(
    tmp_path: Path,
) -> None:
    (tmp_path / "salt").write_bytes(bytes(range(32)))
    blocks = SimpleNamespace(parameters=1_000, sizes=torch.tensor([1_000]))
    recorder = UploadRecorder(
        tmp_path, cast(Blocks, blocks), queries=3, rounds=50, per_round=200, sample=np.zeros(0, int)
    )
    assert not recorder.complete
    assert recorder.coordinates is None
    numbered = [number.to_bytes(4, "big") for number in range(4_000)]
    for place in ((0, (0, 200)), (49, (199, 200))):
        assert all(recorder.keeps(*place, 7, digest) for digest in numbered[:200])
    for place in ((0, (1, 200)), (1, (0, 200)), (49, (198, 200)), (48, (199, 200))):
        kept = sum(recorder.keeps(*place, 7, digest) for digest in numbered)
        # Within four standard errors of 0.75 · 500 of 10,000 participations.
        assert abs(kept - 150) < 4 * 150**0.5


def test_rounds_that_are_run_again_leave_no_file_of_before(tmp_path: Path) -> None:
    (tmp_path / "salt").write_bytes(bytes(range(32)))
    blocks = SimpleNamespace(parameters=10, sizes=torch.tensor([10]))
    recorder = UploadRecorder(
        tmp_path, cast(Blocks, blocks), queries=1, rounds=9, per_round=2, sample=np.zeros(0, int)
    )
    names = [upload_file(index, client) for index in (0, 3, 4, 11) for client in (None, 2)]
    for name in names:
        (tmp_path / name).write_bytes(b"")
    recorder.forget_after(4)
    assert {path.name for path in tmp_path.glob("*.npz")} == set(names[:4])
