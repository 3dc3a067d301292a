"""Flows on the constraint: what is exact at Δt = 1, the order of each scheme, and the limits for Δt → 0.

The layers are small random ones, with every parameter random; the exact solutions are SciPy's.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from orders import order
from scipy.integrate import solve_ivp
from torch import nn

from lib.encoder import Encoder, EncoderLayer
from lib.projection import Normalisation, project_mean_variance, tangent
from lib.sphere import (
    Layer,
    before_gain,
    layers_before_gain,
    lie_geodesic,
    lie_projected,
    rk4_tangent,
    strang_tangent,
    walk,
)
from lib.splitting import midpoint, strang

pytestmark = pytest.mark.usefixtures("float64")

B, N, WIDTH = 2, 4, 6
EXACT = {"atol": 1e-12, "rtol": 0}
SCHEMES = {s.__name__: s for s in (lie_projected, lie_geodesic, strang_tangent, rk4_tangent)}
every_scheme = pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)


def distance(a, b):
    return (a - b).abs().max().item()


def randomised(module):
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return module


def post_norm(layers=3, eps=1e-5, heads=2):
    """A random encoder, and a random normalisation before its first layer."""
    parts = [EncoderLayer(WIDTH, heads, 9, False, torch.tanh, eps) for _ in range(layers)]
    return randomised(Encoder(parts)), randomised(Normalisation(WIDTH, eps))


def on_sphere(*shape):
    return project_mean_variance(torch.randn(*shape))


# ---- gain and bias leave the projection ----------------------------------------------------------


def test_a_step_of_size_one_before_gain_is_the_step_after_it():
    """w + f(w) = u + B(u) for u = g w + c, wherever w is."""
    norm, velocity = randomised(Normalisation(WIDTH)), torch.sin
    w = torch.randn(B, N, WIDTH)
    u = norm.gain * w + norm.bias
    torch.testing.assert_close(w + before_gain(velocity, norm)(w), u + velocity(u), **EXACT)


def test_gain_and_bias_have_become_a_linear_drift():
    norm = randomised(Normalisation(WIDTH))
    w = torch.randn(N, WIDTH)
    drift = before_gain(torch.zeros_like, norm)(w)
    torch.testing.assert_close(drift, (norm.gain - 1) * w + norm.bias, **EXACT)
    untouched = before_gain(torch.sin, Normalisation(WIDTH))(w)  # gain 1 and bias 0: no drift
    torch.testing.assert_close(untouched, torch.sin(w), **EXACT)


WEIGHTS = {
    "none": None,
    "tokens": torch.tensor([1.0, 0.5, 2.0, 0.0], dtype=torch.float64),
    "padding": torch.tensor([[[1.0, 1, 1, 1]], [[1, 1, 0, 0]]], dtype=torch.float64),
}


@pytest.mark.parametrize("weights", WEIGHTS.values(), ids=WEIGHTS)
@pytest.mark.parametrize("eps", [0.0, 1e-12, 1e-5, 0.1])
@pytest.mark.parametrize("layers", [1, 3])
def test_one_projected_step_a_layer_is_the_encoder(weights, eps, layers):
    encoder, first = post_norm(layers, eps)
    v = torch.randn(B, N, WIDTH)
    w = project_mean_variance(v, eps=eps)
    states = walk(layers_before_gain(encoder, first, weights), w, lie_projected, trajectory=True)
    u = first(v)
    norms = [first, *(layer.norm2 for layer in encoder.layers)]
    for norm, layer, w in zip(norms, [*encoder.layers, None], states, strict=True):
        torch.testing.assert_close(norm.gain * w + norm.bias, u, **EXACT)
        u = u if layer is None else layer(u, weights)


@pytest.mark.parametrize("layers", [1, 3])
def test_one_geodesic_step_a_layer_is_the_encoder_without_eps(layers):
    """A great circle from w to P(w + f(w)), walked to its end."""
    encoder, first = post_norm(layers, eps=0.0)
    parts, w = layers_before_gain(encoder, first), on_sphere(B, N, WIDTH)
    ends = [walk(parts, w, scheme) for scheme in (lie_projected, lie_geodesic)]
    torch.testing.assert_close(*ends, **EXACT)
    encoder, first = post_norm(layers, eps=0.1)  # with ε the projection ends inside the sphere
    parts = layers_before_gain(encoder, first)
    ends = [walk(parts, w, scheme) for scheme in (lie_projected, lie_geodesic)]
    assert distance(*ends) > 1e-3


@pytest.mark.parametrize("scheme", [strang_tangent, rk4_tangent])
def test_one_step_along_the_constraint_is_another_network(scheme):
    encoder, first = post_norm()
    parts, w = layers_before_gain(encoder, first), on_sphere(N, WIDTH)
    assert distance(walk(parts, w, scheme), walk(parts, w, lie_projected)) > 0.1


def with_its_own_norm(encoder, first):
    """The gain after a layer taken for the gain before it."""
    return [
        Layer(
            before_gain(layer.attention, layer.norm2),
            before_gain(layer.feed_forward, layer.norm1),
            layer.norm1.eps,
        )
        for layer in encoder.layers
    ]


def with_exchanged_norms(encoder, first):
    """Attention and feed-forward map with each other's gain."""
    before = [first, *(layer.norm2 for layer in encoder.layers)]
    return [
        Layer(
            before_gain(layer.attention, layer.norm1),
            before_gain(layer.feed_forward, norm),
            layer.norm1.eps,
        )
        for layer, norm in zip(encoder.layers, before, strict=False)
    ]


