"""What a published site needs besides its pages, and the buttons that need an address."""

import os
import re
import socket
import subprocess
import sys
from html.parser import HTMLParser
from xml.etree import ElementTree

import nbformat
import pytest
from PIL import Image

from tools import tasks

sys.path.append(str(tasks.ROOT / "tools"))
import address  # noqa: E402  (the tools import each other by these names)
import sphinx_publish as publish  # noqa: E402

SITEMAP = "{http://www.sitemaps.org/schemas/sitemap/0.9}"

CONF = """
extensions = ["myst_nb", "sphinx_book", "sphinx_publish"]
html_theme = "sphinx_book_theme"
html_title = "A small book"
nb_execution_mode = "off"
myst_enable_extensions = ["dollarmath"]
root_doc = "chapters/index"
html_context = {"default_mode": "auto"}
"""
INDEX = """# Start

There are $N$ tokens & `<b>`. This has $\\sqrt d$ in it. This is not.

```{toctree}
one
```
"""


class Head(HTMLParser):
    """The meta data of a page: {name or property: content}, and its links by relation."""

    def __init__(self, path):
        super().__init__()
        self.meta, self.links, self.targets = {}, {}, []
        self.feed(path.read_text(encoding="utf8"))

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        if tag == "meta":
            self.meta[values.get("name") or values.get("property")] = values.get("content")
        if tag == "link":
            self.links[values["rel"]] = values["href"]
        if tag == "a":
            self.targets.append(values.get("href") or "")


def build(folder, repository):
    """A book of two pages, built with the book's extensions as if this checkout came from there."""
    (folder / "chapters").mkdir(parents=True)
    (folder / "conf.py").write_text(CONF)
    (folder / "chapters" / "index.md").write_text(INDEX)
    cell = nbformat.v4.new_markdown_cell("# One\n\nThis is *the* chapter. It is short.")
    notebook = nbformat.v4.new_notebook(cells=[cell])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(notebook, folder / "chapters" / "one.ipynb")
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "-b", "html", folder, folder / "html"],
        env={**os.environ, "REPO_URL": repository, "PYTHONPATH": str(tasks.ROOT / "tools")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return folder / "html"


@pytest.fixture(scope="module")
def fork(tmp_path_factory):
    """Built from a fork on GitHub."""
    return build(tmp_path_factory.mktemp("fork"), "git@github.com:Someone/Book.git")


@pytest.fixture(scope="module")
def nowhere(tmp_path_factory):
    """Built from a checkout that has no address to link to."""
    return build(tmp_path_factory.mktemp("nowhere"), "/some/folder")


def test_buttons_lead_to_the_launch_branch_of_the_fork(fork):
    targets = Head(fork / "chapters" / "one.html").targets
    where, notebook = "Someone/Book", "chapters/one.ipynb"
    assert f"https://mybinder.org/v2/gh/{where}/launch?urlpath=lab/tree/{notebook}" in targets
    assert f"https://colab.research.google.com/github/{where}/blob/launch/{notebook}" in targets
    assert f"https://github.com/{where}" in targets


def test_without_an_address_there_are_no_dead_buttons(nowhere):
    for path in nowhere.rglob("*.html"):
        targets = Head(path).targets
        assert not [t for t in targets if re.search("mybinder|colab|github.com/(?!executable)", t)]


def test_a_link_to_a_page_shows_what_it_is(fork):
    site = "https://someone.github.io/Book/"
    page = Head(fork / "chapters" / "index.html")
    assert page.meta["description"] == "There are N tokens & <b>. This is not."
    assert page.meta["og:description"] == page.meta["description"]
    assert page.meta["og:title"] == "Start"
    assert page.meta["og:site_name"] == "A small book"
    assert page.meta["og:url"] == page.links["canonical"] == f"{site}chapters/index.html"
    assert page.meta["og:image"] == f"{site}_static/social.png"
    with Image.open(fork / "_static" / "social.png") as picture:
        assert picture.size == (1200, 630)
    assert Head(fork / "chapters" / "one.html").meta["og:title"] == "One"


def test_the_map_names_every_page_and_no_other(fork):
    found = ElementTree.parse(fork / "sitemap.xml").findall(f"{SITEMAP}url/{SITEMAP}loc")
    site = "https://someone.github.io/Book/chapters/"
    assert [entry.text for entry in found] == [f"{site}index.html", f"{site}one.html"]


def test_without_an_address_nothing_is_claimed(nowhere):
    page = Head(nowhere / "chapters" / "index.html")
    assert page.meta["description"]
    assert not [name for name in page.meta if name and name.startswith("og:")]
    assert "canonical" not in page.links
    assert not (nowhere / "sitemap.xml").exists()
    assert not (nowhere / "_static" / "social.png").exists()


@pytest.mark.parametrize(("site", "base"), [("fork", "/Book/"), ("nowhere", "/")])
def test_the_missing_page_starts_at_the_root_of_the_site(site, base, request):
    text = (request.getfixturevalue(site) / "404.html").read_text(encoding="utf8")
    assert text.index(f'<base href="{base}">') < text.index("<link")
    assert 'href="#' not in text


def test_the_picture_is_the_same_each_time(tmp_path):
    one, two = tmp_path / "one.png", tmp_path / "two.png"
    for path in (one, two):
        publish.draw_card(path, "Title")
    assert one.read_bytes() == two.read_bytes()


def test_each_page_of_the_book_says_what_it_is_about(pages):
    said = {name: Head(path).meta.get("description", "") for name, path in pages.items()}
    for name, text in said.items():
        assert 60 <= len(text) <= 400, f"{name}: {text!r}"
        assert re.fullmatch(r"[A-Z].*[.!?]", text), f"{name}: {text!r}"
        assert not re.search(r"[\\${}\0]", text), f"{name}: {text!r}"
    assert len(set(said.values())) == len(said)


@pytest.mark.parametrize(
    ("repository", "pages"),
    [
        ("https://github.com/Someone/book", "https://someone.github.io/book/"),
        ("https://github.com/someone/Someone.github.io", "https://someone.github.io/"),
        ("", ""),
    ],
)
def test_where_github_publishes(repository, pages):
    assert address.pages_of(repository) == pages


# Serving ------------------------------------------------------------------------------------------


def serve(port):
    command = [sys.executable, "tools/tasks.py", "serve", port]
    return subprocess.run(command, cwd=tasks.ROOT, capture_output=True, text=True, timeout=60)


def test_a_used_port_is_said_before_anything_is_built():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        done = serve(str(port))
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(
        rf"\[book\] port {port} cannot be used \(.*\); name another: .*\n", done.stderr
    )


@pytest.mark.parametrize("port", ["http", "70000", "-1"])
def test_a_port_that_is_none_is_said_plainly(port):
    done = serve(port)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{port} is not a port" in done.stderr
    assert "Traceback" not in done.stderr
