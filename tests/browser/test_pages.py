"""What every built page must keep, seen in a real browser, in both themes and on a telephone."""

import io
from contextlib import contextmanager

import pytest
from PIL import Image

# Of the theme itself, on every page: the name of the search button, and the logo.
ALLOWED = {"label-content-name-mismatch", "region"}

# Text that is visible, outside of code and of typeset mathematics.
TEXTS = r"""() => {
  const hidden = 'pre, code, script, style, noscript, mjx-container, textarea';
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const found = [];
  while (walker.nextNode()) {
    const parent = walker.currentNode.parentElement;
    if (!parent.closest(hidden) && parent.checkVisibility()) found.push(walker.currentNode.data);
  }
  const tex = /\\[a-zA-Z]{2,}|\\[()[\]]|\$[^$\n]+\$|\^\{|_\{/;
  return found.filter((text) => tex.test(text)).map((text) => text.trim());
}"""

# What axe-core finds. Text of the very colour of its background is "incomplete" to it, not wrong.
# Its time grows with the number of elements, and most of them are shapes of formulas and words of
# code. So the text of its MathML, which screen readers find, stands for a formula meanwhile, and
# each kind of word in a listing is looked at once. `UNREACHABLE` asks what this would hide.
AXE = """async (options) => {
  const kinds = new Set();
  const fresh = (node) => node.nodeType === Node.TEXT_NODE
    || !kinds.has(node.className) && kinds.add(node.className);
  const changed = [...document.querySelectorAll('mjx-container, .highlight pre')].map((element) => {
    const nodes = [...element.childNodes];
    const formula = element.querySelector('mjx-assistive-mml');
    element.replaceChildren(...(formula ? [formula.textContent] : nodes.filter(fresh)));
    return () => element.replaceChildren(...nodes);
  });
  const {violations, incomplete} = await axe.run(document, options);
  changed.forEach((restore) => restore());
  const list = (rules) => rules.flatMap(({id, nodes}) => nodes.map((node) => ({id, node})));
  const unseen = ({node}) => node.any.some(({data}) => data?.messageKey === 'equalRatio');
  const found = [...list(violations), ...list(incomplete).filter(unseen)];
  return found.map(({id, node}) => [id, `${node.html.slice(0, 150)} (${node.target.join(' ')}): `
    + [...node.any, ...node.all, ...node.none].map(({message}) => message).join('; ')]);
}"""
ALL_RULES = {"resultTypes": ["violations", "incomplete"], "preload": False}
COLOURS = {
    "runOnly": ["color-contrast"],
    "preload": False,
}  # all that a change of the theme can change

# What sticks out at the right, unless it can be scrolled to in a box of its own.
WIDE = """() => {
  const scrolls = (e) => ['auto', 'scroll', 'hidden', 'clip']
    .includes(getComputedStyle(e).overflowX);
  const boxed = (e) => e && e !== document.body && (scrolls(e) || boxed(e.parentElement));
  const drawer = (e) => e.closest('.bd-sidebar-secondary');  // slides in when it is asked for
  return [...document.querySelectorAll('main *')]
    .filter((e) => e.checkVisibility() && e.getBoundingClientRect().right > innerWidth + 1)
    .filter((e) => !boxed(e.parentElement) && !drawer(e))
    .map((e) => `${e.tagName}.${e.className?.baseVal ?? e.className}`.slice(0, 80));
}"""

# Boxes that scroll sideways and cannot be reached by keyboard, nor anything in them.
UNREACHABLE = """() => [...document.querySelectorAll('main *')]
  .filter((e) => ['auto', 'scroll'].includes(getComputedStyle(e).overflowX))
  .filter((e) => e.checkVisibility() && e.scrollWidth > e.clientWidth + 1 && e.tabIndex < 0)
  .filter((e) => ![...e.querySelectorAll('a, button, [tabindex]')].some((f) => f.tabIndex >= 0))
  .map((e) => e.outerHTML.slice(0, 120))"""


