"""Time steps: measured orders on known solutions, with and without the constraint S1."""

from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from orders import order
from scipy.integrate import solve_ivp
from scipy.linalg import expm

from lib.projection import project_mean_variance, tangent
from lib.splitting import constrained, euler, evolve, lie, midpoint, relax, rk4, strang

pytestmark = pytest.mark.usefixtures("float64")

T = 1.0
COUNTS = [16, 32, 64, 128]


def measured_order(step, u0, exact, counts=COUNTS):
    """The slope of the error at t = T over the step size."""
    errors = [(evolve(step, u0, 0.0, T, n) - exact).norm() for n in counts]
    return order([T / n for n in counts], errors)


def solution(velocity, u0):
    """u(T) of u_t = velocity(u), by SciPy's method of order 8 with tight tolerances."""

    def right_hand_side(_, u):
        return velocity(torch.from_numpy(u).reshape(u0.shape)).numpy().ravel()

    result = solve_ivp(
        right_hand_side, (0, T), u0.numpy().ravel(), method="DOP853", rtol=1e-13, atol=1e-13
    )
    return torch.from_numpy(result.y[:, -1]).reshape(u0.shape)


def stepper(method, velocity):
    return lambda u, dt: method(velocity, u, dt)


# ---- problems ------------------------------------------------------------------------------------

A = torch.tensor([[0.0, 1.0, 0.0], [-1.0, 0.0, 0.5], [0.0, -0.5, -0.2]], dtype=torch.float64)
B = torch.tensor([[-0.3, 0.0, 0.8], [0.4, -0.1, 0.0], [0.0, 0.6, 0.2]], dtype=torch.float64)
U0 = torch.tensor([1.0, -0.5, 0.3], dtype=torch.float64)


def exponential(matrix, time):
    return torch.from_numpy(expm(time * matrix.numpy()))


def exact_flow(matrix):
    """The exact flow of u_t = matrix · u."""
    step = cache(lambda dt: exponential(matrix, dt))
    return lambda u, dt: step(dt) @ u


def nonlinear(u):
    """A pendulum that drives a third variable; no closed form."""
    return torch.stack([u[1], -torch.sin(3 * u[0]), u[0] * u[1] - u[2] ** 2])


def first(u):
    """Part of a non-linear sum that does not commute with the other part."""
    return torch.tanh(A @ u)


def second(u):
    return (B @ u) * u.sum() - u**3


# ---- orders without a constraint -----------------------------------------------------------------

METHODS = pytest.mark.parametrize(
    "method, expected", [(euler, 1), (midpoint, 2), (rk4, 4)], ids=["euler", "midpoint", "rk4"]
)


@METHODS
def test_the_order_of_a_step_on_a_linear_problem(method, expected):
    step = stepper(method, lambda u: (A + B) @ u)
    assert measured_order(step, U0, exponential(A + B, T) @ U0) == pytest.approx(expected, abs=0.1)


@METHODS
def test_the_order_of_a_step_on_a_nonlinear_problem(method, expected):
    counts = [2 * n for n in COUNTS]
    slope = measured_order(stepper(method, nonlinear), U0, solution(nonlinear, U0), counts)
    assert slope == pytest.approx(expected, abs=0.1)


SPLITTINGS = pytest.mark.parametrize(
    "split, expected", [(lie, 1), (strang, 2)], ids=["lie", "strang"]
)


def test_the_operators_of_these_tests_do_not_commute():
    assert (A @ B - B @ A).norm() > 0.5


@SPLITTINGS
def test_the_order_of_a_splitting_of_exact_flows(split, expected):
    flows = [exact_flow(A), exact_flow(B)]
    slope = measured_order(lambda u, dt: split(flows, u, dt), U0, exponential(A + B, T) @ U0)
    assert slope == pytest.approx(expected, abs=0.1)


@SPLITTINGS
def test_the_order_of_a_splitting_into_three(split, expected):
    C = A.T @ B
    flows = [exact_flow(A), exact_flow(B), exact_flow(C)]
    slope = measured_order(lambda u, dt: split(flows, u, dt), U0, exponential(A + B + C, T) @ U0)
    assert slope == pytest.approx(expected, abs=0.1)


