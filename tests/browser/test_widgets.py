"""Every control of every widget on the built pages, moved by keyboard, with no kernel anywhere."""

import pytest
from pages import notebooks

# What a widget shows, once the page has been drawn and the picture is there: its frame with the sheet
# behind it, which is named by the class, and its text.
SHOWN = """async (widget) => {
  await new Promise((next) => requestAnimationFrame(() => requestAnimationFrame(next)));
  const shown = [...widget.querySelectorAll('img')].filter((image) => image.checkVisibility());
  await Promise.all(shown.map((image) => image.decode()));
  return shown.map(({src, className, alt}) => [`${className} ${src}`, alt]);
}"""

# Where a slider stands, once the page has been drawn.
VALUE = """async (handle) => {
  await new Promise((next) => requestAnimationFrame(() => requestAnimationFrame(next)));
  return [handle === document.activeElement, Number(handle.ariaValueNow)];
}"""

PACE = 700  # milliseconds between two frames of Play


@pytest.fixture(scope="module")
def page(open_page, chapter):
    with open_page(chapter) as page:
        yield page


@pytest.fixture(scope="module")
def widgets(page):
    return page.locator(".widget-subarea").all()


def settle(page):
    page.evaluate("() => new Promise((n) => requestAnimationFrame(() => requestAnimationFrame(n)))")


def shown(widget):
    """The one picture that a widget shows, and its alternative text."""
    (picture,) = widget.evaluate(SHOWN)
    return tuple(picture)


def move(slider, index):
    """Bring a slider to an index, by keyboard only."""
    slider.focus()
    keys = ["End"] if index and index == last(slider) else ["Home", *["ArrowRight"] * index]
    for key in keys:
        slider.page.keyboard.press(key)
    assert slider.evaluate(VALUE) == [True, index]


def last(slider):
    return round(float(slider.get_attribute("aria-valuemax")))


def test_there_are_widgets(page, widgets):
    """At least two on each chapter, all of them drawn, none announced and missing."""
    announced = page.locator('script[type="application/vnd.jupyter.widget-view+json"]').count()
    assert len(widgets) == announced >= 2
    assert page.get_by_text("Error displaying widget").count() == 0


