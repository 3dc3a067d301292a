"""The page "About this build", which the build itself fills in (a local Sphinx extension)."""

from __future__ import annotations

import html
import platform
import re
import sys
from importlib.metadata import version
from pathlib import Path

from myst_nb.sphinx_ import NbMetadataCollector

sys.path.append(str(Path(__file__).resolve().parent))

from address import git
from budgets import BOOK_SECONDS, PAGE_BYTES, bytes_of
from tasks import ROOT, read

PAGE = "chapters/about"


def table(head, rows):
    """A table whose cells have the class of their column, which is its head in small letters."""
    body = ""
    for cells in rows:
        pairs = zip(head, cells, strict=True)
        cells = "".join(f'<td class="{name.lower()}">{cell}</td>' for name, cell in pairs)
        body += f"<tr>{cells}</tr>"
    names = "".join(f'<th scope="col">{name}</th>' for name in head)
    return (
        '<div class="pst-scrollable-table-container"><table class="table">'
        f"<thead><tr>{names}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def pages(app, site):
    """Each page of the book in the order of the contents, and the largest and longest beside the budgets."""
    rows, seconds, sizes = [], [], []
    names = [app.config.root_doc, *app.env.toctree_includes[app.config.root_doc]]
    for name in (name for name in names if name != PAGE):
        took = (NbMetadataCollector.get_exec_data(app.env, name) or {}).get("runtime")
        sizes.append(bytes_of(site / f"{name}.html"))
        seconds.append(took or 0)
        title = html.escape(app.env.titles[name].astext())
        link = f'<a href="{Path(name).name}.html">{title}</a>'
        rows.append([link, f"{took:.0f}" if took else "", f"{sizes[-1] / 1000:.0f}"])
    rows += [
        ["<b>sum, and largest</b>", f"{sum(seconds):.0f}", f"{max(sizes) / 1000:.0f}"],
        [
            "<b>budget</b>",
            f"{BOOK_SECONDS} for the whole build",
            f"{PAGE_BYTES / 1000:.0f} for each page",
        ],
    ]
    return table(["Page", "Seconds", "Kilobytes"], rows)


def commit(app, site):
    said = git("log", "-1", "--date=short", "--format=%H of %cd")
    changed = ", with changes that are not committed" if git("status", "--porcelain") else ""
    return f"<p>Commit {said}{changed}.</p>" if said else "<p>Not from a git repository.</p>"


def versions(app, site):
    names = re.findall(r"^([\w.-]+)==", read(ROOT / "requirements.txt"), flags=re.M)
    rows = [["Python", platform.python_version()], *([name, version(name)] for name in names)]
    return table(["Package", "Version"], rows)


def fill_in(app, exception):
    """Write into the built page what is known only now: how long the notebooks took, and how large pages are."""
    page = Path(app.outdir) / f"{PAGE}.html"
    if exception or app.builder.name != "html" or not page.is_file():
        return
    text = page.read_text(encoding="utf8")
    for part in (commit, pages, versions):
        made = part(app, Path(app.outdir)).replace("\\", r"\\")
        mark = f"<!-- {part.__name__} -->"
        text = re.sub(f"{mark}.*?<!-- end -->", f"{mark}{made}<!-- end -->", text, flags=re.S)
    page.write_text(text, encoding="utf8")


def setup(app):
    app.connect("build-finished", fill_in)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