def without_the_first_norm(encoder, first):
    return layers_before_gain(encoder, Normalisation(WIDTH, first.eps))


def with_another_eps(encoder, first):
    return [layer._replace(eps=1e-3) for layer in layers_before_gain(encoder, first)]


def without_drift(encoder, first):
    """B(g w + c) alone, as if the gain belonged to the velocity only."""

    def alone(velocity, norm):
        return lambda w: velocity(norm.gain * w + norm.bias)

    before = [first, *(layer.norm2 for layer in encoder.layers)]
    return [
        Layer(alone(layer.attention, norm), alone(layer.feed_forward, layer.norm1), norm.eps)
        for layer, norm in zip(encoder.layers, before, strict=False)
    ]


SPOILS = [
    with_its_own_norm, with_exchanged_norms, without_the_first_norm, with_another_eps, without_drift,
]  # fmt: skip


@pytest.mark.parametrize("spoil", SPOILS)
def test_a_wrong_chain_of_gains_is_another_network(spoil):
    encoder, first = post_norm()
    v = torch.randn(B, N, WIDTH)
    w = project_mean_variance(v, eps=first.eps)
    last, expected = encoder.layers[-1].norm2, encoder(first(v))
    right = walk(layers_before_gain(encoder, first), w, lie_projected)
    torch.testing.assert_close(last.gain * right + last.bias, expected, **EXACT)
    wrong = walk(spoil(encoder, first), w, lie_projected)
    assert distance(last.gain * wrong + last.bias, expected) > 1e-4


def test_gradients_reach_every_parameter_but_the_last_gain():
    """The gain and bias of the last normalisation come after the walk."""
    encoder, first = post_norm(2)
    w = walk(layers_before_gain(encoder, first), on_sphere(N, WIDTH), lie_projected, 2)
    w[..., 0].sum().backward()
    last = encoder.layers[-1].norm2
    for parameter in [*first.parameters(), *encoder.parameters()]:
        if parameter is last.gain or parameter is last.bias:
            assert parameter.grad is None
        else:
            assert parameter.grad.abs().max() > 1e-9


# ---- on the sphere -------------------------------------------------------------------------------


@every_scheme
@pytest.mark.parametrize("steps", [1, 5])
def test_every_state_of_a_walk_lies_on_the_sphere(scheme, steps):
    encoder, first = post_norm(eps=0.0)
    parts = layers_before_gain(encoder, first)
    states = walk(parts, on_sphere(B, N, WIDTH), scheme, steps, trajectory=True)
    torch.testing.assert_close(states.mean(-1), torch.zeros(states.shape[:-1]), **EXACT)
    torch.testing.assert_close(states.square().mean(-1), torch.ones(states.shape[:-1]), **EXACT)


