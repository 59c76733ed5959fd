"""All that a private run uploads and publishes lies on a public grid: no low bit carries more.

A float32 has 24 significant bits, and noise fills them all, so that nobody misses the last ones if
something else is written there. A run with privacy therefore writes fewer, a number that its ledger
states, and leaves the others 0. Which values are on the grid is public, and rounding what is
noised is post-processing: it costs no privacy.

Bits are counted from a number's first, as in a shorter float, and not from a fixed unit. So the
grid needs no scale of its own (updates, moments and control variates of different rules have very
different ones), every value on it is a float32, and a second moment near 0, by which a step is
divided, is not rounded to 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Significant bits that are written.

    Attributes:
        update: Of a client's update, or of a round's noised mean update where whole clients are
            protected. Local steps in float32 leave an update that is small relative to the
            parameters about 14 meaningful bits.
        vectors: Of all else that has d coordinates, uploaded or kept by a client.
        summaries: Of shorter tensors. Block means of d coordinates carry far less noise than one.
        weights: Of the published weights. Rounded once, after the last round: a model that moves in
            small steps would stand still on a grid.
    """

    update: int
    vectors: int = 16
    summaries: int = 20
    weights: int = 16

    def tensors(self, named: Mapping[str, Tensor], size: int) -> dict[str, Tensor]:
        """Tensors other than an update [size], each on its grid."""
        return {
            name: on_grid(value, self.vectors if value.numel() == size else self.summaries)
            for name, value in named.items()
        }


def on_grid(values: Tensor, bits: int) -> Tensor:
    """Round each value to so many significant bits, a half to the even neighbour.

    Args:
        values: Any shape; a type without so many bits stays as it is, and so does what is not
            finite.
        bits: From 1 to 23.
    """
    # A plan holds a grid, and is made where there is nothing to round.
    import torch

    from dpfedadamw.vectors.flat import empty, in_pieces

    formats = {torch.float32: (torch.int32, 24), torch.float64: (torch.int64, 53)}
    if values.dtype not in formats:
        return values
    whole, digits = formats[values.dtype]
    dropped = digits - bits
    found = empty(values.numel(), values.dtype, values.device)
    given = values.detach().reshape(-1)

    def round_off(part: slice, _memory: Tensor) -> None:
        # Magnitudes are ordered as their bits are, and a carry into the exponent is right as well.
        raw, into = given[part].view(whole), found[part].view(whole)
        torch.bitwise_right_shift(raw, dropped, out=into)
        into.bitwise_and_(1).add_((1 << (dropped - 1)) - 1).add_(raw).bitwise_and_(-(1 << dropped))
        finite = torch.isfinite(given[part])
        # An accelerator would have to be waited for.
        if given.device.type != "cpu" or not bool(finite.all()):
            torch.where(finite, found[part], given[part], out=found[part])

    in_pieces(given, round_off)
    return found.view(values.shape)
