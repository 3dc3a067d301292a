"""The contract of the notebooks: what every chapter must have, and what none may contain.

Each rule is a function from a notebook to a list of complaints. It stands here with small notebooks
that break it, so that a rule which no longer catches anything is noticed.
"""

import ast
import importlib
import inspect
import pkgutil
import re
from functools import cache
from pathlib import Path

import nbformat
import pytest
import yaml
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

import lib

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = sorted((ROOT / "chapters").glob("*.ipynb"))
PAGES = [*(ROOT / "chapters").glob("*.md"), *ROOT.glob("README.md"), *ROOT.glob("CONTRIBUTING.md")]
PLANNED = set()  # chapters that lib may name before they are written
UNEXPLAINED = {"lib.checks"}  # serves the other modules; has no chapter

HEADINGS = [
    "The question",
    "The picture",
    "The mathematics",
    "The code",
    "The check",
    "What changes when .+",
    "Exercises",
    "What is exact, what is analogy, what is open",
    "Further reading",
]
# Chapter 0 tells the story and proves nothing: it may leave these out.
STORY, STORY_MAY_OMIT = "river", {"The mathematics", "The code", "The check"}
MOST_LINES = 25
WIDEST = 78
STILL_WIDE = {"cvt"}  # its folded cells, which only draw, are wrapped at 100 so far


# A notebook that keeps every rule, and ways to break it ------------------------------------------


def text(source, id="some-text"):
    return new_markdown_cell(source, id=id)


def code(source, *outputs, count=1, id="some-code", **metadata):
    return new_code_cell(
        source, id=id, outputs=list(outputs), execution_count=count, metadata=metadata
    )


def printed(text, name="stdout"):
    return new_output("stream", name=name, text=text)


def drawn(source, alt="Two lines that cross at the origin", caption="Two lines.", name="fig-a"):
    figure = {"image": {"alt": alt}, "figure": {"name": name, "caption": caption}}
    return code(source, count=None, mystnb=figure, id="some-figure")


WIDGET = "explore(draw, dt=[1, 1 / 2], n=[4, 8])"
EQUATION = "```{math}\n:label: eq-good-mean\n\\bar u = \\int u\n```"
GOOD = {
    "title": [text("# Good", "title"), code("from lib.explore import explore", id="imports")],
    "The question": [text("Why? See {cite:t}`cobb1978`, section 2.")],
    "The picture": [code(WIDGET, count=None, id="first-widget")],
    "The mathematics": [
        text(f"{EQUATION}\n\nComputed by `lib.domain.Domain.mean`. Here $A^\\top$, $\\int_0^T$."),
        text("```{prf:theorem} Means\n:label: thm-good-mean\nTrue.\n```"),
        text("```{prf:proof}\nClear. See {prf:ref}`thm-good-mean` and {numref}`fig-a`.\n```"),
        drawn("figure, ax = plt.subplots()"),
    ],
    "The code": [code("def mean(u):\n    return u.mean()", id="mean")],
    "The check": [code("print(round(0.12345, 4))", printed("0.1234\n"), id="check")],
    "What changes when Δt changes": [code(WIDGET, count=None, id="second-widget")],
    "Exercises": [
        text("```{exercise}\n:label: ex-good-one\nWhy?\n```"),
        text("````{solution-start} ex-good-one\n````"),
        code("assert True", id="solution-one"),
        text("````{solution-end}\n````"),
    ],
    "What is exact, what is analogy, what is open": [text("All is exact.")],
    "Further reading": [text("{cite:t}`cobb1978`")],
}


def good(**replaced):
    """The good notebook, some sections replaced: a list of cells, or None to leave it out."""
    cells = []
    for heading, section in GOOD.items():
        section = replaced.pop(heading.split()[-1], section)
        if section is None:
            continue
        if heading != "title":
            cells.append(text(f"## {heading}", "heading-" + str(len(cells))))
        cells += section
    assert not replaced
    for number, cell in enumerate(cells):
        if cell.id.startswith("some-"):
            cell = cells[number] = nbformat.from_dict({**cell, "id": f"{cell.id}-{number}"})
    notebook = new_notebook(metadata={"name": "good"})
    notebook.cells = cells
    return notebook


