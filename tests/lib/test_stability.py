"""Derivatives of fields, their eigenvalues, and the largest step: beside dense matrices and NumPy."""

import cmath
import math

import numpy as np
import pytest
import torch
from torch import nn

from lib.attention import SelfAttention
from lib.projection import project_mean_variance, tangent
from lib.splitting import euler, evolve
from lib.stability import derivative, largest_step, lipschitz, stiffest

pytestmark = pytest.mark.usefixtures("float64")


def linear(matrix):
    """The field f(w) = M w on w as one long vector."""
    return lambda w: (matrix @ w.flatten()).reshape(w.shape)


def dense(J):
    """All columns of an operator."""
    return J @ np.eye(J.shape[0])


def attention(width=4, heads=2):
    """A random field with attention, along the constraint."""
    module = SelfAttention(width, heads).requires_grad_(False)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.7)

    def field(w, weights=None):
        return tangent(w, torch.tanh(module(w, weights)) - 0.5 * w**2)

    return field


def most_negative(matrix):
    values = np.linalg.eigvals(np.asarray(matrix))
    return values[values.real.argmin()]


# ---- the derivative ------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(6,), (2, 3), (1, 2, 3)], ids=str)
def test_the_derivative_of_a_linear_field_is_its_matrix(shape):
    matrix = torch.randn(6, 6)
    J = derivative(linear(matrix), torch.randn(shape))
    assert J.shape == (6, 6)
    np.testing.assert_allclose(dense(J), matrix, atol=1e-13, rtol=0)
    np.testing.assert_allclose(dense(J.H), matrix.T, atol=1e-13, rtol=0)


# Below and above the number of keys at which attention takes torch's fused way.
@pytest.mark.parametrize("tokens", [3, 17])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_derivative_of_attention_is_that_of_torch(tokens, weighted):
    w, whole = project_mean_variance(torch.randn(tokens, 4)), attention()
    weights = torch.rand(tokens) if weighted else None

    def field(w):
        return whole(w, weights)

    J, n = derivative(field, w), 4 * tokens
    expected = torch.autograd.functional.jacobian(field, w).reshape(n, n).numpy()
    np.testing.assert_allclose(dense(J), expected, atol=1e-12, rtol=0)
    np.testing.assert_allclose(dense(J.H), expected.T, atol=1e-12, rtol=0)


def test_the_derivative_is_a_difference_quotient():
    """Independent of automatic differentiation, and taken at w: elsewhere it is another one."""
    field, w = attention(), project_mean_variance(torch.randn(5, 4))
    direction, h = torch.randn(5, 4), 1e-5
    quotient = (field(w + h * direction) - field(w - h * direction)) / (2 * h)
    found = derivative(field, w) @ direction.flatten().numpy()
    np.testing.assert_allclose(found, quotient.flatten(), atol=1e-8, rtol=0)
    elsewhere = derivative(field, w.roll(1, -1)) @ direction.flatten().numpy()
    assert np.abs(elsewhere - found).max() > 1e-2


def test_backwards_is_the_adjoint_of_forwards():
    J = derivative(attention(), project_mean_variance(torch.randn(17, 4)))
    a, b = np.random.default_rng(0).normal(size=(2, J.shape[0]))
    assert (J @ a) @ b == pytest.approx(a @ (J.H @ b), abs=1e-11)


def test_a_state_that_has_a_gradient_and_frozen_parameters_do_not_matter():
    module, w = SelfAttention(4, 2), torch.randn(3, 4)
    with torch.no_grad():
        expected = dense(derivative(module, w))
        assert np.abs(dense(derivative(module, w).H) - expected.T).max() < 1e-12
    module.requires_grad_(False)
    found = derivative(module, w.clone().requires_grad_())
    np.testing.assert_array_equal(dense(found), expected)
    assert all(parameter.grad is None for parameter in module.parameters())


def test_single_precision_stays_single_precision():
    field, w = attention(), project_mean_variance(torch.randn(5, 4))
    exact = stiffest(field, w)[0], lipschitz(field, w)
    matrix = torch.autograd.functional.jacobian(field, w).reshape(20, 20).float()
    assert derivative(linear(matrix), w.float()).dtype == np.float32
    found = stiffest(linear(matrix), w.float())[0], lipschitz(linear(matrix), w.float())
    assert abs(found[0].real - exact[0].real) < 1e-2 * abs(exact[0])
    assert found[1] == pytest.approx(exact[1], rel=1e-2)


# ---- the largest singular value ------------------------------------------------------------------


def test_the_lipschitz_constant_of_a_linear_field_is_its_largest_singular_value():
    matrix = torch.randn(12, 12)
    expected = np.linalg.norm(matrix.numpy(), 2)
    assert lipschitz(linear(matrix), torch.randn(3, 4)) == pytest.approx(expected, rel=1e-3)
    largest = np.abs(np.linalg.eigvals(matrix.numpy())).max()
    assert expected > 1.2 * largest  # of a matrix that is not normal, not an eigenvalue


def test_the_lipschitz_constant_bounds_a_small_disturbance():
    field, w = attention(), project_mean_variance(torch.randn(5, 4))
    L = lipschitz(field, w)
    _, _, V = np.linalg.svd(dense(derivative(field, w)))
    worst = 1e-6 * torch.from_numpy(V[0]).reshape(w.shape)
    assert (field(w + worst) - field(w)).norm() == pytest.approx(L * 1e-6, rel=1e-3)
    for _ in range(20):
        delta = 1e-6 * torch.randn(5, 4)
        assert (field(w + delta) - field(w)).norm() < 1.001 * L * delta.norm()


