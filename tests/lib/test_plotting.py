"""The style of the figures: contrast, colours that stay apart, and the measured order."""

import itertools

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from lib import plotting
from lib.plotting import CARD, COLOURS, INK, convergence, heatmap, slope, staircase

# Simulation of full colour blindness on linear RGB: Machado, Oliveira and Fernandes (2009).
DEFICIENCY = {
    "protanopia": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "deuteranopia": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "tritanopia": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
    "none": np.eye(3),
}
# From linear RGB to XYZ, divided by the white point.
XYZ = np.array([[0.4339, 0.3762, 0.1899], [0.2126, 0.7152, 0.0722], [0.0177, 0.1095, 0.8728]])


@pytest.fixture(autouse=True)
def style():
    with matplotlib.rc_context():
        plotting.use()
        yield
    plt.close("all")


def linear(colour):
    """Linear RGB of a hex colour (the sRGB transfer function)."""
    c = np.array(matplotlib.colors.to_rgb(colour))
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def contrast(one, other):
    """Contrast ratio as WCAG 2 defines it."""
    low, high = sorted(linear(c) @ [0.2126, 0.7152, 0.0722] for c in (one, other))
    return (high + 0.05) / (low + 0.05)


def lab(rgb):
    """CIELAB of a linear RGB colour; distances there are about what the eye sees."""
    t = XYZ @ np.clip(rgb, 0, 1)
    f = np.where(t > 0.008856, np.cbrt(t), 7.787 * t + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def test_contrast_is_computed_as_defined():
    assert contrast("#000000", "#FFFFFF") == pytest.approx(21.0)
    assert contrast("#777777", "#FFFFFF") == pytest.approx(4.48, abs=0.01)


def test_text_stands_out_from_the_card():
    assert contrast(INK, CARD) >= 4.5
    used = ("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "axes.edgecolor")
    assert {matplotlib.rcParams[key] for key in used} == {INK}


@pytest.mark.parametrize("name", COLOURS)
def test_lines_stand_out_from_the_card(name):
    assert contrast(COLOURS[name], CARD) >= 3.0


@pytest.mark.parametrize("deficiency", DEFICIENCY)
def test_colours_stay_apart(deficiency):
    seen = {k: lab(np.array(DEFICIENCY[deficiency]) @ linear(c)) for k, c in COLOURS.items()}
    for one, other in itertools.combinations(seen, 2):
        distance = np.linalg.norm(seen[one] - seen[other])
        assert distance >= 20, f"{one} and {other} look alike: {distance:.0f}"


def test_text_is_legible_on_a_telephone():
    """A figure 6.4 inches wide is shown about 340 pixels wide: 72 points are 53 pixels there."""
    pixels_per_point = 340 / plotting.WIDE[0] / 72
    sizes = [matplotlib.rcParams[k] for k in ("font.size", "xtick.labelsize", "legend.fontsize")]
    assert min(sizes) * pixels_per_point >= 8
    assert plotting.WIDE[0] == plotting.TALL[0]


def test_the_card_is_opaque():
    figure, _ = plt.subplots()
    figure.canvas.draw()
    pixels = np.asarray(figure.canvas.buffer_rgba())
    assert (pixels[..., 3] == 255).all()
    assert matplotlib.colors.to_hex(pixels[0, 0] / 255).upper() == CARD


def test_fonts_ship_with_matplotlib():
    path = matplotlib.font_manager.findfont("DejaVu Sans", fallback_to_default=False)
    assert path.startswith(matplotlib.get_data_path())


def test_symbols_of_the_book_have_glyphs():
    """A missing glyph is a warning, and a warning is an error here."""
    figure, ax = plt.subplots()
    ax.set_title("Δt γ u(x, ỹ) Ωx → ∞ ≥ ∂ σ² 10⁸ m³ · $x_i \\approx \\Delta t^2$")
    figure.canvas.draw()


@pytest.mark.parametrize("order", [0.5, 1, 2, 4])
def test_slope_measures_the_order(order):
    steps = torch.tensor([1.0, 0.5, 0.25, 0.125], dtype=torch.float64)
    assert slope(steps, 3 * steps**order) == pytest.approx(order, abs=1e-12)


def test_slope_does_not_depend_on_the_sequence():
    steps, errors = [1, 0.1, 0.5], [1.1, 0.012, 0.2]
    assert slope(steps, errors) == pytest.approx(slope(steps[::-1], errors[::-1]))
    assert slope(steps, errors) == pytest.approx(
        np.polynomial.Polynomial.fit(np.log(steps), np.log(errors), 1).convert().coef[1]
    )


@pytest.mark.parametrize(
    ("steps", "errors", "message"),
    [
        ([1, 0.5], [1], "one error for each"),
        ([1], [1], "two different steps"),
        ([1, 1], [1, 2], "two different steps"),
        ([1, 0.5], [1, 0], "zero or at rounding level"),
        ([1, 0.5], [1, -1], "positive and finite"),
        ([1, 0.5], [1, float("nan")], "positive and finite"),
        ([1, 0], [1, 1], "positive and finite"),
    ],
)
def test_slope_refuses(steps, errors, message):
    with pytest.raises(ValueError, match=message):
        slope(steps, errors)


def test_convergence_shows_and_returns_the_slope():
    _, ax = plt.subplots()
    steps = np.array([1, 1 / 2, 1 / 4])
    assert convergence(ax, steps, steps**2, "Strang", order=2) == pytest.approx(2)
    data, line = ax.lines
    assert data.get_label() == "Strang: slope 2.00"
    assert slope(line.get_xdata(), line.get_ydata()) == pytest.approx(2)
    assert line.get_linestyle() == "--"
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")


def test_heatmap_of_a_density_starts_at_zero():
    figure, ax = plt.subplots()
    image = heatmap(ax, torch.rand(3, 5), "γ", xlabel="x̃", ylabel="x")
    assert image.get_clim()[0] == 0
    assert image.get_array().shape == (3, 5)
    assert all(tick == int(tick) for tick in ax.get_xticks())  # a row or column has a whole number
    assert [a.get_ylabel() for a in figure.axes] == ["x", "γ"]


def test_heatmap_of_a_signed_function_is_symmetric():
    _, ax = plt.subplots()
    assert heatmap(ax, [[-3.0, 1.0]], "u", signed=True).get_clim() == (-3, 3)
    _, ax = plt.subplots()
    assert heatmap(ax, [[0.0, 0.0]], "u", signed=True).get_clim() == (-1, 1)
    _, ax = plt.subplots()
    assert heatmap(ax, [[0.5, 0.1]], "γ", limits=(0, 2)).get_clim() == (0, 2)


def test_heatmap_refuses_a_batch():
    _, ax = plt.subplots()
    with pytest.raises(ValueError, match=r"shape \(rows, columns\).*\(2, 3, 3\)"):
        heatmap(ax, torch.rand(2, 3, 3), "γ")


def test_staircase_holds_each_value():
    _, ax = plt.subplots()
    values = torch.tensor([1.0, 0.5, 0.25], requires_grad=True)
    line = staircase(ax, [0, 0.5, 1], values, label="stairs")
    assert line.get_drawstyle() == "steps-post"
    assert line.get_color() == COLOURS["projection"]
    assert line.get_ydata().tolist() == [1, 0.5, 0.25]
