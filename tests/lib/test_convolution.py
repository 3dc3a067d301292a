"""Translation-invariant kernels: the local integral, attention with it, and the network of stages."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from orders import order
from scipy.integrate import dblquad
from scipy.ndimage import correlate
from scipy.signal import correlate2d
from torch import nn
from torch.nn.functional import conv2d, gelu

from lib.convolution import ConvolutionalAttention, ConvolutionalLayer, local_integral
from lib.cvt import ConvolutionalTransformer, Stage
from lib.domain import Domain

pytestmark = pytest.mark.usefixtures("float64")

EXACT = {"atol": 1e-12, "rtol": 0}
WINDOWS = [(1, 1), (3, 3), (5, 5), (1, 5), (7, 3)]
SHAPES = [(6, 6), (5, 8), (1, 7), (2, 2)]  # even and odd, and smaller than some windows


def randomised(module):
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return module


# ---- the local integral --------------------------------------------------------------------------


@given(
    st.tuples(st.integers(1, 6), st.integers(1, 6), st.integers(1, 3)),
    st.tuples(st.integers(0, 2), st.integers(0, 2)),
    st.integers(1, 4),
    st.floats(0.1, 3),
)
def test_it_is_the_sum_that_its_formula_says(shape, middle, stride, cell):
    h, w, d = shape
    a, b = 2 * middle[0] + 1, 2 * middle[1] + 1
    u, k = torch.randn(h, w, d), torch.randn(a, b, d)
    found = local_integral(u, k, cell, stride)
    assert found.shape == (math.ceil(h / stride), math.ceil(w / stride), d)
    for i in range(0, h, stride):
        for j in range(0, w, stride):
            total = torch.zeros(d)
            for m in range(-middle[0], middle[0] + 1):
                for n in range(-middle[1], middle[1] + 1):
                    if 0 <= i + m < h and 0 <= j + n < w:  # zero outside the picture
                        total += cell * k[middle[0] + m, middle[1] + n] * u[i + m, j + n]
            torch.testing.assert_close(found[i // stride, j // stride], total, **EXACT)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_on_unit_cells_it_is_torchs_depthwise_convolution(window, shape, stride):
    u, k = torch.randn(2, *shape, 4), torch.randn(*window, 4)
    padding = (window[0] // 2, window[1] // 2)
    expected = conv2d(
        u.permute(0, 3, 1, 2), k.permute(2, 0, 1)[:, None], None, stride, padding, groups=4
    )
    found = local_integral(u, k, stride=stride)
    torch.testing.assert_close(found, expected.permute(0, 2, 3, 1), **EXACT)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("stride", [1, 2])
def test_it_is_the_correlation_of_scipy(window, shape, stride):
    u, k = torch.randn(*shape, 3), torch.randn(*window, 3)
    found = local_integral(u, k, cell=0.25, stride=stride)
    for y in range(3):
        image, kernel = u[..., y].numpy(), k[..., y].numpy()
        full = correlate2d(image, kernel)  # of size h + a − 1: the middle of it is ours
        middle = full[window[0] // 2 :, window[1] // 2 :][: shape[0], : shape[1]]
        by_ndimage = correlate(image, kernel, mode="constant")
        for theirs in (middle, by_ndimage):
            expected = 0.25 * torch.from_numpy(theirs[::stride, ::stride].copy())
            torch.testing.assert_close(found[..., y], expected, **EXACT)


def test_a_kernel_that_is_turned_round_is_another_operator():
    """torch's convolution is a correlation: it does not turn the kernel."""
    u, k = torch.randn(6, 6, 1), torch.randn(3, 3, 1)
    assert (local_integral(u, k) - local_integral(u, k.flip(0, 1))).abs().max() > 0.1


