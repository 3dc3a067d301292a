"""The page of the library: from docstrings to pages, and links between functions and chapters.

Docstrings are written to be read in a terminal. `as_rst` turns them into what Sphinx reads: formulas
stay as they stand, names in backticks become links, and the last line, "Explained in ...", a link to
the chapter. In the other direction every `lib.x.y` in a chapter becomes a link to this page; a name
that does not exist is a warning, and so stops the build.
"""

from __future__ import annotations

import inspect
import json
import re
from collections import defaultdict
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.transforms import SphinxTransform

CHAPTERS = Path(__file__).resolve().parent.parent / "chapters"
NAME = re.compile(r"lib(\.\w+)+")
EXPLAINED = re.compile(r"\(?(?:chapter \d+, )?\*([^*]+)\* \(chapters/([\w-]+)\.\w+\)")
ADDRESS = re.compile(r"(arXiv |doi |https://)(\S+?)(?=[.,;:)]*(?:\s|$))")
SITES = {"arXiv ": "https://arxiv.org/abs/", "doi ": "https://doi.org/", "https://": "https://"}
FORMULA = re.compile(r"(?<![`\w])\w[^\s`]*[\^_]\{[^{}`]*\}(?:[^\s`.,;]*[\w)])?")  # e^{s_ij} in a sentence
PARTS = re.compile(r"(Shapes[^:.]*|Units[^:.]*|Errors[^:.]*|Source|Explained in|Used in|Raises)\b")


def equations() -> dict[str, list[str]]:
    """{"lib.x.y": [labels of the numbered equations that chapters say it computes]}."""
    found = defaultdict(list)
    for path in sorted(CHAPTERS.glob("*.ipynb")):
        for cell in json.loads(path.read_text(encoding="utf8"))["cells"]:
            if cell["cell_type"] != "markdown":
                continue
            labels = []
            for label, sentence in re.findall(
                r":label: (eq-[\w-]+)|(Computed by [^.]*(?:\.\w[^.]*)*)", "".join(cell["source"])
            ):
                if label:
                    labels.append(label)
                    continue
                for name in re.findall(r"`(lib(?:\.\w+)+)`", sentence):
                    found[name] += [each for each in labels if each not in found[name]]
                labels = []
    return found


def as_rst(lines: list[str], names: dict[str, str]) -> list[str]:
    """A docstring as reStructuredText. `names` are the short names that become links."""
    result = []
    for block in "\n".join(lines).split("\n\n"):
        if not block.strip():
            continue
        if block.startswith(("    ", ">>>")):  # a formula, or an example
            block = inspect.cleandoc("\n" + block)
            result += ["::", "", *("    " + line for line in block.splitlines()), ""]
            continue
        text = []
        for line in block.splitlines():
            if PARTS.match(line) and text:  # shapes, errors, source: a paragraph for each
                result += [_paragraph(" ".join(text), names), ""]
                text = []
            text.append(line.strip())
        result += [_paragraph(" ".join(text), names), ""]
    return result


def _paragraph(text: str, names: dict[str, str]) -> str:
    text = EXPLAINED.sub(lambda m: f"\0:doc:`{m[1]} </chapters/{m[2]}>`\0", text)
    text = ADDRESS.sub(lambda m: f"\0`{m[0]} <{SITES[m[1]]}{m[2]}>`__\0", text)
    parts = text.split("\0")  # every second one is reStructuredText already
    return "".join(p if k % 2 else _inline(p, names) for k, p in enumerate(parts))


def _inline(text: str, names: dict[str, str]) -> str:
    text = FORMULA.sub(r"`\g<0>`", text)
    pieces = text.split("`")
    for k, piece in enumerate(pieces):
        if not k % 2:
            pieces[k] = re.sub(r"(?<!\w)\*([^*\s][^*]*)\*|([*|_\\<])", _escaped, piece)
        elif NAME.fullmatch(piece) or piece in names:
            pieces[k] = f"\\ :py:obj:`{piece} <{names.get(piece, piece)}>`\\ "
        else:
            pieces[k] = f"\\ ``{piece}``\\ "
    return "".join(pieces)


def _escaped(match: re.Match) -> str:
    return f"\\ *{match[1]}*\\ " if match[1] else "\\" + match[2]


def write_docstring(app, what, name, thing, options, lines):
    """Called by autodoc for each docstring: translate it, and name the equations it computes."""
    module = ".".join(name.split(".")[:2])
    own = vars(inspect.importlib.import_module(module))
    names = {
        short: f"{getattr(each, '__module__', module)}.{short}"
        for short, each in own.items()
        if getattr(each, "__module__", "").startswith("lib.") and not short.startswith("_")
    }
    lines[:] = as_rst(lines, names)
    labels = app.lib_equations.get(name, []) if what != "module" else []
    if labels:
        lines += ["Computes " + ", ".join(f":eq:`{label}`" for label in labels) + ".", ""]


def skip_fields(app, what, name, thing, skip, options):
    """Fields of a named tuple say nothing of their own; `forward` is what calling a module does."""
    return True if name == "forward" or type(thing).__name__ == "_tuplegetter" else None


class LinkNames(SphinxTransform):
    """Each `lib.x.y` in the text of a page becomes a link to its entry."""

    default_priority = 400  # before references are resolved

    def apply(self, **kwargs):
        if self.env.docname == "chapters/api":
            return
        for literal in list(self.document.findall(nodes.literal)):
            name = literal.astext()
            inside = literal.parent
            if not NAME.fullmatch(name) or isinstance(inside, (addnodes.pending_xref, nodes.title)):
                continue
            link = addnodes.pending_xref(
                "", refdomain="py", reftype="obj", reftarget=name, refexplicit=True, refwarn=True
            )
            link["py:module"] = link["py:class"] = None
            link.source, link.line = literal.source, literal.line
            inside.replace(literal, link)
            link += literal


def setup(app):
    app.setup_extension("sphinx.ext.autodoc")
    app.config.autodoc_default_options = {"members": True, "member-order": "bysource"}
    app.config.autodoc_typehints = "none"  # the docstrings say shapes, which types do not
    app.config.autodoc_preserve_defaults = True
    app.lib_equations = equations()
    app.connect("autodoc-process-docstring", write_docstring)
    app.connect("autodoc-skip-member", skip_fields)
    app.add_transform(LinkNames)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
