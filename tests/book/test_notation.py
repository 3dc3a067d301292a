"""The crosswalk of symbols: complete rows, and each symbol introduced where the row says.

A program cannot see whether a sentence explains a symbol. What it can see: the chapter of the row
uses the symbol, first in the sections that introduce (before "The code"), and no chapter before it
does. The last is asked of symbols that have one meaning in the book, such as \\Omega_z or P_{S_1};
single letters serve several times, and chapter 0 tells the whole story ahead.
"""

import importlib
import re

import nbformat
import pytest
import yaml

COLUMNS = 6


def crosswalk(root):
    """(symbols, chapter, cells) of each row."""
    text = (root / "chapters" / "notation.md").read_text(encoding="utf8")
    for line in text.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        chapter = re.search(r"\]\(([\w-]+)\.ipynb\)", line)
        if chapter:
            yield re.findall(r"\$([^$]+)\$", cells[0].split(":")[0]), chapter[1], cells


def order(root):
    toc = yaml.safe_load((root / "_toc.yml").read_text(encoding="utf8"))
    files = [entry["file"].split("/")[1] for part in toc["parts"] for entry in part["chapters"]]
    return [name for name in files if (root / "chapters" / f"{name}.ipynb").is_file()]


def formulas(root, chapter, until=None):
    """All mathematics in the text of a chapter, with \\lvert and the like written one way."""
    notebook = nbformat.read(root / "chapters" / f"{chapter}.ipynb", as_version=4)
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    return plain(text.split(until)[0] if until else text)


def plain(tex):
    tex = re.sub(r"\\[lr]vert|\\\||\|", "|", tex)
    return re.sub(r"\\[,;! ]|[\s{}]|\\mathrm|\\operatorname", "", tex)


def distinct(symbol):
    """Whether a symbol is more than a letter that may mean other things elsewhere."""
    letters = re.sub(r"\\[a-zA-Z]+", "L", re.sub(r"\\tilde|_[kh]\b", "", symbol))
    return len(re.sub(r"\([^)]*\)|[,\s{}]", "", letters)) > 1


@pytest.fixture(scope="module")
def rows(root):
    return list(crosswalk(root))


def test_the_crosswalk_has_rows_of_equal_length(rows):
    assert len(rows) > 40
    for symbols, _, cells in rows:
        assert len(cells) == COLUMNS and symbols, cells


def test_names_of_the_library_exist(rows):
    names = {name for *_, cells in rows for name in re.findall(r"`~(lib\.[\w.]+)`", cells[4])}
    assert len(names) > 25
    for name in names:
        module, *rest = name.split(".")[1:]
        thing = importlib.import_module(f"lib.{module}")
        for part in rest:
            thing = getattr(thing, part)


def complaints(rows, texts, introductions, reading):
    for symbols, chapter, _ in rows:
        for symbol in symbols:
            wanted = plain(symbol)
            if wanted not in introductions[chapter]:
                yield f"{symbol} is not introduced in {chapter}"
            before = reading[1 : reading.index(chapter)] if chapter in reading[1:] else []
            early = [name for name in before if wanted in texts[name]]
            if distinct(symbol) and early:
                yield f"{symbol}, said to be introduced in {chapter}, stands in {early}"


def test_each_symbol_is_introduced_where_the_crosswalk_says(root, rows):
    reading = order(root)
    texts = {name: formulas(root, name) for name in reading}
    introductions = {name: formulas(root, name, "## The code") for name in reading}
    assert list(complaints(rows, texts, introductions, reading)) == []


def test_a_symbol_in_the_wrong_chapter_is_noticed():
    reading = ["zero", "one", "two"]
    texts = {"zero": plain(r"\Omega_x"), "one": plain(r"\Omega_x, \gamma_{ij}"), "two": "x"}
    wrong = [([r"\gamma_{ij}"], "two", []), ([r"\Omega_x"], "two", [])]
    assert len(list(complaints(wrong, texts, texts, reading))) == 4
    assert not list(complaints([([r"\Omega_x"], "one", [])], texts, texts, reading))