def with_cells(*cells):
    """The good notebook with these cells in place of its code."""
    return good(code=list(cells))


RULES = {}


def rule(*bad):
    """Register a rule together with functions that make notebooks which break it."""

    def register(function):
        RULES[function.__name__] = (function, bad)
        return function

    return register


# Reading a notebook ------------------------------------------------------------------------------


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def tree(cell):
    """The syntax tree of a code cell; lines for IPython itself (%, !) are left out."""
    lines = cell.source.splitlines()
    return ast.parse("\n".join("" if line[:1] in "%!" else line for line in lines))


def calls(cell, name):
    """The calls of a function in a cell, as name(...) or module.name(...)."""
    nodes = [node for node in ast.walk(tree(cell)) if isinstance(node, ast.Call)]
    return [n for n in nodes if name in (getattr(n.func, "id", ""), getattr(n.func, "attr", ""))]


def draws(cell):
    """Whether a cell says that it shows a picture or a widget."""
    shown = cell.metadata.get("mystnb", {})
    return "image" in shown or "figure" in shown or bool(calls(cell, "explore"))


def prose(source):
    """The text of a page without code: no fenced listings, no code spans, but with roles' words."""
    source = re.sub(r"^(`{3,})(?:\w+|\{code[^}]*\}.*)\n.*?^\1", "", source, flags=re.S | re.M)
    return re.sub(r"(?<![}`])(`+)(?!`).+?\1", "", source)


def sections(notebook):
    """[(heading, cells)] for each heading of the second level."""
    found = []
    for cell in notebook.cells:
        heading = re.search(r"^## (.+)$", cell.source, flags=re.M)
        if cell.cell_type == "markdown" and heading:
            found.append((heading[1].strip(), [cell]))
        elif found:
            found[-1][1].append(cell)
    return found


def section(notebook, name):
    return [cell for heading, cells in sections(notebook) if heading == name for cell in cells]


def directives(notebook, kind):
    """The labels of all directives of a kind (a regular expression), "" where there is none."""
    pattern = rf"^[`:]{{3,}}\{{(?:{kind})\}}.*\n((?::.*\n)*)"
    found = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            for options in re.findall(pattern, cell.source + "\n", flags=re.M):
                label = re.search(r":(?:label|name): *(\S+)", options)
                found.append(label[1] if label else "")
    return found