# ---- the most negative eigenvalue ----------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_stiffest_is_the_eigenvalue_with_the_most_negative_real_part(seed):
    matrix = torch.from_numpy(np.random.default_rng(seed).normal(size=(40, 40)))
    value, share = stiffest(linear(matrix), torch.randn(10, 4))
    expected = most_negative(matrix)
    assert value.real == pytest.approx(expected.real, rel=1e-2)
    assert abs(value.imag) == pytest.approx(abs(expected.imag), abs=0.02 * abs(expected))
    assert share.shape == (10,)
    assert share.sum() == pytest.approx(1, abs=1e-12)


def test_a_large_positive_or_imaginary_eigenvalue_is_not_the_stiffest():
    """The most negative real part, not the largest size: growth and turning belong to the equation."""
    matrix = torch.block_diag(
        torch.tensor([[50.0]]),
        torch.tensor([[0.0, 40], [-40, 0]]),
        -torch.diag(torch.arange(1.0, 4)),
    )
    value, share = stiffest(linear(matrix), torch.randn(6, 1))
    assert value == pytest.approx(-3, abs=1e-2)
    assert share.argmax() == 5


@pytest.mark.parametrize("stiff", range(4))
def test_stiffest_says_on_which_token_it_lives(stiff):
    """A field of blocks: no token feels another, and one is driven back harder than the rest."""
    strength = torch.linspace(1, 2, 4)
    strength[stiff] = 9
    mixing = torch.randn(4, 3, 3) / 4

    def field(w):
        return torch.einsum("nij,nj->ni", mixing, w) - strength[:, None] * w

    value, share = stiffest(field, torch.randn(4, 3))
    assert value.real == pytest.approx(most_negative(mixing[stiff]).real - 9, abs=0.05)
    assert share.argmax() == stiff
    assert share[stiff] > 0.999


def test_the_share_of_a_token_is_the_square_of_its_part_of_the_eigenvector():
    direction = torch.tensor([3.0, 0, 4, 12]) / 13
    field = linear(-5 * torch.outer(direction, direction))
    value, share = stiffest(field, torch.randn(2, 2))
    assert value == pytest.approx(-5, abs=1e-2)
    torch.testing.assert_close(share, torch.tensor([9.0, 160]) / 169, atol=1e-3, rtol=0)


def test_stiffest_of_a_field_with_attention():
    field, w = attention(), project_mean_variance(torch.randn(17, 4))
    expected = most_negative(torch.autograd.functional.jacobian(field, w).reshape(68, 68))
    value, _ = stiffest(field, w)
    assert value.real == pytest.approx(expected.real, rel=1e-2)


def test_every_run_gives_the_same_digits():
    field, w = attention(), project_mean_variance(torch.randn(5, 4))
    first = stiffest(field, w), lipschitz(field, w)
    again = stiffest(field, w), lipschitz(field, w)
    assert first[0][0] == again[0][0]
    assert torch.equal(first[0][1], again[0][1])
    assert first[1] == again[1]


# ---- the largest step ----------------------------------------------------------------------------

VALUES = [-1.0, -15.0, -1 + 1j, -0.1 - 2j, complex(-13.3, 4.8)]


@pytest.mark.parametrize("value", VALUES, ids=str)
def test_at_the_largest_step_the_factor_of_euler_has_size_one(value):
    dt = largest_step(value)
    assert abs(1 + dt * value) == pytest.approx(1, abs=1e-12)
    assert abs(1 + 0.99 * dt * value) < 1 < abs(1 + 1.01 * dt * value)
    assert dt == largest_step(complex(value).conjugate())


def test_the_closed_form():
    assert largest_step(-4) == 0.5
    assert largest_step(np.float64(-4)) == 0.5
    assert largest_step(-1 + 1j) == pytest.approx(1)
    for angle in (2.0, 2.5, 3.0):  # on a ray: 2 |cos φ|/|λ|
        assert largest_step(7 * cmath.exp(1j * angle)) == pytest.approx(-2 * math.cos(angle) / 7)


@pytest.mark.parametrize("turning", [0.0, 3.0])
def test_just_below_it_a_walk_decays_and_just_above_it_grows(turning):
    """From the field alone: its stiffest eigenvalue, the step, and a walk of Euler steps."""
    matrix = torch.diag(torch.tensor([-0.5, -1.0, -8.0, -8.0]))
    matrix[2, 3], matrix[3, 2] = turning, -turning
    change = torch.randn(4, 4) + 3 * torch.eye(4)
    matrix = change @ matrix @ torch.linalg.inv(change)
    field, w = linear(matrix), torch.randn(4, 1)
    value, _ = stiffest(field, w)
    dt = largest_step(value)
    assert dt == pytest.approx(16 / (64 + turning**2), rel=1e-2)

    def after(factor):
        steps = 600
        return evolve(lambda w, dt: euler(field, w, dt), w, 0.0, steps * factor * dt, steps).norm()

    assert after(0.95) < 1e-6
    assert after(1.05) > 1e6


def test_the_step_of_the_whole_spectrum_may_be_smaller():
    """A limit: the most negative real part need not be the strictest condition."""
    stiff, turning = -3.0, -0.1 + 5j
    assert largest_step(turning) < 0.1 * largest_step(stiff)
