"""Large linear layers read row by row, against torch's own."""

import copy

import pytest
import torch
from torch import Tensor, nn

from hfmds.algorithm.models.building import initial_weights, quick_model
from hfmds.domain.recipe import ModelSpec
from hfmds.kernels.linear import RowWiseLinear, row_wise


def pair(inputs: int, outputs: int, bias: bool = True) -> tuple[nn.Linear, nn.Linear]:
    """A plain layer and one that is read row by row, of the same weights."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        plain = nn.Linear(inputs, outputs, bias)
    other = copy.deepcopy(plain)
    row_wise(nn.Sequential(other))
    return plain, other


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1)).requires_grad_()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, 7, 8, 10, 64, 65])
def test_output_and_gradients_are_those_of_a_plain_layer(rows: int, bias: bool) -> None:
    plain, other = pair(1600, 512, bias)
    x = drawn(rows, 1600)
    expected, found = plain.double()(x.double()), other(x)
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-5)
    grad = torch.randn(found.shape, generator=torch.Generator().manual_seed(2))
    of_expected = torch.autograd.grad(expected, [x, *plain.parameters()], grad.double())
    of_found = torch.autograd.grad(found, [x, *other.parameters()], grad)
    for one, its in zip(of_found, of_expected, strict=True):
        torch.testing.assert_close(one.double(), its.double(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("shape", [(7, 1600), (65, 1600), (10, 4, 1600)])
def test_other_batches_are_computed_plainly(shape: tuple[int, ...]) -> None:
    plain, other = pair(1600, 512)
    assert torch.equal(other(drawn(*shape)), plain(drawn(*shape)))


def test_small_layers_are_computed_plainly() -> None:
    plain, other = pair(512, 10)
    found = other(drawn(10, 512))
    assert torch.equal(found, plain(drawn(10, 512)))
    assert found.is_contiguous()


def test_the_gradient_of_a_large_layer_lies_in_memory_as_its_weights_do() -> None:
    """SGD in one pass would have to copy it otherwise."""
    _, other = pair(1600, 512)
    (of_weight,) = torch.autograd.grad(other(drawn(10, 1600)).sum(), [other.weight])
    assert of_weight.is_contiguous()


def test_a_quick_model_reads_its_large_layer_row_by_row() -> None:
    spec = ModelSpec()
    quick = quick_model(spec, initial_weights(spec, seed=0))
    assert type(quick.hidden) is RowWiseLinear
