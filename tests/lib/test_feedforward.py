"""The feed-forward network: its formula on any grids, against SciPy, token by token."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from orders import order
from scipy.integrate import quad

from lib.domain import Domain
from lib.feedforward import FeedForward, feed_forward

pytestmark = pytest.mark.usefixtures("float64")

seeds = st.integers(0, 2**31)


def parameters(d, m):
    """Random W1 (m, d), b1 (m,), W2 (d, m), b2 (d,)."""
    return torch.randn(m, d), torch.randn(m), torch.randn(d, m), torch.randn(d)


def random_grid(n):
    return Domain(torch.rand(n).sort().values, torch.rand(n) + 0.1)


@given(seed=seeds, d=st.integers(1, 6), m=st.integers(1, 9))
def test_the_result_follows_the_formula_on_any_grids(seed, d, m):
    torch.manual_seed(seed)
    u, (W1, b1, W2, b2) = torch.randn(2, 3, d), parameters(d, m)
    features, hidden = random_grid(d), random_grid(m)
    raised = torch.einsum("kj,j,...j->...k", W1, features.weights, u) + b1
    expected = torch.einsum("ik,k,...k->...i", W2, hidden.weights, raised.clamp(min=0)) + b2
    torch.testing.assert_close(feed_forward(u, W1, b1, W2, b2, features, hidden), expected)


def test_without_grids_both_domains_have_unit_cells():
    u, W = torch.randn(3, 4), parameters(4, 6)
    cells = Domain.unit_cells(4), Domain.unit_cells(6)
    torch.testing.assert_close(feed_forward(u, *W), feed_forward(u, *W, *cells))


# ---- against SciPy -------------------------------------------------------------------------------


def network_on(grid, y):
    """F(u)(y) on [0, 1] for u = sin 2ỹ, W1 = z e^ỹ, b1 = −1/2, W2 = cos(3yz), b2 = y."""
    W1 = grid.sample_kernel(lambda z, x: z * torch.exp(x), grid)
    W2 = grid.sample_kernel(lambda x, z: torch.cos(3 * y * z), grid)
    u = grid.sample(lambda x: torch.sin(2 * x))
    return feed_forward(
        u, W1, torch.full((len(grid),), -0.5), W2, torch.full((len(grid),), y), grid, grid
    )[0].item()


def test_the_network_converges_to_the_integrals_of_scipy():
    """The rectifier has a kink at z = 1/(2c), c = ∫ e^ỹ u, where SciPy is given a break point."""
    y = 0.25
    c, _ = quad(lambda x: np.exp(x) * np.sin(2 * x), 0, 1, epsabs=1e-13)
    integral, _ = quad(
        lambda z: np.cos(3 * y * z) * max(c * z - 0.5, 0), 0, 1, points=[0.5 / c], epsabs=1e-13
    )
    sizes = [20, 40, 80, 160, 320]
    errors = [abs(network_on(Domain.midpoint(n), y) - integral - y) for n in sizes]
    assert errors[-1] < 2e-5
    assert order([1 / n for n in sizes], errors) == pytest.approx(2, abs=0.2)


# ---- properties ----------------------------------------------------------------------------------


def test_each_token_is_treated_by_itself():
    network, u = FeedForward(4, 6), torch.randn(2, 5, 4)
    changed = u.clone()
    changed[0, 3] += 1
    difference = (network(changed) - network(u)).abs().amax(-1)
    assert (difference > 0).nonzero().tolist() == [[0, 3]]


@given(seed=seeds, factor=st.floats(0, 100))
def test_without_biases_the_network_is_positively_homogeneous(seed, factor):
    torch.manual_seed(seed)
    u, (W1, b1, W2, b2) = torch.randn(3, 4), parameters(4, 6)
    weights = W1, 0 * b1, W2, 0 * b2
    torch.testing.assert_close(
        feed_forward(factor * u, *weights), factor * feed_forward(u, *weights)
    )


def test_without_a_rectifier_two_integral_maps_are_one():
    u, (W1, b1, W2, b2) = torch.randn(3, 4), parameters(4, 6)
    features, hidden = random_grid(4), random_grid(6)
    result = feed_forward(u, W1, b1, W2, b2, features, hidden, activation=lambda v: v)
    product, bias = (W2 * hidden.weights) @ W1, (W2 * hidden.weights) @ b1 + b2
    torch.testing.assert_close(result, (u * features.weights) @ product.T + bias)


@pytest.mark.parametrize("lead", [(), (2,), (2, 1, 3)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_module_is_the_function_with_its_parameters(lead, dtype):
    network = FeedForward(4, 6, torch.tanh).to(dtype)
    u = torch.randn(*lead, 5, 4, dtype=dtype)
    W = network.W1.weight, network.W1.bias, network.W2.weight, network.W2.bias
    result = network(u)
    assert (result.shape, result.dtype) == (u.shape, dtype)
    torch.testing.assert_close(result, feed_forward(u, *W, activation=torch.tanh))


def test_float64_grids_serve_float32_functions():
    u, W = torch.randn(3, 4), parameters(4, 6)
    grids = random_grid(4), random_grid(6)
    single = feed_forward(u.float(), *(x.float() for x in W), *grids)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), feed_forward(u, *W, *grids), atol=1e-5, rtol=1e-5)


def test_gradients_are_correct():
    inputs = [x.requires_grad_() for x in (torch.randn(2, 3), *parameters(3, 4))]
    grids = random_grid(3), random_grid(4)
    assert torch.autograd.gradcheck(lambda *x: feed_forward(*x, *grids), inputs)
