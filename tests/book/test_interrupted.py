"""A small book, built for real: stopped anywhere, the next build is right, and two builds are the same."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing

import nbformat
import pytest
from PIL import Image

from tools import tasks

sys.path.append(str(tasks.ROOT / "tools"))
import twice  # noqa: E402  (the tools import each other by these names)

TOC = """format: jb-book
root: chapters/index
chapters:
  - file: chapters/one
  - file: chapters/about
"""
CELLS = [
    "import matplotlib.pyplot as plt\n\nfrom lib import plotting\nfrom lib.explore import explore",
    "print(sum(range(10)))",
    "plotting.use()\nplt.plot([0, 1])\nplt.show()",
    "def draw(n, k):\n"
    "    figure, ax = plt.subplots(figsize=(3, 2))\n"
    "    ax.plot(range(n), [k] * n)\n"
    "    return figure, f'{n} points at height {k}'\n\n\n"
    "explore(draw, play='n', n=[2, 3, 4], k=[0, 1])",
]
BUILD = "from tools import tasks\nwith tasks.alone():\n    tasks.build([])"


@pytest.fixture(scope="module")
def small_book(tmp_path_factory, root):
    """A function that writes a small book, with the tools and the installed packages of this one."""

    def write():
        folder = tmp_path_factory.mktemp("book")
        for name in ("tools", "_static", "lib"):
            shutil.copytree(
                root / name, folder / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        for name in ("_config.yml", "requirements.txt", "chapters/references.bib"):
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copy(root / name, folder / name)
        for name in (".venv", ".vendor"):
            (folder / name).symlink_to(root / name)
        (folder / "_toc.yml").write_text(TOC, encoding="utf8")
        shutil.copy(root / "chapters" / "about.md", folder / "chapters")
        (folder / "chapters" / "index.md").write_text(
            "# A small book\n\nIt has one page.\n", "utf8"
        )
        cells = [nbformat.v4.new_code_cell(source) for source in CELLS]
        for number, cell in enumerate(cells):
            cell.id = f"cell-{number}"
        title = nbformat.v4.new_markdown_cell("# One\n\nA page.", id="title")
        notebook = nbformat.v4.new_notebook(cells=[title, *cells])
        nbformat.write(notebook, folder / "chapters" / "one.ipynb")
        return folder

    return write


def build(book, stop_at=None):
    """Build; with `stop_at`, kill everything once the build says these words."""
    process = subprocess.Popen(
        [sys.executable, "-c", BUILD],
        cwd=book,
        env=tasks.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf8",
        start_new_session=True,
    )
    said = []
    for line in process.stdout:
        said.append(line)
        if stop_at and stop_at in line:
            os.killpg(process.pid, signal.SIGKILL)
            break
    process.stdout.close()
    code = process.wait()
    assert (code != 0) == bool(stop_at), "".join(said[-30:])


def site(book):
    return book / "_build" / "html"


@pytest.fixture(scope="module")
def whole(small_book):
    """The book, built in one go."""
    book = small_book()
    build(book)
    return book


def test_stopped_anywhere_the_next_build_is_right(small_book, whole):
    """The site is the one that was built in one go, in another folder, byte for byte."""
    book = small_book()
    build(book, stop_at="Executing notebook")
    build(book, stop_at="checking consistency")  # all notebooks are executed, no page is written
    build(book, stop_at="generating indices")
    # stopped while it stored a result, while it wrote a picture, while it wrote a page
    for pattern in (
        ".jupyter_cache/*/executed/*/base.ipynb",
        "jupyter_execute/**/*.png",
        "html/**/*.html",
    ):
        paths = list((book / "_build").glob(pattern))
        assert paths, f"the first part of the build did not make {pattern}"
        for path in paths:
            path.write_bytes(path.read_bytes()[:100])
    build(book)
    assert twice.differences(site(whole), site(book)) == []
    for path in site(book).rglob("*.png"):
        Image.open(path).load()


def test_no_path_of_this_machine_is_in_the_site(whole):
    for path in site(whole).rglob("*"):
        if path.is_file():
            assert str(whole).encode() not in path.read_bytes(), path.name


def test_the_page_about_the_build_is_filled_in(whole):
    page = (site(whole) / "chapters" / "about.html").read_text(encoding="utf8")
    assert '<td class="page"><a href="one.html">One</a></td><td class="seconds">' in page
    assert '<td class="version">' in page
    assert "Not from a git repository" in page


def test_a_difference_is_named(whole, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(site(whole), copy)
    about = copy / "chapters" / "about.html"
    seconds = about.read_bytes().replace(b'"seconds">', b'"seconds">12345')
    assert seconds != about.read_bytes()
    about.write_bytes(seconds)
    assert twice.differences(site(whole), copy) == []
    (copy / "chapters" / "one.html").write_bytes(b"another")
    (copy / "new.html").write_bytes(b"")
    assert twice.differences(site(whole), copy) == ["chapters/one.html", "new.html"]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache of jupyter-cache's form with three notebooks: whole, half, and noted only."""
    monkeypatch.setattr(tasks, "BUILD", tmp_path)
    folder = tmp_path / ".jupyter_cache" / "0123"
    for key, text in (("whole", json.dumps({})), ("half", '{"cells": [')):
        (folder / "executed" / key).mkdir(parents=True)
        (folder / "executed" / key / "base.ipynb").write_text(text, encoding="utf8")
    with closing(sqlite3.connect(folder / "global.db")) as database:
        database.execute("CREATE TABLE nbcache (hashkey TEXT)")
        rows = [["whole"], ["half"], ["noted only"]]
        database.executemany("INSERT INTO nbcache VALUES (?)", rows)
        database.commit()
    return folder


def test_half_written_results_are_forgotten_and_whole_ones_kept(cache):
    tasks.forget_half_written()
    with closing(sqlite3.connect(cache / "global.db")) as database:
        assert database.execute("SELECT hashkey FROM nbcache").fetchall() == [("whole",)]
    (cache / "global.db").write_bytes(b"not a database, or half of one")
    tasks.forget_half_written()
    assert not cache.exists()


def test_scripts_that_are_half_there_are_fetched_again(tmp_path, monkeypatch):
    """Stopped between two files, or in the middle of one."""
    monkeypatch.setattr(tasks, "VENDOR", tmp_path)
    files = {
        name: {"to": f"x/{name}", "sha256": tasks.hashlib.sha256(name.encode()).hexdigest()}
        for name in ("a.js", "b.js")
    }
    fetched = []

    def unpack(archive, files, folder):
        fetched.append(archive)
        (folder / "x").mkdir(exist_ok=True)
        for name in files:
            (folder / "x" / name).write_text(name)

    monkeypatch.setattr(tasks, "vendor_packages", lambda: {"p@1": files})
    monkeypatch.setattr(tasks, "npm_pack", lambda package: package)
    monkeypatch.setattr(tasks, "unpack", unpack)
    for damage in (
        lambda: None,
        (tmp_path / "x" / "b.js").unlink,
        lambda: (tmp_path / "x" / "a.js").write_text("a."),
    ):
        damage()
        tasks.setup_vendor()
        tasks.setup_vendor()
    assert len(fetched) == 3