@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (2, 1, 3)])
def test_leading_dimensions_are_kept(lead):
    u, k = torch.randn(*lead, 5, 6, 2), torch.randn(3, 3, 2)
    found = local_integral(u, k, stride=2)
    assert found.shape == (*lead, 3, 3, 2)
    flat = u.reshape(-1, 5, 6, 2)
    expected = torch.stack([local_integral(part, k, stride=2) for part in flat])
    torch.testing.assert_close(found.reshape(-1, 3, 3, 2), expected, **EXACT)


@pytest.mark.parametrize("shift", [(1, 0), (0, 2), (-2, 1)])
def test_it_commutes_with_translations_away_from_the_border(shift):
    u, k = torch.zeros(12, 12, 2), torch.randn(3, 5, 2)
    u[4:8, 4:8] = torch.randn(4, 4, 2)
    moved = torch.roll(u, shift, (0, 1))
    expected = torch.roll(local_integral(u, k), shift, (0, 1))
    torch.testing.assert_close(local_integral(moved, k), expected, **EXACT)


def test_a_stride_takes_every_second_value_and_does_not_average():
    u, k = torch.randn(7, 8, 2), torch.randn(3, 3, 2)
    torch.testing.assert_close(
        local_integral(u, k, stride=2), local_integral(u, k)[::2, ::2], **EXACT
    )


def bump(p, q):
    """A smooth kernel on the square [-1/4, 1/4]², zero beyond it, not symmetric."""
    r = (1 - (4 * p) ** 2) * (1 - (4 * q) ** 2)
    return r**2 * (1 + p - 2 * q)


