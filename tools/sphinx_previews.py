"""What a reference leads to, for the card that a reader sees when the pointer rests on it.

After the build, each page gets a small script beside it, previews/<page>.js, with the equations,
theorems, figures, exercises and entries that other places refer to. `_static/previews.js` asks for
it when a reader first rests on such a reference. A script, not JSON: it also loads from a file on
disk.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import unquote

from bs4 import BeautifulSoup

FOLDER = "previews"
SCRIPT = re.compile(r"<script\b.*?</script>", re.S)  # the frames of the widgets, megabytes of them


def soup(path: Path) -> BeautifulSoup:
    text = SCRIPT.sub("", path.read_text(encoding="utf8"))
    return BeautifulSoup(text, "html.parser")


def targets(pages: dict[str, BeautifulSoup]) -> dict[str, set[str]]:
    """{page: ids on it that some page refers to}."""
    found = {name: set() for name in pages}
    for name, page in pages.items():
        for link in page.select("article a.internal[href*='#']"):
            file, _, fragment = unquote(link["href"]).partition("#")
            parts = (Path(name).parent / file).as_posix() if file else name
            if fragment and parts in found:
                found[parts].add(fragment)
    return found


def preview(page: BeautifulSoup, name: str) -> str | None:
    """The HTML of what has this id, if it is something that a card can show."""
    element = page.find(id=name)
    if element is None:
        return None
    classes = set(element.get("class") or [])
    if element.name == "dt":  # a function: its signature and the sentence that says what it is
        said = element.find_next_sibling("dd").find("p")
        html = f"<p><code>{_text(element)}</code></p>{said or ''}"
    elif element.name == "figure" or classes & {"math", "admonition", "citation"}:
        html = str(element)
    else:
        return None
    copy = BeautifulSoup(html, "html.parser")
    for extra in copy.select(".headerlink, .toggle-button, .viewcode-link"):
        extra.decompose()
    for each in copy.find_all(id=True):
        del each["id"]  # it stands on the page already
    return str(copy)


def _text(element) -> str:
    copy = BeautifulSoup(str(element), "html.parser")
    for extra in copy.select(".headerlink"):
        extra.decompose()
    return " ".join(copy.get_text().split())


def write_previews(app, exception):
    if exception or app.builder.format != "html":
        return
    site = Path(app.outdir)
    pages = {path.relative_to(site).as_posix(): soup(path) for path in site.glob("chapters/*.html")}
    for name, ids in targets(pages).items():
        shown = {each: preview(pages[name], each) for each in sorted(ids)}
        content = json.dumps({key: html for key, html in shown.items() if html}, ensure_ascii=False)
        path = site / FOLDER / f"{name}.js"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"bookPreviews[{json.dumps(name)}] = {content};\n", encoding="utf8")


def setup(app):
    app.connect("build-finished", write_previews)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
