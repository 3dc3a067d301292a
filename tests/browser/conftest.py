"""A real browser on the built pages, served from this machine.

The browser is opened for one test file and closed after it: while it is open, nothing else in the
same process may run an event loop, and the notebooks' tests do.
"""

from contextlib import contextmanager
from urllib.parse import urlsplit

import chrome
import pytest
from pages import listed, notebooks
from playwright.sync_api import sync_playwright
from serving import serve

# Everything is there: mathematics is typeset, each widget is drawn, each picture is decoded.
READY = """async () => {
  await window.MathJax?.startup?.promise;
  const views = () => [...document.querySelectorAll('script[type$="widget-view+json"]')];
  const drawn = (view) => view.previousElementSibling?.querySelector('.jupyter-widgets img');
  while (!views().every(drawn)) await new Promise((next) => setTimeout(next, 20));
  await Promise.all([...document.images].map((image) => image.decode().catch(() => null)));
  await new Promise((next) => requestAnimationFrame(() => requestAnimationFrame(next)));
}"""


@pytest.fixture(scope="session")
def address(site):
    """Where the built site is served."""
    with serve(site) as address:
        yield address


@pytest.fixture(scope="module")
def browser():
    """A Chrome or Chromium. These tests never skip: without a browser they fail."""
    path = chrome.find()
    if path is None:
        pytest.fail("No Chrome or Chromium found: `make test` gets one, or set BOOK_BROWSER.")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=chrome.FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def open_page(browser, address):
    """A function that opens a page of the site, ready, with a list of what went wrong on it."""

    @contextmanager
    def opened(path, address=address, change=None):
        page = context.new_page()
        page.set_default_timeout(20_000)
        if change:  # serve the page with an edit, to see that a fault is noticed
            page.route(
                f"{address}/{path}",
                lambda route: route.fulfill(
                    body=change(route.fetch().text()), content_type="text/html; charset=utf-8"
                ),
            )
        page.faults = faults = []
        host = urlsplit(address).netloc

        def asked(request):
            target = urlsplit(request.url)
            if target.scheme not in ("data", "blob") and target.netloc != host:
                faults.append(f"asks another host: {request.url}")

        def said(message):
            if message.type == "error":
                faults.append(f"console: {message.text} ({message.location.get('url', '')})")

        page.on("request", asked)
        page.on("console", said)
        page.on("pageerror", lambda error: faults.append(f"error: {error}"))
        page.on("response", lambda r: r.status >= 400 and faults.append(f"{r.status}: {r.url}"))
        page.goto(f"{address}/{path}", wait_until="load")
        page.evaluate(f"""() => Promise.race([
            ({READY})(),
            new Promise((_, stop) => setTimeout(() => stop('widgets are missing'), 20000)),
        ])""")
        yield page
        page.close()

    context = browser.new_context(viewport={"width": 1280, "height": 900})
    yield opened
    context.close()


def pytest_generate_tests(metafunc):
    """Run a test that asks for `path` on every page, and one that asks for `chapter` on each."""
    root = metafunc.config.rootpath
    if "path" in metafunc.fixturenames:
        metafunc.parametrize(
            "path", [*listed(root), "search.html", "genindex.html"], scope="module"
        )
    if "chapter" in metafunc.fixturenames:
        metafunc.parametrize("chapter", notebooks(root), scope="module")


@pytest.fixture
def bad_page(tmp_path, open_page):
    """A page with a fault of each kind, to see that the faults are noticed."""
    (tmp_path / "bad.html").write_text(
        r"""<!doctype html><title>Bad</title><body><main>Here \alpha.
        <div style="width:2000px">wide</div><img src="nothing.png">
        <section style="overflow: auto; width: 50px"><p style="width: 99px">Long</p></section>
        <p style="overflow: hidden; width: 50px; white-space: nowrap">Too long for its box</p>
        <p style="height: 0">Above</p><p style="margin-top: -16px">Below</p><button>Press</button>
        <p id="empty" style="height: 40px"></p>
        <script src="https://example.org/x.js"></script>
        <script>console.error('one'); throw new Error('two')</script></main></body>""",
        encoding="utf8",
    )
    with serve(tmp_path) as address, open_page("bad.html", address) as page:
        yield page
