"""The encoder: what dt and steps mean, layers as a river, shapes, precision, storage."""

import copy

import pytest
import torch
from orders import order
from scipy.integrate import solve_ivp

from lib.encoder import Encoder, EncoderLayer
from lib.projection import Normalisation, project_mean_variance, tangent
from lib.splitting import evolve, lie, relax

pytestmark = pytest.mark.usefixtures("float64")

WIDTH, TOKENS = 6, 5
both_orders = pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])


def randomised(module, spread=0.5):
    """The module with every parameter random, gains and biases too."""
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=spread)
    return module


def random_layer(norm_first=False, hidden=8, heads=2, **options):
    return randomised(EncoderLayer(WIDTH, heads, hidden, norm_first, **options))


def random_encoder(norm_first=False):
    norm = randomised(Normalisation(WIDTH)) if norm_first else None
    return Encoder([random_layer(norm_first), random_layer(norm_first, hidden=11, heads=3)], norm)


def step_by_hand(layer, u, weights, dt):
    """One step, written out from the formulas of the module's first lines."""
    N1, N2, A, F = layer.norm1, layer.norm2, layer.attention, layer.feed_forward
    if layer.norm_first:
        u = u + dt * A(N1(u), weights)
        return u + dt * F(N2(u))
    u = N1(u + dt * A(u, weights))
    return N2(u + dt * F(u))


# ---- dt and steps --------------------------------------------------------------------------------


@both_orders
@pytest.mark.parametrize("dt, steps", [(1.0, 1), (1.0, 3), (0.5, 2), (0.1, 7), (2, 1)])
@pytest.mark.parametrize("weighted", [False, True])
def test_every_layer_takes_steps_of_size_dt(norm_first, dt, steps, weighted):
    encoder, u = random_encoder(norm_first), torch.randn(3, TOKENS, WIDTH)
    weights = torch.rand(TOKENS) + 0.1 if weighted else None
    expected = u
    for layer in encoder.layers:
        for _ in range(steps):
            expected = step_by_hand(layer, expected, weights, dt)
    expected = expected if encoder.norm is None else encoder.norm(expected)
    torch.testing.assert_close(encoder(u, weights, dt=dt, steps=steps), expected)


@both_orders
def test_by_default_a_layer_is_one_step_of_size_one(norm_first):
    layer, u = random_layer(norm_first), torch.randn(3, TOKENS, WIDTH)
    torch.testing.assert_close(layer(u), step_by_hand(layer, u, None, 1.0))
    assert torch.equal(layer(u), layer(u, None, 1.0, 1))


@both_orders
def test_the_layer_is_a_lie_splitting_of_its_flows(norm_first):
    layer, u, w = random_layer(norm_first), torch.randn(TOKENS, WIDTH), torch.rand(TOKENS)
    walked = evolve(lambda u, dt: lie(layer.flows(w), u, dt), u, 0.0, 2.0, 4)
    torch.testing.assert_close(layer(u, w, dt=0.5, steps=4), walked)


def test_the_last_normalisation_is_applied_once():
    layer, u = random_layer(True), torch.randn(TOKENS, WIDTH)
    norm = randomised(Normalisation(WIDTH))
    torch.testing.assert_close(
        Encoder([layer], norm)(u, dt=0.5, steps=3), norm(layer(u, dt=0.5, steps=3))
    )


@pytest.mark.parametrize("dt", [0.25, 1.0, 3.0])
def test_a_post_norm_layer_is_two_relaxations_with_a_scaled_eps(dt):
    layer, u = random_layer(eps=1e-3), torch.randn(TOKENS, WIDTH)
    relaxed = copy.deepcopy(layer)
    relaxed.norm1.eps = relaxed.norm2.eps = 1e-3 / (1 + dt) ** 2
    v = relaxed.norm1(relax(u, layer.attention(u), dt))
    v = relaxed.norm2(relax(v, layer.feed_forward(v), dt))
    torch.testing.assert_close(v, layer(u, dt=dt), atol=1e-14, rtol=1e-13)


# ---- layers become a river -----------------------------------------------------------------------


