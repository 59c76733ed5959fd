"""The server's averages: the same to the last bit as of all uploads side by side."""

from __future__ import annotations

import pytest
import torch

from dpfedadamw.algorithms.base import Upload
from dpfedadamw.algorithms.server import mean_of, mean_update
from dpfedadamw.vectors import flat


@pytest.mark.parametrize("uploads", [1, 2, 5, 40])
def test_a_mean_by_pieces_is_the_mean_of_all_to_the_last_bit(uploads, monkeypatch):
    # Pieces end where no vector register is cut, as those of a run do.
    monkeypatch.setattr(flat, "_PIECE", 256)
    sent = [Upload(torch.randn(1_003), {"moments": torch.rand(2, 300)}, {}) for _ in range(uploads)]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        update, moments = mean_update(sent), mean_of(sent, "moments")
        assert torch.equal(update, torch.stack([one.update for one in sent]).mean(0))
        whole = torch.stack([one.state["moments"] for one in sent]).mean(0)
    finally:
        torch.set_num_threads(threads)
    assert moments.shape == (2, 300)
    assert torch.equal(moments, whole)