@cache
def resolve(name):
    """Whether lib.a.b.c can be imported and looked up."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            fields = getattr(found, "__dataclass_fields__", {})
            if not hasattr(found, part) and part not in fields:
                return False
            found = getattr(found, part, None)
        return True
    return False


# The rules ---------------------------------------------------------------------------------------


@rule(
    lambda: with_cells(code("1 + 1", printed("2"), count=None)),
    lambda: with_cells(code("x = 1", count=None)),
    lambda: with_cells(code(WIDGET, count=3)),
    lambda: with_cells(code(WIDGET, printed("2"), count=None)),
    lambda: with_cells(code(WIDGET + "\nprint(1)", count=None)),
    lambda: with_cells(code("x", new_output("display_data", data={"image/png": "abc"}))),
    lambda: with_cells(code("x", new_output("display_data", data={"text/html": "<b>2</b>"}))),
    lambda: with_cells(code("x", new_output("error", ename="E", evalue="", traceback=[]))),
    lambda: with_cells(code("x", printed("careful", name="stderr"))),
    lambda: with_cells(code("x", printed("<function f at 0x7f12ab34cd56>"))),
    lambda: with_cells(code("x  # NBVAL_IGNORE_OUTPUT", printed("1"))),
    lambda: with_cells(code("x", printed("1"), tags=["nbval-ignore-output"])),
    lambda: with_cells(code("x", printed("1"), tags=["raises-exception"])),
)
def stored_results_are_compared(notebook):
    """A stored result has a count, or the test would run the cell and compare nothing."""
    for cell in code_cells(notebook):
        counted = cell.execution_count is not None
        if draws(cell):
            if cell.outputs or counted:
                yield f"{cell.id} draws, and must be stored without results and without a count"
            if calls(cell, "print"):
                yield f"{cell.id} draws and prints; what it prints is compared with nothing"
        elif not counted:
            yield f"{cell.id} has no count, so its results are not compared; run `make chapters`"
        tags = cell.metadata.get("tags", [])
        if "NBVAL" in cell.source or any("nbval" in t or "raises" in t for t in tags):
            yield f"{cell.id} switches the comparison off"
        for output in cell.outputs:
            if output.output_type == "error" or output.get("name") == "stderr":
                yield f"{cell.id} has an error or a warning stored"
            kinds = set(output.get("data", {})) - {"text/plain", "text/latex", "text/markdown"}
            if kinds:
                yield f"{cell.id} has stored {sorted(kinds)}; only text is stored"
            if re.search(r"0x[0-9a-f]{6,}|<Figure size", str(output)):
                yield f"{cell.id} has stored an address or an object; end it with a semicolon"


@rule(
    lambda: with_cells(code("x", printed("0.30000000000000004"))),
    lambda: with_cells(code("x", printed("error 4.44e-16"))),
)
def printed_numbers_are_rounded(notebook):
    """Rounding noise differs between machines: a bound is asserted, not shown."""
    for cell in code_cells(notebook):
        for output in cell.outputs:
            said = output.get("text", "") or str(output.get("data", {}).get("text/plain", ""))
            noise = re.findall(r"\d+\.\d{9,}|\d(?:\.\d+)?e-1[3-9]", said)
            if noise:
                yield f"{cell.id} shows {noise[0]}; round it, or assert that it is small"


@rule(
    lambda: with_cells(code("x", id="a1b2c3d4"), code("y", id="a1b2c3d5")),
    lambda: with_cells(code("x", id="Cell_2")),
    lambda: with_cells(code("x", id="same"), code("y", id="same")),
)
def cells_have_readable_ids(notebook):
    ids = [cell.get("id", "") for cell in notebook.cells]
    for id in ids:
        if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", id) or re.fullmatch("[0-9a-f]{8}", id):
            yield f"the id {id!r} is not a name such as check-order"
    for id in sorted({id for id in ids if ids.count(id) > 1}):
        yield f"the id {id!r} is used twice"


@rule(
    lambda: good(question=None),
    lambda: good(reading=None),
    lambda: good(title=[text("No title")]),
    lambda: with_cells(text("## Something else")),
    lambda: with_cells(text("# A second title")),
    lambda: with_cells(text("## The check")),
)
def chapters_have_one_shape(notebook):
    """The same sections in the same order, so that a reader never has to look for anything."""
    sources = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    titles = [t for s in sources for t in re.findall(r"^# .+$", prose(s), flags=re.M)]
    if len(titles) != 1 or not notebook.cells[0].source.startswith("# "):
        yield f"a chapter begins with its title, and has no other: {titles}"
    found = [h for s in sources for h in re.findall(r"^## (.+)$", prose(s), flags=re.M)]
    story = notebook.metadata.get("name") == STORY
    wanted = [h for h in HEADINGS if not story or h not in STORY_MAY_OMIT or h in found]
    for heading in wanted:
        if not any(re.fullmatch(heading, f.strip()) for f in found):
            yield f"the section “{heading}” is missing"
    order = [next((w for w in HEADINGS if re.fullmatch(w, f.strip())), None) for f in found]
    for name, heading in zip(order, found, strict=True):
        if name is None and not story:
            yield f"“{heading}” is not one of the sections; make it a heading of level 3"
    known = [name for name in order if name]
    if known != sorted(set(known), key=HEADINGS.index):
        yield f"the sections stand in another order, or twice: {found}"


@rule(lambda: good(picture=[]), lambda: good(changes=[code("draw", count=1)]))
def chapters_have_two_widgets(notebook):
    found = sum(len(calls(cell, "explore")) for cell in code_cells(notebook))
    if found < 2:
        yield f"{found} widgets; each chapter has at least two"


@rule(
    lambda: with_cells(text("`lib.domain.Domian`")),
    lambda: with_cells(text("see lib.nothing.at_all")),
    lambda: with_cells(code("from lib.attention import atend")),
    lambda: with_cells(code("import lib.nothing")),
)
def names_of_lib_exist(notebook):
    for cell in notebook.cells:
        for name in names_in(cell.source):
            if not resolve(name):
                yield f"{cell.id}: {name} does not exist"
        if cell.cell_type == "code":
            for node in ast.walk(tree(cell)):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lib"):
                    for alias in node.names:
                        if not resolve(f"{node.module}.{alias.name}"):
                            yield f"{cell.id}: {node.module}.{alias.name} does not exist"


def names_in(source):
    """All lib.module.name in a text."""
    return re.findall(r"(?<![\w./])lib(?:\.[A-Za-z_]\w*)+", source)


@rule(
    lambda: good(mathematics=[text(EQUATION)]),
    lambda: good(mathematics=[text("$$ u = 1 $$ (eq-good-one)")]),
    lambda: good(mathematics=[text(EQUATION + "\nComputed by `lib.domain.Domain.nothing`.")]),
    lambda: good(mathematics=[text(EQUATION.replace("eq-good", "eq:good"))]),
    lambda: good(mathematics=[text(EQUATION.replace("eq-good", "eq-other"))]),
)
def equations_name_their_function(notebook):
    stem = notebook.metadata.get("name")
    for cell in notebook.cells:
        if cell.cell_type != "markdown":
            continue
        labels = re.findall(
            r"^[`:]{3,}\{math\}.*\n(?::.*\n)*?:label: *(\S+)", cell.source, flags=re.M
        )
        labels += re.findall(r"^.*\$\$ *\(([^)]+)\)", cell.source, flags=re.M)
        for label in labels:
            if not re.fullmatch(rf"eq-{stem}(-[a-z0-9]+)*", label):
                yield f"{cell.id}: the label {label} should be eq-{stem}-name"
        computed = re.findall(r"[Cc]omputed by ((?:`lib\.[\w.]+`(?:, | and )?)+)", cell.source)
        if labels and not computed:
            yield f"{cell.id}: {labels} without “Computed by `lib.module.name`”"
        for name in names_in(" ".join(computed)):
            if not resolve(name):
                yield f"{cell.id}: {name} does not exist"


@rule(
    lambda: good(
        mathematics=[text("```{prf:theorem} T\n:label: thm:one\n```\n```{prf:proof}\n```")]
    ),
    lambda: good(mathematics=[text("```{prf:theorem} T\n:label: one\n```\n```{prf:proof}\n```")]),
    lambda: good(mathematics=[text("```{prf:definition} T\n```")]),
    lambda: good(Exercises=[text("```{exercise}\n:label: one\n```")]),
)
def labels_follow_their_kind(notebook):
    kinds = {
        "thm": "prf:theorem|prf:lemma|prf:proposition|prf:corollary",
        "def": "prf:definition",
        "ex": "exercise|exercise-start",
    }
    for prefix, kind in kinds.items():
        for label in directives(notebook, kind):
            if not re.fullmatch(rf"({prefix}|lem|prop|cor)-[a-z0-9-]+", label):
                yield f"the label {label!r} of a {kind} should be {prefix}-name, without colons"


@rule(
    lambda: good(mathematics=[text("```{prf:theorem} T\n:label: thm-one\n```")]),
    lambda: good(mathematics=[text("```{prf:lemma} T\n:label: lem-one\n```")]),
)
def theorems_have_proofs(notebook):
    stated = directives(notebook, "prf:theorem|prf:lemma|prf:proposition|prf:corollary")
    proved = directives(notebook, "prf:proof")
    if len(stated) > len(proved):
        yield f"{len(stated)} statements but {len(proved)} proofs"


@rule(
    lambda: good(Exercises=[text("None.")]),
    lambda: good(Exercises=[text("```{exercise}\n:label: ex-one\n```"), code("assert True")]),
    lambda: good(
        Exercises=[text("```{exercise}\n:label: ex-one\n```\n```{solution} ex-one\nNo code.\n```")]
    ),
)
def exercises_have_solutions_that_run(notebook):
    asked = set(directives(notebook, "exercise|exercise-start"))
    cells = section(notebook, "Exercises")
    source = "\n".join(cell.source for cell in cells)
    solved = set(re.findall(r"^[`:]{3,}\{solution(?:-start)?\} *(\S+)", source, flags=re.M))
    if not asked:
        yield "there is no exercise"
    for label in sorted(asked ^ solved):
        yield f"the exercise {label} and its solution do not go together"
    if not any(cell.cell_type == "code" for cell in cells):
        yield "no solution runs"


@rule(
    lambda: with_cells(drawn("plt.plot([1])", alt="")),
    lambda: with_cells(drawn("plt.plot([1])", alt="A plot")),
    lambda: with_cells(drawn("plt.plot([1])", alt="a_picture_of_the_convergence.png")),
    lambda: with_cells(drawn("plt.plot([1])", alt="<Figure size 640x480 with 1 Axes>")),
    lambda: with_cells(
        drawn("plt.plot([1])", alt="Only the same again.", caption="Only the same again.")
    ),
    lambda: with_cells(drawn("plt.plot([1])", caption="")),
    lambda: with_cells(drawn("plt.plot([1])", name="picture")),
    lambda: with_cells(
        code("plt.plot([1])", count=None, mystnb={"image": {"alt": "Some long words"}})
    ),
    lambda: with_cells(text("![](picture.png)")),
    lambda: with_cells(text("```{figure} picture.png\n:name: fig-picture\n```")),
)
def figures_say_what_they_show(notebook):
    for cell in notebook.cells:
        if cell.cell_type == "code" and cell.metadata.get("mystnb"):
            shown = cell.metadata["mystnb"]
            alt = str(shown.get("image", {}).get("alt", ""))
            caption = str(shown.get("figure", {}).get("caption", ""))
            name = str(shown.get("figure", {}).get("name", ""))
            if len(alt.split()) < 4 or re.match(r"<|\S+\.\w+$", alt) or alt == caption:
                yield f"{cell.id}: the alternative text says too little: {alt!r}"
            if not caption.strip():
                yield f"{cell.id}: the figure has no caption"
            if not re.fullmatch(r"fig-[a-z0-9-]+", name):
                yield f"{cell.id}: the name {name!r} should be fig-name"
        if cell.cell_type == "markdown":
            if "![](" in cell.source or "![ ](" in cell.source:
                yield f"{cell.id}: an image without alternative text"
            for options in re.findall(r"\{(?:figure|image)\}.*\n((?::.*\n)*)", cell.source + "\n"):
                if not re.search(r":alt: *\S+ +\S+", options):
                    yield f"{cell.id}: an image without alternative text"


@rule(
    lambda: good(mathematics=[text("```{prf:proof}\n:class: dropdown\nClear.\n```")]),
    lambda: good(mathematics=[text(":::{prf:remark}\n:label: rem-x\n:class: dropdown\nYes.\n:::")]),
)
def what_folds_has_a_title(notebook):
    """A proof has no title to put the button on: the script that folds throws there."""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            pattern = r"^[`:]{3,}\{(prf:\w+)\}.*\n((?::.*\n)*)"
            for kind, options in re.findall(pattern, cell.source + "\n", flags=re.M):
                if "dropdown" in options:
                    yield f"{cell.id}: {kind} cannot be a dropdown; fold an admonition instead"


# Upper limits of integrals, sums and products: T may be the final depth there.
LIMIT = r"\\(?:int|sum|prod|oint)(?:\\limits)?\s*(?:_(?:\{[^{}]*\}|\\?\w))?\s*\^\s*(?:\{T\}|T)"
TRANSPOSE = (
    r"\^\s*\{?\s*(?:\\(?:mathsf|mathrm|mathbf|mathit|text|textsf|rm|sf|operatorname)\b\s*\{?\s*)?T\b"
    r"|\^\s*\{?\s*(?:\\intercal|⊤)|ᵀ|⊤|\\transpose"
)


@rule(
    *(
        lambda formula=formula: with_cells(text(f"Here $ {formula} K$."))
        for formula in (
            "Q^T", "Q^{T}", "W_Q^T", r"Q^{\mathsf{T}}", r"Q^\mathrm{T}", r"Q^\intercal", "Qᵀ"
        )
    ),
)  # fmt: skip
def transposes_have_one_sign(notebook):
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            yield from (f"{cell.id}: {found}" for found in wrong_transposes(cell.source))


def wrong_transposes(source):
    source = re.sub(LIMIT, "", prose(source))
    return [f"write ^\\top, not {found[0]!r}" for found in re.finditer(TRANSPOSE, source)]


REFERENCE = (
    r"\b(?:figures?|figs?\.|equations?|eqs?\.|theorems?|lemmas?|propositions?|corollary|corollaries"
    r"|definitions?|exercises?|sections?|tables?|chapters?)(?:[ ~]|\n(?!\d+\. ))*\(?\d[\d.]*"
)


@rule(
    lambda: with_cells(text("as Figure 3 shows")),
    lambda: with_cells(text("by equation (2)")),
    lambda: with_cells(text("by Eq. (2.1)")),
    lambda: with_cells(text("from Theorem 1 it follows")),
    lambda: with_cells(text("in chapter 4 we")),
    lambda: with_cells(text("in [Chapter 4](feedforward.ipynb) we")),
    lambda: with_cells(text("as we saw in chapter\n4")),
)
def references_are_not_typed_by_hand(notebook):
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            yield from (f"{cell.id}: {found}" for found in typed_references(cell.source))


def typed_references(source):
    """Numbers that go wrong silently. Those of other works are allowed beside a citation."""
    for found in re.finditer(REFERENCE, prose(source), flags=re.I):
        line = found.string[: found.start()].rsplit("\n\n", 1)[-1]
        after = found.string[found.end() :]
        cited = re.search(r"\{cite[^}]*\}`[^`]*`[^.;]*$", line) or re.match(
            r"\)?,? (?:of|in) (?:[^.;]{0,40})\{cite", after
        )
        if not cited:
            yield f"{found[0]!r} is typed by hand; refer to it by its label"


@rule(lambda: with_cells(code("\n".join(f"x = {i}" for i in range(26)))))
def code_is_short(notebook):
    for cell in code_cells(notebook):
        lines = len(cell.source.splitlines())
        if lines > MOST_LINES:
            yield f"{cell.id} has {lines} lines, at most {MOST_LINES}; put some of it into lib/"


@rule(
    lambda: with_cells(code(f"x = '{'long' * 20}'")),
    lambda: with_cells(code(f"x = '{'long' * 20}'", tags=["hide-input"])),
    lambda: with_cells(code(f"x = 1  # {'long ' * 20}", tags=["remove-input"])),
)
def code_does_not_scroll(notebook):
    """What fits beside the table of contents on a page of 1280 pixels, unfolded or not."""
    for cell in code_cells(notebook):
        folded = {"hide-input", "remove-input"} & set(cell.metadata.get("tags", []))
        if folded and notebook.metadata.get("name") in STILL_WIDE:
            continue
        for line in cell.source.splitlines():
            if len(line) > WIDEST:
                yield f"{cell.id}: a line of {len(line)} characters, at most {WIDEST}: {line}"


@rule(
    lambda: with_cells(code("import torch")),
    lambda: with_cells(code("def f():\n    from torch import tensor")),
)
def imports_stand_in_the_first_cell(notebook):
    for cell in code_cells(notebook)[1:]:
        if any(isinstance(node, (ast.Import, ast.ImportFrom)) for node in ast.walk(tree(cell))):
            yield f"{cell.id} imports; the first code cell does that"


@rule(
    lambda: with_cells(code("from lib.domain import *")),
    lambda: with_cells(code("import warnings")),
)
def code_is_plain(notebook):
    """No star imports, no silenced warnings."""
    for cell in code_cells(notebook):
        if re.search(r"import \*|\bwarnings\b|filterwarnings", cell.source):
            yield f"{cell.id}: a star import or a silenced warning"


@rule(
    lambda: good(check=[text("It is right.")]),
    lambda: good(check=[code("x = 1")]),
)
def the_check_checks(notebook):
    if notebook.metadata.get("name") == STORY:
        return
    cells = [cell for cell in section(notebook, "The check") if cell.cell_type == "code"]
    asserted = any(isinstance(n, ast.Assert) for cell in cells for n in ast.walk(tree(cell)))
    if not asserted and not any(cell.outputs for cell in cells):
        yield "the section “The check” asserts nothing and shows no number"


# The rules, over all chapters and over the examples ----------------------------------------------


def read(path):
    notebook = nbformat.read(path, as_version=4)
    notebook.metadata["name"] = path.stem
    return notebook


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_chapter(path, name):
    complaints = list(RULES[name][0](read(path)))
    assert not complaints, f"{path.name}:\n" + "\n".join(complaints)


@pytest.mark.parametrize("name", RULES)
def test_a_good_notebook_is_accepted(name):
    """Also with the parts replaced that the bad examples replace."""
    function, _ = RULES[name]
    plain = with_cells(code("x = 1"), text("Nothing."), drawn("plt.plot([1])"))
    assert list(function(good())) == list(function(plain)) == []


EXAMPLES = [(name, number) for name, (_, bad) in RULES.items() for number in range(len(bad))]


@pytest.mark.parametrize(("name", "number"), EXAMPLES)
def test_a_bad_notebook_is_caught(name, number):
    function, bad = RULES[name]
    assert list(function(bad[number]())), f"{name} does not catch its example {number}"


def test_every_rule_has_an_example():
    assert all(bad for _, bad in RULES.values())


def test_chapters_are_found():
    assert len(CHAPTERS) >= 6
    for path in CHAPTERS:
        nbformat.validate(nbformat.read(path, as_version=4))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_page(path):
    """The pages without code keep the rules of prose too."""
    source = path.read_text(encoding="utf8")
    complaints = [f"{name} does not exist" for name in names_in(source) if not resolve(name)]
    complaints += [*wrong_transposes(source), *typed_references(source)]
    if path.name in ("README.md", "CONTRIBUTING.md", "index.md"):
        # these list the chapters by number, or explain the rules with examples
        complaints = [c for c in complaints if "typed by hand" not in c and "^\\top" not in c]
    assert not complaints, "\n".join(complaints)


# The table of contents, and lib ------------------------------------------------------------------


def numbered():
    """{chapter: number} as the book counts: the story is 0, then the numbered part."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf8"))
    numbers, last = {STORY: 0}, 0
    for part in toc["parts"]:
        for entry in part["chapters"]:
            stem = entry["file"].removeprefix("chapters/")
            if part.get("numbered"):
                last += 1
                numbers[stem] = last
    return numbers