# Words, formulas and pictures that lie on one another: by more than half of their height.
COVERED = """() => {
  const clips = new Map();  // what of an element can be seen
  const clip = (e) => {
    if (!e || e === document.documentElement) return [-Infinity, -Infinity, Infinity, Infinity];
    if (clips.has(e)) return clips.get(e);
    let seen = clip(e.parentElement);
    if (getComputedStyle(e).overflowX !== 'visible') {
      const box = e.getBoundingClientRect();
      seen = [Math.max(seen[0], box.left), Math.max(seen[1], box.top),
        Math.min(seen[2], box.right), Math.min(seen[3], box.bottom)];
    }
    clips.set(e, seen);
    return seen;
  };
  const unseen = 'mjx-assistive-mml, .visually-hidden, .sr-only, script, style, noscript';
  const pieces = [];
  const add = (box, e, text) => {
    const seen = clip(e);
    const [left, top] = [Math.max(box.left, seen[0]), Math.max(box.top, seen[1])];
    const [right, bottom] = [Math.min(box.right, seen[2]), Math.min(box.bottom, seen[3])];
    if (right - left > 2 && bottom - top > 2) pieces.push({left, top, right, bottom, text});
  };
  const main = document.querySelector('main');
  const walker = document.createTreeWalker(main, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode, parent = node.parentElement;
    const shown = parent.checkVisibility({visibilityProperty: true, opacityProperty: true});
    if (!shown || !node.data.trim() || parent.closest(unseen)) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const box of range.getClientRects()) add(box, parent, node.data.trim().slice(0, 40));
  }
  for (const e of main.querySelectorAll('mjx-container, img'))
    if (e.checkVisibility()) add(e.getBoundingClientRect(), e, (e.alt ?? e.textContent).slice(0, 40));
  pieces.sort((a, b) => a.top - b.top);
  const found = [];
  pieces.forEach((a, i) => {
    for (let k = i + 1; k < pieces.length && pieces[k].top < a.bottom; k++) {
      const b = pieces[k];
      const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const down = Math.min(a.bottom, b.bottom) - b.top;
      const height = Math.min(a.bottom - a.top, b.bottom - b.top);
      if (across > 3 && down > 0.5 * height) found.push(`${a.text} / ${b.text}`);
    }
  });
  return found;
}"""

# Text that is cut off: it goes on beyond a box that hides the rest and cannot be scrolled.
CUT = """() => {
  const unseen = 'mjx-container, .visually-hidden, .sr-only, script, style, noscript';
  const walker = document.createTreeWalker(document.querySelector('main'), NodeFilter.SHOW_TEXT);
  const found = [];
  while (walker.nextNode()) {
    const node = walker.currentNode, parent = node.parentElement;
    if (!node.data.trim() || parent.closest(unseen) || !parent.checkVisibility()) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const text = range.getBoundingClientRect();
    for (let e = parent; e.tagName !== 'MAIN'; e = e.parentElement) {
      const [overflow, box] = [getComputedStyle(e).overflowX, e.getBoundingClientRect()];
      if (['auto', 'scroll'].includes(overflow)) break;
      const out = text.right > box.right + 1 || text.left < box.left - 1;
      if (['hidden', 'clip'].includes(overflow) && out) found.push(node.data.trim().slice(0, 60));
    }
  }
  return found;
}"""

# What makes no sense on paper, and what would be cut off there.
UNPRINTED = """() => [...document.querySelectorAll(`.bd-header, .bd-header-article, .bd-sidebar-primary,
    .bd-sidebar-secondary, .prev-next-footer, button, [role=slider], details.hide`)]
  .filter((e) => e.checkVisibility({visibilityProperty: true, opacityProperty: true}))
  .map((e) => e.outerHTML.slice(0, 120))"""


@pytest.fixture(scope="module")
def page(open_page, path):
    with open_page(path) as page:
        # no transitions: no colour is looked at half-way to another
        page.add_style_tag(content="*, ::before, ::after { transition: none !important; }")
        yield page