def unmoved(widget):
    """What is wrong when each slider goes to its minimum, middle, maximum and back."""
    for slider in widget.get_by_role("slider").all():
        name, end, seen = slider.get_attribute("aria-label"), last(slider), []
        for index in sorted({0, end // 2, end}):
            move(slider, index)
            seen.append(shown(widget))
        pictures, texts = (set(column) for column in zip(*seen, strict=True))
        if len(pictures) < len(seen):
            yield f"{name}: the picture does not change: {sorted(texts)}"
        if len(texts) < len(seen):
            yield f"{name}: the alternative text does not change: {sorted(texts)}"
        slider.press("ArrowRight")
        if shown(widget) != seen[-1]:
            yield f"{name}: there is something behind the last value"
        move(slider, 0)
        if shown(widget) != seen[0]:
            yield f"{name}: the way back shows another picture"


def test_every_slider_changes_the_picture(widgets):
    for widget in widgets:
        assert widget.get_by_role("slider").count() >= 1
        assert list(unmoved(widget)) == []


def test_a_dead_slider_is_noticed(open_page, root):
    """The same page with the sliders' links cut: every slider moves, and no picture does."""
    (chapter, *_) = notebooks(root)

    def cut(page):
        assert page.count('"selected_index"]') > 1
        return page.replace('"selected_index"]', '"no_such_trait"]')

    with open_page(chapter, change=cut) as page:
        widget = page.locator(".widget-subarea").first
        assert len(list(unmoved(widget))) >= 2 * widget.get_by_role("slider").count()


def test_sliders_act_together(widgets):
    """The picture belongs to the values of all sliders: the far corner differs from each edge."""
    for widget in widgets:
        sliders = widget.get_by_role("slider").all()
        edges = []
        for slider in sliders:
            move(slider, last(slider))
            edges.append(shown(widget)[0])
            move(slider, 0)
        for slider in sliders:
            move(slider, last(slider))
        corner = shown(widget)[0]
        assert len(sliders) == 1 or corner not in edges
        for slider in sliders:
            move(slider, 0)


def test_other_controls_change_the_picture(page, widgets):
    """Menus and check boxes, should a chapter have any; a control unknown here is an error."""
    for widget in widgets:
        for menu in widget.locator("select").all():
            seen = set()
            for index in range(menu.locator("option").count()):
                menu.select_option(index=index)
                settle(page)
                seen.add(shown(widget)[0])
            assert len(seen) == menu.locator("option").count()
        assert widget.locator("input, textarea, [role=tab]").count() == 0, "not tested yet"


def test_controls_have_names(widgets):
    for widget in widgets:
        names = []
        for slider in widget.get_by_role("slider").all():
            row = slider.locator("xpath=ancestor::*[contains(@class, 'widget-inline-hbox')][1]")
            label, value = (row.locator(f".widget-{part}") for part in ("label", "readout"))
            names.append(slider.get_attribute("aria-label"))
            assert names[-1]
            # a label with mathematics is typeset; then its text is not the name letter by letter
            if label.locator("mjx-container").count() == 0:
                assert names[-1] == label.inner_text().strip()
            for index in (last(slider), 0):
                move(slider, index)
                assert slider.get_attribute("aria-valuetext") == value.inner_text().strip()
        for button in widget.get_by_role("button").all():
            names.append(button.get_attribute("aria-label"))
            assert names[-1]
        assert len(set(names)) == len(names), f"two controls have one name: {names}"
        assert widget.locator("[title=null]").count() == 0


# What moves by itself or slides.
MOVING = """() => [...document.querySelectorAll('html, html *')].filter((e) => {
  const style = getComputedStyle(e);
  const slides = style.scrollBehavior === 'smooth' || parseFloat(style.transitionDuration) > 0;
  return slides || style.animationName !== 'none';
}).map((e) => e.outerHTML.slice(0, 120))"""


def test_reduced_motion(open_page, root):
    """Whoever asked for less motion gets none, but for what they start themselves."""
    with open_page(notebooks(root)[0]) as page:
        assert page.evaluate(MOVING) != []
        page.emulate_media(reduced_motion="reduce")
        assert page.evaluate(MOVING) == []
        test_play_runs_and_stops(page, page.locator(".widget-subarea").all()[:1])


def test_play_runs_and_stops(page, widgets):
    for widget in widgets:
        for play in widget.locator(".widget-play").all():
            start = shown(widget)
            run, stop = play.get_by_role("button").nth(0), play.get_by_role("button").nth(1)
            run.focus()
            page.keyboard.press("Enter")
            page.wait_for_function(
                "([widget, text]) => ![text, undefined].includes(widget.querySelector('img')?.alt)",
                arg=[widget.element_handle(), start[1]],
                timeout=5 * PACE,
            )
            assert shown(widget)[0] != start[0]
            stop.focus()
            page.keyboard.press("Enter")
            settle(page)
            assert shown(widget) == start, "stop goes back to the first frame"


def test_controls_fit_on_a_telephone(page, widgets):
    page.set_viewport_size({"width": 390, "height": 844})
    settle(page)
    try:
        for widget in widgets:
            for control in [
                *widget.get_by_role("slider").all(),
                *widget.get_by_role("button").all(),
            ]:
                box = control.bounding_box()
                assert box["x"] >= 0
                assert box["x"] + box["width"] <= 390
            for label in widget.locator(".widget-label, .widget-readout").all():
                if label.is_visible():
                    assert label.evaluate("(e) => e.scrollWidth <= e.clientWidth + 1"), "cut off"
    finally:
        page.set_viewport_size({"width": 1280, "height": 900})


def test_nothing_went_wrong_meanwhile(page, widgets):
    """Last on each page: all of the moves above left no error, and asked no other host."""
    assert page.faults == []
