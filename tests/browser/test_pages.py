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
# The shapes of typeset formulas are taken out meanwhile: they double its time and say nothing.
AXE = """async (options) => {
  const formulas = [...document.querySelectorAll('mjx-container')];
  const shapes = formulas.map((formula) => [...formula.childNodes]);
  formulas.forEach((formula) => formula.replaceChildren());
  const {violations, incomplete} = await axe.run(document, options);
  formulas.forEach((formula, i) => formula.replaceChildren(...shapes[i]));
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


@pytest.fixture(scope="module")
def page(open_page, path):
    with open_page(path) as page:
        # no transitions: no colour is looked at half-way to another
        page.add_style_tag(content="*, ::before, ::after { transition: none !important; }")
        yield page


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
    errors = "mjx-container [data-mml-node=merror], mjx-container [data-mjx-error]"
    assert page.locator(errors).count() == 0


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
    sources = page.evaluate("() => [...document.querySelectorAll('article img')].map((i) => i.src)")
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


def test_accessible(page, theme, root):
    page.add_script_tag(path=root / ".vendor" / "tests" / "axe.min.js")
    assert page.evaluate("() => document.documentElement.dataset.theme") == theme
    options = ALL_RULES if theme == "light" else COLOURS
    found = [f"{id}: {what}" for id, what in page.evaluate(AXE, options) if id not in ALLOWED]
    assert not found, "\n".join(found)


def test_fits_on_a_telephone(page):
    page.set_viewport_size({"width": 390, "height": 844})
    page.evaluate("() => new Promise((n) => requestAnimationFrame(() => requestAnimationFrame(n)))")
    try:
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
