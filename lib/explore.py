"""Pictures with sliders that need no kernel.

`explore` draws a picture once for each combination of values and packs all of them into one
widget. The sliders only choose which picture is shown, and that choice is made in the browser
(`jslink`). So the same object works in Jupyter, in Colab, and on a page that nobody computes for.
"""

import hashlib
import html
import itertools
import math
import time
from fractions import Fraction

import ipywidgets as widgets
import matplotlib.pyplot as plt
import numpy as np
from IPython import get_ipython
from IPython.display import HTML, display
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from lib.frames import grouped, layers
from lib.plotting import DPI

MOST_FRAMES = 120  # a page may have 1.5 MB, and this many frames take most of it
PACE = 700  # milliseconds between two frames of Play
PATIENCE = 2.0  # seconds after which a progress bar appears
LABELS = {"dt": "step Δt", "n": "grid points", "t": "depth t", "steps": "steps", "eps": "ε"}


def explore(draw, play=None, labels=None, **axes):
    """Return a widget with one slider for each axis, which shows the picture of the chosen values.

    draw(**values) returns `(figure, text)`: a matplotlib figure, and what it shows at these values
    in words, for readers who do not see it. It is called once for each combination, now; all
    figures must be of one size. Each axis is `name=[value, value, ...]`; `labels={"name": "text"}`
    says what the slider is called. `play="name"` adds a button that runs through that axis.

    >>> explore(lambda dt, n: stairs(dt, n), play="dt", dt=[1, 1 / 2, 1 / 4], n=[8, 16, 32])

    Used in every chapter, first in *From stairs to river* (chapters/river.ipynb).
    """
    axes = {name: list(values) for name, values in axes.items()}
    _check(axes, play, labels or {})
    names = {**LABELS, **{name: name.replace("_", " ") for name in axes if name not in LABELS}}
    names.update(labels or {})
    pictures, texts = _draw_all(draw, axes)
    frames, sheets = _pack(pictures, texts)
    sliders = [_slider(names[name], values) for name, values in axes.items()]
    row = widgets.Layout(display="flex", flex_flow="row wrap")
    controls = list(sliders)
    if play is not None:
        position = list(axes).index(play)
        button = widgets.Play(min=0, max=len(axes[play]) - 1, interval=PACE)
        button.description = f"play {names[play]}"
        widgets.jslink((button, "value"), (sliders[position], "index"))
        controls[position] = widgets.Box([button, sliders[position]], layout=row)
    picture = _stack(frames, sliders) if hasattr(widgets, "Stack") else _observe(frames, sliders)
    return widgets.VBox([widgets.Box(controls, layout=row), picture, sheets])


def _check(axes, play, labels):
    if not axes:
        raise ValueError("explore: no axis given; name at least one, for example dt=[1, 1/2, 1/4]")
    for name, values in axes.items():
        texts = [text_of(value) for value in values]
        if len(set(texts)) < max(2, len(texts)):
            raise ValueError(
                f"explore: the axis {name} needs at least two values, all different, got {texts}; "
                "a value that never changes belongs inside draw"
            )
    unknown = {*labels, *([play] if play is not None else [])} - set(axes)
    if unknown:
        raise ValueError(
            f"explore: play or labels name {sorted(unknown)}, but the axes are {list(axes)}"
        )
    count = math.prod(len(values) for values in axes.values())
    if count > MOST_FRAMES:
        sizes = " × ".join(str(len(values)) for values in axes.values())
        raise ValueError(
            f"explore: {sizes} = {count} frames are too many for one page, at most {MOST_FRAMES}; "
            "use fewer values on an axis, or two widgets"
        )


def text_of(value):
    """Return how a value is written beside its slider: 1/4 for 0.25, 1/3 for 1/3, 0.1 for 0.1.

    Used in every chapter, first in *From stairs to river* (chapters/river.ipynb).
    """
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, float):
        return str(value)
    if not math.isfinite(value):
        return str(value)
    if value.is_integer() and abs(value) < 1e6:
        return str(int(value))
    for part in (Fraction(value), Fraction(value).limit_denominator(100)):
        # the short fractions that a float stands for: halves, quarters, ..., thirds, sevenths
        dyadic = part.denominator & (part.denominator - 1) == 0
        wanted = abs(value) < 1 and part.denominator <= 1024 and float(part) == value
        if wanted and (dyadic or float(f"{value:.4g}") != value):
            return str(part)
    return f"{value:.4g}"


