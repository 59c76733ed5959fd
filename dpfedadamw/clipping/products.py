"""How the weight gradients of linear and convolutional layers follow from A and G.

A holds a layer's inputs and G its output gradients, records first. These are the two layers whose
gradients are too large to keep for every record; `forms` decides when they are formed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from dpfedadamw.clipping.forms import Costs

# Below this many input channels a group, patches written out beat a grouped convolution.
_FEW_CHANNELS = 16
# Up to this many places, one product over written-out patches beats a convolution's own backward.
_FEW_PLACES = 16
# Places whose inner products with all later ones are formed at once: a matrix product of fewer rows
# is slower than what leaving out the earlier ones saves.
_RUN = 32


class LinearProducts:
    """A linear layer: A [b, …, d], G [b, …, p], gradient Gᵀ A of [p, d]."""

    def costs(self, inputs: Tensor, outputs: Tensor) -> Costs:
        """What one record costs."""
        width, outs = inputs.shape[-1], outputs.shape[-1]
        places = outputs[0].numel() // outs
        return Costs(places, width * outs, places * width * outs, places * places * (width + outs))

    def products(self, inputs: Tensor, outputs: Tensor) -> Tensor:
        """Every record's weight gradient, [n, p, d]."""
        return torch.bmm(_places(outputs).transpose(1, 2), _places(inputs))

    def grams(self, inputs: Tensor, outputs: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """⟨a_s, a_t⟩ and ⟨g_s, g_t⟩ of every record, [n, 1, r, T − s₀] each, run by run."""
        left, right = _places(inputs), _places(outputs)
        places = left.shape[1]
        starts = range(0, max(1, places - _RUN // 2), _RUN)
        for start, stop in zip(starts, (*starts[1:], places), strict=True):
            yield _products_of_run(left, start, stop), _products_of_run(right, start, stop)

    def bias(self, outputs: Tensor) -> Tensor:
        """Every record's bias gradient, [n, p]."""
        return _places(outputs).sum(1)

    def weighted(self, inputs: Tensor, outputs: Tensor, factors: Tensor, out: Tensor) -> None:
        """Write Gᵀ diag(c) A into a flat tensor."""
        left, right = _places(outputs), _places(inputs)
        if left.shape[-1] < right.shape[-1]:
            left = left * factors[:, None, None]
        else:
            right = right * factors[:, None, None]
        table = out.view(left.shape[-1], -1)
        torch.mm(left.flatten(0, 1).t(), right.flatten(0, 1), out=table)


class TransposedLinearProducts(LinearProducts):
    """A linear layer whose weight, and gradient Aᵀ G, is [d, p]."""

    def products(self, inputs: Tensor, outputs: Tensor) -> Tensor:
        """Every record's weight gradient, [n, d, p]."""
        return super().products(outputs, inputs)

    def weighted(self, inputs: Tensor, outputs: Tensor, factors: Tensor, out: Tensor) -> None:
        """Write Aᵀ diag(c) G into a flat tensor."""
        super().weighted(outputs, inputs, factors, out)


def _products_of_run(values: Tensor, start: int, stop: int) -> Tensor:
    """Inner products of rows start … stop − 1 of values [n, T, d] with all from the first on."""
    later = values[:, start:]
    return torch.bmm(later[:, : stop - start], later.transpose(1, 2))[:, None]


def _places(values: Tensor) -> Tensor:
    """Values [b, …, n] as [b, T, n]."""
    return values.reshape(len(values), -1, values.shape[-1])


@dataclass(frozen=True)
class ConvolutionProducts:
    """A 2-D convolution: A [b, c, h, w], G [b, p, h', w'], gradient [p, c/groups, k₁, k₂].

    Attributes:
        kernel: k₁, k₂.
        stride: Steps between places.
        padding: Zeros on each side.
        dilation: Steps between a kernel's entries.
        groups: Groups of channels.
    """

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int

    def costs(self, inputs: Tensor, outputs: Tensor) -> Costs:
        """What one record costs."""
        width = inputs.shape[1] // self.groups * self.kernel[0] * self.kernel[1]
        outs, places = outputs.shape[1], outputs.shape[2] * outputs.shape[3]
        of_inputs = min(self._cost_of_patches(inputs, places), self._cost_of_pixels(inputs, places))
        gram = of_inputs + places * places * outs
        return Costs(places, width * outs, places * width * outs, gram)

    def _cost_of_patches(self, inputs: Tensor, places: int) -> int:
        return places * places * inputs.shape[1] * self.kernel[0] * self.kernel[1]

    def _cost_of_pixels(self, inputs: Tensor, places: int) -> int:
        height, width = self._padded(inputs)
        offsets = self.kernel[0] * self.kernel[1] * self.groups
        # Adding shifted, and strided, matrices is bound by memory.
        slowness = 8 if self.stride == (1, 1) else 64
        return (height * width) ** 2 * inputs.shape[1] + slowness * offsets * places * places

    def _padded(self, inputs: Tensor) -> tuple[int, int]:
        return (
            inputs.shape[2] + 2 * self.padding[0],
            inputs.shape[3] + 2 * self.padding[1],
        )

    def products(self, inputs: Tensor, outputs: Tensor) -> Tensor:
        """Every record's weight gradient, [n, p, c/groups, k₁, k₂]."""
        records, channels = inputs.shape[:2]
        outs, per_group = outputs.shape[1], channels // self.groups
        shape = (records, outs, per_group, *self.kernel)
        if per_group < _FEW_CHANNELS or inputs.device.type != "cpu":
            patches = self._patches(inputs).view(records * self.groups, -1, outputs[0, 0].numel())
            gradients = outputs.reshape(records * self.groups, outs // self.groups, -1)
            return torch.bmm(gradients, patches.transpose(1, 2)).view(shape)
        # One convolution with a group a record: its weight's gradient has every record's apart.
        return self._weight_gradient(
            inputs.reshape(1, records * channels, *inputs.shape[2:]),
            outputs.reshape(1, records * outs, *outputs.shape[2:]),
            records,
        ).view(shape)

    def _weight_gradient(self, inputs: Tensor, outputs: Tensor, copies: int) -> Tensor:
        groups = self.groups * copies
        # Only the weight's shape matters to the gradient with respect to it.
        weight = inputs.new_empty(1).expand(
            outputs.shape[1], inputs.shape[1] // groups, *self.kernel
        )
        gradients = torch.ops.aten.convolution_backward(
            outputs,
            inputs,
            weight,
            None,
            self.stride,
            self.padding,
            self.dilation,
            False,
            (0, 0),
            groups,
            (False, True, False),
        )
        gradient: Tensor = gradients[1]
        return gradient

    def _patches(self, inputs: Tensor) -> Tensor:
        """Patches [n, c·k₁·k₂, T] that the kernel sees."""
        return F.unfold(inputs, self.kernel, self.dilation, self.padding, self.stride)

    def grams(self, inputs: Tensor, outputs: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """⟨a_s, a_t⟩ and ⟨g_s, g_t⟩ of every record and group, [n, groups, T, T] each, at once."""
        records, places = len(inputs), outputs[0, 0].numel()
        shape = (records, self.groups, places, places)
        if self._cost_of_patches(inputs, places) < self._cost_of_pixels(inputs, places):
            of_inputs = _gram(self._patches(inputs).view(records * self.groups, -1, places))
        else:
            of_inputs = self._gram_of_pixels(inputs, (outputs.shape[2], outputs.shape[3]))
        of_outputs = _gram(outputs.reshape(records * self.groups, -1, places))
        yield of_inputs.view(shape), of_outputs.view(shape)

    def _gram_of_pixels(self, inputs: Tensor, out: tuple[int, int]) -> Tensor:
        """⟨a_s, a_t⟩ of patches as a sum of inner products of shifted pixels.

        It needs no patches and, for a k x k kernel at stride 1, about k² fewer multiplications.
        """
        vertical, horizontal = self.padding
        padded = F.pad(inputs, (horizontal, horizontal, vertical, vertical))
        height, width = padded.shape[2:]
        pixels = _gram(padded.reshape(len(inputs) * self.groups, -1, height * width))
        pixels = pixels.view(-1, height, width, height, width)
        total: Tensor | None = None
        for row in range(self.kernel[0]):
            for column in range(self.kernel[1]):
                down = _steps(row * self.dilation[0], self.stride[0], out[0])
                right = _steps(column * self.dilation[1], self.stride[1], out[1])
                part = pixels[:, down, right, down, right]
                total = part.clone() if total is None else total.add_(part)
        assert total is not None
        return total

    def bias(self, outputs: Tensor) -> Tensor:
        """Every record's bias gradient, [n, p]."""
        return outputs.sum((2, 3))

    def weighted(self, inputs: Tensor, outputs: Tensor, factors: Tensor, out: Tensor) -> None:
        """Write the weight's gradient for outputs' gradients c_j G_j into a flat tensor."""
        scaled = outputs * factors[:, None, None, None]
        places = outputs[0, 0].numel()
        if self.groups == 1 and places <= _FEW_PLACES:
            patches = self._patches(inputs).transpose(1, 2).flatten(0, 1)
            left = scaled.flatten(2).transpose(0, 1).flatten(1)
            torch.mm(left, patches, out=out.view(outputs.shape[1], -1))
        else:
            out.copy_(self._weight_gradient(inputs, scaled, 1).flatten())


def _gram(columns: Tensor) -> Tensor:
    """Inner products [n, T, T] of the columns of [n, d, T]."""
    return torch.bmm(columns.transpose(1, 2), columns)


def _steps(start: int, step: int, count: int) -> slice:
    return slice(start, start + step * (count - 1) + 1, step)
