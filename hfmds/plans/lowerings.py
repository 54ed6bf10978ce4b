"""Replaces torch's gradient kernels by operators that ONNX has, and that onnxruntime runs fast.

Autograd calls kernels of its own, such as `convolution_backward`. Each becomes operators that
torch's exporter knows, or ONNX operators by name. Comments give the times of alternatives:
milliseconds of one core for 20 images in the paper's CNN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch._decomp import get_decompositions
from torch.onnx.ops import symbolic

from hfmds.errors import InvalidInput

aten = torch.ops.aten

Table: TypeAlias = dict[Any, Callable[..., Any]]
Pair: TypeAlias = Sequence[int]  # of the height, of the width


def lowerings(*, weights_learn: bool) -> Table:
    """Return the replacement of each kernel; also forward, where the gradient reuses its work.

    A replacement that returns NotImplemented leaves the operator as it is.
    """
    table: Table = dict(
        get_decompositions(
            [
                aten._log_softmax_backward_data,
                aten._softmax_backward_data,
                aten.elu_backward,
                aten.gelu_backward,
                aten.hardsigmoid_backward,
                aten.hardswish_backward,
                aten.hardtanh_backward,
                aten.leaky_relu_backward,
                aten.lerp,
                aten.native_batch_norm,
                aten._native_batch_norm_legit,
                aten.native_batch_norm_backward,
                aten.native_layer_norm_backward,
                aten.rsub,
                aten.sigmoid_backward,
                aten.silu_backward,
                aten.slice_backward,
                aten.select_backward,
                aten.softplus_backward,
                aten.tanh_backward,
                aten.threshold_backward,
                aten.xlogy,
            ]
        )
    )
    table |= {
        aten.convolution_backward.default: _convolution_backward,
        aten.max_pool2d_with_indices.default: _max_pool,
        aten.max_pool2d_with_indices_backward.default: _max_pool_backward,
        aten.avg_pool2d_backward.default: _avg_pool_backward,
        aten._adaptive_avg_pool2d.default: _adaptive_avg_pool,
        aten._adaptive_avg_pool2d_backward.default: _adaptive_avg_pool_backward,
        aten.native_group_norm.default: _group_norm,
        aten.native_group_norm_backward.default: _group_norm_backward,
        aten.nll_loss_forward.default: _negative_log_likelihood,
        aten.nll_loss_backward.default: _negative_log_likelihood_backward,
        aten.sum.default: _sum,
    }
    if weights_learn:
        table |= {
            aten.convolution.default: _convolution,
            aten.max_pool2d_with_indices.default: _max_pool_by_pairs,
            aten.max_pool2d_with_indices_backward.default: _max_pool_by_pairs_backward,
        }
    return table


# --- convolution --------------------------------------------------------------------------------
# If the weight has a gradient, a convolution is a product with the patches of its input (im2col).
# The gradient by the weight uses the same patches. Patches are rows where there are many channels,
# because long runs are then copied, and columns otherwise. The gradient by x is a product whose
# columns are added up to images (Col2Im).
#
# | the paper's two convolutions, all gradients | ms |
# |---|---|
# | rows and columns as here | 2.4 and 7.4 |
# | the other way round | 3.5 and 8.6 |
# | ONNX's Conv, gradient by weight as a convolution | slower still |
#
# | gradient by x of the second | ms |
# |---|---|
# | Col2Im | 2.5; on two threads 1.6 |
# | ConvTranspose, which uses one thread | 2.7 |
# | sums of shifted copies | 3.2; on two threads 2.5 |
# | product with the patches of y's gradient | 7 |

_LONG_RUN = 16  # channels


def _convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    transposed: bool,
    output_padding: Pair,
    groups: int,
) -> Any:
    if transposed or x.dim() != 4 or groups > 1:
        return NotImplemented
    n, (out_channels, _, *kernel) = x.shape[0], weight.shape
    matrix = weight.flatten(2).transpose(1, 2).reshape(out_channels, -1)
    if _in_rows(weight.shape):
        rows, height, width = _rows(x, kernel, stride, padding, dilation)
        given = [rows, matrix] if bias is None else [rows, matrix, bias]
        shape = (n * height * width, out_channels)
        y = symbolic("Gemm", given, {"transB": 1}, dtype=x.dtype, shape=shape)
        return y.view(n, height, width, out_channels).permute(0, 3, 1, 2).contiguous()
    columns, height, width = _columns(x, kernel, stride, padding, dilation)
    y = _product(matrix, columns, (n, out_channels, height * width))
    if bias is not None:
        y = y + bias.view(1, out_channels, 1)
    return y.view(n, out_channels, height, width)


def _convolution_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    transposed: bool,
    output_padding: Pair,
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    if transposed or x.dim() != 4:
        raise InvalidInput(
            "a network with convolutions of one or three dimensions, or with transposed ones, "
            "cannot be made a plan of; let its devices use the torch engine"
        )
    of_x = of_weight = of_bias = None
    if output_mask[1]:
        by_weight = _grouped_weight_gradient if groups > 1 else _weight_gradient
        of_weight = by_weight(grad, x, weight.shape, stride, padding, dilation, groups)
    if output_mask[0]:  # second: the columns of the first are freed by now
        by_x = _grouped_input_gradient if groups > 1 else _input_gradient
        of_x = by_x(grad, x.shape, weight, stride, padding, dilation, groups)
    if output_mask[2]:
        # One sum after the other: both at once take twice as long, and on two threads six times.
        of_bias = grad.sum((2, 3)).sum(0)
    return of_x, of_weight, of_bias


def _input_gradient(
    grad: Tensor,
    shape: Sequence[int],
    weight: Tensor,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
) -> Tensor:
    n, (out_channels, in_channels, *kernel) = grad.shape[0], weight.shape
    # Transposed first: onnxruntime's product with a transposed matrix takes 0.2 ms more.
    matrix = weight.flatten(2).permute(1, 2, 0).reshape(-1, out_channels)
    positions = grad.shape[2] * grad.shape[3]
    columns = _product(matrix, grad.flatten(2), (n, matrix.shape[0], positions))
    return _images_of(columns, (n, in_channels, *shape[2:]), kernel, stride, padding, dilation)


def _images_of(
    columns: Tensor,
    shape: Sequence[int],
    kernel: Pair,
    stride: Pair,
    padding: Pair,
    dilation: Pair = (1, 1),
) -> Tensor:
    """Add up patches, [n, channels * taps, positions], at their places in the images."""
    return symbolic(
        "Col2Im",
        [columns, torch.tensor(shape[2:]), torch.tensor(kernel)],
        {"strides": list(stride), "pads": [*padding, *padding], "dilations": list(dilation)},
        dtype=columns.dtype,
        shape=shape,
    )


def _grouped_input_gradient(
    grad: Tensor,
    shape: Sequence[int],
    weight: Tensor,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
) -> Tensor:
    # Pixels at the far edge that the stride skips. Without them the gradient would be too small.
    left_over = [
        (shape[2 + i] + 2 * padding[i] - dilation[i] * (weight.shape[2 + i] - 1) - 1) % stride[i]
        for i in (0, 1)
    ]
    of_x: Tensor = aten.convolution(
        grad, weight, None, stride, padding, dilation, True, left_over, groups
    )
    return of_x


def _weight_gradient(
    grad: Tensor,
    x: Tensor,
    shape: Sequence[int],
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
) -> Tensor:
    n, (out_channels, in_channels, *kernel) = grad.shape[0], shape
    if _in_rows(shape):
        rows, height, width = _rows(x, kernel, stride, padding, dilation)
        by_channel = grad.transpose(0, 1).reshape(out_channels, n * height * width)
        total = _product(by_channel, rows, (out_channels, rows.shape[1]))
    else:
        columns, height, width = _columns(x, kernel, stride, padding, dilation)
        by_position = grad.permute(0, 2, 3, 1).reshape(n, height * width, out_channels)
        of_each = _product(columns, by_position, (n, columns.shape[1], out_channels))
        total = of_each.sum(0).t()
    return total.reshape(out_channels, -1, in_channels).transpose(1, 2).reshape(shape)


def _in_rows(shape: Sequence[int]) -> bool:
    """Whether a weight of this shape is multiplied with rows, and not with columns."""
    _, in_channels, *kernel = shape
    return in_channels >= _LONG_RUN and kernel != [1, 1]  # columns of a 1x1 kernel are x itself


def _rows(
    x: Tensor, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> tuple[Tensor, int, int]:
    """Return patches, [n * height * width, taps * channels], and the output's height and width.

    The order is along the width, then along the height: 0.4 ms for the second convolution. Both at
    once take 0.6 ms.
    """
    x = _padded(x, padding, padding).permute(0, 2, 3, 1)
    n, in_height, _, channels = x.shape
    height, width = _output_size(x.shape[1:3], kernel, stride, dilation)
    along_height, along_width = (
        torch.arange(size)[:, None] * stride[i] + torch.arange(kernel[i]) * dilation[i]
        for i, size in enumerate((height, width))
    )
    strips = _gathered(x, 2, along_width, (n, in_height, width, kernel[1], channels))
    strips = strips.reshape(n, in_height * width, kernel[1] * channels)
    at = (along_height[:, None] * width + torch.arange(width)[:, None]).reshape(-1, kernel[0])
    patches = _gathered(strips, 1, at, (n, height * width, kernel[0], kernel[1] * channels))
    return patches.reshape(n * height * width, kernel[0] * kernel[1] * channels), height, width


def _columns(
    x: Tensor, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> tuple[Tensor, int, int]:
    """Return patches, [n, taps * channels, height * width], and the output's height and width.

    The order is along the width, then along the height, which copies long runs: 0.3 ms for the
    first convolution. Tap by tap takes 0.5 ms. With taps after channels, as in weights, it takes
    0.4 ms, more than transposing the weights.
    """
    x = _padded(x, padding, padding)
    height, width = _output_size(x.shape[2:], kernel, stride, dilation)
    for axis, size in ((1, width), (0, height)):
        taps = [
            _window(x, 2 + axis, i * dilation[axis], stride[axis], size)
            for i in range(kernel[axis])
        ]
        x = torch.cat(taps, dim=1) if len(taps) > 1 else taps[0]
    return x.reshape(x.shape[0], x.shape[1], height * width), height, width


def _output_size(padded: Pair, kernel: Pair, stride: Pair, dilation: Pair) -> tuple[int, int]:
    height, width = (
        (padded[i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1 for i in (0, 1)
    )
    return height, width


def _gathered(x: Tensor, axis: int, at: Tensor, shape: Sequence[int | torch.SymInt]) -> Tensor:
    """Gather these places of an axis, by ONNX's operator. Torch's takes only one row of places."""
    return symbolic("Gather", [x, at], {"axis": axis}, dtype=x.dtype, shape=shape)


def _product(left: Tensor, right: Tensor, shape: Sequence[int | torch.SymInt]) -> Tensor:
    """Multiply matrices by ONNX's operator. Torch's would copy what it broadcasts."""
    return symbolic("MatMul", [left, right], dtype=left.dtype, shape=shape)


def _grouped_weight_gradient(
    grad: Tensor,
    x: Tensor,
    shape: Sequence[int],
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
) -> Tensor:
    """Compute the gradient by the weight of a grouped convolution."""
    n, channels, height, width = grad.shape
    x = _padded(x, padding, padding)
    taps = [
        _window(
            _window(x, 2, i * dilation[0], stride[0], height), 3, j * dilation[1], stride[1], width
        )
        for i in range(shape[2])
        for j in range(shape[3])
    ]
    columns = torch.stack(taps, dim=2).view(n, groups, -1, height * width)
    rows = grad.reshape(n, groups, channels // groups, height * width).transpose(2, 3)
    of_each = _product(columns, rows, (n, groups, columns.shape[2], channels // groups))
    return of_each.sum(0).transpose(1, 2).reshape(shape)


def _padded(x: Tensor, before: Pair, after: Pair) -> Tensor:
    """Pad with zeros by ONNX's operator. Torch's would make the batch a constant."""
    if not any((*before, *after)):
        return x
    n, channels, height, width = x.shape
    amounts = torch.tensor([0, 0, *before, 0, 0, *after])
    shape = (n, channels, height + before[0] + after[0], width + before[1] + after[1])
    return symbolic("Pad", [x, amounts], dtype=x.dtype, shape=shape)


def _window(x: Tensor, dim: int, start: int, step: int, count: int) -> Tensor:
    window: Tensor = aten.slice(x, dim, start, start + step * (count - 1) + 1, step)
    return window


# --- max-pooling --------------------------------------------------------------------------------
# onnxruntime pools in 2.2 ms with indices and in 0.1 ms without. For windows that do not overlap,
# other operators find the indices: 0.9 ms with the gradient. Torch's exporter handles overlapping
# windows.


def _max_pool(
    x: Tensor,
    kernel: Pair,
    stride: Pair = (),
    padding: Pair = (0, 0),
    dilation: Pair = (1, 1),
    ceil_mode: bool = False,
) -> Any:
    if not _disjoint(kernel, stride, padding, dilation, ceil_mode):
        return NotImplemented
    sizes = (x.shape[2] // kernel[0], x.shape[3] // kernel[1])
    y = _onnx_max_pool(x, kernel, (*x.shape[:2], *sizes))
    return y, torch.zeros_like(y, dtype=torch.int64)  # unused by the gradient below


def _max_pool_backward(
    grad: Tensor,
    x: Tensor,
    kernel: Pair,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    ceil_mode: bool,
    indices: Tensor,
) -> Tensor:
    if _disjoint(kernel, stride, padding, dilation, ceil_mode):
        return _disjoint_max_pool_backward(grad, x, kernel)
    # A value in several windows gets the sum of their gradients. Indices count within a channel.
    flat = grad.new_zeros(x.shape).flatten(2)
    summed = flat.scatter_add(2, indices.flatten(2), grad.flatten(2))
    return summed.view(x.shape)


def _disjoint(kernel: Pair, stride: Pair, padding: Pair, dilation: Pair, ceil_mode: bool) -> bool:
    adjacent = list(stride or kernel) == list(kernel)
    return adjacent and not any(padding) and set(dilation) == {1} and not ceil_mode


def _disjoint_max_pool_backward(grad: Tensor, x: Tensor, kernel: Pair) -> Tensor:
    """Give the gradient to the first of equal values, as torch does.

    Equal values are common: areas of one colour.
    """
    n, channels, out_height, out_width = grad.shape
    height, width = out_height * kernel[0], out_width * kernel[1]
    below, beside = x.shape[2] - height, x.shape[3] - width  # outside of all windows
    x = x[:, :, :height, :width]
    shape = grad.shape
    largest = _onnx_max_pool(x, kernel, shape)
    largest_at_each = symbolic(
        "Resize",
        [largest, None, torch.tensor([1.0, 1.0, *map(float, kernel)])],
        {
            "mode": "nearest",
            "nearest_mode": "floor",
            "coordinate_transformation_mode": "asymmetric",
        },
        dtype=x.dtype,
        shape=x.shape,
    )
    size = height * width
    rank = torch.arange(size, 0, -1, dtype=torch.float32).view(1, 1, height, width)
    ranked = torch.where(x == largest_at_each, rank, 0.0)
    first = _onnx_max_pool(ranked, kernel, shape)
    # NaN equals nothing. Without the clamp its index would be in the next channel.
    within = (size - first).clamp(max=size - 1).to(torch.int64)
    plane = torch.arange(n * channels).view(n, channels, 1, 1) * size
    unpooled = symbolic(
        "MaxUnpool",
        [grad, within + plane],
        {"kernel_shape": list(kernel), "strides": list(kernel)},
        dtype=grad.dtype,
        shape=x.shape,
    )
    return _padded(unpooled, (0, 0), (below, beside))


def _onnx_max_pool(x: Tensor, kernel: Pair, shape: Sequence[int | torch.SymInt]) -> Tensor:
    attributes: dict[str, Any] = {"kernel_shape": list(kernel), "strides": list(kernel)}
    return symbolic("MaxPool", [x], attributes, dtype=x.dtype, shape=shape)


# If weights learn, windows of 2x2 are two comparisons, along the width and then along the height,
# with channels last like the products above: 0.6 ms with the gradient. ONNX's Conv has channels
# first, and there this does not pay.


def _max_pool_by_pairs(
    x: Tensor,
    kernel: Pair,
    stride: Pair = (),
    padding: Pair = (0, 0),
    dilation: Pair = (1, 1),
    ceil_mode: bool = False,
) -> Any:
    disjoint = _disjoint(kernel, stride, padding, dilation, ceil_mode)
    if not disjoint or list(kernel) != [2, 2]:
        return _max_pool(x, kernel, stride, padding, dilation, ceil_mode)
    height, width = x.shape[2] // 2, x.shape[3] // 2
    _, (upper, lower) = _pairs(x, height, width)
    y = torch.maximum(upper, lower).reshape(x.shape[0], height, width, x.shape[1])
    y = y.permute(0, 3, 1, 2).contiguous()
    return y, torch.zeros_like(y, dtype=torch.int64)


def _max_pool_by_pairs_backward(
    grad: Tensor,
    x: Tensor,
    kernel: Pair,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    ceil_mode: bool,
    indices: Tensor,
) -> Tensor:
    """Give the gradient to the first of equal values, as torch does."""
    disjoint = _disjoint(kernel, stride, padding, dilation, ceil_mode)
    if not disjoint or list(kernel) != [2, 2]:
        return _max_pool_backward(grad, x, kernel, stride, padding, dilation, ceil_mode, indices)
    n, channels, height, width = grad.shape
    (left, right), (upper, lower) = _pairs(x, height, width)
    grad = grad.permute(0, 2, 3, 1).reshape(n, height, width * channels)
    of_upper = torch.where(upper >= lower, grad, 0.0)
    of_rows = torch.stack([of_upper, grad - of_upper], 2)
    of_rows = of_rows.reshape(n, 2 * height, width, channels)
    of_left = torch.where(left >= right, of_rows, 0.0)
    of_x = torch.cat([of_left, of_rows - of_left], 3)
    of_x = of_x.reshape(n, 2 * height, 2 * width, channels).permute(0, 3, 1, 2).contiguous()
    below, beside = x.shape[2] - 2 * height, x.shape[3] - 2 * width  # outside of all windows
    return _padded(of_x, (0, 0), (below, beside))


def _pairs(
    x: Tensor, height: int, width: int
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return the pairs that windows of 2x2 compare: left and right, then upper and lower row.

    Channels are last: [n, 2 * height, width, channels], and [n, height, width * channels].
    """
    n, channels = x.shape[:2]
    x = x.permute(0, 2, 3, 1)[:, : 2 * height, : 2 * width]
    beside = x.reshape(n, 2 * height, width, 2 * channels)
    left, right = beside[..., :channels], beside[..., channels:]
    above = torch.maximum(left, right).reshape(n, height, 2, width * channels)
    upper, lower = above.unbind(2)
    return (left, right), (upper, lower)


