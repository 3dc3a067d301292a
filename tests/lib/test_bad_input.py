"""Bad input: each case raises a `ValueError` that names the concept, and says what came."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from lib.attention import SelfAttention, attend, causal, kernel
from lib.convolution import ConvolutionalAttention, ConvolutionalLayer, local_integral
from lib.cvt import ConvolutionalTransformer, Stage
from lib.domain import Domain, integral_map
from lib.encoder import Encoder, EncoderLayer
from lib.feedforward import FeedForward, feed_forward
from lib.positions import Table, Waves, centres, pair, quadrature, waves
from lib.projection import (
    Normalisation,
    project_mean_square,
    project_mean_variance,
    project_nonnegative,
    tangent,
)
from lib.sphere import (
    Layer,
    before_gain,
    layers_before_gain,
    lie_geodesic,
    lie_projected,
    rk4_tangent,
    strang_tangent,
)
from lib.sphere import walk as walk_layers
from lib.splitting import constrained, euler, evolve, lie, midpoint, relax, rk4, strang
from lib.stability import derivative, largest_step, lipschitz, stiffest
from lib.text import TextEncoder, sentence
from lib.vit import VisionTransformer

pytestmark = pytest.mark.usefixtures("float64")

nan, inf = math.nan, math.inf


def ones(*shape):
    return torch.ones(*shape, dtype=torch.float64)


def zeros(*shape):
    return torch.zeros(*shape, dtype=torch.float64)


def cases(table):
    """A table of name: (call, words that the message must contain, in this order)."""
    return pytest.mark.parametrize("call, words", table.values(), ids=table.keys())


def assert_refused(call, words):
    with pytest.raises(ValueError, match="(?is)" + ".*".join(words.split(" … "))):
        call()


def with_values(function, good, concept):
    """What any function of a tensor must refuse: a list, whole numbers, NaN, infinity."""
    spoiled = {nan: good.clone(), inf: good.clone()}
    for value, tensor in spoiled.items():
        tensor.view(-1)[0] = value
    name = concept.replace(" ", "_")
    return {
        f"{name}-list": (
            lambda: function(good.tolist()),
            f"{concept} … torch tensor … list came … as_tensor",
        ),
        f"{name}-integer": (
            lambda: function(good.long()),
            rf"{concept} … real numbers … int64 … \.double\(\)",
        ),
        f"{name}-nan": (lambda: function(spoiled[nan]), f"{concept} … finite … NaN"),
        f"{name}-inf": (lambda: function(spoiled[inf]), f"{concept} … finite … infinity"),
    }


def with_weights(function, n, concept):
    """What any function of quadrature weights must refuse as well."""
    negative = ones(n).index_fill(0, torch.tensor([1]), -0.5)
    name = concept.replace(" ", "_")
    return with_values(function, ones(n), concept) | {
        f"{name}-negative": (
            lambda: function(negative),
            f"{concept} … must not be negative … -0.5 … hides a node",
        ),
        f"{name}-none": (lambda: function(ones(0)), f"{concept} … at least one"),
    }


# ---- domains and integral maps -------------------------------------------------------------------

grid = Domain(ones(4).cumsum(0), ones(4))
DOMAIN = (
    with_values(lambda x: Domain(x, ones(4)), ones(4), "nodes of a domain")
    | with_weights(lambda w: Domain(zeros(4), w), 4, "weights of a domain")
    | with_values(grid.integrate, ones(4), "function on a domain")
    | {
        "weights-of-another-shape": (
            lambda: Domain(zeros(4), ones(3)),
            r"one weight for each node … \(4,\) … \(3,\)",
        ),
        "weights-in-a-matrix": (
            lambda: Domain(zeros(4), ones(4, 1)),
            r"one weight for each node … \(4, 1\)",
        ),
        "all-weights-zero": (lambda: Domain(zeros(4), zeros(4)), "domain … positive … measure"),
        "infinite-measure": (
            lambda: Domain(zeros(4), torch.full((4,), 1e308)),
            "domain … finite measure … inf",
        ),
        "no-nodes": (lambda: Domain(zeros(0), zeros(0)), "weights of a domain … at least one"),
        "zero-nodes": (lambda: Domain.midpoint(0), "number n of nodes … at least 1 … 0 came"),
        "half-a-node": (lambda: Domain.gauss(2.5), r"number n of nodes … whole number … 2\.5 came"),
        "boolean-nodes": (
            lambda: Domain.unit_cells(True),
            "number n of nodes … whole number … True came",
        ),
        "trapezoid-of-one": (lambda: Domain.trapezoid(1), "trapezoid … at least 2 … 1 came"),
        "empty-interval": (lambda: Domain.gauss(3, 1.0, 1.0), r"interval … a < b … \[1, 1\]"),
        "reversed-interval": (lambda: Domain.midpoint(3, 2.0, 1.0), r"interval … a < b … \[2, 1\]"),
        "infinite-interval": (lambda: Domain.gauss(3, 0.0, inf), "interval … finite … inf came"),
        "interval-nan": (lambda: Domain.trapezoid(3, nan, 1.0), "interval … finite … nan came"),
        "interval-text": (lambda: Domain.midpoint(3, "a", 1.0), "interval … number … 'a' came"),
        "sample-nan": (
            lambda: grid.sample(lambda x: torch.log(x - 2)),
            "samples of the function … finite",
        ),
        "sample-number": (
            lambda: grid.sample(lambda x: 1.0),
            "samples of the function … tensor … float came",
        ),
        "sample-sum": (lambda: grid.sample(torch.sum), "samples of the function … dimension"),
        "sample-length": (
            lambda: grid.sample(lambda x: ones(3)),
            r"4 values, one for each node … \(3,\)",
        ),
        "sample-no-function": (lambda: grid.sample(3), "function … 3 came"),
        "kernel-shape": (
            lambda: grid.sample_kernel(lambda y, z: ones(7, 7), grid),
            r"kernel … \(7, 7\)",
        ),
        "kernel-dimensions": (
            lambda: grid.sample_kernel(lambda y, z: ones(2, 4, 4), grid),
            r"kernel … \(2, 4, 4\)",
        ),
        "kernel-nan": (
            lambda: grid.sample_kernel(lambda y, z: y / 0 * 0, grid),
            "samples of the kernel … finite",
        ),
        "integrate-length": (
            lambda: grid.integrate(ones(4, 3)),
            r"4 values along dimension -1 … \(4, 3\)",
        ),
        "integrate-dim": (
            lambda: grid.integrate(ones(4, 4), 2),
            r"4 values along dimension 2 … \(4, 4\)",
        ),
        "integrate-number": (
            lambda: grid.integrate(torch.tensor(1.0)),
            "function on a domain … dimension",
        ),
        "mean-length": (lambda: grid.mean(ones(3)), r"4 values along dimension -1 … \(3,\)"),
        "variance-length": (
            lambda: grid.variance(ones(3)),
            r"4 values along dimension -1 … \(3,\)",
        ),
        "inner-mismatch": (
            lambda: grid.inner(ones(4), ones(3)),
            r"inner product … \(4,\) … \(3,\)",
        ),
        "inner-length": (
            lambda: grid.inner(ones(3), ones(3)),
            r"4 values along dimension -1 … \(3,\)",
        ),
        "inner-list": (lambda: grid.inner([1.0] * 4, ones(4)), "torch tensor … list came"),
    }
)

W, u3 = ones(2, 3), ones(5, 3)
INTEGRAL_MAP = (
    with_values(lambda W: integral_map(W, u3), W, "kernel W of an integral map")
    | with_values(lambda u: integral_map(W, u), u3, "function u in an integral map")
    | with_values(lambda b: integral_map(W, u3, bias=b), ones(2), "bias b of an integral map")
    | with_weights(lambda w: integral_map(W, u3, w), 3, "weights of an integral map")
    | {
        "u": (
            lambda: integral_map(W, ones(5, 2)),
            r"kernel \(d_out, d_in\) and u … \(2, 3\) … \(5, 2\)",
        ),
        "kernel-3-dims": (
            lambda: integral_map(ones(4, 2, 3), u3),
            r"kernel \(d_out, d_in\) … \(4, 2, 3\)",
        ),
        "weights": (lambda: integral_map(W, u3, ones(2)), r"needs 3 weights … \(2,\)"),
        "weights-matrix": (lambda: integral_map(W, u3, ones(1, 3)), r"needs 3 weights … \(1, 3\)"),
        "bias-length": (lambda: integral_map(W, u3, bias=ones(3)), r"bias … 2 values … \(3,\)"),
        "bias-one": (lambda: integral_map(W, u3, bias=ones(1)), r"bias … 2 values … \(1,\)"),
        "bias-matrix": (
            lambda: integral_map(W, u3, bias=ones(5, 2)),
            r"bias … 2 values … \(5, 2\)",
        ),
        "bias-number": (lambda: integral_map(W, u3, bias=torch.tensor(1.0)), "bias … dimension"),
        "precision": (lambda: integral_map(W, u3.float()), "function u … precision … float32"),
        "bias-precision": (
            lambda: integral_map(W, u3, bias=ones(2).float()),
            "bias … precision … float32",
        ),
    }
)


@cases(DOMAIN | {f"map-{name}": case for name, case in INTEGRAL_MAP.items()})
def test_domain(call, words):
    assert_refused(call, words)


# ---- attention -----------------------------------------------------------------------------------

Q, K, V = (ones(2, n, d) for n, d in [(5, 4), (6, 4), (6, 3)])
blind = ones(5, 6).index_fill(0, torch.tensor([2]), 0.0)
A, u = SelfAttention(4, 2).double(), ones(3, 5, 4)


def both(arguments, words):
    """The same bad input for the kernel and for the integral."""
    queries, keys, *rest = arguments
    values = V if keys.shape[-2] == 6 else ones(*keys.shape[:-1], 3)
    return {
        "kernel": (lambda: kernel(queries, keys, *rest), words),
        "attend": (lambda: attend(queries, keys, values, *rest), words),
    }


PAIRS = {
    "features": both(
        [Q, ones(2, 6, 3)], r"queries and keys … same features … \(2, 5, 4\) … \(2, 6, 3\)"
    ),
    "no-features": both([ones(2, 5, 0), ones(2, 6, 0)], "queries and keys … features … 0"),
    "no-keys": both([Q, ones(2, 0, 4)], r"keys … at least one … \(2, 0, 4\)"),
    "no-keys-weighted": both([Q, ones(2, 0, 4), ones(0)], r"keys … at least one … \(2, 0, 4\)"),
    "one-dimension": both([ones(4), ones(6, 4)], r"queries Q … at least 2 dim … \(4,\)"),
    "leading": both([Q, ones(3, 6, 4)], r"leading dimensions … \(2,\) … \(3,\)"),
    "precision": both([Q, K.float()], r"keys K … precision … float32 … \.double"),
    "scale-nan": both([Q, K, None, nan], "scale of attention … finite … nan came"),
    "scale-text": both([Q, K, None, "a"], "scale of attention … number … 'a' came"),
    "overflow": both([1e200 * Q, 1e200 * K], "attention scores … too large"),
    "overflow-weighted": both([1e200 * Q, 1e200 * K, ones(6)], "attention scores … too large"),
    "weights-length": both(
        [Q, K, ones(5)], r"attention weights … \(6,\) … \(5,\) came … \(B, 1, 6\)"
    ),
    "weights-as-B-N": both([Q, K, ones(2, 6)], r"attention weights … \(2, 6\) came … \(B, 1, 6\)"),
    "weights-column": both([Q, K, ones(5, 1)], r"attention weights … \(5, 1\) came … \(B, 1, 6\)"),
    "weights-leading": both([Q, K, ones(3, 1, 6)], r"leading dimensions … \(3,\)"),
    "weights-boolean": both([Q, K, ones(6) > 0], r"attention weights … torch\.bool … \.double\(\)"),
    "weights-number": both([Q, K, torch.tensor(1.0)], "attention weights … dimension"),
    "weights-zero": both(
        [Q, K, zeros(6)], "row of attention … at least one node … give that row a node"
    ),
    "blind-row": both([Q, K, blind], "row of attention … at least one node … give that row a node"),
    "blind-in-a-batch": both(
        [Q, K, torch.stack([ones(1, 6), zeros(1, 6)])], "row of attention … at least one node"
    ),
}
ATTENTION = (
    with_values(lambda Q: attend(Q, K, V), Q, "queries Q")
    | with_values(lambda K: attend(Q, K, V), K, "keys K")
    | with_values(lambda V: attend(Q, K, V), V, "values V")
    | with_weights(lambda w: attend(Q, K, V, w), 6, "attention weights")
    | with_weights(causal, 4, "weights of a causal integral")
    | {f"{name}-{which}": case for name, pair in PAIRS.items() for which, case in pair.items()}
    | {
        "density": (
            lambda: kernel(Q, K, torch.full((6,), 1e-320)),
            "density γ … too large … weights larger",
        ),
        "tokens": (
            lambda: attend(Q, K, ones(2, 5, 3)),
            r"keys and values … same tokens … \(2, 6, 4\) … \(2, 5, 3\)",
        ),
        "values-precision": (
            lambda: attend(Q, K, V.float()),
            r"values V … precision … float32 … \.double",
        ),
        "causal-matrix": (lambda: causal(ones(4, 4)), r"causal … \(N,\) … \(4, 4\)"),
        "causal-blind": (
            lambda: attend(K, K, V, causal(torch.arange(6.0))),
            "row of attention … at least one node",
        ),
        "heads": (lambda: SelfAttention(6, 4), "width … divisible … heads … width = 6 … heads = 4"),
        "no-heads": (lambda: SelfAttention(6, 0), "number of heads … at least 1 … 0 came"),
        "half-heads": (
            lambda: SelfAttention(6, 1.5),
            r"number of heads … whole number … 1\.5 came",
        ),
        "no-width": (lambda: SelfAttention(0, 1), "width of attention … at least 1 … 0 came"),
        "self-width": (lambda: A(ones(5, 3)), r"u in self-attention … \(\.\.\., N, 4\) … \(5, 3\)"),
        "self-split": (
            lambda: A.split(ones(5, 3)),
            r"u in self-attention … \(\.\.\., N, 4\) … \(5, 3\)",
        ),
        "self-one-dimension": (
            lambda: A(ones(4)),
            r"u in self-attention … at least 2 dim … \(4,\)",
        ),
        "self-no-tokens": (lambda: A(ones(3, 0, 4)), "at least one … 0"),
        "self-precision": (
            lambda: A(u.float()),
            r"u in self-attention … precision … float32 … \.double",
        ),
        "self-nan": (lambda: A(u * nan), "u in self-attention … finite"),
        "self-weights-list": (lambda: A(u, [1.0] * 5), "attention weights … tensor … list came"),
        "self-weights-B-N": (
            lambda: A(u, ones(3, 5)),
            r"attention weights … \(3, 5\) came … \(B, 1, 5\)",
        ),
        "self-weights-batch": (lambda: A(u, ones(2, 1, 5)), r"weights … \(3 … \(2"),
        "self-weights-4-dims": (
            lambda: A(u, ones(3, 1, 1, 5)),
            r"weights … \(B, 1, N\) … \(3, 1, 1, 5\)",
        ),
        "self-weights-3-dims": (lambda: A(u[0], ones(1, 1, 5)), r"weights … \(1, 1, 5\)"),
    }
)


@cases(ATTENTION)
def test_attention(call, words):
    assert_refused(call, words)


# ---- projections ---------------------------------------------------------------------------------

v, w = (
    torch.linspace(-1, 1, 6, dtype=torch.float64),
    project_mean_variance(torch.linspace(-1, 1, 6, dtype=torch.float64)),
)
N6 = Normalisation(6).double()


def either(arguments, options, words):
    """The same bad input for both normalising projections."""
    return {
        "variance": (lambda: project_mean_variance(*arguments, **options), words),
        "square": (lambda: project_mean_square(*arguments, **options), words),
    }


PROJECTIONS = {
    "no-features": either([ones(3, 0)], {}, r"projected … at least one feature … \(3, 0\)"),
    "no-features-eps": either(
        [ones(3, 0)], {"eps": 1.0}, r"projected … at least one feature … \(3, 0\)"
    ),
    "number": either([torch.tensor(1.0)], {}, "projected … dimension"),
    "eps-negative": either([v], {"eps": -1e-5}, "eps … -1e-05 came"),
    "eps-nan": either([v], {"eps": nan}, "eps … finite … nan came"),
    "eps-text": either([v], {"eps": "a"}, "eps … number … 'a' came"),
    "eps-below-precision": either([v.float()], {"eps": 1e-60}, "eps … 1e-60"),
    "too-large": either([1e200 * v], {"eps": 1e-5}, "too large … scale"),
    "weights-length": either([v], {"weights": ones(5)}, r"projection … 6 weights … \(5,\)"),
    "weights-matrix": either([v], {"weights": ones(1, 6)}, r"projection … 6 weights … \(1, 6\)"),
    "weights-zero": either([v], {"weights": zeros(6)}, "projection … weights, not all zero"),
}
PROJECTION = (
    with_values(project_mean_variance, v, "function v to be projected")
    | with_values(project_mean_square, v + 2, "function v to be projected")
    | with_values(project_nonnegative, v, "function v to be projected")
    | with_values(lambda w: tangent(w, v), w, "point w on S1")
    | with_values(lambda f: tangent(w, f), v, "velocity f at w")
    | with_values(N6, ones(2, 6), "v in a normalisation")
    | with_weights(
        lambda weights: project_mean_variance(v, weights=weights), 6, "weights of a projection"
    )
    | with_weights(lambda weights: tangent(w, v, weights), 6, "weights of a projection")
    | {
        f"{name}-{which}": case
        for name, pair in PROJECTIONS.items()
        for which, case in pair.items()
    }
    | {
        "constant": (
            lambda: project_mean_variance(ones(3, 6)),
            "constant function … closest … use eps > 0",
        ),
        "constant-in-one-row": (
            lambda: project_mean_variance(torch.stack([v, ones(6)])),
            "constant function … use eps > 0",
        ),
        "constant-where-weighted": (
            lambda: project_mean_variance(
                torch.tensor([1.0, 1, 5]), weights=torch.tensor([1.0, 1, 0])
            ),
            "constant function … use eps > 0",
        ),
        "one-feature": (
            lambda: project_mean_variance(ones(3, 1)),
            "constant function … use eps > 0",
        ),
        "zero-function": (lambda: project_mean_square(zeros(6)), "v = 0 … closest … use eps > 0"),
        "variance-negative": (
            lambda: project_mean_variance(v, variance=-1.0),
            "positive variance … -1",
        ),
        "variance-zero": (lambda: project_mean_variance(v, variance=0.0), "positive variance … 0"),
        "variance-nan": (
            lambda: project_mean_variance(v, variance=nan),
            "variance … finite … nan came",
        ),
        "variance-none": (
            lambda: project_mean_variance(v, variance=None),
            "variance … number … None came",
        ),
        "mean-inf": (lambda: project_mean_variance(v, mean=inf), "mean … finite … inf came"),
        "mean-square-negative": (lambda: project_mean_square(v, -1.0), "mean square … -1"),
        "tangent-features": (
            lambda: tangent(w, v[:3]),
            r"velocity at w … as many features … \(6,\) … \(3,\)",
        ),
        "tangent-leading": (
            lambda: tangent(ones(2, 6), ones(3, 6)),
            r"velocity at w … \(2, 6\) … \(3, 6\)",
        ),
        "tangent-weights": (lambda: tangent(w, v, ones(5)), r"6 weights … \(5,\)"),
        "tangent-precision": (lambda: tangent(w, v.float()), "velocity f … precision … float32"),
        "normalisation-width": (
            lambda: N6(ones(2, 5)),
            r"normalisation … \(\.\.\., N, 6\) … \(2, 5\)",
        ),
        "normalisation-of-one": (
            lambda: N6(ones(2, 1)),
            r"normalisation … \(\.\.\., N, 6\) … \(2, 1\)",
        ),
        "normalisation-precision": (
            lambda: N6(ones(2, 6).float()),
            "normalisation … precision … float32",
        ),
        "normalisation-eps": (
            lambda: Normalisation(6, -1.0),
            "eps of a normalisation … negative … -1 came",
        ),
        "normalisation-no-width": (
            lambda: Normalisation(0),
            "width of a normalisation … at least 1 … 0 came",
        ),
        "normalisation-constant": (
            lambda: Normalisation(6, 0.0).double()(ones(2, 6)),
            "constant function … eps > 0",
        ),
    }
)


@cases(PROJECTION)
def test_projection(call, words):
    assert_refused(call, words)


# ---- the feed-forward network --------------------------------------------------------------------

W1, b1, W2, b2 = (ones(*shape) for shape in [(6, 4), (6,), (4, 6), (4,)])
network = FeedForward(4, 6).double()
FEED_FORWARD = with_values(network, ones(5, 4), "u in a feed-forward network") | {
    "no-hidden": (lambda: FeedForward(4, 0), "hidden width … at least 1 … 0 came"),
    "half-hidden": (lambda: FeedForward(4, 2.0), r"hidden width … whole number … 2\.0 came"),
    "no-width": (lambda: FeedForward(0, 4), "width of a feed-forward … at least 1 … 0 came"),
    "activation": (lambda: FeedForward(4, 6, "relu"), "activation … function … 'relu' came"),
    "width": (
        lambda: network(ones(5, 3)),
        r"u in a feed-forward network … \(\.\.\., N, 4\) … \(5, 3\)",
    ),
    "precision": (
        lambda: network(ones(5, 4).float()),
        "u in a feed-forward network … precision … float32",
    ),
    "first-bias": (lambda: feed_forward(ones(5, 4), W1, b2, W2, b2), r"bias … 6 values … \(4,\)"),
    "second-bias": (lambda: feed_forward(ones(5, 4), W1, b1, W2, b1), r"bias … 4 values … \(6,\)"),
    "second-kernel": (
        lambda: feed_forward(ones(5, 4), W1, b1, W1, b2),
        r"kernel … \(6, 4\) … \(5, 6\)",
    ),
    "features-grid": (
        lambda: feed_forward(ones(5, 4), W1, b1, W2, b2, Domain.gauss(3)),
        r"4 weights … \(3,\)",
    ),
    "hidden-grid": (
        lambda: feed_forward(ones(5, 4), W1, b1, W2, b2, None, Domain.gauss(3)),
        r"6 weights … \(3,\)",
    ),
}


@cases(FEED_FORWARD)
def test_feed_forward(call, words):
    assert_refused(call, words)


# ---- time steps ----------------------------------------------------------------------------------

start = torch.linspace(-1, 1, 3, dtype=torch.float64)
BAD_STEPS = {
    "zero": (0.0, "time step dt … positive … 0 came"),
    "negative": (-0.1, r"time step dt … positive … -0\.1 came"),
    "nan": (nan, "time step dt … finite … nan came"),
    "inf": (inf, "time step dt … finite … inf came"),
    "text": ("0.1", r"time step dt … number … '0\.1' came"),
    "none": (None, "time step dt … number … None came"),
    "complex": (1j, "time step dt … real number … 1j came"),
    "boolean": (True, "time step dt … number … True came"),
    "tensor": (torch.tensor(0.1), r"time step dt … number … tensor\(0\.1.*\) came … \.item\(\)"),
}
layer = EncoderLayer(4, 2, 6).double()
TAKERS = {
    "euler": lambda dt: euler(torch.sin, start, dt),
    "midpoint": lambda dt: midpoint(torch.sin, start, dt),
    "rk4": lambda dt: rk4(torch.sin, start, dt),
    "lie": lambda dt: lie([lambda u, dt: u], start, dt),
    "strang": lambda dt: strang([lambda u, dt: u], start, dt),
    "constrained": lambda dt: constrained(torch.sin)(start, dt),
    "relax": lambda dt: relax(start, start, dt),
    "layer": lambda dt: layer(u, dt=dt),
    "encoder": lambda dt: Encoder([layer])(u, dt=dt),
}


@pytest.mark.parametrize("dt, words", BAD_STEPS.values(), ids=BAD_STEPS)
@pytest.mark.parametrize("take", TAKERS.values(), ids=TAKERS)
def test_time_steps(take, dt, words):
    assert_refused(lambda: take(dt), words)


BAD_COUNTS = [0, -1, 1.0, 2.5, True, "3", None]
COUNTERS = {
    "evolve": lambda steps: evolve(lambda u, dt: u, start, 0.0, 1.0, steps),
    "layer": lambda steps: layer(u, steps=steps),
    "encoder": lambda steps: Encoder([layer])(u, steps=steps),
}


@pytest.mark.parametrize("steps", BAD_COUNTS, ids=str)
@pytest.mark.parametrize("walk", COUNTERS.values(), ids=COUNTERS)
def test_numbers_of_steps(walk, steps):
    assert_refused(
        lambda: walk(steps), f"number of steps … whole number of at least 1 … {steps!r} came"
    )


def test_numbers_of_numpy_are_numbers():
    assert torch.equal(
        evolve(lambda u, dt: u + dt, start, 0, 1, np.int64(4)),
        evolve(lambda u, dt: u + dt, start, 0, 1, 4),
    )
    assert torch.equal(euler(torch.sin, start, np.float64(0.5)), euler(torch.sin, start, 0.5))


def shrink(u, dt):
    return u[:2]


def burst(u, dt):
    return u / 0


def stay(u, dt):
    return u


METHODS = {"euler": euler, "midpoint": midpoint, "rk4": rk4}
STEPS = {
    f"{name}-{case}": (lambda method=method, f=f, x=x: method(f, x, 0.1), words)
    for name, method in METHODS.items()
    for case, f, x, words in [
        ("velocity-column", lambda u: u[:, None], start, r"velocity … shape \(3,\) … 3, 1"),
        ("velocity-sum", torch.sum, start, r"velocity … shape \(3,\)"),
        ("velocity-nothing", lambda u: None, start, "velocity … None"),
        ("velocity-nan", lambda u: u * nan, start, "finite"),
        ("no-velocity", None, start, "velocity … function … None came"),
        ("list", torch.sin, [1.0], "state u … tensor … list came"),
        ("integer", torch.sin, torch.tensor([1, 2]), "state u … real numbers … int64"),
        ("nan", torch.sin, start * nan, "state u … finite"),
    ]
}
SPLITTINGS = {
    f"{split.__name__}-{case}": (lambda split=split, flows=flows, x=x: split(flows, x, 0.1), words)
    for split in (lie, strang)
    for case, flows, x, words in [
        ("no-flows", [], start, "splitting … at least one flow"),
        ("one-function", stay, start, "splitting … list … flow"),
        ("no-function", [3], start, "splitting … flow"),
        ("nan", [stay], start * nan, "state u … finite"),
        ("list", [stay], [1.0], "state u … tensor … list came"),
        ("flow-shape", [stay, shrink], start, r"flow … shape … \(3,\) … \(2,\)"),
        ("flow-nan", [stay, burst], start, "finite"),
        ("flow-nothing", [lambda u, dt: None], start, "flow … None"),
    ]
}
WALKS = (
    STEPS
    | SPLITTINGS
    | {
        "backwards": (
            lambda: evolve(stay, start, 1.0, 0.0, 3),
            "forward in time … t0 = 1 … t1 = 0",
        ),
        "no-time": (lambda: evolve(stay, start, 0.0, 0.0, 3), "forward in time … t0 = 0 … t1 = 0"),
        "for-ever": (lambda: evolve(stay, start, 0.0, inf, 3), "time t1 … finite … inf came"),
        "from-nan": (lambda: evolve(stay, start, nan, 1.0, 3), "time t0 … finite … nan came"),
        "from-text": (lambda: evolve(stay, start, "0", 1.0, 3), "time t0 … number … '0' came"),
        "walk-nan": (lambda: evolve(stay, start * nan, 0.0, 1.0, 3), "state u … start … finite"),
        "walk-burst": (
            lambda: evolve(burst, start, 0.0, 1.0, 3),
            "state u … smaller steps … finite",
        ),
        "walk-shape": (
            lambda: evolve(shrink, start, 0.0, 1.0, 3, trajectory=True),
            r"shape … \(3,\) … \(2,\)",
        ),
        "walk-no-step": (lambda: evolve(None, start, 0.0, 1.0, 3), "step … function … None came"),
        "constrained-constant": (lambda: constrained(torch.sin)(ones(3), 0.1), "constant function"),
        "constrained-shape": (
            lambda: constrained(lambda w: ones(5))(start, 0.1),
            r"velocity at w … \(3,\) … \(5,\)",
        ),
        "constrained-no-velocity": (lambda: constrained(None), "velocity … function … None came"),
        "constrained-no-step": (
            lambda: constrained(torch.sin, None),
            "step … function … None came",
        ),
        "relax-shape": (lambda: relax(start, start[:2], 0.1), r"relaxation … \(3,\) … \(2,\)"),
        "relax-list": (lambda: relax([1.0], start, 0.1), "relaxation … tensor … list came"),
        "relax-nan": (lambda: relax(start, start * nan, 0.1), "relaxation … finite"),
        "relax-integer": (
            lambda: relax(torch.ones(2, dtype=int), ones(2), 0.1),
            "relaxation … real numbers … int64",
        ),
        "relax-precision": (
            lambda: relax(start, start.float(), 0.1),
            "relaxation … precision … float32",
        ),
    }
)


@cases(WALKS)
def test_splitting(call, words):
    assert_refused(call, words)


# ---- the encoder ---------------------------------------------------------------------------------


def torch_encoder(norm=None, **options):
    return nn.TransformerEncoder(
        nn.TransformerEncoderLayer(4, 2, 6, batch_first=True, **options), 1, norm, False
    )


def changed(**parts):
    """A torch encoder whose layer has other parts."""
    encoder = torch_encoder()
    for name, part in parts.items():
        setattr(encoder.layers[0], name, part)
    return encoder


class Another(nn.TransformerEncoderLayer):
    """A subclass may compute anything."""


FROM_TORCH = {
    "nothing": (lambda: None, "TransformerEncoder … NoneType came"),
    "layer": (
        lambda: nn.TransformerEncoderLayer(4, 2, 6),
        "TransformerEncoder … TransformerEncoderLayer came",
    ),
    "subclass": (
        lambda: nn.TransformerEncoder(Another(4, 2, 6, batch_first=True), 1, None, False),
        "Layer … Another came",
    ),
    "rms-norm": (lambda: torch_encoder(nn.RMSNorm(4)), "normalisation … LayerNorm … RMSNorm came"),
    "identity": (lambda: torch_encoder(nn.Identity()), "normalisation … LayerNorm … Identity came"),
    "linear": (lambda: torch_encoder(nn.Linear(4, 4)), "normalisation … LayerNorm … Linear came"),
    "batch-norm": (
        lambda: torch_encoder(nn.BatchNorm1d(4)),
        "normalisation … LayerNorm … BatchNorm1d came",
    ),
    "plain-norm": (
        lambda: torch_encoder(nn.LayerNorm(4, elementwise_affine=False)),
        "normalisation … gain",
    ),
    "two-dimensions": (
        lambda: torch_encoder(nn.LayerNorm((5, 4))),
        r"normalisation … features alone … \(5, 4\)",
    ),
    "inner-rms-norm": (
        lambda: changed(norm1=nn.RMSNorm(4)),
        "normalisation … LayerNorm … RMSNorm came",
    ),
    "inner-plain": (
        lambda: changed(norm2=nn.LayerNorm(4, elementwise_affine=False)),
        "normalisation … gain",
    ),
    "extra-key": (
        lambda: changed(self_attn=nn.MultiheadAttention(4, 2, add_bias_kv=True)),
        "attention … extra keys",
    ),
    "zero-key": (
        lambda: changed(self_attn=nn.MultiheadAttention(4, 2, add_zero_attn=True)),
        "attention … extra keys",
    ),
    "other-keys": (
        lambda: changed(self_attn=nn.MultiheadAttention(4, 2, kdim=3, vdim=3)),
        "attention … keys as wide",
    ),
}


@pytest.mark.parametrize("make, words", FROM_TORCH.values(), ids=FROM_TORCH)
def test_from_torch(make, words):
    assert_refused(lambda: Encoder.from_torch(make()), words)


def test_from_torch_of_another_layer():
    assert_refused(
        lambda: EncoderLayer.from_torch(nn.TransformerDecoderLayer(4, 2)),
        "TransformerEncoderLayer … Decoder",
    )


wide = EncoderLayer(6, 2, 6).double()
ENCODER = with_values(layer, ones(5, 4), "u in an encoder layer") | {
    "heads": (lambda: EncoderLayer(6, 4, 8), "width … divisible … heads … 6 … 4"),
    "no-hidden": (lambda: EncoderLayer(4, 2, 0), "hidden width … at least 1 … 0 came"),
    "eps": (lambda: EncoderLayer(4, 2, 8, eps=-1.0), "eps of a normalisation … negative … -1 came"),
    "activation": (
        lambda: EncoderLayer(4, 2, 8, activation="gelu"),
        "activation … function … 'gelu' came",
    ),
    "width": (lambda: layer(ones(5, 3)), r"u in an encoder layer … \(\.\.\., N, 4\) … \(5, 3\)"),
    "one-dimension": (lambda: layer(ones(4)), r"u in an encoder layer … at least 2 dim … \(4,\)"),
    "no-tokens": (lambda: layer(ones(2, 0, 4)), "at least one … 0"),
    "precision": (
        lambda: layer(u.float()),
        r"u in an encoder layer … precision … float32 … \.double",
    ),
    "constant": (
        lambda: EncoderLayer(1, 1, 2, eps=0.0).double()(ones(5, 1)),
        "constant function … eps > 0",
    ),
    "overflow": (lambda: layer(1e300 * u), "(finite|too large)"),
    "weights-list": (lambda: layer(u, [1.0] * 5), "attention weights … tensor … list came"),
    "weights-negative": (
        lambda: layer(u, -ones(5)),
        "attention weights … negative … -1 … hides a node",
    ),
    "weights-nan": (lambda: layer(u, ones(5) * nan), "attention weights … finite … NaN"),
    "weights-boolean": (
        lambda: layer(u, ones(5) > 0),
        r"attention weights … torch\.bool … \.double\(\)",
    ),
    "weights-zero": (lambda: layer(u, zeros(5)), "row of attention … at least one node"),
    "weights-B-N": (
        lambda: layer(u, ones(3, 5)),
        r"attention weights … \(3, 5\) came … \(B, 1, 5\)",
    ),
    "weights-4-dims": (lambda: layer(u, ones(3, 1, 1, 5)), r"weights … \(3, 1, 1, 5\)"),
    "empty-sequence": (
        lambda: layer(u, torch.tensor([1.0, 1, 0])[:, None, None].expand(3, 1, 5)),
        "row of attention … at least one",
    ),
    "no-layers": (lambda: Encoder([]), "encoder … at least one EncoderLayer"),
    "one-layer": (lambda: Encoder(layer), "encoder … list of layers … EncoderLayer came"),
    "number": (lambda: Encoder(3), "encoder … list of layers … int came"),
    "other-layers": (lambda: Encoder([nn.Linear(4, 4)]), "encoder … EncoderLayer … Linear"),
    "last-norm": (lambda: Encoder([layer], "x"), "normalisation … str came"),
    "widths": (
        lambda: Encoder([layer, wide])(u),
        r"u in an encoder layer … \(\.\.\., N, 6\) … \(3, 5, 4\)",
    ),
    "norm-width": (
        lambda: Encoder([layer], N6)(u),
        r"normalisation … \(\.\.\., N, 6\) … \(3, 5, 4\)",
    ),
    "encoder-nan": (lambda: Encoder([layer])(u * nan), "u in an encoder … finite"),
    "encoder-weights-nan": (
        lambda: Encoder([layer])(u, ones(5) * nan),
        "attention weights … finite",
    ),
    "encoder-blind": (
        lambda: Encoder([layer])(u, zeros(5)),
        "row of attention … at least one node",
    ),
}


@cases(ENCODER)
def test_encoder(call, words):
    assert_refused(call, words)


def test_a_parameter_that_is_nan_does_not_pass_silently():
    broken = EncoderLayer(4, 2, 6).double()
    nn.init.constant_(broken.feed_forward.W2.weight, nan)
    assert_refused(lambda: broken(u), "state u at the end … finite … NaN")


def test_after_an_error_the_checks_are_still_on():
    """A walk switches the search for NaN off inside; an exception within must not leave it off."""
    assert_refused(lambda: layer(u, zeros(5)), "row of attention")
    assert_refused(lambda: layer(u * nan), "u in an encoder layer … finite")
    assert_refused(lambda: attend(Q * nan, K, V), "queries Q … finite")


# ---- positions -----------------------------------------------------------------------------------

points, table = centres((3, 5), (1, 1), (1, 1)), Table(4, (3, 5)).double()
POSITIONS = (
    with_values(lambda x: waves(x, ones(2)), ones(3, 2), "positions x")
    | with_values(lambda f: waves(ones(3, 2), f), ones(2), "frequencies of positions")
    | with_values(table, ones(3, 5, 2), "positions x")
    | {
        "left-over": (
            lambda: centres((14, 12), (4, 4), (4, 4)),
            "patches must fill the image … patch 4 and stride 4 … 14 came … crop or pad",
        ),
        "left-over-columns": (
            lambda: centres((12, 14), (4, 4), (4, 3)),
            "patches must fill the image … stride 3 … 14 came",
        ),
        "image-smaller": (lambda: centres((3, 8), (4, 4), (4, 4)), "patches must fill … 3 came"),
        "no-stride": (lambda: centres((8, 8), (4, 4), (0, 4)), "stride … at least 1 … 0 came"),
        "no-patch": (lambda: centres((8, 8), (0, 4), (4, 4)), "patch … at least 1 … 0 came"),
        "half-a-pixel": (
            lambda: centres((8.5, 8), (4, 4), (4, 4)),
            r"side of an image … whole number … 8\.5 came",
        ),
        "backwards": (lambda: centres((8, 8), (4, 4), (-4, 4)), "stride … at least 1 … -4 came"),
        "three-sides": (
            lambda: centres((8, 8, 8), (4, 4), (4, 4)),
            r"image … one whole number or two … \(8, 8, 8\) came",
        ),
        "pair-of-three": (lambda: pair("a patch", [1, 2, 3]), "a patch needs one whole number"),
        "pair-of-none": (lambda: pair("a patch", None), "a patch needs … None came"),
        "pair-half": (lambda: pair("a patch", 2.5), r"a patch needs … 2\.5 came"),
        "pair-text": (lambda: pair("a patch", "ab"), "side of a patch … 'a' came"),
        "pair-boolean": (lambda: pair("a patch", True), "side of a patch … True came"),
        "pair-zero": (lambda: pair("a patch", 0), "side of a patch … at least 1 … 0 came"),
        "one-coordinate": (
            lambda: waves(ones(3, 1), ones(2)),
            r"positions need points \(\.\.\., 2\) … \(3, 1\)",
        ),
        "three-coordinates": (lambda: waves(ones(3), ones(2)), r"positions need … \(3,\)"),
        "frequency-matrix": (
            lambda: waves(ones(3, 2), ones(2, 1)),
            r"frequencies \(F,\) … \(2, 1\)",
        ),
        "no-frequencies": (lambda: waves(ones(3, 2), ones(0)), r"at least one … \(0,\)"),
        "waves-precision": (
            lambda: waves(ones(3, 2), ones(2).float()),
            "frequencies of positions … precision … float32",
        ),
        "learned-none": (lambda: Waves(4, []), r"list of frequencies, at least one … \(0,\)"),
        "learned-number": (lambda: Waves(4, 3.0), "frequencies of positions … dimension"),
        "learned-nan": (lambda: Waves(4, [1, nan]), "frequencies of positions … finite"),
        "learned-matrix": (lambda: Waves(4, [[1.0], [2.0]]), r"list of frequencies … \(2, 1\)"),
        "learned-no-width": (lambda: Waves(0, [1]), "width of positions … at least 1 … 0 came"),
        "learned-coordinates": (lambda: Waves(4, [1])(ones(3, 5, 3)), r"points … \(3, 5, 3\)"),
        "learned-nowhere": (lambda: Waves(4, [1])(points * nan), "positions x … finite"),
        "table-no-width": (lambda: Table(0, (3, 5)), "width of positions … at least 1 … 0 came"),
        "table-no-nodes": (
            lambda: Table(4, (3, 0)),
            "side of a grid of positions … at least 1 … 0 came",
        ),
        "table-3-sides": (lambda: Table(4, (3, 5, 2)), r"grid of positions … \(3, 5, 2\) came"),
        "table-flat": (lambda: table(points.flatten(0, 1)), r"\(n_1, n_2, 2\) … \(15, 2\) came"),
        "table-batch": (lambda: table(points[None]), r"\(n_1, n_2, 2\) … \(1, 3, 5, 2\) came"),
        "table-coordinates": (lambda: table(ones(3, 5, 3)), r"\(n_1, n_2, 2\) … \(3, 5, 3\)"),
        "table-nothing": (lambda: table(ones(0, 5, 2)), r"\(n_1, n_2, 2\) … \(0, 5, 2\)"),
        "no-tokens": (lambda: quadrature(0, 49), "number of tokens … at least 1 … 0 came"),
        "half-a-token": (lambda: quadrature(2.5, 49), r"number of tokens … 2\.5 came"),
        "measure-zero": (lambda: quadrature(4, 0), "measure of Ωx … positive … 0 came"),
        "measure-negative": (lambda: quadrature(4, -1.0), "measure of Ωx … positive … -1 came"),
        "measure-nan": (lambda: quadrature(4, nan), "measure of Ωx … finite … nan came"),
        "measure-text": (lambda: quadrature(4, "a"), "measure of Ωx … number … 'a' came"),
    }
)


@cases(POSITIONS)
def test_positions(call, words):
    assert_refused(call, words)


# ---- the vision transformer ----------------------------------------------------------------------


def vit(positions=None, **options):
    encoder = Encoder([EncoderLayer(4, 2, 6, True)])
    return VisionTransformer(4, encoder, positions or Waves(4, [1]), **options).double()


class Elsewhere(nn.Module):
    """Positions of another shape, which would broadcast."""

    def forward(self, x):
        return ones(1, 1, 4)


picture, see = ones(2, 1, 8, 12), vit()
VIT = with_values(see, picture, "the images") | {
    "channels": (lambda: see(ones(2, 3, 8, 12)), r"\(B, 1, height, width\) … \(2, 3, 8, 12\) came"),
    "no-channels": (lambda: see(ones(8, 12)), r"\(8, 12\) came … \[None, None\]"),
    "no-images": (lambda: see(ones(0, 1, 8, 12)), r"images … \(0, 1, 8, 12\) came"),
    "no-pixels": (lambda: see(ones(2, 1, 0, 12)), r"images … \(2, 1, 0, 12\) came"),
    "precision": (lambda: see(picture.float()), "images … precision … float32"),
    "left-over": (lambda: see(ones(2, 1, 8, 13)), "patches must fill the image … 13 came"),
    "smaller": (lambda: see(ones(2, 1, 3, 12)), "patches must fill the image … 3 came"),
    "stride": (lambda: see(picture, stride=3), "patches must fill the image … stride 3 … 8 came"),
    "no-stride": (lambda: see(picture, stride=0), "side of a stride … at least 1 … 0 came"),
    "half-a-stride": (lambda: see(picture, stride=0.5), r"stride … 0\.5 came"),
    "dt": (lambda: see(picture, dt=0.0), "time step dt … positive"),
    "steps": (lambda: see(picture, steps=0), "number of steps … at least 1"),
    "weights": (lambda: see(picture, ones(7)), r"attention weights … \(6,\) … \(7,\) came"),
    "weights-of-the-class-point": (
        lambda: vit(class_point=True)(picture, ones(6)),
        r"attention weights … \(7,\) … \(6,\) came",
    ),
    "positions-of-another-width": (
        lambda: vit(Waves(1, [1]))(picture),
        r"positions must have shape \(2, 3, 4\) … \(2, 3, 1\) came",
    ),
    "positions-elsewhere": (lambda: vit(Elsewhere())(picture), r"positions … \(1, 1, 4\) came"),
    "no-encoder": (
        lambda: VisionTransformer(4, nn.Linear(4, 4), Waves(4, [1])),
        "Encoder … Linear … Waves came",
    ),
    "no-positions": (
        lambda: VisionTransformer(4, Encoder([EncoderLayer(4, 2, 6)]), None),
        "module of positions … NoneType came",
    ),
    "no-patch": (
        lambda: VisionTransformer(0, Encoder([EncoderLayer(4, 2, 6)]), Waves(4, [1])),
        "side of a patch … at least 1 … 0 came",
    ),
    "zero-channels": (lambda: vit(channels=0), "number of channels … at least 1 … 0 came"),
    "zero-outputs": (lambda: vit(outputs=0), "number of outputs … at least 1 … 0 came"),
    "read-out-width": (lambda: see.read_out(ones(2, 6, 3)), r"u to be read out … \(2, 6, 3\)"),
    "read-out-flat": (lambda: see.read_out(ones(4)), r"u to be read out … dimension … \(4,\)"),
    "read-out-nan": (lambda: see.read_out(nan * ones(2, 6, 4)), "u to be read out … finite"),
}


@cases(VIT)
def test_vision_transformer(call, words):
    assert_refused(call, words)


# ---- local integrals and the convolutional transformer -------------------------------------------

field, window = ones(5, 6, 2), ones(3, 3, 2)
LOCAL = (
    with_values(lambda u: local_integral(u, window), field, "function u in a local integral")
    | with_values(lambda k: local_integral(field, k), window, "kernel k of a local integral")
    | {
        "one-dimension": (lambda: local_integral(ones(5, 2), window), r"least 3 dim … \(5, 2\)"),
        "features": (
            lambda: local_integral(field, ones(3, 3, 1)),
            r"u \(\.\.\., h, w, d\) … \(5, 6, 2\) and \(3, 3, 1\)",
        ),
        "no-features": (lambda: local_integral(ones(5, 6, 0), ones(3, 3, 0)), r"\(5, 6, 0\)"),
        "even": (lambda: local_integral(field, ones(2, 3, 2)), r"a and b odd … \(2, 3, 2\)"),
        "even-columns": (lambda: local_integral(field, ones(3, 4, 2)), r"odd … \(3, 4, 2\)"),
        "no-window": (lambda: local_integral(field, ones(0, 0, 2)), r"odd … \(0, 0, 2\)"),
        "kernel-flat": (lambda: local_integral(field, ones(3, 2)), r"\(a, b, d\) … \(3, 2\)"),
        "kernel-4-dims": (lambda: local_integral(field, ones(1, 3, 3, 2)), r"\(1, 3, 3, 2\)"),
        "nothing": (lambda: local_integral(ones(0, 6, 2), window), r"one node … \(0, 6, 2\)"),
        "empty-batch": (lambda: local_integral(ones(0, 5, 6, 2), window), "at least one node"),
        "precision": (lambda: local_integral(field, window.float()), "kernel k … precision"),
        "no-area": (lambda: local_integral(field, window, 0.0), "area of a cell … positive"),
        "area-negative": (lambda: local_integral(field, window, -1.0), "area … positive … -1"),
        "area-nan": (lambda: local_integral(field, window, nan), "area of a cell … finite"),
        "no-stride": (lambda: local_integral(field, window, 1.0, 0), "stride … at least 1 … 0"),
        "half-a-stride": (lambda: local_integral(field, window, 1.0, 0.5), r"stride … 0\.5 came"),
        "overflow": (
            lambda: local_integral(1e300 * field, 1e300 * window),
            "result of a local integral … finite",
        ),
    }
)

A4, u12 = ConvolutionalAttention(4, 2).double(), ones(2, 12, 4)
convolutional = ConvolutionalLayer(A4, 6).double()
sampling = nn.Conv2d(1, 4, 3, 2, 1).double()
stage = Stage(sampling, [convolutional])
walk = ConvolutionalTransformer([stage], outputs=5).double()
CVT = (
    with_values(lambda u: A4(u, (3, 4)), u12, "u in convolutional attention")
    | with_values(walk, picture, "the images")
    | with_values(stage, picture, "the image of a stage")
    | {
        "heads": (lambda: ConvolutionalAttention(4, 3), "width 4 … divisible by the 3 heads"),
        "no-heads": (lambda: ConvolutionalAttention(4, 0), "number of heads … at least 1 … 0 came"),
        "no-width": (lambda: ConvolutionalAttention(0, 1), "width … at least 1 … 0 came"),
        "even-kernel": (lambda: ConvolutionalAttention(4, 2, 2), "have a middle … 2 came"),
        "no-kernel": (lambda: ConvolutionalAttention(4, 2, 0), "kernel … at least 1 … 0 came"),
        "no-stride": (lambda: ConvolutionalAttention(4, 2, stride=0), "stride … at least 1 … 0"),
        "padding": (
            lambda: ConvolutionalAttention(4, 2, padding=-1),
            "padding … whole number, not negative … -1 came",
        ),
        "half-a-padding": (
            lambda: ConvolutionalAttention(4, 2, padding=0.5),
            r"padding … 0\.5 came",
        ),
        "width": (lambda: A4(ones(2, 12, 3), (3, 4)), r"\(B, 3·4 or one more, 4\) … \(2, 12, 3\)"),
        "size": (lambda: A4(u12, (4, 4)), r"\(B, 4·4 or one more, 4\) … \(2, 12, 4\)"),
        "two-points": (lambda: A4(ones(2, 14, 4), (3, 4)), r"or one more … \(2, 14, 4\)"),
        "no-batch": (lambda: A4(ones(12, 4), (3, 4)), r"least 3 dim … \(12, 4\)"),
        "two-batches": (lambda: A4(ones(1, 2, 12, 4), (3, 4)), r"\(1, 2, 12, 4\) came"),
        "no-size": (lambda: A4(u12, None), "grid of tokens … None came"),
        "size-zero": (lambda: A4(ones(2, 1, 4), (0, 4)), "grid of tokens … at least 1 … 0 came"),
        "size-of-three": (lambda: A4(u12, (3, 4, 1)), r"grid of tokens … \(3, 4, 1\) came"),
        "size-half": (lambda: A4(u12, (1.5, 8)), r"grid of tokens … 1\.5 came"),
        "too-small": (
            lambda: ConvolutionalAttention(4, 2, 5, 0).double()(ones(2, 12, 4), (3, 4)),
            r"grid of tokens, \(3, 4\), is too small for a kernel of side 5 with padding 0",
        ),
        "precision": (lambda: A4(u12.float(), (3, 4)), "u in convolutional attention … precision"),
        "layer-of-nothing": (lambda: ConvolutionalLayer(None, 6), "ConvolutionalAttention … None"),
        "layer-of-another": (
            lambda: ConvolutionalLayer(SelfAttention(4, 2), 6),
            "ConvolutionalAttention … SelfAttention came",
        ),
        "no-hidden": (lambda: ConvolutionalLayer(A4, 0), "hidden width … at least 1 … 0 came"),
        "dt": (lambda: convolutional(u12, (3, 4), 0.0), "time step dt … positive"),
        "steps": (lambda: convolutional(u12, (3, 4), 1.0, 0), "number of steps … at least 1"),
        "layer-nan": (lambda: convolutional(u12 * nan, (3, 4)), "finite"),
        "stage-no-layers": (lambda: Stage(sampling, []), "at least one layer"),
        "stage-widths": (
            lambda: Stage(nn.Conv2d(1, 6, 3), [convolutional]),
            r"stage of width 6 … widths \[4\] came",
        ),
        "stage-layers": (lambda: Stage(sampling, [nn.Linear(4, 4)]), r"Conv2d … \['Linear'\] came"),
        "stage-embedding": (
            lambda: Stage(nn.Linear(4, 4), [convolutional]),
            "Conv2d … Linear and … came",
        ),
        "stage-channels": (lambda: stage(ones(2, 2, 8, 8)), r"image of a stage … \(2, 2, 8, 8\)"),
        "stage-flat": (lambda: stage(ones(8, 8)), r"image of a stage … \(8, 8\) came"),
        "no-stages": (lambda: ConvolutionalTransformer([]), "at least one Stage"),
        "other-stages": (lambda: ConvolutionalTransformer([sampling]), "Stage … Conv2d"),
        "no-outputs": (
            lambda: ConvolutionalTransformer([stage], 0),
            "outputs … at least 1 … 0 came",
        ),
        "stages-do-not-meet": (
            lambda: ConvolutionalTransformer([stage, stage])(picture),
            r"image of a stage … \(B, 1, height, width\) … \(2, 4, 4, 6\) came",
        ),
        "channels": (lambda: walk(ones(2, 3, 8, 12)), r"images … \(2, 3, 8, 12\) came"),
        "no-images": (lambda: walk(ones(0, 1, 8, 12)), r"images … \(0, 1, 8, 12\) came"),
        "smaller-than-a-patch": (
            lambda: ConvolutionalTransformer(
                [Stage(nn.Conv2d(1, 4, 7).double(), [convolutional]).double()]
            )(ones(2, 1, 5, 9)),
            r"at least as large as a patch of \(7, 7\) … \(5, 9\) came",
        ),
        "read-out": (
            lambda: walk.read_out(ones(2, 3, 4, 6), None),
            r"feature map … \(2, 3, 4, 6\)",
        ),
        "read-out-nan": (lambda: walk.read_out(nan * ones(2, 4, 4, 6), None), "finite"),
    }
)


@cases({f"local-{name}": case for name, case in LOCAL.items()} | CVT)
def test_convolutional_transformer(call, words):
    assert_refused(call, words)


@pytest.mark.parametrize("where", ["embedding.weight", "layers.0.attention.key.weight"])
def test_a_parameter_of_a_network_that_is_nan_does_not_pass_silently(where):
    broken = Stage(nn.Conv2d(1, 4, 3, 2, 1), [ConvolutionalLayer(ConvolutionalAttention(4, 2), 6)])
    nn.init.constant_(broken.get_parameter(where), nan)
    model = ConvolutionalTransformer([broken]).double()
    assert_refused(lambda: model(picture), "feature map at the end … finite")
    spoiled = vit()
    nn.init.constant_(spoiled.embedding.weight, nan)
    assert_refused(lambda: spoiled(picture), "finite")


@pytest.mark.parametrize("keys", range(1, 33))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("weighted", [False, True])
def test_scores_that_overflow_are_refused_for_any_number_of_keys(keys, dtype, weighted):
    """torch's fused kernel alone returns zeros for them when the keys are few."""
    large = torch.finfo(dtype).max ** 0.9
    K = large * ones(2, keys, 4).to(dtype)
    weights = ones(keys) if weighted else None
    assert_refused(lambda: attend(K, K, K / large, weights), "attention scores … too large")


