"""Domains: rules against closed forms and SciPy, measured orders, integrals, integral maps."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from orders import order
from scipy.integrate import quad
from torch.nn.functional import linear

from lib.domain import Domain, integral_map

pytestmark = pytest.mark.usefixtures("float64")

RULES = {"midpoint": Domain.midpoint, "trapezoid": Domain.trapezoid, "gauss": Domain.gauss}
rules = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
seeds = st.integers(0, 2**31)
intervals = st.tuples(st.floats(-3, 3), st.floats(0.1, 4)).map(lambda p: (p[0], p[0] + p[1]))


def wave(x):
    """A smooth function without symmetry, for torch and for numbers."""
    return (torch if isinstance(x, torch.Tensor) else np).exp(-x) * (2 + x) ** 2


def random_domain(n):
    return Domain(torch.randn(n).sort().values, torch.rand(n) + 0.1)


# ---- rules ---------------------------------------------------------------------------------------


def test_unit_cells_have_weight_one_and_measure_n():
    cells = Domain.unit_cells(5)
    assert cells.nodes.tolist() == [0.5, 1.5, 2.5, 3.5, 4.5]
    assert cells.weights.tolist() == [1.0] * 5
    assert cells.measure == 5.0
    assert len(cells) == 5


def test_trapezoid_takes_half_a_weight_at_both_ends():
    grid = Domain.trapezoid(3, 1.0, 2.0)
    assert grid.nodes.tolist() == [1.0, 1.5, 2.0]
    assert grid.weights.tolist() == [0.25, 0.5, 0.25]


@rules
def test_rules_agree_with_scipy(rule):
    grid = rule(400, -1.0, 2.5)
    expected, _ = quad(wave, -1.0, 2.5, epsabs=1e-13)
    assert abs(grid.integrate(grid.sample(wave)) - expected) < 3e-5


def test_gauss_reaches_rounding_on_a_smooth_function():
    grid = Domain.gauss(16, -1.0, 2.5)
    expected, _ = quad(wave, -1.0, 2.5, epsabs=1e-13)
    assert grid.integrate(grid.sample(wave)).item() == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize("rule", [Domain.midpoint, Domain.trapezoid], ids=["midpoint", "trapezoid"])
def test_the_order_of_the_simple_rules_is_two(rule):
    sizes = [16, 32, 64, 128]
    exact, _ = quad(wave, 0.0, 2.0, epsabs=1e-13)
    cells = [n if rule == Domain.midpoint else n + 1 for n in sizes]
    errors = [abs(g.integrate(g.sample(wave)) - exact) for g in (rule(n, 0.0, 2.0) for n in cells)]
    assert order([2.0 / n for n in sizes], errors) == pytest.approx(2, abs=0.1)


def test_the_order_of_unit_cells_is_two():
    """A function on [0, 1], stretched over n unit cells: its integral is n times too large."""
    sizes = [16, 32, 64, 128]
    exact, _ = quad(wave, 0.0, 1.0, epsabs=1e-13)
    grids = [Domain.unit_cells(n) for n in sizes]
    errors = [abs(g.integrate(wave(g.nodes / len(g))) / g.measure - exact) for g in grids]
    assert order([1.0 / n for n in sizes], errors) == pytest.approx(2, abs=0.1)


def test_trapezoid_is_far_better_on_a_periodic_function():
    grid = Domain.trapezoid(25, 0.0, 2 * math.pi)
    integral = grid.integrate(grid.sample(lambda x: torch.exp(torch.cos(x))))
    bessel, _ = quad(lambda x: math.exp(math.cos(x)), 0, 2 * math.pi, epsabs=1e-14)
    assert integral.item() == pytest.approx(bessel, rel=1e-13)


@rules
@given(interval=intervals, n=st.integers(2, 40))
def test_the_measure_is_the_length_and_straight_lines_are_exact(rule, interval, n):
    (a, b), grid = interval, rule(n, *interval)
    assert grid.measure == pytest.approx(b - a, rel=1e-13)
    line = grid.integrate(grid.sample(lambda x: 3 * x - 1))
    assert line.item() == pytest.approx(1.5 * (b**2 - a**2) - (b - a), abs=1e-11)


@given(n=st.integers(1, 12), interval=intervals, seed=seeds)
def test_gauss_is_exact_up_to_degree_2n_minus_1(n, interval, seed):
    p = np.polynomial.Polynomial(np.random.default_rng(seed).uniform(-1, 1, 2 * n))
    grid, (a, b) = Domain.gauss(n, *interval), interval
    exact = p.integ()(b) - p.integ()(a)
    size = np.abs(p(grid.nodes.numpy())).max()
    assert abs(grid.integrate(torch.from_numpy(p(grid.nodes.numpy()))) - exact) < 1e-10 * (1 + size)


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_gauss_is_not_exact_at_degree_2n(n):
    """The square of the n-th Legendre polynomial vanishes at every node, its integral does not."""
    grid = Domain.gauss(n, -1.0, 1.0)
    legendre = np.polynomial.legendre.Legendre.basis(n)
    assert abs(grid.integrate(torch.from_numpy(legendre(grid.nodes.numpy()) ** 2))) < 1e-13
    assert quad(lambda x: legendre(x) ** 2, -1, 1)[0] == pytest.approx(2 / (2 * n + 1))


def test_a_domain_does_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Domain.unit_cells(3).nodes = torch.zeros(3)


# ---- integrals along any dimension ---------------------------------------------------------------


@pytest.mark.parametrize("dim", range(-3, 3))
def test_integrals_along_any_dimension(dim):
    shape = [3, 4, 6]
    n = shape[dim]
    grid, f = random_domain(n), torch.randn(shape)
    last = f.movedim(dim, -1).numpy()
    weights = grid.weights.numpy()
    mean = np.average(last, axis=-1, weights=weights)
    variance = np.average((last - mean[..., None]) ** 2, axis=-1, weights=weights)
    for ours, expected in [
        (grid.integrate(f, dim), last @ weights),
        (grid.inner(f, f + 1, dim), (last * (last + 1)) @ weights),
        (grid.mean(f, dim), mean),
        (grid.variance(f, dim), variance),
    ]:
        np.testing.assert_allclose(ours.numpy(), expected, atol=1e-13)


def test_unit_cells_give_the_numbers_of_torch():
    f, g = torch.randn(2, 5, 7), torch.randn(7)
    cells = Domain.unit_cells(7)
    torch.testing.assert_close(cells.integrate(f), f.sum(-1))
    torch.testing.assert_close(cells.inner(f, g), f @ g)
    torch.testing.assert_close(cells.mean(f), f.mean(-1))
    torch.testing.assert_close(cells.variance(f), f.var(-1, correction=0))


def test_the_variance_does_not_have_the_divisor_n_minus_1():
    f = torch.randn(7)
    assert abs(Domain.unit_cells(7).variance(f) - f.var(correction=1)) > 1e-2


def test_the_variance_survives_a_large_offset():
    f = torch.randn(50)
    grid = random_domain(50)
    assert grid.variance(f + 1e8).item() == pytest.approx(grid.variance(f).item(), rel=1e-6)


@given(seed=seeds, n=st.integers(1, 30))
def test_the_inner_product_is_symmetric_and_obeys_cauchy_schwarz(seed, n):
    torch.manual_seed(seed)
    grid, f, g = random_domain(n), torch.randn(n), torch.randn(n)
    assert grid.inner(f, g) == grid.inner(g, f)
    assert grid.inner(f, g) ** 2 <= grid.inner(f, f) * grid.inner(g, g) * (1 + 1e-12)


@given(seed=seeds, n=st.integers(2, 30))
def test_variance_is_mean_square_minus_squared_mean(seed, n):
    torch.manual_seed(seed)
    grid, f = random_domain(n), torch.randn(4, n)
    torch.testing.assert_close(
        grid.variance(f), grid.mean(f**2) - grid.mean(f) ** 2, atol=1e-12, rtol=0
    )


@rules
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_integrals_keep_the_precision_of_the_function(rule, dtype):
    grid = rule(64, 0.0, 2.0)
    f = grid.sample(wave)
    for method in (grid.integrate, grid.mean, grid.variance):
        single = method(f.to(dtype))
        assert single.dtype == dtype
        assert abs(single - method(f)) < 1e-5


@pytest.mark.parametrize("size", [1e-300, 1e300])
def test_mean_and_variance_do_not_depend_on_the_unit_of_the_weights(size):
    grid, f = random_domain(6), torch.randn(6)
    scaled = Domain(grid.nodes, grid.weights * size)
    for kind in (f, f.float()):
        assert scaled.mean(kind).item() == pytest.approx(grid.mean(f).item(), abs=1e-6)
        assert scaled.variance(kind).item() == pytest.approx(grid.variance(f).item(), abs=1e-6)


def test_integrals_are_differentiable():
    grid, f = random_domain(5), torch.randn(3, 5, requires_grad=True)
    assert torch.autograd.gradcheck(grid.integrate, f)
    assert torch.autograd.gradcheck(grid.variance, f)
    assert torch.autograd.gradcheck(lambda f: grid.inner(f, f**2), f)


# ---- sampling ------------------------------------------------------------------------------------


def test_sample_takes_functions_with_many_values_and_nodes_in_the_plane():
    line = Domain.midpoint(4)
    assert line.sample(lambda x: torch.stack([x, x**2], -1)).shape == (4, 2)
    plane = Domain(torch.rand(6, 2), torch.ones(6) / 6)
    torch.testing.assert_close(plane.sample(lambda p: p.sum(-1)), plane.nodes.sum(-1))
    assert plane.measure == pytest.approx(1)


def test_sample_kernel_puts_the_first_variable_in_rows():
    rows, columns = Domain.gauss(3), Domain.trapezoid(5)
    matrix = rows.sample_kernel(lambda y, z: y + 10 * z**2, columns)
    assert matrix.shape == (3, 5)
    for i, y in enumerate(rows.nodes):
        for j, z in enumerate(columns.nodes):
            assert matrix[i, j] == y + 10 * z**2


def test_sample_kernel_fills_up_kernels_of_one_variable():
    rows, columns = Domain.gauss(3), Domain.trapezoid(5)
    matrix = rows.sample_kernel(lambda y, z: z, columns)
    torch.testing.assert_close(matrix, columns.nodes.expand(3, 5))


# ---- integral maps -------------------------------------------------------------------------------


def gaussian(y, z):
    return (torch if isinstance(y, torch.Tensor) else np).exp(-2 * (y - z) ** 2)


def transform(rule, n, points):
    """∫_0^1 W(y, ỹ) u(ỹ) dỹ at the given points, with n nodes."""
    grid = rule(n)
    return integral_map(points.sample_kernel(gaussian, grid), grid.sample(wave), grid.weights)


@pytest.fixture(scope="module")
def transformed():
    """Three points y and the integrals ∫_0^1 W(y, ỹ) u(ỹ) dỹ by SciPy."""
    points = Domain.midpoint(3)

    def integral(y):
        return quad(lambda z: gaussian(y, z) * wave(z), 0, 1, epsabs=1e-13)[0]

    return points, torch.tensor([integral(y) for y in points.nodes.numpy()], dtype=torch.float64)


def test_an_integral_map_agrees_with_scipy(transformed):
    points, exact = transformed
    torch.testing.assert_close(transform(Domain.gauss, 20, points), exact, atol=1e-13, rtol=0)


@pytest.mark.parametrize("rule", [Domain.midpoint, Domain.trapezoid], ids=["midpoint", "trapezoid"])
def test_an_integral_map_converges_with_the_order_of_its_rule(rule, transformed):
    points, exact = transformed
    sizes = [16, 32, 64, 128]
    errors = [(transform(rule, n, points) - exact).abs().max() for n in sizes]
    lengths = [rule(n).nodes.diff()[0].item() for n in sizes]
    assert order(lengths, errors) == pytest.approx(2, abs=0.1)


@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (2, 1, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_on_unit_cells_an_integral_map_is_torchs_linear(lead, dtype):
    W, b, u = (
        torch.randn(4, 6, dtype=dtype),
        torch.randn(4, dtype=dtype),
        torch.randn(*lead, 6, dtype=dtype),
    )
    torch.testing.assert_close(integral_map(W, u, bias=b), linear(u, W, b))
    torch.testing.assert_close(integral_map(W, u, torch.ones(6, dtype=dtype)), linear(u, W))


@given(seed=seeds, d_in=st.integers(1, 8), d_out=st.integers(1, 8))
def test_an_integral_map_is_linear_and_weighted(seed, d_in, d_out):
    torch.manual_seed(seed)
    W, w, u, v = (
        torch.randn(d_out, d_in),
        torch.rand(d_in),
        torch.randn(2, d_in),
        torch.randn(2, d_in),
    )
    both = integral_map(W, 2 * u - v, w)
    torch.testing.assert_close(both, 2 * integral_map(W, u, w) - integral_map(W, v, w))
    torch.testing.assert_close(integral_map(W, u, w), torch.einsum("ij,j,nj->ni", W, w, u))


def test_a_node_of_weight_zero_is_not_there():
    W, u = torch.randn(4, 6), torch.randn(3, 6)
    w = torch.tensor([1.0, 0.5, 0.0, 2.0, 1.0, 0.0])
    seen = w > 0
    torch.testing.assert_close(integral_map(W, u, w), integral_map(W[:, seen], u[:, seen], w[seen]))


def test_an_integral_map_has_correct_gradients():
    W, u, w, b = torch.randn(4, 5), torch.randn(2, 3, 5), torch.rand(5), torch.randn(4)
    inputs = [x.requires_grad_() for x in (W, u, w, b)]
    assert torch.autograd.gradcheck(integral_map, inputs)