# --- pooling by means ----------------------------------------------------------------------------


def _avg_pool_backward(
    grad: Tensor,
    x: Tensor,
    kernel: Pair,
    stride: Pair,
    padding: Pair,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: int | None,
) -> Tensor:
    if ceil_mode or (any(padding) and not count_include_pad):
        raise InvalidInput(
            "a network that pools by means (AvgPool2d) with ceil_mode, or with padding that does "
            "not count, cannot be made a plan of; change that, or let its devices use the torch "
            "engine"
        )
    (n, channels, *_), taps = grad.shape, kernel[0] * kernel[1]
    share = grad.reshape(n, channels, 1, -1) / (divisor or taps)
    columns = torch.cat([share] * taps, dim=2).reshape(n, channels * taps, -1)
    return _images_of(columns, x.shape, kernel, stride or kernel, padding)


def _adaptive_avg_pool(x: Tensor, size: Pair) -> Tensor:
    pooled: Tensor = aten.avg_pool2d(x, _even_windows(x.shape[2:], size))
    return pooled


def _adaptive_avg_pool_backward(grad: Tensor, x: Tensor) -> Tensor:
    kernel = _even_windows(x.shape[2:], grad.shape[2:])
    return _avg_pool_backward(grad, x, kernel, kernel, (0, 0), False, True, None)


