"""Widgets: every frame is there, the links are complete, and bad calls say how to mend them."""

import base64
import html
import io
import re

import ipywidgets as widgets
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

from lib import explore as module
from lib import frames as packing
from lib.explore import explore, text_of
from lib.plotting import DPI


@pytest.fixture(autouse=True)
def no_figure_stays_open():
    yield
    left = plt.get_fignums()
    plt.close("all")
    assert not left


def draw(dt, n):
    figure, ax = plt.subplots(figsize=(3, 2))
    ax.plot([0, dt], [0, n])
    return figure, f'step {dt} & "n" = {n} < 9'


def below(widget):
    """All widgets inside a widget, in order."""
    inside = [w for child in getattr(widget, "children", ()) for w in below(child)]
    return [widget, *inside]


def of(kind, widget):
    return [w for w in below(widget) if type(w) is kind]


@pytest.fixture
def links(monkeypatch):
    """Record each jslink."""
    made = []
    real = widgets.jslink

    def jslink(source, target):
        made.append((source, target))
        return real(source, target)

    monkeypatch.setattr(widgets, "jslink", jslink)
    return made


def follow(picture, links, state):
    """The frame that a browser shows when the sliders stand at `state`: {slider: index}."""
    while type(picture) is widgets.Stack:
        (slider,) = [s for (s, trait), t in links if t == (picture, "selected_index")]
        picture = picture.children[state[slider]]
    return picture


def frames(widget):
    return [w for w in of(widgets.HTML, widget) if "<img" in w.value]


def sheets(widget):
    """{class: picture} of what lies behind the frames."""
    (style,) = [w.value for w in of(widgets.HTML, widget) if "<style" in w.value]
    return {
        name: opened(data)
        for name, data in re.findall(r"\.([\w-]+) {background: url\(([^)]+)", style)
    }


def opened(uri):
    data = uri.removeprefix("data:image/webp;base64,")
    assert data != uri
    return Image.open(io.BytesIO(base64.b64decode(data))).convert("RGBA")


def seen(widget):
    """What a reader sees of each frame: the frame on its sheet."""
    behind = sheets(widget)
    for frame in frames(widget):
        name, data = re.search(r'class="dark-light ([^"]+)".* src="([^"]+)"', frame.value).groups()
        yield np.asarray(Image.alpha_composite(behind[name], opened(data)).convert("RGB"))


def drawn(figure):
    """The pixels of a figure, as matplotlib draws them."""
    plt.close(figure)
    figure.set_dpi(DPI)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3]


def alt(frame):
    return html.unescape(re.search(r'alt="([^"]*)"', frame.value)[1])


def test_each_combination_shows_its_own_frame(links):
    steps, sizes, kinds = [1, 1 / 2, 1 / 4], [4, 8], ["Lie", "Strang"]

    def three(dt, n, kind):
        figure, ax = plt.subplots(figsize=(3, 2))
        ax.set_title(f"{kind} {dt} {n}")
        return figure, f"{kind} {dt} {n}"

    widget = explore(three, dt=steps, n=sizes, kind=kinds)
    first, second, third = of(widgets.SelectionSlider, widget)
    picture = widget.children[1]
    values = set()
    for i, dt in enumerate(steps):
        for j, n in enumerate(sizes):
            for k, kind in enumerate(kinds):
                frame = follow(picture, links, {first: i, second: j, third: k})
                assert alt(frame) == f"{kind} {dt} {n}"
                values.add(frame.value)
    assert len(values) == 12
    # one link for each stack: 1 + 3 + 6
    assert len(links) == len(of(widgets.Stack, widget)) == 10
    assert {trait for (_, trait), _ in links} == {"index"}


def test_the_first_values_are_shown_first():
    widget = explore(draw, dt=[1, 1 / 2], n=[4, 8])
    assert all(s.index == 0 for s in of(widgets.SelectionSlider, widget))
    assert all(s.selected_index == 0 for s in of(widgets.Stack, widget))


def test_a_frame_has_a_size_and_a_text():
    widget = explore(draw, dt=[1, 1 / 2], n=[4, 8])
    frame = frames(widget)[0]
    assert alt(frame) == 'step 1 & "n" = 4 < 9'
    assert '"n"' not in frame.value  # escaped, or it would end the attribute
    assert next(seen(widget)).shape == (360, 540, 3)  # nearly two pixels for each pixel of the page
    assert 'width="300" height="200"' in frame.value
    assert "max-width:100%;height:auto" in frame.value