@SPLITTINGS
def test_the_order_of_a_splitting_of_a_nonlinear_sum(split, expected):
    flows = [stepper(rk4, first), stepper(rk4, second)]
    exact = solution(lambda u: first(u) + second(u), U0)
    slope = measured_order(lambda u, dt: split(flows, u, dt), U0, exact)
    assert slope == pytest.approx(expected, abs=0.1)


def test_a_splitting_is_no_better_than_its_flows():
    flows = [stepper(euler, first), stepper(euler, second)]
    exact = solution(lambda u: first(u) + second(u), U0)
    slope = measured_order(lambda u, dt: strang(flows, u, dt), U0, exact)
    assert slope == pytest.approx(1, abs=0.1)


@SPLITTINGS
def test_with_commuting_operators_every_splitting_is_exact(split, expected):
    """The control: such a problem shows nothing about the order."""
    commuting = A @ A - 0.5 * A
    flows = [exact_flow(A), exact_flow(commuting)]
    result = evolve(lambda u, dt: split(flows, u, dt), U0, 0.0, T, 3)
    torch.testing.assert_close(result, exponential(A + commuting, T) @ U0, atol=1e-14, rtol=1e-13)


def test_the_flows_are_applied_in_the_stated_order():
    calls = []

    def recording(name):
        return lambda u, dt: calls.append((name, dt)) or u

    flows = [recording(name) for name in "abc"]
    lie(flows, U0, 0.5)
    assert calls == [("a", 0.5), ("b", 0.5), ("c", 0.5)]
    calls.clear()
    strang(flows, U0, 0.5)
    assert calls == [("a", 0.25), ("b", 0.25), ("c", 0.5), ("b", 0.25), ("a", 0.25)]


@SPLITTINGS
def test_a_splitting_of_one_flow_is_that_flow(split, expected):
    assert torch.equal(split([exact_flow(A)], U0, 0.3), exact_flow(A)(U0, 0.3))


@pytest.mark.parametrize("method", [euler, midpoint, rk4])
def test_steps_take_any_shape_and_keep_float32(method):
    u = torch.randn(2, 3, 4, dtype=torch.float32)
    result = method(torch.sin, u, 0.1)
    assert (result.shape, result.dtype) == (u.shape, u.dtype)
    single = method(torch.sin, u[1, 2, 3], 0.1)
    torch.testing.assert_close(result[1, 2, 3], single)


@pytest.mark.parametrize("method", [euler, midpoint, rk4])
def test_steps_are_differentiable(method):
    u = torch.randn(3, requires_grad=True)
    assert torch.autograd.gradcheck(lambda u: method(nonlinear, u, 0.1), u)


# ---- on the constraint S1 ------------------------------------------------------------------------

M1 = torch.tensor(np.random.default_rng(2).normal(size=(5, 5)))
M2 = torch.tensor(np.random.default_rng(3).normal(size=(5, 5)))


def turn(w):
    return torch.tanh(w @ M1)


def bend(w):
    return w @ M2 + w**2


@pytest.fixture(scope="module")
def w0():
    start = torch.tensor(np.random.default_rng(4).normal(size=(3, 5)), dtype=torch.float64)
    return project_mean_variance(start)


@pytest.fixture(scope="module")
def along_s1(w0):
    """w(T) of the constrained equation w_t = P_T(w)(f1 + f2)."""
    return solution(lambda w: tangent(w, turn(w) + bend(w)), w0)


FINE = [64, 128, 256]


def split_order(split, flows, w0, exact):
    return measured_order(lambda w, dt: split(flows, w, dt), w0, exact, FINE)


@SPLITTINGS
def test_tangent_fields_keep_the_order_on_s1(split, expected, w0, along_s1):
    flows = [constrained(turn), constrained(bend)]
    assert split_order(split, flows, w0, along_s1) == pytest.approx(expected, abs=0.1)