@pytest.mark.parametrize("tokens", [1, 2, 7, 8, 15, 16, 33])
def test_keys_of_a_network_that_are_nan_do_not_pass_silently(tokens):
    broken = EncoderLayer(4, 2, 6).double()
    nn.init.constant_(broken.attention.QKV.weight[4:8], nan)
    assert_refused(lambda: broken(ones(3, tokens, 4)), "state u at the end … finite … NaN")


# ---- flows on the constraint ---------------------------------------------------------------------

post, N4 = Encoder([EncoderLayer(4, 2, 6)]).double(), Normalisation(4).double()
w54 = project_mean_variance(torch.linspace(-1, 1, 20, dtype=torch.float64).reshape(5, 4) ** 3)
parts = layers_before_gain(post, N4)


def two_eps():
    encoder = Encoder([EncoderLayer(4, 2, 6)])
    encoder.layers[0].norm2.eps = 1e-3
    return encoder


SPHERE = (
    with_values(lambda w: walk_layers(parts, w, lie_projected), w54, "state w at the start")
    | {
        "no-velocity": (lambda: before_gain(3, N4), "velocity of a stage … function … 3 came"),
        "no-norm": (
            lambda: before_gain(torch.sin, nn.LayerNorm(4)),
            "before a stage must be a Normalisation … LayerNorm came",
        ),
        "width": (
            lambda: before_gain(torch.sin, N4)(ones(5, 3)),
            r"w before gain and bias … \(\.\.\., N, 4\) … \(5, 3\)",
        ),
        "one-feature": (  # it would broadcast
            lambda: before_gain(torch.sin, N4)(ones(5, 1)),
            r"w before gain and bias … \(\.\.\., N, 4\) … \(5, 1\)",
        ),
        "precision": (
            lambda: before_gain(torch.sin, N4)(w54.float()),
            "w before gain and bias … precision … float32",
        ),
        "no-encoder": (lambda: layers_before_gain([layer], N4), "Encoder is needed … list came"),
        "no-first-norm": (
            lambda: layers_before_gain(post, None),
            "before a stage must be a Normalisation … NoneType came",
        ),
        "pre-norm": (
            lambda: layers_before_gain(Encoder([EncoderLayer(4, 2, 6, True)]), N4),
            "post-norm layers … pre-norm layer came … walk it as it is",
        ),
        "two-eps": (
            lambda: layers_before_gain(two_eps(), N4),
            r"same eps … 1e-05 and 0\.001 came",
        ),
        "first-width": (
            lambda: walk_layers(layers_before_gain(post, N6), w54, lie_projected),
            r"w before gain and bias … \(\.\.\., N, 6\) … \(5, 4\)",
        ),
        "weights-length": (
            lambda: walk_layers(layers_before_gain(post, N4, ones(6)), w54, lie_projected),
            r"attention weights … \(5,\) … \(6,\) came",
        ),
        "weights-zero": (
            lambda: walk_layers(layers_before_gain(post, N4, zeros(5)), w54, lie_projected),
            "row of attention … at least one node",
        ),
        "no-layers": (lambda: walk_layers([], w54, lie_projected), "at least one layer … none"),
        "no-scheme": (lambda: walk_layers(parts, w54, "lie"), "scheme of a walk … 'lie' came"),
        "one-dimension": (
            lambda: walk_layers(parts, w54[0], lie_projected),
            r"state w at the start of a walk … at least 2 dim … \(4,\)",
        ),
        "nan-on-the-way": (
            lambda: walk_layers([Layer(lambda w: w * nan, torch.sin, 1e-5)], w54, lie_projected),
            "state w at the end of a walk … finite",
        ),
        "opposite": (
            lambda: walk_layers([Layer(lambda w: -2.5 * w, torch.sin)], w54, lie_geodesic, 2),
            "must not lead to the point of S1 opposite to w",
        ),
        "opposite-float32": (
            lambda: lie_geodesic(Layer(lambda w: -2.5 * w, torch.sin))(w54.float(), 0.5),
            "must not lead to the point of S1 opposite to w",
        ),
        "through-the-centre": (
            lambda: lie_projected(Layer(lambda w: -w, torch.sin))(w54, 1.0),
            "constant function … eps > 0",
        ),
    }
    | {
        f"velocity-shape-{scheme.__name__}": (
            lambda scheme=scheme: walk_layers([Layer(lambda w: w[:2], torch.sin)], w54, scheme),
            r"velocity … \(5, 4\) … \(2, 4\)",
        )
        for scheme in (lie_projected, lie_geodesic, strang_tangent)
    }
    | {
        f"steps-{steps}": (
            lambda steps=steps: walk_layers(parts, w54, lie_projected, steps),
            f"number of steps … whole number of at least 1 … {steps!r} came",
        )
        for steps in BAD_COUNTS
    }
)


