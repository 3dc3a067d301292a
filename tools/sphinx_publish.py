"""What a published site needs besides its pages (a local Sphinx extension).

Each page gets a description for search engines. Where the address of the site is known - GitHub Pages of
the repository that this checkout came from - it also gets a canonical address and the data that a link to
it shows elsewhere, and the site gets a map of its pages and a picture. The page for missing addresses is
always there. There is no robots.txt: it counts only at the root of a host, and the site lies below it.
"""

from __future__ import annotations

import html
import re
import sys
from pathlib import Path
from urllib.parse import urlsplit
from xml.etree import ElementTree

from docutils import nodes

sys.path.append(str(Path(__file__).resolve().parent))

from address import address_of, origin, pages_of

CARD = "social.png"
CARD_SIZE = (1200, 630)  # pixels, what sites ask for
CARD_TEXT = "A staircase of eight orange steps that roughly follows a smooth blue river."
ENOUGH = 150  # characters of a description


# Each page ----------------------------------------------------------------------------------------


def words_of(node) -> str:
    """The words of a text node; a formula that is more than a name gives a mark."""
    words = node.astext()
    formula = isinstance(node.parent, (nodes.math, nodes.math_block))
    return "\0" if formula and not words.isalnum() else words


def description_of(doctree) -> str:
    """The first whole sentences of a page, without those that hold a formula."""
    text = ""
    for paragraph in doctree.findall(nodes.paragraph):
        words = "".join(words_of(node) for node in paragraph.findall(nodes.Text))
        for sentence in re.split(r"(?<=[.!?]) (?=[A-Z])", " ".join(words.split())):
            if "\0" not in sentence and len(text) < ENOUGH:
                text = f"{text} {sentence}".strip()
        if text:
            break
    return text


def tag(kind: str, name: str, content: str) -> str:
    return f'<meta {kind}="{name}" content="{html.escape(content)}">\n'


def describe(app, pagename, templatename, context, doctree):
    """Say what a page is about, and how a link to it looks on other sites."""
    if doctree is None:
        return
    about = description_of(doctree)
    tags = tag("name", "description", about)
    if app.config.html_baseurl:
        values = {
            "title": html.unescape(re.sub("<.*?>", "", context["title"])),
            "description": about,
            "type": "article",
            "site_name": app.config.html_title,
            "url": app.config.html_baseurl + app.builder.get_target_uri(pagename),
            "image": f"{app.config.html_baseurl}_static/{CARD}",
            "image:alt": CARD_TEXT,
            "image:width": str(CARD_SIZE[0]),
            "image:height": str(CARD_SIZE[1]),
        }
        tags += "".join(tag("property", f"og:{name}", value) for name, value in values.items())
        tags += tag("name", "twitter:card", "summary_large_image")
    context["metatags"] += tags


# The site -----------------------------------------------------------------------------------------


def know_the_address(app, config):
    config.html_baseurl = pages_of(address_of(origin()))


def draw_card(path, title):
    """The picture beside a link: one equation walked in eight steps, and the river that it comes from."""
    import matplotlib
    import torch
    from matplotlib.figure import Figure

    from lib import plotting
    from lib.splitting import euler, evolve, rk4

    def velocity(u):
        return torch.stack([u[1], -u[0]])

    def walk(step, count, depth=4.4):
        start = torch.tensor([0.4, 1.0], dtype=torch.float64)
        states = evolve(
            lambda u, dt: step(velocity, u, dt), start, 0.0, depth, count, trajectory=True
        )
        return torch.linspace(0, depth, count + 1), states[:, 0]

    with matplotlib.rc_context(plotting.STYLE):
        figure = Figure(figsize=[side / 100 for side in CARD_SIZE], dpi=100)
        figure.get_layout_engine().set(w_pad=0.3, h_pad=0.5)  # inches
        ax = figure.subplots()
        ax.plot(*walk(rk4, 400), color=plotting.COLOURS["river"], linewidth=10)
        plotting.staircase(ax, *walk(euler, 8), linewidth=5, markersize=11)
        ax.set_axis_off()
        ax.set_title(title, fontsize=32, fontweight="bold", pad=36)
        figure.savefig(path, metadata={"Software": None})


def map_of(addresses) -> bytes:
    """A sitemap (sitemaps.org) of these addresses."""
    root = ElementTree.Element("urlset", xmlns="http://www.sitemaps.org/schemas/sitemap/0.9")
    for address in addresses:
        ElementTree.SubElement(ElementTree.SubElement(root, "url"), "loc").text = address
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)


def add_missing_page(app):
    body = (
        "<h1>No such page</h1><p>The book has no page at this address. Perhaps it was renamed: look for it in "
        'the contents, search for it, or <a href="chapters/index.html">begin at the beginning</a>.</p>'
    )
    yield "404", {"title": "No such page", "body": body}, "page.html"


def rooted(page: str, base: str) -> str:
    """A page that works at whatever address it is shown: its links start from the root of the site.

    A link within the page would do so too, and so names the page itself.
    """
    page = page.replace('href="#', 'href="404.html#')
    return page.replace("<head>", f'<head>\n    <base href="{html.escape(base)}">', 1)


def finish(app, exception):
    if exception or app.builder.name != "html":
        return
    site, address = Path(app.outdir), app.config.html_baseurl
    missing = site / "404.html"
    base = urlsplit(address).path or "/"
    missing.write_text(rooted(missing.read_text(encoding="utf8"), base), encoding="utf8")
    if address:
        names = sorted(app.env.found_docs)
        links = [address + app.builder.get_target_uri(name) for name in names]
        (site / "sitemap.xml").write_bytes(map_of(links))
        draw_card(site / "_static" / CARD, app.config.html_title)


def setup(app):
    app.connect("config-inited", know_the_address)
    app.connect("html-collect-pages", add_missing_page)
    app.connect("html-page-context", describe)
    app.connect("build-finished", finish)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
