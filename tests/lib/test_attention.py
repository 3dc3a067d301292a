"""Attention: γ is a density, the integral a quadrature, weights are masks; γ is never stored."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from orders import order
from scipy.integrate import quad
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile

from lib.attention import SelfAttention, attend, causal, kernel
from lib.domain import Domain

pytestmark = pytest.mark.usefixtures("float64")

seeds = st.integers(0, 2**31)
LEADS = [(), (3,), (2, 3), (2, 1, 3), (1, 2, 1, 3)]
WEIGHTS = ["none", "nodes", "matrix", "rows", "batch"]


def triple(lead=(), N_q=5, N_k=7, d=4, d_v=3):
    """Random Q, K, V with the given leading dimensions."""
    return torch.randn(*lead, N_q, d), torch.randn(*lead, N_k, d), torch.randn(*lead, N_k, d_v)


def some_weights(kind, lead, N_q, N_k):
    """Random weights of each shape that attention takes; a third is zero, but no row is blind."""
    shape = {
        "nodes": (N_k,),
        "matrix": (N_q, N_k),
        "rows": (1, N_k),
        "batch": (*lead, N_q, N_k),
    }.get(kind)
    if shape is None:
        return None
    weights = torch.rand(shape) * (torch.rand(shape) > 0.3)
    return weights.index_fill(-1, torch.tensor([0]), 0.5)


def rows_sum(gamma, weights):
    return (gamma if weights is None else gamma * weights).sum(-1)


@st.composite
def problems(draw):
    """Q, K, V and weights of any shape that attention takes."""
    lead = tuple(draw(st.lists(st.integers(1, 3), max_size=4)))
    N_q, N_k, d, d_v = (draw(st.integers(1, 6)) for _ in range(4))
    torch.manual_seed(draw(seeds))
    kind = draw(st.sampled_from(WEIGHTS))
    return *triple(lead, N_q, N_k, d, d_v), some_weights(kind, lead, N_q, N_k)


# ---- the kernel is a density, the integral its mean ----------------------------------------------


@given(problem=problems())
def test_rows_of_the_kernel_integrate_to_one(problem):
    Q, K, _, weights = problem
    gamma = kernel(Q, K, weights)
    assert gamma.shape == (*Q.shape[:-1], K.shape[-2])
    assert (gamma >= 0).all()
    torch.testing.assert_close(rows_sum(gamma, weights), torch.ones(Q.shape[:-1]))


@given(problem=problems())
def test_attend_is_the_integral_of_the_kernel_times_the_values(problem):
    Q, K, V, weights = problem
    gamma = kernel(Q, K, weights)
    expected = (gamma if weights is None else gamma * weights) @ V
    torch.testing.assert_close(attend(Q, K, V, weights), expected, atol=1e-13, rtol=1e-12)


@given(problem=problems())
def test_attend_is_a_weighted_mean_of_the_values(problem):
    Q, K, V, weights = problem
    result = attend(Q, K, V, weights)
    assert (result <= V.amax(-2, keepdim=True) + 1e-12).all()
    assert (result >= V.amin(-2, keepdim=True) - 1e-12).all()


@pytest.mark.parametrize(
    "weights", [None, torch.rand(7, dtype=torch.float64)], ids=["unit", "weighted"]
)
def test_the_kernel_has_the_ratios_of_the_formula(weights):
    Q, K, _ = triple()
    gamma, s = kernel(Q, K, weights), Q @ K.mT / math.sqrt(4)
    torch.testing.assert_close(gamma / gamma[:, :1], torch.exp(s - s[:, :1]))


def test_a_scale_of_ones_own_replaces_the_root_of_d():
    Q, K, V = triple()
    torch.testing.assert_close(attend(Q, K, V, scale=0.3), attend(0.3 * 2 * Q, K, V))
    torch.testing.assert_close(kernel(Q, K, scale=0.3), kernel(0.3 * 2 * Q, K))


@given(seed=seeds)
def test_a_score_that_every_key_shares_changes_nothing(seed):
    torch.manual_seed(seed)
    Q, K, V = triple()
    w, shift = torch.rand(7) + 0.1, torch.randn(4)
    torch.testing.assert_close(attend(Q, K + shift, V, w), attend(Q, K, V, w))


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-6), (torch.float64, 1e-15)])
def test_precision_is_kept(dtype, tolerance):
    Q, K, V = triple((2,))
    w = torch.rand(7)
    for weights in (None, w, w.to(dtype)):
        result = attend(Q.to(dtype), K.to(dtype), V.to(dtype), weights)
        gamma = kernel(Q.to(dtype), K.to(dtype), weights)
        assert result.dtype == gamma.dtype == dtype
        assert (result - attend(Q, K, V, weights)).abs().max() <= tolerance
        assert (gamma - kernel(Q, K, weights)).abs().max() <= 10 * tolerance


# ---- against SciPy -------------------------------------------------------------------------------


def query(x, y):
    return np.cos(x + 2 * y)


def key(x, y):
    return 3 * np.exp(-x) * np.sin(2 + y)


def value(x):
    return x**2 - np.sin(3 * x)


POINTS = torch.tensor([0.1, 0.5, 0.8], dtype=torch.float64)


@pytest.fixture(scope="module")
def integral():
    """⟨γ, V⟩ at three points, features on [0, 2] and tokens on [0, 1], by SciPy."""

    def score(x, z):
        return quad(lambda y: query(x, y) * key(z, y), 0, 2, epsabs=1e-13)[0] / math.sqrt(2)

    def mean(x):
        above = quad(lambda z: math.exp(score(x, z)) * value(z), 0, 1, epsabs=1e-12)[0]
        return above / quad(lambda z: math.exp(score(x, z)), 0, 1, epsabs=1e-12)[0]

    return torch.tensor([mean(x) for x in POINTS.tolist()], dtype=torch.float64)


def on_grid(tokens, features):
    """⟨γ, V⟩ at the points; the grid of Ωy has its weights in K and √|Ωy| in the scale."""
    x, z, y = POINTS[:, None].numpy(), tokens.nodes[:, None].numpy(), features.nodes.numpy()
    Q, K, V = (torch.from_numpy(f) for f in (query(x, y), key(z, y), value(z)))
    scale = 1 / math.sqrt(features.measure)
    return attend(Q, K * features.weights, V, tokens.weights, scale=scale).squeeze(-1)


def test_attention_agrees_with_scipy(integral):
    result = on_grid(Domain.gauss(16), Domain.gauss(16, 0.0, 2.0))
    torch.testing.assert_close(result, integral, atol=1e-12, rtol=0)


@pytest.mark.parametrize("rule", [Domain.midpoint, Domain.trapezoid], ids=["midpoint", "trapezoid"])
def test_attention_converges_with_the_order_of_its_rule(rule, integral):
    grids = [rule(n) for n in (16, 32, 64, 128)]
    errors = [(on_grid(grid, Domain.gauss(16, 0.0, 2.0)) - integral).abs().max() for grid in grids]
    assert order([grid.nodes.diff()[0].item() for grid in grids], errors) == pytest.approx(
        2, abs=0.1
    )


def test_without_weights_uneven_nodes_do_not_converge(integral):
    """Gauss nodes crowd at the ends: no refinement mends the error of leaving out their weights."""
    n = 64
    crowd = Domain(Domain.gauss(n).nodes, torch.ones(n))
    assert (on_grid(crowd, Domain.gauss(16, 0.0, 2.0)) - integral).abs().max() > 1e-2


# ---- weights -------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1e-300, 1e-5, 1.0, 3.0, 1e300])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-6), (torch.float64, 1e-13)])
def test_equal_weights_cancel(size, dtype, tolerance):
    Q, K, V = (x.to(dtype) for x in triple((2,)))
    result = attend(Q, K, V, torch.full((7,), size, dtype=torch.float64))
    torch.testing.assert_close(result, attend(Q, K, V), atol=tolerance, rtol=0)


@given(problem=problems(), size=st.floats(1e-6, 1e6))
def test_the_unit_of_the_weights_cancels(problem, size):
    Q, K, V, weights = problem
    if weights is not None:
        torch.testing.assert_close(attend(Q, K, V, size * weights), attend(Q, K, V, weights))
        torch.testing.assert_close(kernel(Q, K, size * weights) * size, kernel(Q, K, weights))


def test_a_weight_of_zero_is_a_node_that_is_not_there():
    Q, K, V = triple((2,))
    w = torch.tensor([0.5, 0.0, 1.0, 0.0, 2.0, 0.1, 0.0])
    seen = w > 0
    dropped = attend(Q, K[:, seen], V[:, seen], w[seen])
    torch.testing.assert_close(attend(Q, K, V, w), dropped)
    far = K.masked_fill(~seen[:, None], 1e6)  # what is not seen may be anything
    torch.testing.assert_close(attend(Q, far, V, w), dropped)


def test_the_kernel_vanishes_where_nothing_is_seen():
    Q, K, _ = triple()
    w = torch.tensor([0.5, 0.0, 1.0, 0.0, 2.0, 0.1, 0.0])
    K[w == 0] = 1e5
    gamma = kernel(Q, K, w)
    assert (gamma[:, w == 0] == 0).all()
    torch.testing.assert_close(gamma @ w, torch.ones(5))


def test_two_nodes_of_half_a_weight_are_one_node():
    Q, K, V = triple()
    w = torch.rand(7) + 0.1
    twice = [torch.cat([x, x]) for x in (K, V, w / 2)]
    torch.testing.assert_close(attend(Q, *twice), attend(Q, K, V, w))


def test_every_shape_of_weights_means_the_same():
    Q, K, V = triple((2, 3))
    w = torch.rand(7) + 0.1
    expected = attend(Q, K, V, w)
    for shape in [(1, 7), (5, 7), (1, 1, 7), (3, 1, 7), (2, 1, 5, 7), (2, 3, 5, 7)]:
        torch.testing.assert_close(attend(Q, K, V, w.expand(shape)), expected)


def test_padding_of_a_batch_is_the_weight_zero():
    Q, K, V = triple((3,))
    lengths = [7, 4, 1]
    weights = (torch.arange(7) < torch.tensor(lengths)[:, None]).double().unsqueeze(1)  # (B, 1, N)
    result = attend(Q, K, V, weights)
    for b, n in enumerate(lengths):
        torch.testing.assert_close(result[b], attend(Q[b], K[b, :n], V[b, :n]))


def test_causal_attention_is_the_attention_of_every_prefix():
    Q, K, V = triple(N_q=7)
    w = torch.rand(7) + 0.1
    result = attend(Q, K, V, causal(w))
    for i in range(7):
        prefix = attend(Q[i : i + 1], K[: i + 1], V[: i + 1], w[: i + 1])
        torch.testing.assert_close(result[i : i + 1], prefix)


def test_causal_weights_are_those_of_the_past():
    assert causal(torch.tensor([1.0, 2.0, 3.0])).tolist() == [[1, 0, 0], [1, 2, 0], [1, 2, 3]]


@given(seed=seeds, lead=st.sampled_from(LEADS))
def test_the_order_of_the_nodes_does_not_matter(seed, lead):
    torch.manual_seed(seed)
    Q, K, V = triple(lead)
    w, p, q = torch.rand(7) + 0.1, torch.randperm(7), torch.randperm(5)
    shuffled = attend(Q[..., q, :], K[..., p, :], V[..., p, :], w[p])
    torch.testing.assert_close(shuffled, attend(Q, K, V, w)[..., q, :])


# ---- large and small numbers ---------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("weighted", [False, True])
def test_very_large_scores_pick_the_best_key(dtype, weighted):
    Q, K, V = (x.to(dtype) for x in triple((2,)))
    weights = torch.rand(7).to(dtype) + 0.1 if weighted else None
    best = (Q @ K.mT).argmax(-1, keepdim=True).expand(2, 5, 3)
    result = attend(1e8 * Q, 1e8 * K, V, weights)
    torch.testing.assert_close(result, V.gather(-2, best))
    gamma = kernel(1e8 * Q, 1e8 * K, weights)
    torch.testing.assert_close(rows_sum(gamma, weights), torch.ones(2, 5, dtype=dtype))


def test_very_small_weights_still_count():
    """With a score larger by log 1e300, a weight of 1e-300 counts as much as one of 1."""
    Q, K = torch.ones(1, 1), torch.tensor([[0.0], [300 * math.log(10)]])
    V, w = torch.tensor([[0.0], [1.0]]), torch.tensor([1.0, 1e-300])
    assert attend(Q, K, V, w).item() == pytest.approx(0.5, abs=1e-10)
    torch.testing.assert_close((kernel(Q, K, w) * w), torch.tensor([[0.5, 0.5]]))


# ---- shapes and memory ---------------------------------------------------------------------------


@pytest.mark.parametrize("lead", LEADS, ids=str)
@pytest.mark.parametrize("kind", WEIGHTS)
def test_any_number_of_leading_dimensions(lead, kind):
    Q, K, V = triple(lead)
    weights = some_weights(kind, lead, 5, 7)
    result = attend(Q, K, V, weights)
    assert result.shape == (*lead, 5, 3)
    flat = [x.reshape(-1, *x.shape[-2:]) for x in (Q, K, V)]
    full = torch.ones(5, 7) if weights is None else weights
    each = [
        attend(*qkv, w)
        for *qkv, w in zip(*flat, full.expand(*lead, 5, 7).reshape(-1, 5, 7), strict=True)
    ]
    torch.testing.assert_close(result, torch.stack(each).reshape(result.shape))


@pytest.mark.parametrize("which", range(3), ids=["Q", "K", "V"])
def test_leading_dimensions_are_broadcast(which):
    inputs = list(triple())
    inputs[which] = torch.randn(2, 3, *inputs[which].shape)
    w = torch.rand(7)
    result = attend(*inputs, w)
    assert result.shape == (2, 3, 5, 3)
    full = [x.expand(2, 3, *x.shape[-2:]) for x in inputs]
    torch.testing.assert_close(result, attend(*full, w))


def test_weights_may_have_leading_dimensions_that_the_functions_lack():
    Q, K, V = triple()
    weights = torch.rand(2, 3, 5, 7)
    expected = (kernel(Q, K, weights) * weights) @ V
    assert expected.shape == (2, 3, 5, 3)
    torch.testing.assert_close(attend(Q, K, V, weights), expected)


def largest_allocation(compute):
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        compute()
    return max(event.self_cpu_memory_usage for event in record.events())


@pytest.mark.parametrize("lead", [(), (1,), (1, 1), (1, 1, 1)], ids=str)
@pytest.mark.parametrize("d_v", [8, 3])
@pytest.mark.parametrize("weighted", [False, True])
def test_attend_never_stores_the_kernel(lead, d_v, weighted):
    N = 2048
    Q, K, V = (x.float() for x in triple(lead, N, N, 8, d_v))
    weights = torch.rand(N) + 0.1 if weighted else None
    assert largest_allocation(lambda: attend(Q, K, V, weights)) < N * N * 4 / 8


@pytest.mark.parametrize("lead", [(), (2,), (1, 2), (1, 2, 1)], ids=str)
def test_self_attention_with_padding_never_stores_the_kernel(lead):
    N = 2048
    attention, u = SelfAttention(16, 2).float(), torch.randn(*lead, N, 16).float()
    weights = torch.ones(*lead, 1, N)
    assert largest_allocation(lambda: attention(u, weights)) < N * N * 4 / 8


def test_the_kernel_itself_is_seen_by_this_measurement():
    N = 512
    Q, K, _ = triple((), N, N)
    assert largest_allocation(lambda: kernel(Q, K)) >= N * N * 8


# ---- derivatives ---------------------------------------------------------------------------------


@pytest.mark.parametrize("lead", [(), (2,), (1, 2)], ids=str)
@pytest.mark.parametrize("kind", ["none", "nodes", "batch"])
def test_gradients_are_correct(lead, kind):
    inputs = [x.requires_grad_() for x in triple(lead, 3, 4, 2, 3)]
    weights = some_weights(kind, lead, 3, 4)
    assert torch.autograd.gradcheck(lambda Q, K, V: attend(Q, K, V, weights), inputs)
    assert torch.autograd.gradcheck(lambda Q, K: kernel(Q, K, weights), inputs[:2])


@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 1, 4)], ids=str)
def test_gradients_through_the_weights_are_correct(shape):
    Q, K, V = triple((2,), 3, 4, 2, 3)
    weights = (torch.rand(shape) + 0.1).requires_grad_()
    assert torch.autograd.gradcheck(lambda w: attend(Q, K, V, w), weights)
    assert torch.autograd.gradcheck(lambda w: kernel(Q, K, w), weights)


def test_a_hidden_node_does_not_spoil_the_gradient_of_the_other_weights():
    Q, K, V = triple(N_k=4)
    seen = torch.tensor([True, True, False, True])
    w = torch.tensor([0.5, 1.0, 0.0, 2.0], requires_grad=True)
    some = w.detach()[seen].requires_grad_()
    (full,) = torch.autograd.grad(attend(Q, K, V, w).square().sum(), w)
    (expected,) = torch.autograd.grad(attend(Q, K[seen], V[seen], some).square().sum(), some)
    assert full.isfinite().all()
    torch.testing.assert_close(full[seen], expected)


@pytest.mark.filterwarnings(
    "ignore:.torch.jit.script:DeprecationWarning"
)  # torch's own, in torch.func
@pytest.mark.parametrize("lead", [(), (2,), (1, 2)], ids=str)
@pytest.mark.parametrize("weighted", [False, True])
def test_forward_derivatives_and_jacobians(lead, weighted):
    Q, K, V = triple(lead, 3, 4, 2, 2)
    weights, direction = (torch.rand(4) if weighted else None), torch.randn_like(Q)
    with sdpa_kernel(SDPBackend.MATH):
        _, forward = torch.func.jvp(lambda q: attend(q, K, V, weights), (Q,), (direction,))
    jacobian = torch.autograd.functional.jacobian(lambda q: attend(q, K, V, weights), Q)
    torch.testing.assert_close(torch.tensordot(jacobian, direction, direction.dim()), forward)


# ---- self-attention ------------------------------------------------------------------------------


def random_self_attention(width=6, heads=2):
    attention = SelfAttention(width, heads)
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter)
    return attention


@pytest.mark.parametrize("heads", [1, 2, 3, 6])
@pytest.mark.parametrize("weighted", [False, True])
def test_self_attention_is_the_sum_over_its_heads(heads, weighted):
    width, attention, u = 6, random_self_attention(6, heads), torch.randn(5, 6)
    w = torch.rand(5) + 0.1 if weighted else torch.ones(5)
    maps = attention.QKV.weight.reshape(3, heads, width // heads, width)
    biases = attention.QKV.bias.reshape(3, heads, width // heads)
    total = attention.O.bias
    for h in range(heads):
        Q, K, V = (u @ W.T + b for W, b in zip(maps[:, h], biases[:, h], strict=True))
        W_O = attention.O.weight.reshape(width, heads, width // heads)[:, h]
        total = total + (kernel(Q, K, w) * w) @ V @ W_O.T
    torch.testing.assert_close(attention(u, w if weighted else None), total)


def test_split_gives_the_three_functions_of_every_head():
    attention, u = random_self_attention(), torch.randn(4, 5, 6)
    parts = attention.split(u)
    assert [part.shape for part in parts] == [(4, 2, 5, 3)] * 3
    torch.testing.assert_close(
        torch.cat([p.transpose(1, 2).flatten(2) for p in parts], -1), attention.QKV(u)
    )


@pytest.mark.parametrize("lead", LEADS, ids=str)
@pytest.mark.parametrize("kind", WEIGHTS)
def test_self_attention_on_any_leading_dimensions(lead, kind):
    attention, u = random_self_attention(), torch.randn(*lead, 5, 6)
    weights = some_weights(kind, lead, 5, 5)
    result = attention(u, weights)
    full = torch.ones(5, 5) if weights is None else weights
    batch = zip(u.reshape(-1, 5, 6), full.expand(*lead, 5, 5).reshape(-1, 5, 5), strict=True)
    torch.testing.assert_close(
        result, torch.stack([attention(*pair) for pair in batch]).reshape(u.shape)
    )


def test_self_attention_does_not_know_the_order_of_the_tokens():
    attention, u, p = random_self_attention(), torch.randn(2, 5, 6), torch.randperm(5)
    torch.testing.assert_close(attention(u[:, p]), attention(u)[:, p])


def test_self_attention_has_correct_gradients():
    attention, u = random_self_attention(4), torch.randn(2, 3, 4, requires_grad=True)
    names, parameters = zip(*attention.named_parameters(), strict=True)

    def call(u, *values):
        return torch.func.functional_call(attention, dict(zip(names, values, strict=True)), (u,))

    assert torch.autograd.gradcheck(call, (u, *parameters))
