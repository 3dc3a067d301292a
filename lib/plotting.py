"""One look for every picture of the book.

Each colour has one meaning everywhere. The colours stay apart for readers with any of the common
colour-vision deficiencies, and every line also differs from its neighbours by its style or marker.
A figure is an opaque card of warm white, so it reads the same on a light and on a dark page.
Figures are `WIDE` or `TALL`: 6.4 inches across, so that 12 pt text is still legible on a telephone.
"""

import matplotlib
import numpy as np
from matplotlib.ticker import MaxNLocator

CARD = "#FDFBF7"  # what a figure is painted on
INK = "#222222"  # text and axes
GRID = "#DDD8CC"

COLOURS = {
    "river": "#1464F0",  # the continuous solution, the limit of small steps
    "attention": "#7A1F8C",  # the integral over all tokens
    "projection": "#D55E00",  # layer normalisation, and the staircase it keeps in its banks
    "feedforward": "#00965A",  # the pointwise network
    "reference": "#555555",  # exact values and other people's code; drawn dashed
    "data": "#111111",  # what was measured: the Nile, the digits
}

WIDE = (6.4, 3.4)  # one panel, or two side by side
TALL = (6.4, 6.0)  # two panels, one above the other
DPI = 180  # nearly two pixels of the picture for each of the page: sharp, and few bytes

SIGNED = "PuOr_r"  # u(x, y): purple below zero, orange above
DENSITY = "cividis"  # γ(x, x̃) ≥ 0: dark is little, bright is much

STYLE = {
    "figure.figsize": WIDE,
    "figure.dpi": DPI,
    "figure.facecolor": CARD,
    "figure.constrained_layout.use": True,
    "savefig.facecolor": CARD,
    "savefig.transparent": False,
    "font.family": "DejaVu Sans",  # ships with matplotlib: the same picture on every machine
    "font.size": 12,
    "mathtext.fontset": "dejavusans",
    "axes.titlesize": 12,
    "axes.labelsize": 12,
    "xtick.labelsize": 11,
    "ytick.labelsize": 11,
    "legend.fontsize": 11,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.facecolor": CARD,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.prop_cycle": matplotlib.cycler(color=list(COLOURS.values())),
    "lines.linewidth": 2.0,
    "lines.markersize": 6.0,
    "legend.frameon": True,
    "legend.facecolor": CARD,
    "legend.edgecolor": GRID,
    "legend.framealpha": 0.9,
    "image.interpolation": "nearest",
    "svg.hashsalt": "book",
}


def use():
    """Set the style of the book for all figures drawn from here on.

    Used in every chapter, first in *From stairs to river* (chapters/river.ipynb).
    """
    matplotlib.rcParams.update(STYLE)


def numbers(values):
    """Return `values` - a tensor, a list, an array - as a float64 NumPy array, to be drawn.

    Used in every chapter, first in *From stairs to river* (chapters/river.ipynb).
    """
    detach = getattr(values, "detach", None)
    return np.asarray(detach().cpu().numpy() if detach else values, dtype=np.float64)


def staircase(ax, t, u, label=None, colour="projection", **style):
    """Draw the values u(t_k) as stairs: each value is held until the next step.

    t, u: shape (steps + 1,). `colour` names one of `COLOURS`. Returns the line.

    Used in every chapter, first in *From stairs to river* (chapters/river.ipynb).
    """
    style = {"drawstyle": "steps-post", "marker": "o", "markersize": 4, **style}
    return ax.plot(numbers(t), numbers(u), color=COLOURS[colour], label=label, **style)[0]


def heatmap(ax, matrix, label, signed=False, limits=None, xlabel=None, ylabel=None):
    """Show a matrix as colours, row 0 at the top, with a labelled colour bar.

    matrix: shape (rows, columns), such as γ(x_i, x_j) or, with `signed=True`, u(x_i, y_k), whose
    colours are symmetric about zero. `limits=(low, high)` fixes the colours; give it when several
    frames are to be compared. Returns the image.

    Used in chapter 2, *The attention kernel* (chapters/attention.ipynb).
    """
    matrix = numbers(matrix)
    if matrix.ndim != 2:
        raise ValueError(
            f"heatmap: expected a matrix of shape (rows, columns), got shape {matrix.shape}; "
            "pick one sample, for example matrix[0]"
        )
    if limits is None:
        high = float(np.abs(matrix).max()) or 1.0
        limits = (-high, high) if signed else (0.0, high)
    image = ax.imshow(
        matrix,
        cmap=SIGNED if signed else DENSITY,
        vmin=limits[0],
        vmax=limits[1],
        aspect="auto",
    )
    ax.grid(False)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    ax.set(xlabel=xlabel, ylabel=ylabel)
    ax.figure.colorbar(image, ax=ax, label=label)
    return image


def slope(steps, errors):
    """Return the measured order p of a method: the p of the best fit error = C · step^p.

    p is the slope of the least-squares line through (log step, log error); dimensionless.
    steps, errors: shape (n,), n ≥ 2, all positive. An error of exactly zero has no logarithm and
    is refused: it means that the method is exact here, not that its order is large.

    Explained in chapter 1, *Continuous domains* (chapters/domain.ipynb).
    """
    steps, errors = numbers(steps), numbers(errors)
    if steps.shape != errors.shape or steps.ndim != 1 or len(np.unique(steps)) < 2:
        raise ValueError(
            "slope: expected at least two different steps and one error for each, "
            f"got shapes {steps.shape} and {errors.shape}"
        )
    if not (np.isfinite(steps) & np.isfinite(errors) & (steps > 0) & (errors > 0)).all():
        raise ValueError(
            "slope: steps and errors must be positive and finite; leave out the errors that are "
            f"zero or at rounding level, got {errors.tolist()}"
        )
    x, y = np.log(steps), np.log(errors)
    x, y = x - x.mean(), y - y.mean()
    return float(x @ y / (x @ x))


def convergence(ax, steps, errors, label, order=None, colour="river", marker="o"):
    """Draw errors over steps on logarithmic axes, with a dashed line of slope `order`.

    The measured slope is written in the legend, so the reader can compare it with the line.
    Returns the measured slope; arguments as in `slope`.

    Explained in chapter 1, *Continuous domains* (chapters/domain.ipynb).
    """
    measured = slope(steps, errors)
    steps, errors = numbers(steps), numbers(errors)
    ax.loglog(
        steps, errors, marker=marker, color=COLOURS[colour], label=f"{label}: slope {measured:.2f}"
    )
    if order is not None:
        # through the geometric mean of the data, a little below it, so that both are seen
        centre = np.exp(np.log(steps).mean())
        line = 0.6 * np.exp(np.log(errors).mean()) * (steps / centre) ** order
        ax.loglog(steps, line, "--", color=COLOURS["reference"], linewidth=1.2)
    return measured