def test_with_eps_only_the_projected_steps_leave_it():
    encoder, first = post_norm(eps=0.1)
    parts, w = layers_before_gain(encoder, first), on_sphere(N, WIDTH)
    for scheme in SCHEMES.values():
        size = walk(parts, w, scheme, 2).square().mean(-1)
        if scheme is lie_projected:
            assert (size < 0.99).all()
        else:
            torch.testing.assert_close(size, torch.ones(N), **EXACT)


@given(seed=st.integers(0, 2**31), dt=st.floats(1e-3, 1e3))
def test_a_projected_step_is_implicit_in_the_force_of_the_constraint(seed, dt):
    """w' = w + Δt (f − μ − λ w'): explicit in f, and the multiplier λ acts at the new point w'."""
    torch.manual_seed(seed)
    w, f = on_sphere(N, WIDTH), torch.randn(N, WIDTH)
    step = lie_projected(Layer(lambda w: f, torch.zeros_like))
    new = step(w, dt)
    mu = f.mean(-1, keepdim=True)
    s = (w + dt * f).std(-1, keepdim=True, correction=0)
    force = (s - 1) / dt
    torch.testing.assert_close(
        new, w + dt * (f - mu - force * new), atol=1e-11 * max(1, dt), rtol=0
    )


def test_the_force_of_the_constraint_tends_to_that_of_the_tangent_field():
    """(s − 1)/Δt → mean(f w). Taken at the old point instead of the new one it leaves the sphere."""
    w, f = on_sphere(N, WIDTH), torch.randn(N, WIDTH)
    dt, limit = 1e-6, (f * w).mean(-1)
    s = (w + dt * f).std(-1, correction=0)
    torch.testing.assert_close((s - 1) / dt, limit, atol=1e-5, rtol=0)
    explicit = w + 0.1 * (f - f.mean(-1, keepdim=True) - limit[:, None] * w)
    assert (explicit.square().mean(-1) > 1.0005).all()


@pytest.mark.parametrize("k", [-0.5, 1e-3, 1.0, 50.0, 1e6])
@pytest.mark.parametrize("dt", [1e-3, 0.1, 1.0])
@every_scheme
def test_a_field_that_only_pulls_across_the_sphere_moves_nothing(scheme, k, dt):
    """f = k w: the implicit force cancels it for any step, however stiff."""
    w = on_sphere(N, WIDTH)
    layer = Layer(lambda w: k * w, lambda w: 0.5 * k * w)
    torch.testing.assert_close(scheme(layer)(w, dt), w, atol=1e-9, rtol=0)


def test_a_field_that_pulls_through_the_centre_throws_the_state_to_the_other_side():
    """The limit of the last statement: 1 + Δt k must be positive."""
    w = on_sphere(N, WIDTH)
    layer = Layer(lambda w: -3 * w, torch.zeros_like)
    torch.testing.assert_close(lie_projected(layer)(w, 1.0), -w, **EXACT)
    torch.testing.assert_close(lie_projected(layer)(w, 0.25), w, **EXACT)
    with pytest.raises(ValueError, match="opposite to w, where all great circles meet"):
        lie_geodesic(layer)(w, 0.25)


# ---- great circles -------------------------------------------------------------------------------

STILL = {
    "zero": torch.zeros_like,
    "inwards": lambda w: -0.5 * w,
    "outwards": lambda w: 3 * w,
    "constant": torch.ones_like,
}


@pytest.mark.parametrize("f", STILL.values(), ids=STILL)
@pytest.mark.parametrize("eps", [0.0, 1e-12, 1e-5])
@pytest.mark.parametrize("dt", [0.1, 1.0])
def test_where_nothing_moves_a_great_circle_stays_with_finite_gradients(f, eps, dt):
    """There the direction is not defined, but the step is: its derivative along the sphere is 1."""
    w = on_sphere(N, WIDTH).requires_grad_()
    new = lie_geodesic(Layer(f, torch.zeros_like, eps))(w, dt)
    torch.testing.assert_close(new, w, atol=1e-14, rtol=0)
    direction = tangent(w.detach(), torch.randn(N, WIDTH))
    (gradient,) = torch.autograd.grad(new, w, direction)
    assert gradient.isfinite().all()
    if f is torch.zeros_like and eps == 0:
        torch.testing.assert_close(tangent(w.detach(), gradient), direction, atol=1e-9, rtol=0)