def test_it_converges_to_the_integral_of_scipy():
    """∫ k(z) u(x + z) dz over a window of fixed size: the order of the midpoint rule, and here more.

    The kernel and its derivative are zero at the border of the window, so that the sum over cells
    is the trapezoidal rule as well, whose error begins with a higher derivative there
    (Euler-Maclaurin): order 4.
    """
    x = 0.5
    truth, _ = dblquad(
        lambda q, p: bump(p, q) * math.sin(3 * (x + p) + 2 * (x + q)), -0.25, 0.25, -0.25, 0.25
    )
    steps, errors = [], []
    for n in (10, 18, 34, 66):  # cells in the window, whose middle is a node
        h = 0.5 / n
        grid = x + h * torch.arange(-n // 2, n // 2 + 1)
        u = torch.sin(3 * grid[:, None] + 2 * grid)[..., None]
        z = (grid - x).numpy()
        k = torch.from_numpy(bump(z[:, None], z[None, :]))[..., None]
        found = local_integral(u, k, cell=h**2)[n // 2, n // 2, 0].item()
        steps.append(h)
        errors.append(abs(found - truth))
    assert order(steps, errors) == pytest.approx(4, abs=0.2)


def test_a_kernel_that_ends_abruptly_converges_with_order_two_on_midpoints():
    """The cells of an odd window fill the square exactly when their area is the square's, divided by their number."""
    x = 0.5
    truth, _ = dblquad(
        lambda q, p: math.exp(p - q) * math.sin(3 * (x + p) + 2 * (x + q)),
        -0.25, 0.25, -0.25, 0.25,
    )  # fmt: skip
    steps, errors = [], []
    for n in (5, 9, 17, 33):
        h = 0.5 / n
        z = h * (torch.arange(n) - n // 2)
        u = torch.sin(3 * (x + z)[:, None] + 2 * (x + z))[..., None]
        k = torch.exp(z[:, None] - z)[..., None]
        found = local_integral(u, k, cell=h**2)[n // 2, n // 2, 0].item()
        steps.append(h)
        errors.append(abs(found - truth))
    assert order(steps, errors) == pytest.approx(2, abs=0.05)


def test_without_the_area_of_a_cell_it_does_not_converge():
    """Unit cells on finer grids: the sum grows with the number of cells, as 1/h²."""
    sizes, sums = [5, 9, 17, 33], []
    for n in sizes:
        u = k = torch.ones(n, n, 1)
        sums.append(local_integral(u, k)[n // 2, n // 2, 0].item())
    assert order([1 / n for n in sizes], sums) == pytest.approx(-2)


def test_its_derivatives_are_right():
    u, k = (torch.randn(*shape, requires_grad=True) for shape in [(2, 4, 5, 2), (3, 3, 2)])
    assert torch.autograd.gradcheck(lambda u, k: local_integral(u, k, 0.5, 2), (u, k))
    assert torch.autograd.gradgradcheck(lambda u, k: local_integral(u, k, 0.5, 2), (u, k))


# ---- attention with local integrals --------------------------------------------------------------


def by_hand(A, u, size):
    """The formula of the class, from the public operators of the book and softmax alone."""
    extra = u.shape[1] - size[0] * size[1]
    image = u[:, extra:].unflatten(1, size)
    parts = {}
    for convolution, W, stride in ((A.query, A.Q, 1), (A.key, A.K, 2), (A.value, A.V, 2)):
        k = convolution.weight[:, 0].permute(1, 2, 0)
        local = local_integral(image, k, stride=stride) + convolution.bias
        tokens = torch.cat([u[:, :extra], local.flatten(1, 2)], 1)
        parts[W] = tokens @ W.weight.mT + W.bias
    result, width = A.O.bias.expand_as(u), u.shape[-1] // A.heads
    for h in range(A.heads):
        of_head = slice(h * width, (h + 1) * width)
        Q, K, V = (parts[W][..., of_head] for W in (A.Q, A.K, A.V))
        gamma = torch.softmax(Q @ K.mT / math.sqrt(u.shape[-1]), -1)
        result = result + gamma @ V @ A.O.weight[:, of_head].mT
    return result


@pytest.mark.parametrize("heads", [1, 2, 3])
@pytest.mark.parametrize("size", [(4, 4), (5, 7), (1, 6)])
@pytest.mark.parametrize("extra", [0, 1])
@pytest.mark.parametrize("kernel", [1, 3, 5])
def test_attention_is_what_its_formula_says(heads, size, extra, kernel):
    A = randomised(ConvolutionalAttention(6, heads, kernel, kernel // 2))
    u = torch.randn(2, extra + size[0] * size[1], 6)
    torch.testing.assert_close(A(u, size), by_hand(A, u, size), **EXACT)


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("extra", [0, 1])
def test_keys_and_values_lie_on_the_coarser_grid(stride, extra):
    A, (h, w) = ConvolutionalAttention(6, 2, stride=stride), (5, 7)
    Q, K, V = A.split(torch.randn(3, extra + h * w, 6), (h, w))
    count = extra + math.ceil(h / stride) * math.ceil(w / stride)
    assert Q.shape == (3, 2, extra + h * w, 3)
    assert K.shape == V.shape == (3, 2, count, 3)


def test_the_class_point_does_not_meet_the_convolutions():
    """Its query, key and value are those of the linear maps; and it is no part of the picture."""
    A, size = randomised(ConvolutionalAttention(6, 2)), (4, 5)
    u = torch.randn(2, 21, 6)
    alone = A.split(u[:, 1:], size)
    for part, without, W in zip(A.split(u, size), alone, (A.Q, A.K, A.V), strict=True):
        torch.testing.assert_close(part[:, :, 0].flatten(1), W(u[:, 0]), **EXACT)
        torch.testing.assert_close(part[:, :, 1:], without, **EXACT)


def test_rows_and_columns_are_not_exchanged():
    A, u = randomised(ConvolutionalAttention(6, 2)), torch.randn(2, 12, 6)
    assert (A(u, (3, 4)) - A(u, (4, 3))).abs().max() > 1e-3


# ---- layers, stages, the network -----------------------------------------------------------------


def network(class_point=False, outputs=None):
    def stage(channels, width, depth, point=False):
        embedding = nn.Conv2d(channels, width, 3, stride=2, padding=1)
        attention = [ConvolutionalAttention(width, 2) for _ in range(depth)]
        return Stage(embedding, [ConvolutionalLayer(A, 2 * width) for A in attention], point)

    return randomised(
        ConvolutionalTransformer([stage(1, 4, 1), stage(4, 6, 2, class_point)], outputs)
    )


@pytest.mark.parametrize(("dt", "steps"), [(1.0, 1), (0.5, 2), (0.1, 7)])
def test_a_layer_takes_steps_of_size_dt(dt, steps):
    """u ← u + Δt A(N₁u), u ← u + Δt F(N₂u), in this order."""
    layer, size = randomised(ConvolutionalLayer(ConvolutionalAttention(6, 2), 8)), (3, 4)
    u = expected = torch.randn(2, 12, 6)
    for _ in range(steps):
        expected = expected + dt * by_hand(layer.attention, layer.norm1(expected), size)
        F, v = layer.feed_forward, layer.norm2(expected)
        hidden = gelu(v @ F.W1.weight.mT + F.W1.bias)
        expected = expected + dt * (hidden @ F.W2.weight.mT + F.W2.bias)
    torch.testing.assert_close(layer(u, size, dt, steps), expected)


@pytest.mark.parametrize("size", [(8, 8), (9, 11), (3, 1), (1, 1)])
@pytest.mark.parametrize("class_point", [False, True])
def test_the_network_reads_images_of_any_size(size, class_point):
    model = network(class_point, outputs=5)
    image, point = model(torch.randn(3, 1, *size))
    assert image.shape == (3, 6, math.ceil(size[0] / 4), math.ceil(size[1] / 4))
    assert (point is None) if not class_point else (point.shape == (3, 1, 6))
    assert model.read_out(image, point).shape == (3, 5)


def test_the_read_out_is_a_mean_over_the_places_or_the_class_point():
    model, images = network(), torch.randn(3, 1, 9, 11)
    image, point = model(images)
    torch.testing.assert_close(model.read_out(image, point), image.mean((2, 3)), **EXACT)
    model = network(class_point=True, outputs=5)
    image, point = model(images)
    expected = model.head(model.norm(point[:, 0]))
    torch.testing.assert_close(model.read_out(image, point), expected, **EXACT)


def test_images_of_a_batch_do_not_meet():
    model, images = network(class_point=True), torch.randn(3, 1, 9, 11)
    whole, alone = model(images), model(images[1:2])
    for mine, other in zip(whole, alone, strict=True):
        torch.testing.assert_close(mine[1:2], other, **EXACT)


@pytest.mark.parametrize("class_point", [False, True])
def test_every_parameter_has_a_gradient(class_point):
    model = network(class_point, outputs=5)
    image, point = model(torch.randn(2, 1, 9, 11))
    (model.read_out(image, point).square().sum() + image.square().sum()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        # What is added to every key alike shifts all scores of a row, and softmax does not see it.
        last = (
            name.startswith("stages.1") and class_point
        )  # there the class point has a key without it
        shifts_all_scores = name.endswith("K.bias") or (name.endswith("key.bias") and not last)
        assert shifts_all_scores or parameter.grad.abs().max() > 0, name


def test_a_coarser_grid_of_keys_is_a_coarser_quadrature():
    """The mean of a smooth function over every second node is close to the one over all nodes."""
    nodes = Domain.midpoint(32, 0.0, 1.0).nodes
    image = torch.exp(nodes[:, None] + nodes)[..., None]
    identity = torch.ones(1, 1, 1)
    errors = []
    for stride in (1, 2, 4):
        mean = local_integral(image, identity, stride=stride).mean().item()
        errors.append(abs(mean - (math.e - 1) ** 2))
    assert errors[0] < errors[1] < errors[2]
    # From every second node at 0, 2, ... the grid lies to one side: only order 1.
    assert np.log2(errors[2] / errors[1]) == pytest.approx(math.log2(3), abs=0.2)