def _draw_all(draw, axes):
    """Return the pictures and their texts, both as {(index, ...): ...} in the order of the axes."""
    places = list(itertools.product(*(range(len(values)) for values in axes.values())))
    pictures, texts, size, bar, start = {}, {}, None, None, time.monotonic()
    for done, place in enumerate(places, start=1):
        values = {name: axes[name][i] for name, i in zip(axes, place, strict=True)}
        at = ", ".join(f"{name} = {text_of(value)}" for name, value in values.items())
        pictures[place], texts[place] = _picture(draw(**values), at)
        shown = _size(pictures[place])
        size = size or shown
        if shown != size:
            raise ValueError(
                f"explore: at {at} the figure is {shown} pixels, the first one was {size}; "
                "give all figures one figsize, or the page jumps"
            )
        bar = _progress(done, len(places), start, bar)
    return pictures, texts


def _picture(drawn, at):
    """Return one picture as an array of pixels, each four bytes, and its text."""
    figure, text = drawn if isinstance(drawn, tuple) and len(drawn) == 2 else (drawn, None)
    is_figure = isinstance(figure, Figure)
    if not (is_figure and isinstance(text, str) and text.strip()):
        plt.close("all")
        raise ValueError(
            f"explore: at {at} draw must return (figure, text): a matplotlib figure, and what it "
            f"shows at these values in words; got ({type(figure).__name__}, {text!r})"
        )
    figure.set_dpi(DPI)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    plt.close(figure)
    return np.array(canvas.buffer_rgba()).view(np.uint32)[..., 0], " ".join(text.split())


def _size(picture):
    """Width and height in pixels of the page."""
    return tuple(round(100 * side / DPI) for side in reversed(picture.shape))


def _pack(pictures, texts):
    """Return the frames as {(index, ...): HTML widget}, and one widget with the sheets behind them."""
    frames, sheets, shared = {}, {}, {}
    for places in grouped(pictures):
        sheet, overlays = layers(pictures, places)
        name = "sheet-" + hashlib.sha256(sheet.encode()).hexdigest()[:12]
        sheets[name] = sheet
        for place, overlay in overlays.items():
            width, height = _size(pictures[place])
            frames[place] = widgets.HTML(
                f'<img class="dark-light {name}" alt="{html.escape(texts[place])}" '
                f'width="{width}" height="{height}" style="max-width:100%;height:auto" '
                f'src="{overlay}">',
                **shared,
            )
            shared = {"layout": frames[place].layout, "style": frames[place].style}
    # printers leave backgrounds out, unless they are told that this one is needed
    rules = (
        f".{name} {{background: url({sheet}) 0 0 / 100% 100% content-box; "
        "-webkit-print-color-adjust: exact; print-color-adjust: exact}"
        for name, sheet in sheets.items()
    )
    return frames, widgets.HTML(f"<style>{' '.join(rules)}</style>")


def _slider(label, values):
    return widgets.SelectionSlider(
        options=[(text_of(value), i) for i, value in enumerate(values)],
        value=0,
        description=label,
        continuous_update=True,
        style={"description_width": "initial"},
        layout=widgets.Layout(width="20rem", max_width="100%"),
    )


def _stack(frames, sliders, place=()):
    """Nest one Stack for each axis; each shows the child that its slider points at."""
    if len(place) == len(sliders):
        return frames[place]
    slider = sliders[len(place)]
    stack = widgets.Stack(
        [_stack(frames, sliders, (*place, i)) for i in range(len(slider.options))],
        selected_index=0,
    )
    widgets.jslink((slider, "index"), (stack, "selected_index"))
    return stack


def _observe(frames, sliders):
    """The same for ipywidgets 7 (Colab), which has no Stack: there the kernel swaps the frame."""
    box = widgets.VBox()

    def show(_=None):
        box.children = [frames[tuple(slider.index for slider in sliders)]]

    for slider in sliders:
        slider.observe(show, names="index")
    show()
    return box


def _progress(place, count, start, shown):
    """Show a bar once drawing takes long, and nothing when it is done; never on stderr."""
    done = place == count
    if get_ipython() is None or (shown is None and (done or time.monotonic() - start < PATIENCE)):
        return shown
    bar = f'<progress aria-label="drawing" max="{count}" value="{place}"></progress>'
    bar = HTML("" if done else f"{bar} {place} of {count} pictures")
    if shown is None:
        return display(bar, display_id=True)
    shown.update(bar)
    return shown
