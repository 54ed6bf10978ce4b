"""Convolutions with fewer products against torch's own."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from hfmds.algorithm.models.building import build_model, initial_weights, quick_model
from hfmds.domain.recipe import ModelSpec
from hfmds.kernels.convolution import ThriftyConvolution, plain_convolutions, scheme, thrifty


def pair(*arguments: int, **settings: object) -> tuple[nn.Conv2d, nn.Conv2d]:
    """A plain convolution and one that saves products, of the same weights."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        plain = nn.Conv2d(*arguments, **settings)  # type: ignore[arg-type]
    other = copy.deepcopy(plain)
    thrifty(nn.Sequential(other))
    return plain, other


def images(*shape: int) -> Tensor:
    drawn = torch.randn(*shape, generator=torch.Generator().manual_seed(1))
    return drawn.contiguous(memory_format=torch.channels_last).requires_grad_()


def products_of(convolution: nn.Conv2d, x: Tensor) -> int:
    with FlopCounterMode(display=False) as counter:
        convolution(x)
    return int(counter.get_total_flops())


@pytest.mark.parametrize(
    ("width", "taps", "padding"), [(14, 5, 0), (9, 3, 0), (8, 5, 2), (5, 5, 0)]
)
def test_a_row_is_convolved(width: int, taps: int, padding: int) -> None:
    by = scheme(width, taps, padding)
    row, kernel = torch.randn(width), torch.randn(taps)
    of_input, of_kernel, of_output = map(
        torch.from_numpy, (by.of_input, by.of_kernel, by.of_output)
    )
    found = of_output @ ((of_input @ row) * (of_kernel @ kernel))
    padded = nn.functional.pad(row, (padding, padding))
    outputs = range(width + 2 * padding - taps + 1)
    expected = torch.stack([padded[i : i + taps] @ kernel for i in outputs])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_the_papers_second_convolution_takes_20_products_and_not_50() -> None:
    assert scheme(14, 5, 0).saving == 50 / 20


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("padding", "height", "width"), [(0, 14, 14), ((2, 1), 9, 16), ((0, 3), 12, 11)]
)
def test_output_and_gradients_are_those_of_a_plain_convolution(
    padding: object, height: int, width: int, bias: bool
) -> None:
    plain, saving = pair(32, 64, 5, padding=padding, bias=bias)
    x = images(6, 32, height, width)
    expected, found = plain.double()(x.double()), saving(x)
    assert products_of(saving, x) < products_of(pair(32, 64, 5, padding=padding)[0], x)
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-5)
    assert found.is_contiguous(memory_format=torch.channels_last)
    grad = torch.randn(found.shape, generator=torch.Generator().manual_seed(2))
    of_expected = torch.autograd.grad(expected, [x, *plain.parameters()], grad.double())
    of_found = torch.autograd.grad(found, [x, *saving.parameters()], grad)
    for one, other in zip(of_found, of_expected, strict=True):
        torch.testing.assert_close(one.double(), other.double(), rtol=1e-5, atol=1e-4)


def test_it_is_no_less_exact_than_a_plain_convolution() -> None:
    plain, saving = pair(32, 64, 5)
    x = images(10, 32, 14, 14)
    exact = copy.deepcopy(plain).double()(x.double())
    assert (saving(x) - exact).abs().max() < 1.5 * (plain(x) - exact).abs().max()


def test_a_gradient_of_its_gradient_is_right() -> None:
    """FedMix differentiates twice."""
    plain, saving = pair(32, 64, 5)
    x = images(4, 32, 14, 14)

    def twice(convolution: nn.Conv2d) -> Tensor:
        (slope,) = torch.autograd.grad(convolution(x).square().sum(), x, create_graph=True)
        (of_weight,) = torch.autograd.grad(slope.square().mean(), convolution.weight)
        return of_weight

    torch.testing.assert_close(twice(saving), twice(plain), rtol=1e-3, atol=1e-4)


def test_a_scheme_made_while_torch_traces_is_good_afterwards() -> None:
    """As on a coordinator that makes a plan and then evaluates."""
    with FakeTensorMode():
        scheme(21, 5, 0)
    plain, saving = pair(32, 64, 5)
    x = images(6, 32, 21, 21)
    torch.testing.assert_close(saving(x), plain(x), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "settings",
    [
        {"stride": 2},
        {"dilation": 2},
        {"groups": 2},
        {"padding": "same"},
        {"padding": 2, "padding_mode": "circular"},
    ],
)
def test_others_are_plain(settings: dict[str, object]) -> None:
    require_plain(*pair(64, 64, 5, **settings), images(6, 64, 14, 14))


def test_nothing_is_saved_where_it_would_not_pay() -> None:
    for channels, out_channels in ((3, 64), (32, 8)):
        require_plain(*pair(channels, out_channels, 5), images(6, channels, 14, 14))
    for x in (images(1, 32, 14, 14), images(6, 32, 14, 7)):  # few rows; few outputs of a row
        require_plain(*pair(32, 64, 5), x)


def test_of_images_narrower_than_the_kernel_torch_tells() -> None:
    with pytest.raises(RuntimeError, match=r"Kernel size can.t be greater"):
        pair(32, 64, 5)[1](images(6, 32, 14, 3))


def test_many_or_large_images_take_no_more_memory_than_plainly() -> None:
    assert saves(images(524, 32, 14, 14))
    assert not saves(images(525, 32, 14, 14))


def saves(x: Tensor) -> bool:
    plain, saving = pair(32, 64, 5)
    return products_of(saving, x) < products_of(plain, x)


def require_plain(plain: nn.Conv2d, other: nn.Conv2d, x: Tensor) -> None:
    assert products_of(other, x) == products_of(plain, x)
    assert torch.equal(other(x), plain(x))


def test_other_numbers_than_float32_are_convolved_plainly() -> None:
    plain, saving = pair(32, 64, 5)
    x = images(6, 32, 14, 14).double()
    assert torch.equal(saving.double()(x), plain.double()(x))


def test_whoever_counts_sees_plain_convolutions() -> None:
    plain, saving = pair(32, 64, 5)
    x = images(6, 32, 14, 14)
    with plain_convolutions():
        assert products_of(saving, x) == products_of(plain, x)
    assert products_of(saving, x) < products_of(plain, x)


def test_a_quick_model_has_the_weights_it_was_given_and_saves_products() -> None:
    spec = ModelSpec()
    weights = initial_weights(spec, seed=0)
    quick = quick_model(spec, weights)
    assert type(quick.conv2) is ThriftyConvolution
    assert quick.state_dict().keys() == build_model(spec).state_dict().keys()
    assert all((tensor.numpy() == weights[n]).all() for n, tensor in quick.state_dict().items())