@cases(SPHERE)
def test_flows_on_the_constraint(call, words):
    assert_refused(call, words)


@pytest.mark.parametrize("dt, words", BAD_STEPS.values(), ids=BAD_STEPS)
@pytest.mark.parametrize("scheme", [lie_projected, lie_geodesic, strang_tangent, rk4_tangent])
def test_time_steps_on_the_constraint(scheme, dt, words):
    assert_refused(lambda: scheme(parts[0])(w54, dt), words)


# ---- text ----------------------------------------------------------------------------------------

reader, numbers = TextEncoder(9, 5, post).double(), torch.tensor([[1, 2, 3], [4, 0, 0]])
u34, seen = ones(2, 3, 4), ones(2, 1, 3)
TEXT = (
    with_values(lambda u: sentence(u, seen), u34, "u at the end of a text encoder")
    | with_weights(
        lambda w: sentence(ones(5, 4), w[None] if isinstance(w, torch.Tensor) else w),
        5,
        "weights of the tokens",
    )
    | with_values(reader.finish, w54, "w at the end")
    | {
        "no-words": (lambda: TextEncoder(0, 5, post), "number of words … at least 1 … 0 came"),
        "half-a-word": (lambda: TextEncoder(2.5, 5, post), r"number of words … 2\.5 came"),
        "no-positions": (lambda: TextEncoder(9, 0, post), "number of positions … at least 1"),
        "no-encoder": (lambda: TextEncoder(9, 5, layer), "needs an Encoder … EncoderLayer came"),
        "eps": (lambda: TextEncoder(9, 5, post, -1.0), "eps of a normalisation … -1 came"),
        "list": (lambda: reader([[1, 2]]), r"numbers of the words … int64 … \(B, N\) … numbered"),
        "text": (lambda: reader("a text"), "numbers of the words … int64"),
        "float": (lambda: reader(numbers.double()), "numbers of the words … int64"),
        "int32": (lambda: reader(numbers.int()), "numbers of the words … int64"),
        "one-text": (lambda: reader(numbers[0]), r"numbers of the words … \(B, N\)"),
        "three-dimensions": (lambda: reader(numbers[None]), r"numbers of the words … \(B, N\)"),
        "no-tokens": (lambda: reader(numbers[:, :0]), "1 to 5 tokens … 0 came"),
        "too-long": (
            lambda: reader(torch.ones(1, 6, dtype=torch.int64)),
            "1 to 5 tokens … 6 came; split it",
        ),
        "another-word": (lambda: reader(numbers + 5), r"must lie in 0\.\.8 … another table"),
        "negative-word": (lambda: reader(numbers - 1), r"must lie in 0\.\.8 … another table"),
        "start": (lambda: reader.start(numbers + 5), r"must lie in 0\.\.8 … another table"),
        "weights": (
            lambda: reader(numbers, ones(2, 3)),
            r"attention weights … \(2, 3\) came … \(B, 1, 3\)",
        ),
        "weights-zero": (lambda: reader(numbers, 0 * seen), "row of attention … at least one node"),
        "dt": (lambda: reader(numbers, dt=0.0), "time step dt … positive"),
        "steps": (lambda: reader(numbers, steps=0), "number of steps … at least 1"),
        "finish-width": (lambda: reader.finish(ones(5, 3)), r"w at the end … \(5, 3\)"),
        "finish-one-feature": (lambda: reader.finish(ones(5, 1)), r"w at the end … \(5, 1\)"),
        "finish-precision": (
            lambda: reader.finish(w54.float()),
            "w at the end … precision … float32",
        ),
        "sentence-B-N": (
            lambda: sentence(u34, ones(2, 3)),
            r"shape \(\.\.\., 1, 3\) … \(2, 3\) came",
        ),
        "sentence-N": (lambda: sentence(u34, ones(3)), r"shape \(\.\.\., 1, 3\) … \(3,\) came"),
        "sentence-length": (lambda: sentence(u34, ones(2, 1, 4)), r"\(2, 1, 4\) came"),
        "sentence-boolean": (lambda: sentence(u34, seen > 0), "weights of the tokens … torch.bool"),
        "sentence-batch": (
            lambda: sentence(u34, ones(3, 1, 3)),
            r"leading dimensions of u and of the weights … \(2,\), \(3,\) came",
        ),
        "sentence-unseen": (
            lambda: sentence(u34, seen * torch.tensor([1.0, 0]).double()[:, None, None]),
            "not all be 0 in one sentence",
        ),
        "sentence-of-nothing": (lambda: sentence(0 * u34, seen), "mean … not 0 … no direction"),
        "sentence-cancels": (
            lambda: sentence(torch.stack([u34[0, 0], -u34[0, 0]]), ones(1, 2)),
            "mean … not 0 … no direction",
        ),
        "sentence-overflows": (lambda: sentence(1.7e308 * u34, seen), "mean … finite"),
        "sentence-one-dimension": (lambda: sentence(ones(4), ones(1, 1)), "at least 2 dim"),
    }
)