def test_projecting_after_plain_stages_falls_back_to_order_one(w0, along_s1):
    def plain(velocity):
        return lambda w, dt: project_mean_variance(midpoint(velocity, w, dt))

    slope = split_order(strang, [plain(turn), plain(bend)], w0, along_s1)
    assert slope == pytest.approx(1, abs=0.15)


@METHODS
def test_the_constrained_flow_keeps_the_order_of_its_step(method, expected, w0):
    exact = solution(lambda w: tangent(w, bend(w)), w0)
    slope = measured_order(constrained(bend, method), w0, exact, [32, 64, 128, 256])
    assert slope == pytest.approx(expected, abs=0.1)


def test_the_constrained_flow_stays_on_s1(w0):
    w = evolve(constrained(bend), w0, 0.0, T, 7)
    torch.testing.assert_close(w.mean(-1), torch.zeros(3), atol=1e-14, rtol=0)
    torch.testing.assert_close(w.var(-1, correction=0), torch.ones(3), atol=1e-13, rtol=0)


# ---- relaxation ----------------------------------------------------------------------------------


@given(
    seed=st.integers(0, 2**31),
    dt=st.floats(1e-3, 1e3),
    eps=st.sampled_from([0.0, 1e-12, 1e-5, 0.1]),
)
def test_the_skip_connection_is_a_relaxation(seed, dt, eps):
    """P(u + Δt v) is P of the relaxed value, when its ε is divided by (1 + Δt)²."""
    torch.manual_seed(seed)
    u, v = torch.randn(2, 3, 6), torch.randn(2, 3, 6)
    relaxed = relax(u, v, dt)
    torch.testing.assert_close(relaxed * (1 + dt), u + dt * v)
    skip = project_mean_variance(u + dt * v, eps=eps)
    torch.testing.assert_close(
        project_mean_variance(relaxed, eps=eps / (1 + dt) ** 2), skip, atol=1e-12, rtol=0
    )


def test_without_the_scaled_eps_the_relaxation_differs():
    u, v, eps = torch.randn(3, 6), torch.randn(3, 6), 1e-2
    skip = project_mean_variance(u + v, eps=eps)
    assert (project_mean_variance(relax(u, v, 1.0), eps=eps) - skip).abs().max() > 1e-3
    torch.testing.assert_close(project_mean_variance(relax(u, v, 1.0), eps=eps / 4), skip)


def test_at_dt_one_the_relaxation_is_the_average():
    u, v = torch.randn(3, 6), torch.randn(3, 6)
    torch.testing.assert_close(relax(u, v, 1.0), (u + v) / 2)


# ---- many steps ----------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 4)], ids=str)
def test_a_trajectory_holds_every_state_from_the_start_to_the_end(shape):
    u = torch.randn(shape)
    states = evolve(stepper(euler, torch.cos), u, 0.0, T, 5, trajectory=True)
    assert states.shape == (6, *shape)
    assert torch.equal(states[0], u)
    assert torch.equal(states[-1], evolve(stepper(euler, torch.cos), u, 0.0, T, 5))
    for before, after in zip(states, states[1:], strict=False):
        torch.testing.assert_close(after, before + T / 5 * torch.cos(before))


def test_evolve_walks_the_whole_interval():
    result = evolve(lambda u, dt: u + dt, torch.zeros(2), 2.0, 5.0, 12)
    torch.testing.assert_close(result, torch.full((2,), 3.0))


def test_evolve_leaves_its_start_alone():
    u = torch.zeros(2)
    evolve(lambda u, dt: u + dt, u, 0.0, T, 3)
    assert (u == 0).all()


def test_a_constrained_flow_asks_its_velocity_on_the_constraint_only():
    asked = []

    def velocity(w):
        asked.append(w)
        return w.roll(1, -1).exp()

    constrained(velocity, rk4)(project_mean_variance(torch.randn(3, 7)), 0.5)
    w = torch.stack(asked)
    torch.testing.assert_close(w.mean(-1), torch.zeros(4, 3), atol=1e-12, rtol=0)
    torch.testing.assert_close(w.square().mean(-1), torch.ones(4, 3), atol=1e-12, rtol=0)
