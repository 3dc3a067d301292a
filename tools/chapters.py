"""Execute the notebooks and store their text results, and only those.

    python3 tools/tasks.py chapters             every notebook in chapters/
    python3 tools/tasks.py chapters attention   one

The stored results are what `make test` compares with. The rule:

- A cell that gives text only keeps its results and its execution count.
- A cell that shows a picture or a widget is stored without results and without a count: the test
  runs it and compares nothing; the page shows what the build makes.
- A cell that gives nothing keeps its count, so that the test notices when it says something.
- An error or a word on stderr stores nothing at all: mend the notebook.

Storing twice without a change gives the same bytes.
"""

from __future__ import annotations

import re
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

CHAPTERS = Path(__file__).resolve().parent.parent / "chapters"
TEXT = {"text/plain", "text/latex", "text/markdown"}
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
LANGUAGE = {"name": "python", "pygments_lexer": "ipython3"}
PASSING = {"collapsed", "execution", "ExecuteTime", "scrolled", "trusted", "vscode"}
SECONDS_PER_CELL = 600


def is_text(output):
    """Whether an output is text only: a stream, or a result without a picture or a widget."""
    return output.output_type == "stream" or set(output.get("data", {})) <= TEXT


def complain(cell, name):
    """Refuse what no chapter may contain."""
    for output in cell.outputs:
        if output.output_type == "error":
            raise ValueError(f"{name}, cell {cell.id}: {output.ename}: {output.evalue}")
        if output.output_type == "stream" and output.name == "stderr":
            raise ValueError(f"{name}, cell {cell.id} writes on stderr: {output.text.strip()}")


def joined(outputs):
    """Outputs with neighbouring pieces of one stream put together, however they arrived."""
    result = []
    for output in outputs:
        before = result[-1] if result else None
        if before and output.output_type == before.output_type == "stream":
            before.text += output.text
        else:
            result.append(output)
    return result


def store(notebook, name=""):
    """Apply the rule above to an executed notebook, in place."""
    notebook.metadata = nbformat.from_dict(
        {**notebook.metadata, "kernelspec": KERNEL, "language_info": LANGUAGE}
    )
    notebook.metadata.pop("widgets", None)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    for number, cell in enumerate(notebook.cells):
        if not re.fullmatch(r"[a-zA-Z0-9-_]{1,64}", cell.get("id", "")):
            cell.id = f"cell-{number:02d}"
        for key in PASSING & set(cell.metadata):
            del cell.metadata[key]
        if cell.cell_type != "code":
            continue
        complain(cell, name)
        cell.outputs = joined(cell.outputs)
        for output in cell.outputs:
            if "metadata" in output:
                output.metadata = {}
        if not all(is_text(output) for output in cell.outputs):
            cell.outputs, cell.execution_count = [], None
    return notebook


def as_text(notebook):
    return nbformat.writes(notebook).rstrip("\n") + "\n"


def execute(path):
    """Execute one notebook in its folder, store it, and say whether its file changed."""
    path = Path(path)
    before = path.read_text(encoding="utf8")
    notebook = nbformat.reads(before, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    client = NotebookClient(
        notebook,
        timeout=SECONDS_PER_CELL,
        kernel_name="python3",
        store_widget_state=False,
        resources={"metadata": {"path": str(path.parent)}},
    )
    try:
        client.execute()
    except CellExecutionError as error:
        raise ValueError(f"{path.name}: {error}") from None
    after = as_text(store(notebook, path.name))
    if after != before:
        path.write_text(after, encoding="utf8", newline="\n")
    return after != before


def chosen(names):
    """The notebooks that the arguments name; all of them without arguments."""
    if not names:
        return sorted(CHAPTERS.glob("*.ipynb"))
    paths = [CHAPTERS / f"{Path(name).stem}.ipynb" for name in names]
    missing = [path.stem for path in paths if not path.is_file()]
    if missing:
        known = ", ".join(path.stem for path in sorted(CHAPTERS.glob("*.ipynb")))
        raise SystemExit(f"No such chapter: {', '.join(missing)}. There are: {known}.")
    return paths


def main(names):
    paths, failed = chosen(names), False
    with ProcessPoolExecutor(max_workers=2) as pool:
        running = [(path, pool.submit(execute, path)) for path in paths]
        for path, result in running:
            try:
                print(f"{path.stem}: {'stored' if result.result() else 'unchanged'}", flush=True)
            except Exception as error:  # one broken chapter must not hide the others
                failed = True
                print(f"{path.stem}: FAILED, nothing stored\n{error}", file=sys.stderr, flush=True)
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