LINES = ("#1464F0", "#7A1F8C", "#D55E00", "#00965A")


def rgb(colour):
    return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]


def busy(n, k=0):
    figure, (left, right) = plt.subplots(1, 2)
    x = np.linspace(0, 1, 200)
    for i, colour in enumerate(LINES):
        left.plot(x, np.sin(n * x + i + k), color=colour, linewidth=1.5)
    right.imshow(np.exp(-(np.subtract.outer(x, x) ** 2)), cmap="cividis")
    left.set_title(f"{n} and {k}")
    return figure, f"busy {n} {k}"


def test_a_frame_on_its_sheet_looks_as_it_was_drawn():
    """Few colours, and what the frames share stored once: neither is seen."""
    widget = explore(busy, n=[5, 9], k=[0, 1, 2])
    wanted = [drawn(busy(n, k)[0]) for n in (5, 9) for k in (0, 1, 2)]
    for picture, exact in zip(seen(widget), wanted, strict=True):
        difference = np.abs(picture.astype(int) - exact)
        assert np.percentile(difference, 99) <= 13
        assert np.percentile(difference, 99.9) <= 25
        for colour in LINES:  # a line keeps its colour: fewer shades change its edges only
            assert difference[(exact == rgb(colour)).all(axis=2)].max() <= 8


def test_what_frames_share_is_stored_once():
    def titled(k):
        figure, text = busy(5)
        figure.axes[0].set_title(f"frame {k}")
        return figure, f"{text}, frame {k}"

    widget = explore(titled, k=list(range(6)))
    (sheet,) = [w.value for w in of(widgets.HTML, widget) if "<style" in w.value]
    assert sum(len(frame.value) for frame in frames(widget)) < len(sheet)


def test_each_value_has_its_own_sheet_where_that_takes_fewer_bytes():
    noise = np.random.default_rng(0).random((2, 60, 60))

    def background(n, k):
        figure, ax = plt.subplots(figsize=(3, 2))
        ax.imshow(noise[n])
        ax.set_title(k)
        return figure, f"noise {n}, {k}"

    widget = explore(background, n=[0, 1], k=[0, 1, 2])
    assert len(sheets(widget)) == 2
    wanted = [drawn(background(n, k)[0]) for n in (0, 1) for k in (0, 1, 2)]
    for picture, exact in zip(seen(widget), wanted, strict=True):
        assert np.percentile(np.abs(picture.astype(int) - exact), 99) <= 25


def test_the_majority_is_taken_where_there_is_one():
    pictures = [
        np.array(p, dtype=np.uint32)
        for p in ([1, 2, 5], [3, 2, 6], [1, 4, 7], [1, 2, 7], [9, 2, 7])
    ]
    assert packing._majority(pictures).tolist() == [1, 2, 7]


def test_the_same_call_gives_the_same_bytes():
    one, two = (explore(draw, dt=[1, 1 / 2], n=[4, 8]) for _ in range(2))
    assert [f.value for f in of(widgets.HTML, one)] == [f.value for f in of(widgets.HTML, two)]


def test_play_runs_through_its_axis(links):
    widget = explore(draw, play="n", dt=[1, 1 / 2], n=[4, 8, 16])
    (button,) = of(widgets.Play, widget)
    step, size = of(widgets.SelectionSlider, widget)
    assert ((button, "value"), (size, "index")) in links
    assert (button.min, button.max, button.interval) == (0, 2, 700)
    # the button and its slider stay together when the row wraps
    first, together = widget.children[0].children
    assert first is step and list(together.children) == [button, size]
    assert not of(widgets.Play, explore(draw, dt=[1, 1 / 2], n=[4, 8]))


def test_labels():
    widget = explore(draw, labels={"n": "stations $N$"}, dt=[1, 1 / 3, 0.1], n=[4, 8])
    step, size = of(widgets.SelectionSlider, widget)
    assert (step.description, size.description) == ("step Δt", "stations $N$")
    assert step._options_labels == ("1", "1/3", "0.1")

    def other(number_of_heads):
        return draw(1, number_of_heads)

    (slider,) = of(widgets.SelectionSlider, explore(other, number_of_heads=[1, 2]))
    assert slider.description == "number of heads"


