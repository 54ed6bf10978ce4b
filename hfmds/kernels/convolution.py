"""Convolutions with fewer products, for networks that compute on a processor. In torch.

A kernel of 5x5 takes 25 products for each number of the output. Along the width some can be saved:
in the discrete Fourier transform of a row, to convolve is to multiply number by number. In the
paper's second convolution 10 outputs with 5 taps take 50 products along a row of 14; here 20 do:

    y = O [(I x) * (K w)]       with constants I [20, 14], K [20, 5] and O [10, 20]

(a row of 14 has 8 frequencies, and a product of complex numbers is three real ones, by Gauss). Both
gradients are the same steps in another order. Along the height it remains a sum, so that for each
of the 20 there is one product of matrices.

Ten images on one core (AVX2), with all gradients: 2.8 ms, a plain convolution 4.7. It is no less
exact: against float64 the largest error is about half of the plain one's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

# Below any of these the transforms cost more than is saved.
_LEAST_SAVING = 2.0  # times fewer products
_LEAST_DEPTH = 64  # channels times height of the kernel
_LEAST_CHANNELS = 32  # of the output
_LEAST_ROWS = 30  # of the output, in all images

_MOST_BYTES = 64 * 1024 * 1024  # that patches may take: some 500 images of the paper's

Matrix: TypeAlias = NDArray[np.float32]

_plainly: ContextVar[bool] = ContextVar("plainly", default=False)


@contextmanager
def plain_convolutions() -> Iterator[None]:
    """Within, nothing is saved: for whoever counts what a network takes as it is written."""
    before = _plainly.set(True)
    try:
        yield
    finally:
        _plainly.reset(before)


@dataclass(frozen=True, slots=True)
class Scheme:
    """How rows of one width are convolved with kernels of so many taps.

    It is kept and used again, so it has no tensors: those made while torch traces are of no use
    afterwards.
    """

    of_input: Matrix  # I [products, width]
    of_kernel: Matrix  # K [products, taps]
    of_output: Matrix  # O [width of the output, products]
    padding: int  # zeros on either side of a row, which I leaves out

    @property
    def saving(self) -> float:
        """How many times fewer products than one per output and tap."""
        (outputs, products), taps = self.of_output.shape, self.of_kernel.shape[1]
        return float(outputs * taps / products)


@lru_cache(maxsize=64)
def saving_scheme(
    weight: tuple[int, int, int, int],
    width: int,
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    groups: int,
) -> Scheme | None:
    """The scheme for images of this width and a weight of this shape; None: it would not pay."""
    out_channels, channels, tall, taps = weight
    deep = channels * tall >= _LEAST_DEPTH and out_channels >= _LEAST_CHANNELS
    if not deep or groups > 1 or stride != (1, 1) or dilation != (1, 1):
        return None
    if width + 2 * padding[1] < taps:  # an error, of which torch tells
        return None
    found = scheme(width, taps, padding[1])
    return found if found.saving >= _LEAST_SAVING else None


@lru_cache(maxsize=64)
def scheme(width: int, taps: int, padding: int) -> Scheme:
    """The scheme for rows of this width, with so many zeros on either side."""
    padded = width + 2 * padding
    outputs = padded - taps + 1
    of_input, of_kernel, of_output = [], [], []
    for frequency in range(padded // 2 + 1):
        angle = 2 * np.pi * frequency * np.arange(padded) / padded
        real, imaginary = np.cos(angle), -np.sin(angle)
        alone = 2 * frequency in (0, padded)  # its own conjugate, and real
        # y = sum of cos Re(Y) - sin Im(Y), where Y = X conj(W), over all frequencies.
        share = (1 if alone else 2) / padded
        by_real, by_imaginary = share * real[:outputs], share * imaginary[:outputs]
        a, b = real[:taps], -imaginary[:taps]  # of conj(W) = a + ib
        if alone:
            of_input.append(real)
            of_kernel.append(a)
            of_output.append(by_real)
        else:
            # (r + is)(a + ib) is p - t + i(p + q), with p = a(r + s), q = r(b - a), t = s(a + b).
            of_input += [real + imaginary, real, imaginary]
            of_kernel += [a, b - a, a + b]
            of_output += [by_real + by_imaginary, by_imaginary, -by_real]
    inner = np.stack(of_input)[:, padding : padding + width]  # what is padded is zero
    return Scheme(
        inner.astype(np.float32),
        np.stack(of_kernel).astype(np.float32),
        np.stack(of_output, axis=1).astype(np.float32),
        padding,
    )


class ThriftyConvolution(nn.Conv2d):
    """A convolution of the same weights that saves products where that pays."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  # torch's name
        n, _, height, width = input.shape
        weight, padding = self.weight, cast(tuple[int, int], self.padding)
        shape = cast(tuple[int, int, int, int], tuple(weight.shape))
        by = saving_scheme(shape, width, self.stride, padding, self.dilation, self.groups)
        rows = n * (height + 2 * padding[0] - shape[2] + 1)
        exact = input.dtype == weight.dtype == torch.float32
        if by is None or rows < _LEAST_ROWS or not exact or _plainly.get():
            return super().forward(input)
        if 4 * len(by.of_input) * rows * shape[1] * shape[2] > _MOST_BYTES:
            return super().forward(input)
        y: Tensor = _Convolution.apply(input, weight, self.bias, by, padding[0])
        return y


