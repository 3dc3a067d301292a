"""Projections: closest points against SciPy, tangent spaces, derivatives, constants, offsets."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.optimize import minimize, nnls

from lib.domain import Domain
from lib.projection import (
    Normalisation,
    project_mean_square,
    project_mean_variance,
    project_nonnegative,
    tangent,
)

pytestmark = pytest.mark.usefixtures("float64")

seeds = st.integers(0, 2**31)
moments = st.tuples(st.floats(-3, 3), st.floats(0.1, 5))
weighted = pytest.mark.parametrize("weighted", [False, True], ids=["unit", "weighted"])


def grid_of(d, weighted=True):
    """A grid of d nodes as a Domain, and the same weights as a projection takes them."""
    if not weighted:
        return Domain.unit_cells(d), None
    grid = Domain(torch.arange(d, dtype=torch.float64), torch.rand(d, dtype=torch.float64) + 0.1)
    return grid, grid.weights


def on_sphere(lead, d, weights=None):
    """A random function of mean 0 and variance 1."""
    return project_mean_variance(torch.randn(*lead, d), weights=weights)


# ---- P_S1 is the closest point -------------------------------------------------------------------


def closest_by_scipy(v, weights, constraints):
    """The smallest ∫ (u − v)² under the constraints, by SLSQP from several starts."""
    starts = np.random.default_rng(1).normal(size=(5, len(v)))
    results = [
        minimize(
            lambda u: weights @ (u - v) ** 2, start, jac=lambda u: 2 * weights * (u - v),
            constraints=constraints, method="SLSQP", options={"maxiter": 500, "ftol": 1e-15},
        )
        for start in (v, *starts)
    ]  # fmt: skip
    return min((r for r in results if r.success), key=lambda r: r.fun)


def equals(function):
    return {"type": "eq", "fun": function}


@pytest.mark.parametrize("mean, variance", [(0.0, 1.0), (0.7, 0.3), (-2.0, 4.0)])
@weighted
def test_no_point_of_s1_is_closer(mean, variance, weighted):
    grid, weights = grid_of(6, weighted)
    v, share = torch.randn(6), (grid.weights / grid.measure).numpy()
    ours = project_mean_variance(v, mean, variance, weights).numpy()
    constraints = [
        equals(lambda u: share @ u - mean),
        equals(lambda u: share @ (u - share @ u) ** 2 - variance),
    ]
    best = closest_by_scipy(v.numpy(), share, constraints)
    assert share @ (ours - v.numpy()) ** 2 == pytest.approx(best.fun, abs=1e-8)
    np.testing.assert_allclose(ours, best.x, atol=1e-4)


@weighted
def test_no_function_of_given_mean_square_is_closer(weighted):
    grid, weights = grid_of(6, weighted)
    v, share = torch.randn(6), (grid.weights / grid.measure).numpy()
    ours = project_mean_square(v, 2.5, weights).numpy()
    best = closest_by_scipy(v.numpy(), share, [equals(lambda u: share @ u**2 - 2.5)])
    assert share @ (ours - v.numpy()) ** 2 == pytest.approx(best.fun, abs=1e-8)
    np.testing.assert_allclose(ours, best.x, atol=1e-4)


@given(seed=seeds, d=st.integers(2, 12), target=moments)
def test_every_other_point_of_s1_is_farther_away(seed, d, target):
    torch.manual_seed(seed)
    grid, weights = grid_of(d)
    v, others = torch.randn(d), project_mean_variance(torch.randn(50, d), *target, weights)
    ours = project_mean_variance(v, *target, weights)
    assert (
        grid.variance(others - v) + grid.mean(others - v) ** 2 >= grid.mean((ours - v) ** 2) - 1e-9
    ).all()


@given(seed=seeds, d=st.integers(2, 40), target=moments, weighted=st.booleans())
def test_the_result_has_the_mean_and_variance_and_stays_there(seed, d, target, weighted):
    torch.manual_seed(seed)
    grid, weights = grid_of(d, weighted)
    (mean, variance), v = target, torch.randn(3, d)
    assume(grid.variance(v).min() > 1e-6)
    u = project_mean_variance(v, mean, variance, weights)
    torch.testing.assert_close(grid.mean(u), torch.full((3,), mean), atol=1e-10, rtol=0)
    torch.testing.assert_close(grid.variance(u), torch.full((3,), variance), atol=0, rtol=1e-10)
    torch.testing.assert_close(
        project_mean_variance(u, mean, variance, weights), u, atol=1e-9, rtol=0
    )


@given(seed=seeds, scale=st.floats(1e-3, 1e3), shift=st.floats(-10, 10), weighted=st.booleans())
def test_shift_and_positive_scale_of_the_input_do_not_matter(seed, scale, shift, weighted):
    torch.manual_seed(seed)
    _, weights = grid_of(8, weighted)
    v = torch.randn(2, 8)
    expected = project_mean_variance(v, weights=weights)
    torch.testing.assert_close(
        project_mean_variance(scale * v + shift, weights=weights), expected, atol=1e-9, rtol=0
    )
    torch.testing.assert_close(project_mean_variance(-scale * v, weights=weights), -expected)
    square = project_mean_square(v, weights=weights)
    torch.testing.assert_close(project_mean_square(scale * v, weights=weights), square)


@given(seed=seeds, target=moments)
def test_the_result_follows_the_formula_on_a_grid(seed, target):
    torch.manual_seed(seed)
    grid, weights = grid_of(7)
    (mean, variance), v, eps = target, torch.randn(4, 7), 1e-2
    m, s2 = grid.mean(v)[:, None], grid.variance(v)[:, None]
    expected = mean + np.sqrt(variance) * (v - m) / torch.sqrt(s2 + eps)
    torch.testing.assert_close(project_mean_variance(v, mean, variance, weights, eps), expected)
    expected = np.sqrt(variance) * v / torch.sqrt(grid.mean(v**2)[:, None] + eps)
    torch.testing.assert_close(project_mean_square(v, variance, weights, eps), expected)


@pytest.mark.parametrize("project", [project_mean_variance, project_mean_square])
@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (2, 1, 2, 3)], ids=str)
@pytest.mark.parametrize("eps", [0.0, 1e-5])
def test_both_paths_are_one_projection(project, lead, eps):
    """No weights, weights of one and weights of another equal size give the same numbers."""
    v = torch.randn(*lead, 6)
    plain = project(v, eps=eps)
    assert plain.shape == v.shape
    for size in (1.0, 0.01, 1e-300, 1e300):
        torch.testing.assert_close(project(v, weights=torch.full((6,), size), eps=eps), plain)


def test_a_node_of_weight_zero_is_not_seen():
    v, w = torch.randn(3, 6), torch.tensor([1.0, 0.5, 0.0, 2.0, 1.0, 0.0])
    seen = w > 0
    expected = project_mean_variance(v[:, seen], weights=w[seen])
    v[:, ~seen] = 1e17
    torch.testing.assert_close(project_mean_variance(v, weights=w)[:, seen], expected)


# ---- precision -----------------------------------------------------------------------------------


@pytest.mark.parametrize("project", [project_mean_variance, project_mean_square])
@pytest.mark.parametrize(
    "dtype, powers",
    [(torch.float64, [-300, -160, -20, 20, 160, 300]), (torch.float32, [-36, -20, 20, 36])],
)
@weighted
def test_the_magnitude_of_the_input_does_not_matter(project, dtype, powers, weighted):
    v = torch.randn(3, 6, dtype=dtype)
    weights = torch.rand(6) + 0.1 if weighted else None
    expected = project(v, weights=weights)
    for power in powers:
        torch.testing.assert_close(project(v * 10.0**power, weights=weights), expected)


@pytest.mark.parametrize("offset", [1e3, 1e6, -1e6])
@weighted
def test_a_large_offset_costs_no_more_than_the_input_has_lost(offset, weighted):
    """The reference is computed in extended precision from the same rounded input."""
    grid, weights = grid_of(50, weighted)
    v = torch.randn(50) + offset
    exact, share = (
        v.numpy().astype(np.longdouble),
        (grid.weights / grid.measure).numpy().astype(np.longdouble),
    )
    centred = exact - (share * exact).sum() / share.sum()
    expected = centred / np.sqrt((share * centred**2).sum() / share.sum())
    result = project_mean_variance(v, weights=weights).numpy()
    np.testing.assert_allclose(result, expected.astype(float), atol=1e-9)


@pytest.mark.parametrize("eps", [0.0, 1e-5])
@weighted
def test_float32_stays_float32(eps, weighted):
    _, weights = grid_of(20, weighted)
    v = torch.randn(3, 20)
    for project in (project_mean_variance, project_mean_square):
        single = project(v.float(), weights=weights, eps=eps)
        assert single.dtype == torch.float32
        assert (single - project(v, weights=weights, eps=eps)).abs().max() < 1e-6


@pytest.mark.parametrize("constant", [0.0, 0.1, -1 / 3, 1e-30, 1e-5, 1e8, 3.14159e20])
@pytest.mark.parametrize("d", [1, 2, 3, 10, 1001, 50_000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@weighted
def test_a_constant_function_is_refused(constant, d, dtype, weighted):
    v = torch.randn(2, d, dtype=dtype)
    v[1] = constant
    with pytest.raises(ValueError, match="constant function.*eps > 0"):
        project_mean_variance(v, weights=torch.rand(d) + 0.1 if weighted else None)


@weighted
def test_rounding_noise_is_refused_and_a_real_signal_is_not(weighted):
    noise, (_, weights) = torch.randn(20), grid_of(20, weighted)
    with pytest.raises(ValueError, match="constant function"):
        project_mean_variance(1e8 + 1e-9 * noise, weights=weights)
    result = project_mean_variance(1e8 + 1e-3 * noise, weights=weights)
    torch.testing.assert_close(
        result, project_mean_variance(noise, weights=weights), atol=1e-3, rtol=0
    )


@weighted
def test_with_eps_a_constant_function_becomes_the_mean(weighted):
    weights = torch.rand(6) + 0.1 if weighted else None
    result = project_mean_variance(torch.full((2, 6), 0.1), mean=0.5, weights=weights, eps=1e-5)
    torch.testing.assert_close(result, torch.full((2, 6), 0.5))


# ---- derivatives and the tangent space -----------------------------------------------------------


@pytest.mark.parametrize("project", [project_mean_variance, project_mean_square])
@pytest.mark.parametrize("eps", [0.0, 0.1])
@weighted
def test_gradients_are_correct(project, eps, weighted):
    _, weights = grid_of(5, weighted)
    v = torch.randn(2, 5, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: project(v, 0.5, weights=weights, eps=eps), v)


@weighted
def test_gradients_of_the_tangent_part_are_correct(weighted):
    _, weights = grid_of(5, weighted)
    inputs = [torch.randn(2, 5, requires_grad=True) for _ in range(2)]
    assert torch.autograd.gradcheck(lambda w, f: tangent(w, f, weights), inputs)


@given(seed=seeds, d=st.integers(2, 12), weighted=st.booleans())
def test_tangent_is_an_orthogonal_projection(seed, d, weighted):
    torch.manual_seed(seed)
    grid, weights = grid_of(d, weighted)
    w, f, g = on_sphere((3,), d, weights), torch.randn(3, d), torch.randn(3, d)
    along, zero = tangent(w, f, weights), torch.zeros(3)
    close = {"atol": 1e-11, "rtol": 0}
    torch.testing.assert_close(grid.mean(along), zero, **close)  # along the hyperplane
    torch.testing.assert_close(grid.inner(along, w), zero, **close)  # along the sphere
    torch.testing.assert_close(tangent(w, along, weights), along, **close)  # idempotent
    torch.testing.assert_close(
        grid.inner(along, g), grid.inner(f, tangent(w, g, weights)), **close
    )  # symmetric


@pytest.mark.filterwarnings(
    "ignore:.torch.jit.script:DeprecationWarning"
)  # torch's own, in torch.func
@weighted
def test_tangent_is_the_derivative_of_the_projection(weighted):
    _, weights = grid_of(7, weighted)
    w, f = on_sphere((4,), 7, weights), torch.randn(4, 7)
    _, derivative = torch.func.jvp(lambda v: project_mean_variance(v, weights=weights), (w,), (f,))
    torch.testing.assert_close(tangent(w, f, weights), derivative, atol=1e-12, rtol=0)


def test_tangent_takes_many_velocities_at_one_point():
    w, f = on_sphere((), 6), torch.randn(2, 3, 6)
    torch.testing.assert_close(tangent(w, f)[1, 2], tangent(w, f[1, 2]))


# ---- P_S2 ----------------------------------------------------------------------------------------


def test_the_rectifier_is_the_closest_non_negative_function():
    """min ∫ (u − v)² over u ≥ 0 is a least-squares problem; the weights change nothing."""
    v, root = torch.randn(8), np.sqrt(grid_of(8)[0].weights.numpy())
    closest, _ = nnls(np.diag(root), root * v.numpy())
    np.testing.assert_allclose(project_nonnegative(v).numpy(), closest, atol=1e-14)


@given(seed=seeds)
def test_the_rectifier_is_a_projection_onto_a_convex_cone(seed):
    torch.manual_seed(seed)
    grid, _ = grid_of(9)
    u, v = torch.randn(3, 9), torch.randn(3, 9)
    P = project_nonnegative
    assert (P(v) >= 0).all()
    assert torch.equal(P(P(v)), P(v))
    assert torch.equal(P(3 * v), 3 * P(v))
    assert (grid.inner(v - P(v), P(v)) == 0).all()  # what is cut off is orthogonal to what stays
    assert (grid.inner(P(u) - P(v), P(u) - P(v)) <= grid.inner(u - v, u - v)).all()  # no expansion


def test_the_rectifier_takes_a_single_number():
    assert project_nonnegative(torch.tensor(-1.0)) == 0


# ---- gain and bias are not part of the projection ------------------------------------------------


def random_normalisation(width, eps=1e-5):
    norm = Normalisation(width, eps)
    torch.nn.init.normal_(norm.gain)
    torch.nn.init.normal_(norm.bias)
    return norm


def test_normalisation_is_the_projection_and_then_gain_and_bias():
    norm, v = random_normalisation(6, 1e-3), torch.randn(2, 3, 6)
    torch.testing.assert_close(norm(v), norm.gain * project_mean_variance(v, eps=1e-3) + norm.bias)


def test_normalisation_with_gain_and_bias_is_no_projection():
    v = torch.randn(3, 6)
    norm, plain = random_normalisation(6, 0.0), Normalisation(6, 0.0)
    assert (norm(norm(v)) - norm(v)).abs().max() > 0.1
    torch.testing.assert_close(plain(plain(v)), plain(v))