def test_controls_wrap_on_a_narrow_page():
    row = explore(draw, dt=[1, 1 / 2], n=[4, 8]).children[0]
    assert row.layout.flex_flow == "row wrap"
    assert all(control.layout.max_width == "100%" for control in row.children)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1, "1"),
        (1.0, "1"),
        (0.0, "0"),
        (1 / 2, "1/2"),
        (-1 / 2, "-1/2"),
        (3 / 4, "3/4"),
        (1 / 64, "1/64"),
        (1 / 3, "1/3"),
        (2 / 3, "2/3"),
        (0.1, "0.1"),
        (0.05, "0.05"),
        (1.5, "1.5"),
        (1e-12, "1e-12"),
        (3.14159265, "3.142"),
        (float("inf"), "inf"),
        (True, "yes"),
        (False, "no"),
        ("Lie", "Lie"),
        (np.float64(0.25), "1/4"),
        (np.int64(8), "8"),
    ],
)
def test_values_are_written_shortly(value, text):
    assert text_of(value) == text


def test_without_stack_the_kernel_swaps_the_frame(monkeypatch):
    """ipywidgets 7, as on Colab."""
    monkeypatch.delattr(widgets, "Stack")
    widget = explore(draw, play="dt", dt=[1, 1 / 2], n=[4, 8])
    step, size = of(widgets.SelectionSlider, widget)
    box = widget.children[1]
    assert type(box) is widgets.VBox
    for i, dt in enumerate([1, 1 / 2]):
        for j, n in enumerate([4, 8]):
            step.index, size.index = i, j
            (frame,) = box.children
            assert alt(frame) == draw_text(dt, n)


def draw_text(dt, n):
    figure, text = draw(dt, n)
    plt.close(figure)
    return text


def draws_nothing(dt):
    return "not a figure", "text"


def draws_without_text(dt):
    return plt.subplots()[0], "  "


def draws_figure_only(dt):
    return plt.subplots()[0]


def draws_two_sizes(dt):
    return plt.subplots(figsize=(3, 2 + dt))[0], "text"


def draws(dt):
    return plt.subplots()[0], "text"


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (draws, {}, "no axis given"),
        (draws, {"dt": []}, "at least two values"),
        (draws, {"dt": [1]}, "belongs inside draw"),
        (draws, {"dt": [1, 1.0]}, "all different"),
        (draws, {"dt": [1.00001, 1.00002]}, "all different"),
        (draws, {"dt": [1, 2], "play": "t"}, r"play or labels name \['t'\].*axes are \['dt'\]"),
        (draws, {"dt": [1, 2], "labels": {"n": "N"}}, r"play or labels name \['n'\]"),
        (draws, {"dt": range(16), "n": range(16)}, "16 × 16 = 256 frames.*at most 120"),
        (draws_nothing, {"dt": [1, 2]}, r"at dt = 1 draw must return \(figure, text\).*\(str"),
        (draws_without_text, {"dt": [1, 2]}, "in words; got .Figure, '  '"),
        (draws_figure_only, {"dt": [1, 2]}, "draw must return .figure, text.*None"),
        (draws_two_sizes, {"dt": [1, 2]}, r"at dt = 2 the figure is \(300, 400\).*one figsize"),
    ],
)
def test_refuses(function, arguments, message):
    with pytest.raises(ValueError, match=message):
        explore(function, **arguments)


def test_progress_appears_only_when_drawing_takes_long(monkeypatch, capfd):
    shown = []

    class Handle:
        def update(self, what):
            shown.append(what.data)

    def display(what, display_id):
        shown.append(what.data)
        return Handle()

    monkeypatch.setattr(module, "display", display)
    monkeypatch.setattr(module, "get_ipython", object)
    explore(draw, dt=[1, 1 / 2], n=[4, 8])
    assert shown == []
    monkeypatch.setattr(module, "PATIENCE", -1.0)
    explore(draw, dt=[1, 1 / 2], n=[4, 8])
    assert ["value=" in text for text in shown] == [True, True, True, False]
    assert "1 of 4" in shown[0]
    assert shown[-1] == ""  # nothing is left on the page
    monkeypatch.setattr(module, "get_ipython", lambda: None)
    explore(draw, dt=[1, 1 / 2], n=[4, 8])
    assert len(shown) == 4
    assert capfd.readouterr().err == ""
