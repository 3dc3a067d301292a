"""The built site works wherever its folder lies: below any path of a host, and opened as files."""

import re

import pytest
from serving import serve
from test_pages import TEXTS
from test_widgets import last, move, shown

PAGES = ["chapters/index.html", "chapters/domain.html", "search.html", "genindex.html"]

# The style of the book has arrived: a colour that book.css defines.
STYLED = "() => getComputedStyle(document.documentElement).getPropertyValue('--book-line') !== ''"


@pytest.fixture(scope="module", params=["below a path", "as files"])
def place(site, request):
    """The address of the site at another place than the root of a host."""
    if request.param == "as files":
        yield site.as_uri()
    else:
        with serve(site, "/some/path") as address:
            yield address


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_whole(open_page, place, name):
    with open_page(name, place) as page:
        assert page.faults == []
        assert page.evaluate(TEXTS) == []
        assert page.evaluate(STYLED)


def test_the_root_leads_to_the_first_page(open_page, place):
    with open_page("genindex.html", place) as page:
        page.goto(f"{place}/index.html")
        page.wait_for_url(f"{place}/chapters/index.html")
        # of a page that only leads on, a slow browser asks the host for an icon
        assert [fault for fault in page.faults if "/favicon.ico" not in fault] == []


def test_widgets_work(open_page, place):
    with open_page("chapters/domain.html", place) as page:
        for widget in page.locator(".widget-subarea").all():
            slider = widget.get_by_role("slider").first
            first = shown(widget)
            move(slider, last(slider))
            assert shown(widget) != first
        assert page.locator(".math mjx-container").count() > 10
        assert page.faults == []


def test_the_search_finds(open_page, place):
    with open_page("search.html?q=projection", place) as page:
        page.locator("#search-results li a").first.click()
        page.wait_for_url(f"{place}/chapters/*")
        page.locator("article h1").wait_for()
        assert page.faults == []


@pytest.fixture
def moved(site, tmp_path):
    """The site as it would be built for another address, below /some/path."""
    for path in site.iterdir():
        (tmp_path / path.name).symlink_to(path)
    page = (site / "404.html").read_text(encoding="utf8")
    (tmp_path / "404.html").unlink()
    (tmp_path / "404.html").write_text(
        re.sub("<base .*?>", '<base href="/some/path/">', page), "utf8"
    )
    return tmp_path


@pytest.mark.parametrize("missing", ["nothing.html", "chapters/deep/er/nothing"])
def test_a_missing_address_leads_back(open_page, moved, missing):
    """At any depth, below any path, with the style and the contents of the book."""
    with serve(moved, "/some/path") as address, open_page(missing, address) as page:
        (not_found, *others) = page.faults
        assert not_found == f"404: {address}/{missing}"
        assert all("status of 404" in fault and missing in fault for fault in others)
        assert page.evaluate(STYLED)
        assert page.locator("article h1").inner_text() == "No such page"
        assert page.locator("nav.bd-links a").count() > 5
        page.keyboard.press("Tab")  # to the link that skips the contents
        page.keyboard.press("Enter")
        page.wait_for_url(f"{address}/404.html#main-content")
        page.get_by_role("link", name="begin at the beginning").click()
        page.wait_for_url(f"{address}/chapters/index.html")