def test_the_table_of_contents_has_every_chapter():
    toc = (ROOT / "_toc.yml").read_text(encoding="utf8")
    listed = set(re.findall(r"chapters/([\w-]+)", toc))
    assert {path.stem for path in CHAPTERS} <= listed
    for stem in listed:
        assert any((ROOT / "chapters" / f"{stem}.{end}").is_file() for end in ("ipynb", "md")), stem


def public():
    """(name, object) for each public function, class, method and property that lib defines."""
    for info in pkgutil.iter_modules(lib.__path__):
        module = importlib.import_module(f"lib.{info.name}")
        for name, thing in vars(module).items():
            if name.startswith("_") or getattr(thing, "__module__", None) != module.__name__:
                continue
            if not (inspect.isfunction(thing) or inspect.isclass(thing)):
                continue
            yield f"{module.__name__}.{name}", thing
            for inner, method in vars(thing).items() if inspect.isclass(thing) else ():
                method = getattr(method, "__func__", getattr(method, "fget", method))
                # the class says what calling it does, so `forward` says nothing of its own
                told = inner.startswith("_") or inner == "forward"
                if inspect.isfunction(method) and not told:
                    yield f"{module.__name__}.{name}.{inner}", method


PUBLIC = dict(public())


def docstring_complaints(name, thing):
    """What is wrong with a docstring: every public name says which chapter explains it."""
    words = thing.__doc__ or ""
    if not words.strip():
        return ["no docstring"]
    if ".".join(name.split(".")[:2]) in UNEXPLAINED:
        return []
    end = " ".join(words.split())
    found = re.search(
        r"(?:chapter (\d+), )?\*([^*]+)\* \(chapters/([\w-]+)\.(?:ipynb|md)\)\.$", end
    )
    if not found:
        return [
            "the last line names no chapter: Explained in chapter 1, *Title* (chapters/x.ipynb)."
        ]
    number, title, stem = found.groups()
    if stem in PLANNED:
        return []
    path = ROOT / "chapters" / f"{stem}.ipynb"
    if not path.is_file():
        return [f"chapters/{stem}.ipynb does not exist"]
    wanted, complaints = read(path).cells[0].source.splitlines()[0].removeprefix("# "), []
    if title != wanted:
        complaints.append(f"the title of chapters/{stem}.ipynb is {wanted!r}, not {title!r}")
    if number and numbered().get(stem) != int(number):
        complaints.append(f"chapters/{stem}.ipynb is chapter {numbered().get(stem)}, not {number}")
    return complaints


@pytest.mark.parametrize("name", PUBLIC)
def test_lib_says_which_chapter_explains_it(name):
    assert docstring_complaints(name, PUBLIC[name]) == []


def documented(words):
    def function():
        pass

    function.__doc__ = words
    return function


@pytest.mark.parametrize(
    "words",
    [
        None,
        "Add one.",
        "Add one. Explained in chapter 1, *Continuous domains* (chapters/nothing.ipynb).",
        "Add one. Explained in chapter 1, *Another title* (chapters/domain.ipynb).",
        "Add one. Explained in chapter 9, *Continuous domains* (chapters/domain.ipynb).",
        "Explained in chapter 1, *Continuous domains* (chapters/domain.ipynb). And more.",
    ],
)
def test_a_bad_docstring_is_caught(words):
    assert docstring_complaints("lib.domain.function", documented(words))


def test_a_good_docstring_is_accepted():
    words = (
        "Add one.\n\n    Explained in chapter 1, *Continuous domains* (chapters/domain.ipynb).\n"
    )
    assert docstring_complaints("lib.domain.function", documented(words)) == []


def test_lib_is_found():
    assert {"lib.domain.Domain.integrate", "lib.attention.attend", "lib.explore.explore"} <= set(
        PUBLIC
    )
