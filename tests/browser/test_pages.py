"""What every built page must keep, seen in a real browser, in both themes and on a telephone."""

import pytest

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
    page.set_viewport_size({"width": 390, "height": 844})
    page.evaluate("() => new Promise((n) => requestAnimationFrame(() => requestAnimationFrame(n)))")
    try:
        assert page.evaluate(ALONE) == []
    finally:
        page.set_viewport_size({"width": 1280, "height": 900})


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


def test_fits_on_a_telephone(page):
    page.set_viewport_size({"width": 390, "height": 844})
    # the page answers to its new size in the second frame
    page.evaluate("() => new Promise((n) => requestAnimationFrame(() => requestAnimationFrame(n)))")
    try:
        assert page.evaluate(UNREACHABLE) == []
        width = page.evaluate("() => document.documentElement.scrollWidth")
        assert (page.evaluate(WIDE), width) == ([], 390)
    finally:
        page.set_viewport_size({"width": 1280, "height": 900})


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
