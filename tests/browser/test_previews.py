"""The card that shows what a reference leads to."""

import re

import pytest

SPLITTING = "chapters/splitting.html"
CARD = "#preview:not([hidden])"


@pytest.fixture(scope="module")
def page(open_page):
    with open_page(SPLITTING) as page:
        yield page


@pytest.fixture(autouse=True)
def nothing_shown(page):
    page.keyboard.press("Escape")
    page.mouse.move(0, 0)
    page.evaluate("document.activeElement.blur()")


def references(page, fragment):
    return page.locator(f"article a.internal[href*='#{fragment}']:not(#preview *)")


def rest(page, link):
    link.scroll_into_view_if_needed()
    link.hover()
    page.wait_for_selector(CARD)
    return page.locator(CARD)


# what a reference leads to: a piece of its address, and words that the card must say
KINDS = {
    "equation here": ("equation-eq-splitting-", None),
    "theorem here": ("thm-splitting-linear", "Local error of Lie and Strang splitting"),
    "proposition of another chapter": ("prop-projection-step", "Proposition"),
    "function": ("lib.splitting.strang", "Strang splitting: half a step"),
    "book": ("id", "Strang"),
}


@pytest.mark.parametrize("fragment, words", KINDS.values(), ids=KINDS)
def test_resting_on_a_reference_shows_what_it_leads_to(page, fragment, words):
    links = references(page, fragment)
    if fragment == "id":
        links = links.filter(has_text=re.compile("Strang"))
    card = rest(page, links.first)
    said = card.text_content()
    assert words is None or words in said
    assert "\\(" not in said and "\\[" not in said, "mathematics is typeset"
    box, width = card.bounding_box(), page.viewport_size["width"]
    assert box["x"] >= 0 and box["x"] + box["width"] <= width
    assert not page.faults


def test_an_equation_is_drawn_in_its_card(page):
    card = rest(page, references(page, "equation-eq-splitting-").first)
    assert card.locator("mjx-container svg").count() >= 1
    assert card.locator("[id]").count() == 0 or "MJX" in card.inner_html()


def test_escape_and_leaving_close_the_card(page):
    link = references(page, "thm-splitting-linear").first
    rest(page, link)
    page.keyboard.press("Escape")
    assert page.locator(CARD).count() == 0
    page.mouse.move(0, 0)
    rest(page, link)
    page.mouse.move(0, 0)
    page.wait_for_selector(CARD, state="detached")


def test_the_pointer_may_go_into_the_card(page):
    card = rest(page, references(page, "thm-splitting-linear").first)
    link = references(page, "thm-splitting-linear").first.bounding_box()
    box = card.bounding_box()
    assert abs(box["y"] - (link["y"] + link["height"])) < 12 or (
        abs(link["y"] - (box["y"] + box["height"])) < 12
    ), "the card stands next to its reference"


def test_the_keyboard_shows_the_card_and_says_so(page):
    link = references(page, "thm-splitting-linear").first
    link.scroll_into_view_if_needed()
    page.keyboard.press("Tab")  # from now on focus is visible focus
    link.focus()
    page.wait_for_selector(CARD)
    assert link.get_attribute("aria-describedby") == "preview"
    page.keyboard.press("Escape")
    assert link.get_attribute("aria-describedby") is None


def test_a_link_without_a_preview_shows_nothing(page):
    link = page.locator("article a.internal[href='projection.html']").first
    link.scroll_into_view_if_needed()
    link.hover()
    page.wait_for_timeout(500)
    assert page.locator(CARD).count() == 0


def test_it_works_from_a_file_on_disk(browser, site):
    page = browser.new_page()
    page.goto((site / SPLITTING).as_uri())
    page.wait_for_function("window.MathJax?.startup?.promise")
    card = rest(page, references(page, "prop-projection-step").first)
    assert "Proposition" in card.text_content()
    page.close()
