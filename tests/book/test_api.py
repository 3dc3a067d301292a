"""The page of the library, made from docstrings, and its links to the chapters and back."""

import json
import re
import sys

import pytest
from bs4 import BeautifulSoup
from test_notebooks import PUBLIC

from tools import tasks

sys.path.append(str(tasks.ROOT / "tools"))
import sphinx_api  # noqa: E402  (Sphinx imports it by this name)


def parsed(path):
    return BeautifulSoup(without_scripts(path.read_text(encoding="utf8")), "html.parser")


def without_scripts(text):
    return re.sub(r"<script\b.*?</script>", "", text, flags=re.S)  # megabytes of frames


@pytest.fixture(scope="module")
def entries(site):
    """{name: what the page of the library says of it}."""
    page = parsed(site / "chapters" / "api.html")
    return {term["id"]: term.find_next_sibling("dd") for term in page.find_all("dt", id=True)}


@pytest.fixture(scope="module")
def chapters(site, root):
    return {
        path.stem: parsed(site / "chapters" / f"{path.stem}.html")
        for path in sorted((root / "chapters").glob("*.ipynb"))
    }


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_has_an_entry(entries, name):
    assert name in entries and entries[name].get_text().strip()


def test_an_entry_leads_to_the_chapter_that_explains_it(entries):
    link = entries["lib.splitting.strang"].find("a", href="splitting.html")
    assert link.get_text() == "Operator splitting"
    assert "arxiv.org" in str(entries["lib.attention.attend"])


def test_entries_and_equations_lead_to_each_other(entries, chapters):
    """In both directions: what a chapter says is computed here, and what an entry says it computes."""
    found = sphinx_api.equations()
    assert sum(map(len, found.values())) > 50
    for name, labels in found.items():
        for label in labels:
            stem = label.split("-")[1]
            assert entries[name].find("a", href=f"{stem}.html#equation-{label}"), (name, label)
            assert chapters[stem].find("a", href=f"api.html#{name}"), (stem, name)


def test_every_name_of_lib_in_a_text_is_a_link(chapters):
    for stem, chapter in chapters.items():
        for code in chapter.select("article code"):
            if sphinx_api.NAME.fullmatch(code.get_text()) and not code.find_parent(["pre", "h1"]):
                assert code.find_parent("a"), f"{stem}: {code.get_text()}"


def test_equations_are_those_before_the_sentence(tmp_path, monkeypatch):
    text = (
        ":label: eq-a\nComputed by `lib.one.f` (the first).\n:label: eq-b\n:label: eq-c\n"
        "Computed by `lib.two.g` and `lib.one.f`. Then `lib.three.h` is only named."
    )
    cells = [{"cell_type": "markdown", "source": [text]}, {"cell_type": "code", "source": [text]}]
    (tmp_path / "x.ipynb").write_text(json.dumps({"cells": cells}), encoding="utf8")
    monkeypatch.setattr(sphinx_api, "CHAPTERS", tmp_path)
    assert sphinx_api.equations() == {
        "lib.one.f": ["eq-a", "eq-b", "eq-c"],
        "lib.two.g": ["eq-b", "eq-c"],
    }


DOCSTRING = """The flow of w_t = f(w) on |Ω|, *at once*.

    u ← a_b * |c|

Shapes: u (..., d); see `attend`, `lib.heads` and `eps`.
Source: A. Author, *A Book*, arXiv 2510.03989, section 3.
Explained in chapter 5, *Operator splitting* (chapters/splitting.ipynb).
"""


def test_a_docstring_becomes_text_formula_and_links():
    lines = sphinx_api.as_rst(DOCSTRING.splitlines(), {"attend": "lib.attention.attend"})
    text = "\n".join(lines)
    assert "w\\_t = f(w) on \\|Ω\\|, \\ *at once*\\ ." in text
    assert "::\n\n    u ← a_b * |c|\n" in text
    assert ":py:obj:`attend <lib.attention.attend>`" in text and ":py:obj:`lib.heads" in text
    assert "``eps``" in text
    assert "`arXiv 2510.03989 <https://arxiv.org/abs/2510.03989>`__, section 3." in text
    assert lines[-2] == "Explained in :doc:`Operator splitting </chapters/splitting>`."
