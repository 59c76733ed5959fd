"""Normal numbers of the same bits are the same on every device, to the last bit.

IEEE 754 demands that additions, multiplications, divisions and square roots are rounded correctly;
what a logarithm or a cosine has in its last bits is each library's own matter. So these are
polynomials here, one torch operation each, so that no compiler joins a multiplication and an
addition: the same bits in give the same float64 out, on any processor and any accelerator.

Divisions are of tensors by tensors, and factors are powers of two or plain constants: torch divides
by a number of Python's through its reciprocal where an accelerator does it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

# ln x = 2s·Σ s²ᵏ/(2k+1) with s = (x - 1)/(x + 1), which is below 0.172 for x up to the root of 2:
# what twelve terms leave out is below 2^-65 of it.
_LOGARITHM = tuple(1.0 / (2 * k + 1) for k in range(12))
# Within an eighth of a turn, what is left out is below 2^-63 of a sine and 2^-67 of a cosine.
_SINE = tuple((-1.0) ** k / math.factorial(2 * k + 1) for k in range(9))
_COSINE = tuple((-1.0) ** k / math.factorial(2 * k) for k in range(10))
# The bits of 1.0 and of the root of 2, read as an integer.
_ONE = 0x3FF0000000000000
_ROOT_OF_TWO = 0x3FF6A09E667F3BCD


def minus_log(bits: Tensor) -> Tensor:
    """-ln u of u = bits / 2^53, to 2^-51 of its size; 0 stands for a half, so that u > 0.

    Args:
        bits: int64 in 0 … 2^53 - 1, of any shape.

    Returns:
        float64 of the same shape.
    """
    uniform = bits.double().clamp_(min=0.5).mul_(2.0**-53)
    whole = uniform.view(torch.int64)
    # Below 1, every exponent is made of bits that the exponent of 1.0 has too.
    fraction = whole.bitwise_or(_ONE)
    upper = (fraction > _ROOT_OF_TWO).long()
    exponent = (whole >> 52).sub_(1023).add_(upper)
    # From [1, 2) to between the roots of a half and of 2: one less in the exponent halves exactly.
    part = fraction.sub_(upper.bitwise_left_shift_(52)).view(torch.float64)
    ratio = part.sub(1.0).div_(part.add(1.0))
    series = _polynomial(_LOGARITHM, ratio.mul(ratio)).mul_(ratio).mul_(2.0)
    return exponent.double().mul_(math.log(2.0)).add_(series).neg_()


def cosine_and_sine(bits: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine of bits / 2^53 of a turn, to 2^-52.

    Args:
        bits: int64 in 0 … 2^53 - 1, of any shape.

    Returns:
        Two of float64, of the same shape.
    """
    # The nearest quarter of a turn is taken off in integers, where nothing is rounded.
    quarter = bits.add(1 << 50).bitwise_right_shift_(51)
    rest = bits.sub(quarter.bitwise_left_shift(51)).double().mul_(math.pi * 2.0**-52)
    square = rest.mul(rest)
    sine = _polynomial(_SINE, square).mul_(rest)
    cosine = _polynomial(_COSINE, square)
    odd = quarter.bitwise_and(1).bool()
    # A quarter on, the cosine is minus the sine and the sine the cosine; two on, both turn round.
    behind = quarter.add(1).bitwise_and_(2).double().neg_().add_(1.0)
    below = quarter.bitwise_and_(2).double().neg_().add_(1.0)
    return (
        torch.where(odd, sine, cosine).mul_(behind),
        torch.where(odd, cosine, sine).mul_(below),
    )


def _polynomial(coefficients: tuple[float, ...], at: Tensor) -> Tensor:
    """Horner's scheme, each operation rounded by itself."""
    value = at.mul(coefficients[-1]).add_(coefficients[-2])
    for coefficient in coefficients[-3::-1]:
        value.mul_(at).add_(coefficient)
    return value
