"""Positions: where the tokens lie, waves and tables as functions, weights beside a class point."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import interpolate

from lib.attention import attend, kernel
from lib.encoder import Encoder, EncoderLayer
from lib.positions import Table, Waves, centres, pair, quadrature, waves
from lib.projection import Normalisation
from lib.vit import VisionTransformer

pytestmark = pytest.mark.usefixtures("float64")

EXACT = {"atol": 1e-12, "rtol": 0}


# ---- the nodes -----------------------------------------------------------------------------------


@given(
    st.tuples(st.integers(1, 5), st.integers(1, 5)),
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.tuples(st.integers(1, 5), st.integers(1, 5)),
)
def test_centres_are_the_mean_places_of_the_pixels_of_a_patch(patch, stride, count):
    """A pixel i of n has its own centre at (i + 1/2)/n; the centre of a patch is the mean of those."""
    pixels = tuple(p + (n - 1) * s for p, n, s in zip(patch, count, stride, strict=True))
    found = centres(pixels, patch, stride)
    assert found.shape == (*count, 2)
    assert found.dtype == torch.float64
    for i in range(count[0]):
        for j in range(count[1]):
            for axis, index in enumerate((i, j)):
                start = index * stride[axis]
                inside = np.arange(start, start + patch[axis]) + 0.5
                assert found[i, j, axis].item() == pytest.approx(inside.mean() / pixels[axis])


@given(st.integers(1, 9), st.integers(1, 9))
def test_centres_are_symmetric_and_inside_the_square(rows, columns):
    x = centres((4 * rows, 3 * columns), (4, 3), (4, 3))
    torch.testing.assert_close(x.flip(0, 1), 1 - x)
    assert (x > 0).all()
    assert (x < 1).all()
    torch.testing.assert_close(x.mean((0, 1)), torch.tensor([0.5, 0.5]))


def test_centres_of_patches_side_by_side_are_the_midpoint_rule():
    """Sampling an integral at them has order 2: the midpoint rule in the plane."""

    def mean(n):
        x = centres((4 * n, 4 * n), (4, 4), (4, 4))
        return torch.exp(x[..., 0] + 2 * x[..., 1]).mean().item()

    truth = (math.e - 1) * (math.e**2 - 1) / 2
    errors = [abs(mean(n) - truth) for n in (8, 16, 32)]
    assert [np.log2(errors[i] / errors[i + 1]) for i in (0, 1)] == pytest.approx([2, 2], abs=0.01)


def test_centres_are_where_the_images_are_sampled():
    """An image that is a linear function has at each patch the mean of its value at the centre."""
    row, column = torch.meshgrid(torch.arange(10), torch.arange(14), indexing="ij")
    image = 3 * (row + 0.5) / 10 - 2 * (column + 0.5) / 14
    vit = VisionTransformer((4, 2), Encoder([EncoderLayer(2, 1, 2, True)]), Waves(2, [1]))
    torch.nn.init.constant_(vit.embedding.weight, 1 / 8)
    torch.nn.init.zeros_(vit.embedding.bias)
    torch.nn.init.zeros_(vit.positions.W.weight)
    u = vit.sample(image[None, None], stride=(3, 2))
    x = centres((10, 14), (4, 2), (3, 2))
    expected = (3 * x[..., 0] - 2 * x[..., 1]).flatten()
    torch.testing.assert_close(u[0], expected[:, None].expand(-1, 2), **EXACT)


@pytest.mark.parametrize(("size", "expected"), [(3, (3, 3)), ((2, 5), (2, 5)), ([2, 5], (2, 5))])
def test_a_pair_may_be_one_number(size, expected):
    assert pair("a patch", size) == expected
    assert pair("a patch", np.int64(3)) == (3, 3)
    assert pair("a patch", torch.Size([2, 5])) == (2, 5)


# ---- waves ---------------------------------------------------------------------------------------


def test_waves_are_sines_and_cosines_of_each_coordinate():
    x, frequencies = torch.rand(2, 3, 2), torch.tensor([1.0, 2.5, 7.0])
    found = waves(x, frequencies)
    assert found.shape == (2, 3, 12)
    for i in range(2):
        for j in range(3):
            angles = [2 * math.pi * f * x[i, j, a].item() for a in range(2) for f in (1, 2.5, 7)]
            expected = [math.sin(angle) for angle in angles] + [math.cos(angle) for angle in angles]
            assert found[i, j].tolist() == pytest.approx(expected, abs=1e-13)


@given(st.integers(1, 6), st.integers(0, 10), st.floats(0, 1))
def test_a_wave_of_whole_frequency_is_periodic_and_has_period_one_over_f(f, k, t):
    x, moved = torch.tensor([[t, t / 2]]), torch.tensor([[t + k / f, t / 2 + k / f]])
    frequencies = torch.tensor([float(f)])
    torch.testing.assert_close(waves(x, frequencies), waves(moved, frequencies), atol=1e-11, rtol=0)


@given(st.lists(st.floats(-9, 9), min_size=1, max_size=4), st.floats(0, 1), st.floats(0, 1))
def test_sines_and_cosines_lie_on_circles(frequencies, a, b):
    sines, cosines = waves(torch.tensor([a, b]), torch.tensor(frequencies)).chunk(2)
    torch.testing.assert_close(sines**2 + cosines**2, torch.ones_like(sines))


def test_learned_waves_are_a_linear_map_of_waves_and_the_same_on_every_grid():
    module = Waves(6, [1, 2, 3])
    coarse, fine = centres((7, 7), (1, 1), (1, 1)), centres((21, 21), (1, 1), (1, 1))
    expected = waves(coarse, torch.tensor([1.0, 2, 3])) @ module.W.weight.mT
    torch.testing.assert_close(module(coarse), expected, **EXACT)
    torch.testing.assert_close(module(fine)[1::3, 1::3], module(coarse), **EXACT)  # shared centres
    assert {name for name, _ in module.named_parameters()} == {"W.weight"}
    assert set(module.state_dict()) == {"W.weight"}  # the frequencies are a choice, not learned


def test_learned_waves_in_single_precision_read_points_in_double_precision():
    x = centres((7, 7), (1, 1), (1, 1))
    module = Waves(6, [1, 2, 3]).float()
    assert module(x).dtype == torch.float32


# ---- a table -------------------------------------------------------------------------------------


@pytest.mark.parametrize("grid", [(1, 1), (1, 4), (3, 5), (7, 7)])
def test_a_table_at_its_own_nodes_is_exact(grid):
    table = Table(4, grid)
    x = centres((2 * grid[0], 3 * grid[1]), (2, 3), (2, 3))  # patches of any size: the same centres
    assert table(x) is table.values
    moved = x + 1e-7  # close to them, but no longer at them: the interpolation is continuous there
    torch.testing.assert_close(table(moved), table.values, atol=1e-5, rtol=0)


def test_the_interpolation_itself_meets_the_nodes():
    """Without the short cut of equal nodes: at every second node of a table, read with other ones."""
    table = Table(4, (6, 9))
    torch.testing.assert_close(table(table.nodes[:, ::2]), table.values[:, ::2], **EXACT)
    torch.testing.assert_close(table(table.nodes[1:, 3:]), table.values[1:, 3:], **EXACT)


@pytest.mark.parametrize("grid", [(3, 5), (7, 7), (1, 4)])
@pytest.mark.parametrize("size", [(4, 4), (13, 9), (3, 25), (2, 1)])
def test_a_table_at_other_sizes_is_torchs_bicubic_interpolation(grid, size):
    table = Table(4, grid)
    torch.nn.init.normal_(table.values)
    found = table(centres(size, (1, 1), (1, 1)))
    expected = interpolate(
        table.values.permute(2, 0, 1)[None], size, mode="bicubic", align_corners=False
    )
    torch.testing.assert_close(found, expected[0].permute(1, 2, 0), **EXACT)


def test_bilinear_interpolation_is_another_one():
    table = Table(4, (3, 5))
    torch.nn.init.normal_(table.values)
    image = table.values.permute(2, 0, 1)[None]
    other = interpolate(image, (6, 10), mode="bilinear", align_corners=False)[0].permute(1, 2, 0)
    assert (table(centres((6, 10), (1, 1), (1, 1))) - other).abs().max() > 1e-2


@pytest.mark.parametrize("size", [(1, 1), (5, 6), (20, 3)])
def test_a_constant_table_is_constant_everywhere(size):
    """Beyond the outer nodes too: the table is continued, not filled up with zeros."""
    table = Table(2, (3, 4))
    table.values.data = torch.tensor([2.0, -3.0]).expand(3, 4, 2)
    x = torch.cat([torch.rand(*size, 2), torch.zeros(1, size[1], 2), torch.ones(1, size[1], 2)])
    torch.testing.assert_close(table(x), torch.tensor([2.0, -3.0]).expand(*x.shape), **EXACT)


def test_torchs_bicubic_interpolation_does_not_reproduce_linear_functions():
    """Its parameter is -3/4 (Keys: -1/2), so a table of a linear function is not one between its nodes."""
    table = Table(1, (9, 9))
    table.values.data = table.nodes[..., :1]
    x = 0.2 + 0.6 * torch.rand(20, 6, 2)
    gap = (table(x) - x[..., :1]).abs().max().item()
    assert 1e-3 < gap < 0.1 / 9


def test_gradients_reach_the_table():
    table = Table(2, (3, 4))
    for size in [(3, 4), (5, 5)]:
        table.zero_grad()
        table(centres(size, (1, 1), (1, 1))).sum().backward()
        assert table.values.grad.sum().item() == pytest.approx(2 * size[0] * size[1])


# ---- weights beside a class point ----------------------------------------------------------------


@pytest.mark.parametrize("tokens", [1, 4, 49, 625])
@pytest.mark.parametrize("measure", [0.5, 1, 49.0])
def test_the_class_point_keeps_its_share(tokens, measure):
    """With equal scores the share of the class point is 1/(1 + |Ωx|), however many tokens there are."""
    weights = quadrature(tokens, measure)
    assert weights.shape == (1 + tokens,)
    assert weights.sum().item() == pytest.approx(1 + measure)
    Q = K = torch.zeros(1, 1 + tokens, 3)
    share = (kernel(Q, K, weights) * weights)[0, 0, 0].item()
    assert share == pytest.approx(1 / (1 + measure), rel=1e-12)
    V = torch.zeros(1, 1 + tokens, 1)
    V[:, 0] = 1
    assert attend(Q, K, V, weights).flatten().tolist() == pytest.approx(
        (1 + tokens) * [1 / (1 + measure)]
    )


@pytest.mark.parametrize("tokens", [1, 4, 49, 625])
def test_on_unit_cells_the_class_point_loses_its_share(tokens):
    """Why the weights are needed: 1/(1 + N) falls with the number of tokens."""
    Q = torch.zeros(1, 1 + tokens, 3)
    assert kernel(Q, Q)[0, 0, 0].item() == pytest.approx(1 / (1 + tokens))


def test_in_training_the_weights_are_those_of_unit_cells():
    assert torch.equal(quadrature(49, 49), torch.ones(50))


def test_on_finer_grids_the_class_point_sees_an_integral_that_converges():
    """∫ over the square with weights, towards SciPy's value of (1·v₀ + μ mean v)/(1 + μ) for equal scores."""
    expected = (2 + 9 * (math.e - 1) ** 2) / 10

    def found(n):
        x = centres((n, n), (1, 1), (1, 1)).flatten(0, 1)
        V = torch.cat([torch.tensor([2.0]), torch.exp(x.sum(-1))])[None, :, None]
        Q = torch.zeros(1, 1 + n * n, 1)
        return attend(Q, Q, V, quadrature(n * n, 9))[0, 0, 0].item()

    errors = [abs(found(n) - expected) for n in (4, 8, 16)]
    assert [np.log2(errors[i] / errors[i + 1]) for i in (0, 1)] == pytest.approx([2, 2], abs=0.02)