# Punctuation that begins a line although a formula stands before it.
ALONE = """() => [...document.querySelectorAll('article span.math')].flatMap((formula) => {
  const next = formula.nextSibling;
  if (next?.nodeType !== Node.TEXT_NODE || !/^[.,;:!?)]/.test(next.data)) return [];
  const range = document.createRange();
  range.setStart(next, 0);
  range.setEnd(next, 1);
  const [stop, box] = [range.getBoundingClientRect(), formula.getBoundingClientRect()];
  return stop.width && stop.top > box.bottom ? [formula.textContent.slice(0, 40) + next.data] : [];
})"""


@contextmanager
def resized(page, width):
    """The page at another width, once it has answered to that, which takes two frames."""
    page.set_viewport_size({"width": width, "height": 900})
    page.evaluate("() => new Promise((n) => requestAnimationFrame(() => requestAnimationFrame(n)))")
    try:
        yield
    finally:
        page.set_viewport_size({"width": 1280, "height": 900})


@pytest.fixture(params=["light", "dark"])
def theme(page, request):
    page.evaluate("theme => document.documentElement.dataset.theme = theme", request.param)
    yield request.param
    page.evaluate("() => document.documentElement.dataset.theme = 'light'")


def test_loads_without_a_fault(page):
    """No error in the console, no script that throws, no missing file, no other host."""
    assert page.faults == []


def test_mathematics_is_typeset(page):
    assert page.evaluate(TEXTS) == []
    raw = "[...document.querySelectorAll('.math')].filter((e) => !e.querySelector('mjx-container'))"
    assert page.evaluate(f"() => {raw}.map((e) => e.textContent)") == []
    silent = """() => [...document.querySelectorAll('mjx-container')]
      .filter((e) => !e.querySelector('mjx-assistive-mml')?.textContent.trim()).length"""
    assert page.evaluate(silent) == 0, "a formula without MathML says nothing to a screen reader"
    errors = "mjx-container [data-mml-node=merror], mjx-container [data-mjx-error]"
    assert page.locator(errors).count() == 0


def test_a_full_stop_stays_with_its_formula(page):
    """Where a formula is followed by punctuation, both are on one line."""
    with resized(page, 390):
        assert page.evaluate(ALONE) == []


def test_pictures_are_shown_and_described(page):
    pictures = page.evaluate(
        """() => [...document.querySelectorAll('article img')]
          .map((i) => [i.alt, i.naturalWidth, i.src.slice(0, 60)])"""
    )
    for alt, width, source in pictures:
        assert width > 0, f"{source} is not shown"
        assert len(alt.split()) >= 4, f"{source}: the alternative text says too little: {alt!r}"
        assert "<Figure" not in alt
        assert "_images/" not in alt
    sources = page.evaluate(
        "() => [...document.querySelectorAll('article img')].map((i) => i.className + i.src)"
    )
    assert len(set(sources)) == len(sources), "a picture is shown twice"
    figures = page.evaluate(
        "() => [...document.querySelectorAll('article figure')].map((f) => f.id)"
    )
    assert all(name.startswith("fig-") for name in figures), "a cell shows two figures"


def test_pictures_keep_their_colours(page, theme):
    """The theme dims pictures on dark pages; ours are cards that need no dimming."""
    filters = page.evaluate(
        """() => [...document.querySelectorAll('.bd-article img')]
          .map((image) => getComputedStyle(image).filter)"""
    )
    assert set(filters) <= {"none"}


def test_what_scrolls_is_reached_by_keyboard(page):
    assert page.evaluate(UNREACHABLE) == []


def test_accessible(page, theme, root):
    page.add_script_tag(path=root / ".vendor" / "tests" / "axe.min.js")
    assert page.evaluate("() => document.documentElement.dataset.theme") == theme
    options = ALL_RULES if theme == "light" else COLOURS
    found = [f"{id}: {what}" for id, what in page.evaluate(AXE, options) if id not in ALLOWED]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("width", [390, 1280])