def river(velocity, u):
    """u(1) of u_t = velocity(u) by SciPy."""

    def right_hand_side(_, v):
        with torch.no_grad():
            return velocity(torch.from_numpy(v).reshape(u.shape)).numpy().ravel()

    result = solve_ivp(
        right_hand_side, (0, 1), u.numpy().ravel(), method="DOP853", rtol=1e-11, atol=1e-11
    )
    return torch.from_numpy(result.y[:, -1]).reshape(u.shape)


def order_towards(layer, u, exact):
    counts = [16, 32, 64]
    with torch.no_grad():
        errors = [(layer(u, dt=1 / n, steps=n) - exact).norm() for n in counts]
    return order([1 / n for n in counts], errors)


def test_a_pre_norm_layer_in_small_steps_is_the_equation():
    """u_t = A(N₁u) + F(N₂u), approached with the order 1 of a Lie splitting."""
    layer, u = random_layer(True), torch.randn(TOKENS, WIDTH)
    exact = river(lambda v: layer.attention(layer.norm1(v)) + layer.feed_forward(layer.norm2(v)), u)
    assert order_towards(layer, u, exact) == pytest.approx(1, abs=0.1)


def test_a_post_norm_layer_without_gain_in_small_steps_is_the_equation_on_s1():
    """w_t = P_T(w)(A(w) + F(w)): with ε = 0, gain 1 and bias 0 each norm is a projection."""
    layer = random_layer(eps=0.0)
    for norm in (layer.norm1, layer.norm2):
        torch.nn.init.ones_(norm.gain)
        torch.nn.init.zeros_(norm.bias)
    w = project_mean_variance(torch.randn(TOKENS, WIDTH))
    exact = river(lambda v: tangent(v, layer.attention(v) + layer.feed_forward(v)), w)
    assert order_towards(layer, w, exact) == pytest.approx(1, abs=0.1)


# ---- shapes, weights, precision ------------------------------------------------------------------


@both_orders
@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (2, 1, 3)], ids=str)
def test_any_number_of_leading_dimensions(norm_first, lead):
    encoder, u = random_encoder(norm_first), torch.randn(*lead, TOKENS, WIDTH)
    result = encoder(u)
    each = [encoder(v) for v in u.reshape(-1, TOKENS, WIDTH)]
    torch.testing.assert_close(result, torch.stack(each).reshape(u.shape))


@both_orders
def test_a_padded_batch_is_every_sequence_by_itself(norm_first):
    encoder, u, lengths = random_encoder(norm_first), torch.randn(3, TOKENS, WIDTH), [5, 3, 1]
    weights = (torch.arange(TOKENS) < torch.tensor(lengths)[:, None]).double().unsqueeze(1)
    result = encoder(u, weights, dt=0.5, steps=2)
    for b, n in enumerate(lengths):
        torch.testing.assert_close(result[b, :n], encoder(u[b, :n], dt=0.5, steps=2))


@both_orders
def test_the_order_of_the_tokens_does_not_matter(norm_first):
    encoder, u, p = (
        random_encoder(norm_first),
        torch.randn(2, TOKENS, WIDTH),
        torch.randperm(TOKENS),
    )
    torch.testing.assert_close(encoder(u[:, p]), encoder(u)[:, p])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_precision_is_that_of_the_module(dtype):
    encoder, u = random_encoder(), torch.randn(2, TOKENS, WIDTH)
    expected = encoder(u)
    result = encoder.to(dtype)(u.to(dtype))
    assert result.dtype == dtype
    torch.testing.assert_close(result.double(), expected, atol=1e-5, rtol=1e-5)


def test_the_state_dict_makes_a_round_trip(tmp_path):
    encoder, other, u = random_encoder(True), random_encoder(True), torch.randn(2, TOKENS, WIDTH)
    assert not torch.equal(encoder(u), other(u))
    torch.save(encoder.state_dict(), tmp_path / "encoder.pt")
    other.load_state_dict(torch.load(tmp_path / "encoder.pt"))
    assert torch.equal(encoder(u), other(u))


@both_orders
def test_gradients_with_respect_to_u_are_correct(norm_first):
    layer, u = random_layer(norm_first), torch.randn(2, 3, WIDTH, requires_grad=True)
    assert torch.autograd.gradcheck(lambda u: layer(u, dt=0.5, steps=2), u)