def test_at_rest_a_great_circle_has_the_derivative_of_a_small_step():
    """Where f(w) = 0, and w + Δt f has no rounding: the derivative along the sphere is 1 + Δt T f'."""
    w = torch.tensor([[1.0, -1, 1, -1], [1, 1, -1, -1]])
    f, dt = torch.randn(4, 4), 0.3

    def step(v):
        return lie_geodesic(Layer(lambda v: (v - w) @ f, torch.zeros_like))(v, dt)

    assert torch.equal(step(w), w)
    direction = tangent(w, torch.randn(2, 4))
    at = w.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(step(at), at, direction)
    expected = tangent(w, direction + dt * direction @ f.T)
    torch.testing.assert_close(tangent(w, gradient), expected, **EXACT)


def angle(a, b):
    return torch.acos((a * b).mean(-1).clamp(-1, 1))


@pytest.mark.parametrize("dt", [0.25, 0.5, 1.0])
def test_the_angle_walked_is_the_part_dt_of_the_whole_angle(dt):
    w, f = on_sphere(N, WIDTH), torch.randn(N, WIDTH)
    target = project_mean_variance(w + f)
    new = lie_geodesic(Layer(lambda w: f, torch.zeros_like))(w, dt)
    torch.testing.assert_close(angle(w, new), dt * angle(w, target), atol=1e-9, rtol=0)
    torch.testing.assert_close(angle(new, target), (1 - dt) * angle(w, target), atol=1e-7, rtol=0)


def test_the_whole_angle_is_the_arctangent_of_tangent_over_normal_part():
    """θ = arctan(|T_w f| / (1 + mean(f w))), and above 90° where the normal part is below −1."""
    w, f = on_sphere(200, WIDTH), torch.randn(200, WIDTH)
    theta = angle(w, project_mean_variance(w + f))
    across = tangent(w, f).square().mean(-1).sqrt()
    torch.testing.assert_close(theta, torch.atan2(across, 1 + (f * w).mean(-1)), atol=1e-7, rtol=0)
    assert (theta > torch.pi / 2).any()


# ---- orders and limits ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def river(float64):
    """Two random layers that do not commute, the beginning of a walk, and the exact end of the equation."""
    torch.manual_seed(1)
    encoder, first = post_norm(2, eps=0.0)
    layers, w = (
        layers_before_gain(encoder.requires_grad_(False), first.requires_grad_(False)),
        on_sphere(N, WIDTH),
    )
    return layers, w, solution(layers, w, along_the_constraint)


def along_the_constraint(layer, w):
    """w_t = T_w (f_A + f_F), the limit of projected steps."""
    return tangent(w, layer.attention(w) + layer.feed_forward(w))


def along_great_circles(layer, w):
    """w_t = θ_A e_A + θ_F e_F: each velocity along the constraint, but with the speed θ of its circle."""
    total = torch.zeros_like(w)
    for f in (layer.attention(w), layer.feed_forward(w)):
        across = tangent(w, f)
        size = across.square().mean(-1, keepdim=True).sqrt()
        theta = torch.atan2(size, 1 + (f * w).mean(-1, keepdim=True))
        total = total + theta * across / size
    return total


def solution(layers, w, field):
    """The end of a walk, by SciPy's method of order 8 with tight tolerances, layer after layer."""
    for layer in layers:

        def right_hand_side(_, flat, layer=layer):
            at = project_mean_variance(torch.from_numpy(flat).reshape(N, WIDTH))
            return field(layer, at).numpy().ravel()

        result = solve_ivp(
            right_hand_side, (0, 1), w.numpy().ravel(), method="DOP853", rtol=1e-12, atol=1e-12
        )
        w = project_mean_variance(torch.from_numpy(result.y[:, -1].copy()).reshape(N, WIDTH))
    return w


def measured_order(layers, w, exact, scheme, counts):
    errors = [(walk(layers, w, scheme, n) - exact).norm() for n in counts]
    return order([1 / n for n in counts], errors)