@cases(TEXT)
def test_text(call, words):
    assert_refused(call, words)


def test_a_table_of_words_that_is_nan_does_not_pass_silently():
    broken = TextEncoder(9, 5, Encoder([EncoderLayer(4, 2, 6)])).double()
    nn.init.constant_(broken.words.weight, nan)
    assert_refused(lambda: broken(numbers), "finite")
    assert_refused(lambda: broken.start(numbers), "finite")


# ---- stability -----------------------------------------------------------------------------------


def narrower(w):
    return w[..., :2]


STABILITY = (
    with_values(lambda w: derivative(torch.sin, w), w54, "state w at which a field is")
    | with_values(lambda w: lipschitz(torch.sin, w), w54, "state w at which a field is")
    | with_values(lambda w: stiffest(torch.sin, w), w54, "state w at which a field is")
    | {
        "no-field": (lambda: derivative(None, w54), "field to be differentiated … None came"),
        "shape": (lambda: derivative(narrower, w54), r"keep the shape \(5, 4\) … \(5, 2\) came"),
        "lipschitz-shape": (lambda: lipschitz(torch.sum, w54), r"shape \(5, 4\) of w … \(\) came"),
        "stiffest-shape": (lambda: stiffest(narrower, w54), r"shape \(5, 4\) of w … \(5, 2\)"),
        "lipschitz-of-two": (lambda: lipschitz(torch.sin, ones(2)), "at least 3 numbers … w has 2"),
        "stiffest-of-two": (lambda: stiffest(torch.sin, ones(1, 2)), "at least 3 … w has 2"),
        "growing": (lambda: largest_step(1.0), r"decaying … Re λ < 0 … \(1\+0j\) came"),
        "turning": (lambda: largest_step(2j), r"decaying … Re λ < 0 … 2j came"),
        "still": (lambda: largest_step(0.0), r"decaying … Re λ < 0 … 0j came"),
        "nan": (lambda: largest_step(nan), "decaying … nan"),
        "infinite": (lambda: largest_step(-inf), "decaying … inf"),
        "infinite-turn": (lambda: largest_step(complex(-1, inf)), "decaying … inf"),
    }
)


@cases(STABILITY)
def test_stability(call, words):
    assert_refused(call, words)