# ---- the whole network ---------------------------------------------------------------------------


def vit(class_point=False, outputs=None, positions=None):
    layers = [EncoderLayer(6, 2, 8, True) for _ in range(2)]
    positions = positions or Waves(6, [1, 2])
    return VisionTransformer(
        4, Encoder(layers, Normalisation(6)), positions, 1, class_point, outputs
    )


@pytest.mark.parametrize("class_point", [False, True])
@pytest.mark.parametrize(("stride", "tokens"), [(None, 9), (4, 9), (2, 25), (1, 81), ((4, 2), 15)])
def test_the_stride_chooses_the_number_of_tokens(class_point, stride, tokens):
    model, images = vit(class_point), torch.randn(3, 1, 12, 12)
    assert model(images, stride=stride).shape == (3, tokens + class_point, 6)


def test_pooling_is_the_mean_over_the_tokens_or_the_class_point():
    images = torch.randn(3, 1, 12, 12)
    for class_point in (False, True):
        model = vit(class_point, outputs=5)
        u = model(images)
        pooled = u[:, 0] if class_point else u.mean(1)
        torch.testing.assert_close(model.read_out(u), model.head(pooled), **EXACT)


def test_without_positions_the_order_of_the_patches_does_not_matter():
    """Attention is an integral over Ωx: it knows places only from the positions."""
    model, images = vit(), torch.randn(2, 1, 4, 12)
    mixed = torch.cat([images[..., 8:], images[..., :4], images[..., 4:8]], -1)
    assert (model(images).mean(1) - model(mixed).mean(1)).abs().max() > 1e-3
    torch.nn.init.zeros_(model.positions.W.weight)
    torch.testing.assert_close(model(images).mean(1), model(mixed).mean(1), **EXACT)


def test_every_parameter_has_a_gradient():
    for class_point in (False, True):
        model = vit(class_point, outputs=5, positions=Table(6, (3, 3)))
        model.read_out(model(torch.randn(2, 1, 12, 12), stride=2)).square().sum().backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.abs().max() > 0, name