def test_fits(page, width):
    """Nothing sticks out, is cut off or lies on something else; what scrolls can be reached."""
    with resized(page, width):
        assert page.evaluate(UNREACHABLE) == []
        assert page.evaluate(COVERED) == []
        assert page.evaluate(CUT) == []
        shown = page.evaluate("() => document.documentElement.scrollWidth")
        assert (page.evaluate(WIDE), shown) == ([], width)


def is_blank(png):
    """Whether a picture has next to nothing on it: 99.9 of 100 pixels are of one colour."""
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    counts = [count for count, _ in picture.getcolors(picture.width * picture.height)]
    return max(counts) > 0.999 * sum(counts)


@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 390)], indirect=["theme"])
def test_no_picture_is_blank(page, theme, width):
    """On the screen: a frame of a widget together with the sheet behind it."""
    with resized(page, width):
        for picture in page.locator("article img").all():
            assert not is_blank(picture.screenshot()), picture.get_attribute("alt")


def test_on_paper(page):
    """Printed from a dark page: light, no controls, folded text open, nothing beyond the margin."""
    page.evaluate("() => document.documentElement.dataset.theme = 'dark'")
    page.emulate_media(media="print")
    page.evaluate("() => dispatchEvent(new Event('beforeprint'))")
    try:
        with resized(page, 718):  # A4 without margins of a centimetre
            assert page.evaluate("() => document.documentElement.dataset.theme") == "light"
            assert page.evaluate(UNPRINTED) == []
            assert page.evaluate(COVERED) == []
            shown = "[...document.querySelectorAll('.widget-subarea')].map((e) => e.querySelectorAll('img').length)"
            assert set(page.evaluate(f"() => {shown}")) <= {1}
            assert page.locator(".admonition.toggle-hidden").count() == 0
            assert page.evaluate(WIDE) == []
    finally:
        page.evaluate("() => dispatchEvent(new Event('afterprint'))")
        page.emulate_media(media="screen")
        assert page.evaluate("() => document.documentElement.dataset.theme") == "dark"
        page.evaluate("() => document.documentElement.dataset.theme = 'light'")


def test_the_reader_can_switch_the_theme(open_page):
    with open_page("chapters/index.html") as page:
        seen = set()
        for _ in range(3):  # light, dark, and as the system has it
            page.locator("button.theme-switch-button").last.click()
            seen.add(page.evaluate("() => document.documentElement.dataset.theme"))
        assert seen == {"light", "dark"}
        assert page.faults == []


def test_faults_are_noticed(bad_page):
    """The questions above really find an error, a missing file, another host, raw TeX."""
    seen = "\n".join(bad_page.faults)
    assert all(word in seen for word in ("one", "two", "404", "asks another host"))
    assert bad_page.evaluate(TEXTS) == [r"Here \alpha."]
    assert bad_page.evaluate(WIDE) == ["DIV."]
    (box,) = bad_page.evaluate(UNREACHABLE)
    assert box.startswith('<section style="overflow: auto')
    assert bad_page.evaluate(CUT) == ["Too long for its box"]
    assert bad_page.evaluate(COVERED) == ["Above / Below"]
    (button,) = bad_page.evaluate(UNPRINTED)
    assert "Press" in button
    assert is_blank(bad_page.locator("#empty").screenshot())
    assert not is_blank(bad_page.screenshot())


def test_faint_text_is_noticed(bad_page, root):
    """Also the text that axe-core itself does not call wrong, because it has no contrast at all."""
    bad_page.set_content(
        "<html lang=en><title>T</title><main style='background: white'><h1>Head</h1>"
        "<p style='color: white'>same</p><p style='color: #aaa'>faint</p></main></html>"
    )
    bad_page.add_script_tag(path=root / ".vendor" / "tests" / "axe.min.js")
    found = [what for _, what in bad_page.evaluate(AXE, COLOURS)]
    assert len(found) == 2
    assert any(">same<" in what for what in found)
    assert any(">faint<" in what for what in found)