ORDERS = {
    "lie_projected": (lie_projected, 1, [64, 128, 256]),
    "strang_tangent": (strang_tangent, 2, [16, 32, 64]),
    "rk4_tangent": (rk4_tangent, 4, [8, 16, 32]),
}


def test_the_velocities_of_these_tests_do_not_commute(river):
    """The commutator f_A' f_F − f_F' f_A, which a splitting makes its error of."""
    layers, w, _ = river
    for a, f, _ in layers:
        along = torch.func.jvp(f, (w,), (a(w),))[1] - torch.func.jvp(a, (w,), (f(w),))[1]
        assert along.norm() > 0.1


@pytest.mark.parametrize("scheme, expected, counts", ORDERS.values(), ids=ORDERS)
def test_orders(river, scheme, expected, counts):
    assert measured_order(*river, scheme, counts) == pytest.approx(expected, abs=0.1)


def test_great_circles_are_of_order_one_towards_their_own_limit(river):
    layers, w, _ = river
    exact = solution(layers, w, along_great_circles)
    slope = measured_order(layers, w, exact, lie_geodesic, [32, 64, 128])
    assert slope == pytest.approx(1, abs=0.1)


def test_the_network_does_not_determine_its_equation(river):
    """Both are the network at Δt = 1, and solve different equations for Δt → 0."""
    layers, w, exact = river
    ends = [walk(layers, w, scheme) for scheme in (lie_projected, lie_geodesic)]
    torch.testing.assert_close(*ends, **EXACT)
    limit = solution(layers, w, along_great_circles)
    assert distance(limit, exact) > 0.05
    assert distance(walk(layers, w, lie_geodesic, 64), exact) > 0.05


def strang_plain(layer):
    """Strang splitting that projects after steps that did not go along the constraint."""

    def plain(velocity):
        return lambda w, dt: project_mean_variance(midpoint(velocity, w, dt))

    return lambda w, dt: strang([plain(layer.attention), plain(layer.feed_forward)], w, dt)


def test_projecting_after_plain_stages_falls_back_to_order_one(river):
    slope = measured_order(*river, strang_plain, [64, 128])
    assert slope == pytest.approx(1, abs=0.15)


# ---- the walk ------------------------------------------------------------------------------------


@every_scheme
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("shape", [(N, WIDTH), (B, N, WIDTH), (2, B, N, WIDTH)], ids=str)
def test_a_trajectory_holds_every_state_of_every_layer(scheme, steps, shape):
    encoder, first = post_norm(2)
    layers, w = layers_before_gain(encoder, first), on_sphere(*shape)
    states = walk(layers, w, scheme, steps, trajectory=True)
    assert states.shape == (2 * steps + 1, *shape)
    assert torch.equal(states[0], w)
    assert torch.equal(states[-1], walk(layers, w, scheme, steps))
    for number, (before, after) in enumerate(zip(states, states[1:], strict=False)):
        step = scheme(layers[number // steps])
        torch.testing.assert_close(after, step(before, 1 / steps), **EXACT)


@every_scheme
def test_a_walk_through_layers_is_one_walk_after_the_other(scheme):
    encoder, first = post_norm(3)
    layers, w = layers_before_gain(encoder, first), on_sphere(N, WIDTH)
    whole = walk(layers, w, scheme, 2)
    parts = walk(layers[1:], walk(layers[:1], w, scheme, 2), scheme, 2)
    torch.testing.assert_close(whole, parts, **EXACT)


@every_scheme
def test_single_precision_stays_single_precision(scheme):
    encoder, first = post_norm(2)
    w = on_sphere(N, WIDTH)
    expected = walk(layers_before_gain(encoder, first), w, scheme, 3)
    layers = layers_before_gain(encoder.float(), first.float())
    found = walk(layers, w.float(), scheme, 3)
    assert found.dtype == torch.float32
    assert distance(found, expected) < 1e-4


def test_a_walk_leaves_its_start_alone():
    encoder, first = post_norm(1)
    w = on_sphere(N, WIDTH)
    before = w.clone()
    walk(layers_before_gain(encoder, first), w, lie_geodesic, 3)
    assert torch.equal(w, before)