def _even_windows(size: Pair, pooled: Pair) -> list[int]:
    if any(size[i] % pooled[i] for i in (0, 1)):
        raise InvalidInput(
            f"a network that pools {size[0]}x{size[1]} to {pooled[0]}x{pooled[1]} by means "
            "(AdaptiveAvgPool2d) cannot be made a plan of, as its windows are not alike; choose a "
            "size that divides the other, or let its devices use the torch engine"
        )
    return [size[i] // pooled[i] for i in (0, 1)]


# --- group normalisation ------------------------------------------------------------------------


def _group_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    n: int,
    channels: int,
    positions: int,
    groups: int,
    epsilon: float,
) -> tuple[Tensor, Tensor, Tensor]:
    by_group = x.reshape(n * groups, -1)
    mean = by_group.mean(1, keepdim=True)
    centred = by_group - mean
    rstd = (centred.square().mean(1, keepdim=True) + epsilon).rsqrt()
    y = (centred * rstd).view(n, channels, positions)
    if weight is not None:
        y = y * weight.view(1, channels, 1)
    if bias is not None:
        y = y + bias.view(1, channels, 1)
    return y.view(x.shape), mean.view(n, groups), rstd.view(n, groups)


def _group_norm_backward(
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    n: int,
    channels: int,
    positions: int,
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    by_group, by_channel = (n * groups, -1), (n, channels, positions)
    mean, rstd = mean.view(n * groups, 1), rstd.view(n * groups, 1)
    normalised = (x.reshape(by_group) - mean) * rstd
    grad = grad.reshape(by_channel)
    of_x = of_weight = of_bias = None
    if output_mask[0]:
        of_normalised = grad if weight is None else grad * weight.view(1, channels, 1)
        of_normalised = of_normalised.reshape(by_group)
        along = (of_normalised * normalised).mean(1, keepdim=True)
        across = of_normalised - of_normalised.mean(1, keepdim=True)
        of_x = ((across - normalised * along) * rstd).view(x.shape)
    if output_mask[1]:
        of_weight = (grad * normalised.view(by_channel)).sum(2).sum(0)
    if output_mask[2]:
        of_bias = grad.sum(2).sum(0)
    return of_x, of_weight, of_bias


# --- cross-entropy ------------------------------------------------------------------------------
# This uses one-hot rows, because torch's gradient scatters. Each label is a class number.

_MEAN, _SUM = 1, 2  # torch's numbers of its reductions; 0 is none


def _negative_log_likelihood(
    log_shares: Tensor, labels: Tensor, weight: Tensor | None, reduction: int, ignored: int
) -> Any:
    if weight is not None:
        return NotImplemented
    of_each = -(log_shares * _one_hot(labels, log_shares)).sum(dim=1)
    unused = of_each.new_zeros(())  # the sum of the samples' weights
    if reduction == _MEAN:
        return of_each.mean(), unused
    return (of_each.sum() if reduction == _SUM else of_each), unused


def _negative_log_likelihood_backward(
    grad: Tensor,
    log_shares: Tensor,
    labels: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignored: int,
    total_weight: Tensor,
) -> Any:
    if weight is not None:
        return NotImplemented
    of_each = grad.expand(labels.shape)
    if reduction == _MEAN:
        of_each = of_each / labels.shape[0]
    return -of_each[:, None] * _one_hot(labels, log_shares)


def _one_hot(labels: Tensor, like: Tensor) -> Tensor:
    classes = torch.arange(like.shape[1])
    return (labels[:, None] == classes).to(like.dtype)


# --- sums ---------------------------------------------------------------------------------------
# onnxruntime adds up one number after the other. Of a million squares float32 then keeps four
# digits. FedProx's distance has a relative error of 4e-5 at 40 pixels and 3e-4 at 64, and the norm
# of an image's gradient 2e-5 at 224. In runs of at most this many, the error stays below 1e-6.

_LONGEST_RUN = 256


def _sum(x: Tensor, *, dtype: torch.dtype | None = None) -> Any:
    """Sum all elements: each image in runs, then the sums of the runs, then the images.

    A tensor without a batch counts as one image.
    """
    sizes = x.shape[1:] if x.dim() and isinstance(x.shape[0], torch.SymInt) else x.shape
    if dtype is not None or not all(isinstance(size, int) for size in sizes):
        return NotImplemented
    count = math.prod(sizes)
    if count <= _LONGEST_RUN:
        return NotImplemented
    rows = x.reshape(-1, count)
    while count > _LONGEST_RUN:
        runs, rest = divmod(count, _LONGEST_RUN)
        sums = rows[:, : count - rest].reshape(-1, runs, _LONGEST_RUN).sum(2)
        rows = torch.cat([sums, rows[:, count - rest :]], 1) if rest else sums
        count = runs + rest
    return rows.sum(1).sum(0)