def thrifty(model: nn.Module) -> None:
    """Let the convolutions of a model on the processor save products; its weights stay its own."""
    for module in model.modules():
        if (
            type(module) is nn.Conv2d
            and module.padding_mode == "zeros"
            and not isinstance(module.padding, str)
        ):
            module.__class__ = ThriftyConvolution


class _Convolution(torch.autograd.Function):
    """y of x [n, channels, height, width] and weight [out channels, channels, taps, taps]."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, by: Scheme, pad: int
    ) -> Tensor:
        n, channels, height, _ = x.shape
        out_channels, _, tall, taps = weight.shape
        products = len(by.of_input)
        rows = (_tensor(by.of_input) @ _by_width(x)).view(products, n, height, channels)
        if pad:
            rows = nn.functional.pad(rows, (0, 0, pad, pad))
        out_height = rows.shape[2] - tall + 1
        patches = rows.unfold(2, tall, 1).transpose(3, 4).reshape(products, n * out_height, -1)
        # Channels stay innermost, as they are in channels_last: what is copied moves in long runs.
        kernels = _tensor(by.of_kernel) @ weight.permute(3, 0, 2, 1).reshape(taps, -1)
        kernels = kernels.view(products, out_channels, -1)
        y = torch.bmm(patches, kernels.transpose(1, 2)).view(products, -1)
        y = _tensor(by.of_output) @ y
        ctx.save_for_backward(x, weight, patches, kernels)
        ctx.by, ctx.pad, ctx.has_bias = by, pad, bias is not None
        return _images(y.view(-1, n, out_height, out_channels), bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, patches, kernels = ctx.saved_tensors
        by, pad = ctx.by, ctx.pad
        wanted = (*ctx.needs_input_grad[:2], ctx.has_bias)
        if torch.is_grad_enabled():  # the gradient is to have a gradient: torch's own does
            padding = (pad, by.padding)
            found = torch.ops.aten.convolution_backward(
                grad, x, weight, [len(weight)], (1, 1), padding, (1, 1), False, (0, 0), 1, wanted
            )
            return *found, None, None
        n, channels, height, width = x.shape
        out_channels, _, tall, taps = weight.shape
        products, out_height = len(by.of_input), grad.shape[2]
        of_y = (_tensor(by.of_output.T) @ _by_width(grad)).view(products, -1, out_channels)
        of_x = of_weight = None
        if wanted[1]:
            of_kernels = torch.bmm(of_y.transpose(1, 2), patches).view(products, -1)
            of_weight = _tensor(by.of_kernel.T) @ of_kernels
            of_weight = of_weight.view(taps, out_channels, tall, channels).permute(1, 3, 2, 0)
        if wanted[0]:
            of_patches = torch.bmm(of_y, kernels)
            of_patches = of_patches.view(products, n, out_height, tall, channels)
            of_rows = grad.new_zeros(products, n, height + 2 * pad, channels)
            for tap in range(tall):
                of_rows[:, :, tap : tap + out_height] += of_patches[:, :, :, tap]
            of_rows = of_rows[:, :, pad : pad + height].reshape(products, -1)
            of_x = _images((_tensor(by.of_input.T) @ of_rows).view(width, n, height, channels))
        return of_x, of_weight, grad.sum((0, 2, 3)) if wanted[2] else None, None, None


def _tensor(matrix: Matrix) -> Tensor:
    return torch.from_numpy(matrix)


def _by_width(x: Tensor) -> Tensor:
    """[width, n * height * channels]."""
    return x.permute(3, 0, 2, 1).reshape(x.shape[3], -1)


def _images(rows: Tensor, bias: Tensor | None = None) -> Tensor:
    """[n, channels, height, width] in channels_last, of [width, n, height, channels]."""
    width, n, height, channels = rows.shape
    images = rows.new_empty(n, height, width, channels)
    if bias is None:
        images.copy_(rows.permute(1, 2, 0, 3))
    else:
        torch.add(rows.permute(1, 2, 0, 3), bias, out=images)
    return images.permute(0, 3, 1, 2)
