"""Launched notebooks: what they are made of, and that they run where nothing of the book is.

The runs below imitate Colab as far as that goes without it: an empty folder, a fresh environment in which
`lib` and torchdiffeq are not installed, ipywidgets 7.7.1, and the book fetched by git, here from a folder
of this machine. They do not show what Colab's pages draw, nor its own versions of torch and transformers.
"""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import venv
from importlib.metadata import packages_distributions
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tools import launch, tasks

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = sorted(path.name for path in (ROOT / "chapters").glob("*.ipynb"))
NOT_OF_THE_BOOK = shutil.ignore_patterns(
    ".git", ".venv", ".vendor", "_build", "__pycache__", "*.egg-info", ".*_cache", ".hypothesis"
)
MOST_MEMORY = 1600  # MB; Binder promises 1 to 2 GB, and its server needs some itself
SOME_SECONDS = 600
WHOLE = "domain.ipynb"  # the shortest chapter


def git(folder, *words):
    names = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    done = subprocess.run(
        ["git", "-C", folder, *names, *words], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def make_launch(folder, address="", *arguments):
    """`make launch` in a checkout, with REPO_URL if there is an address."""
    environment = {k: v for k, v in os.environ.items() if k != "REPO_URL"}
    return subprocess.run(
        [sys.executable, "tools/tasks.py", "launch", *arguments],
        cwd=folder,
        env={**environment, **({"REPO_URL": address} if address else {})},
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """The book as it lies here, committed or not, as a git repository of one commit."""
    folder = tmp_path_factory.mktemp("checkout") / "book"
    shutil.copytree(ROOT, folder, ignore=NOT_OF_THE_BOOK)
    git(folder, "init", "--quiet", "--initial-branch", "main")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "-m", "The book")
    return folder


@pytest.fixture(scope="module")
def launched(checkout):
    """The folder that `make launch` writes."""
    done = make_launch(checkout, checkout.as_uri())
    assert done.returncode == 0, done.stderr
    return checkout / "_build" / "launch"


# What is written ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_launched_notebook_is_the_chapter_and_one_cell(checkout, launched, name):
    source, made = (
        nbformat.read(f / "chapters" / name, as_version=4) for f in (checkout, launched)
    )
    assert not any(cell.id == "set-up" for cell in source.cells)
    nbformat.validate(made)
    title, cell = made.cells[:2]
    assert (title.cell_type, cell.id, cell.outputs) == ("markdown", "set-up", [])
    assert f'"{checkout.as_uri()}"' in cell.source
    assert f'"{git(checkout, "rev-parse", "HEAD")}"' in cell.source
    assert "requirements.txt" not in cell.source
    del made.cells[1]
    assert made == source


def test_the_copy_is_the_commit_and_nothing_else(checkout, launched):
    names = {p.relative_to(launched).as_posix() for p in launched.rglob("*") if p.is_file()}
    assert names == set(git(checkout, "ls-files").splitlines())
    same = [name for name in names if not name.endswith(".ipynb")]
    assert all((launched / n).read_bytes() == (checkout / n).read_bytes() for n in same)


def test_without_an_address_nothing_is_launched(checkout):
    done = make_launch(checkout)
    assert done.returncode == 1
    assert "make launch REPO_URL=https://github.com/owner/name" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "remote", ["git@github.com:fork/book.git", "https://x:y@github.com/fork/book"]
)
def test_a_fork_fetches_from_itself(checkout, launched, remote, tmp_path):
    fork = tmp_path / "fork"
    git(tmp_path, "clone", "--quiet", checkout, fork)
    git(fork, "remote", "set-url", "origin", remote)
    (fork / "README.md").write_text("not committed")
    done = make_launch(fork)
    assert done.returncode == 0, done.stderr
    assert "not committed are not in it" in done.stdout
    copy = fork / "_build" / "launch"
    assert '\\"https://github.com/fork/book\\"' in (copy / "chapters" / CHAPTERS[0]).read_text(
        "utf8"
    )
    assert (copy / "README.md").read_bytes() == (checkout / "README.md").read_bytes()


def test_the_branch_is_one_commit_on_top_and_pushed_once(checkout, launched, tmp_path):
    git(tmp_path, "init", "--quiet", "--bare", "origin")
    fork = tmp_path / "fork"
    git(tmp_path, "clone", "--quiet", checkout, fork)
    git(fork, "remote", "set-url", "origin", str(tmp_path / "origin"))
    git(fork, "push", "--quiet", "origin", "main")
    for said in ("[new branch]", "up-to-date"):
        done = make_launch(fork, checkout.as_uri(), "--push")
        assert done.returncode == 0, done.stderr
        assert said in done.stderr
    changed = git(tmp_path / "origin", "diff", "--name-only", "main", "launch").splitlines()
    assert changed == [f"chapters/{name}" for name in CHAPTERS]
    assert git(tmp_path / "origin", "rev-list", "--count", "main..launch") == "1"
    assert git(fork, "status", "--porcelain") == ""


# What is installed --------------------------------------------------------------------------------


def imported(path):
    """The packages that a notebook or a module imports, by the names of Python."""
    if path.suffix == ".ipynb":
        cells = nbformat.read(path, as_version=4).cells
        text = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
    else:
        text = path.read_text(encoding="utf8")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module.split(".")[0]


def test_pyproject_names_all_that_lib_and_the_chapters_import():
    files = [*(ROOT / "lib").glob("*.py"), *(ROOT / "chapters").glob("*.ipynb")]
    names = {name for path in files for name in imported(path)} - set(sys.stdlib_module_names)
    names -= {"lib", "IPython"}  # IPython is the notebook itself
    packages = packages_distributions()
    wanted = {packages[name][0].lower() for name in names}
    named = {re.match(r"[\w.-]+", each)[0].lower() for each in launch.required()}
    assert wanted <= named
    assert "torchdiffeq" in named


def test_only_what_is_missing_is_installed(monkeypatch):
    assert launch.missing(["numpy>=1", "no-such-package>=2", "torch>99"]) == ["no-such-package>=2"]
    commands = []
    monkeypatch.setattr(launch.tasks, "run", lambda *command: commands.append(command))
    launch.ready("heads.ipynb")
    assert commands == []
    monkeypatch.setattr(launch, "required", lambda: ["numpy>=1", "no-such-package>=2"])
    launch.ready("heads.ipynb")
    assert commands[0][-3:] == ("--quiet", "--no-deps", "no-such-package>=2")


def test_a_chapter_with_the_trained_model_fetches_it(monkeypatch):
    fetched = []
    monkeypatch.setattr(launch.tasks, "setup_model", lambda: fetched.append(True))
    for name in CHAPTERS:
        fetched.clear()
        launch.ready(name)
        assert bool(fetched) == (name == "minilm.ipynb"), name


# Somewhere else -----------------------------------------------------------------------------------


def pip(python, *words):
    quiet = ["--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([python, "-m", "pip", *words, *quiet], check=True)


def wheels():
    """A folder with the files of colab.txt; fetched once, so that later runs need no network."""
    folder = tasks.VENDOR / "tests" / "wheels"
    wanted = Path(__file__).with_name("colab.txt")
    if len(list(folder.glob("*.whl"))) < tasks.read(wanted).count("--hash"):
        pip(sys.executable, "download", "--require-hashes", "-r", wanted, "--dest", folder)
    return folder


@pytest.fixture(scope="module")
def colab(tmp_path_factory):
    """A fresh environment: the packages of this one without lib and torchdiffeq; ipywidgets 7.7.1."""
    folder = tmp_path_factory.mktemp("colab")
    venv.create(folder / "env")
    python = folder / "env" / tasks.VENV_PYTHON.relative_to(tasks.VENV)
    packages = folder / "packages"
    packages.mkdir()
    other = r"__editable__|from_stairs|torchdiffeq|ipywidgets|widgetsnbextension|.*\.pth$"
    for path in Path(pytest.__file__).parents[1].iterdir():
        if not re.match(other, path.name):
            (packages / path.name).symlink_to(path)
    ask = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    own = Path(subprocess.run(ask, check=True, capture_output=True, text=True).stdout.strip())
    (own / "packages.pth").write_text(str(packages))
    kernel = {"argv": [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]}
    kernel |= {"display_name": "Like Colab's", "language": "python"}
    (folder / "kernels" / "colab").mkdir(parents=True)
    (folder / "kernels" / "colab" / "kernel.json").write_text(json.dumps(kernel))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", str(folder))
        patch.setenv("PIP_FIND_LINKS", wheels().as_uri())
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("OMP_NUM_THREADS", "1")  # two cores, and other tests beside this one
        patch.delenv("PYTHONPATH", raising=False)
        pip(python, "install", "ipywidgets", "ipython-genutils")
        yield python


PLACES = """\
import json, os, ipywidgets, torchdiffeq, lib
files = [os.getcwd(), lib.__file__, torchdiffeq.__file__]
print(json.dumps({"files": files, "ipywidgets": ipywidgets.__version__}))"""

# Each widget of `explore`: the last value of each slider shows another frame, and the first one the first.
SLIDERS = """\
assert not hasattr(ipywidgets, "Stack")
moved = 0
for box in list(ipywidgets.Widget.widgets.values()):
    if type(box) is ipywidgets.VBox and len(box.children) == 3:
        controls, picture, _ = box.children
        inside = [w for c in controls.children for w in (c, *getattr(c, "children", ()))]
        frame = lambda: picture.children[0].value
        for slider in [w for w in inside if type(w) is ipywidgets.SelectionSlider]:
            first = frame()
            assert "<img" in first and slider.index == 0
            slider.index = len(slider.options) - 1
            assert "<img" in frame() and frame() != first
            slider.index = 0
            assert frame() == first
            moved += 1
print(moved)"""

PEAK = "print([line.split()[1] for line in open('/proc/self/status') if 'VmHWM' in line][0])"


def run(notebook, folder):
    """Run a notebook in a folder with the kernel of the fresh environment."""
    place = {"metadata": {"path": folder}}
    NotebookClient(notebook, kernel_name="colab", timeout=SOME_SECONDS, resources=place).execute()


def said(cell):
    return "".join(output.get("text", "") for output in cell.outputs)


def test_the_book_is_not_in_the_fresh_environment(colab, tmp_path):
    for name in ("lib", "torchdiffeq"):
        done = subprocess.run([colab, "-c", f"import {name}"], cwd=tmp_path, capture_output=True)
        assert b"ModuleNotFoundError" in done.stderr, name


@pytest.mark.parametrize("name", CHAPTERS)
def test_runs_from_an_empty_folder(colab, checkout, launched, tmp_path, name):
    """Set-up and imports of each chapter, and one chapter to its end; BOOK_LAUNCH=whole: all of them."""
    notebook = nbformat.read(launched / "chapters" / name, as_version=4)
    whole = name == WHOLE or os.environ.get("BOOK_LAUNCH") == "whole"
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    more = [nbformat.v4.new_code_cell(source) for source in (PLACES, SLIDERS, PEAK)]
    notebook.cells = code + more if whole else code[:2] + more[:1]
    book = tmp_path / f"book-{git(checkout, 'rev-parse', 'HEAD')[:8]}"
    (book / ".vendor").mkdir(parents=True)  # the model is there already: it is 83 MB
    (book / ".vendor" / "minilm").symlink_to(tasks.MODEL)

    run(notebook, tmp_path)

    assert [path.name for path in tmp_path.iterdir()] == [book.name]
    assert f"ready for {name}" in said(code[0])
    where = json.loads(said(more[0]))
    folder, lib, torchdiffeq = map(Path, where["files"])
    assert folder == book / "chapters"
    assert lib == book / "lib" / "__init__.py"
    assert torchdiffeq.is_relative_to(colab.parents[1])
    assert where["ipywidgets"] == "7.7.1"
    if whole:
        sliders, kilobytes = int(said(more[1])), int(said(more[2]))
        print(f"{name}: {kilobytes // 1024} MB, {sliders} sliders")
        assert sliders >= 2
        assert kilobytes < 1024 * MOST_MEMORY


def test_in_a_copy_of_the_book_nothing_is_fetched(colab, launched):
    """As on Binder, where the whole branch is."""
    notebook = nbformat.read(launched / "chapters" / WHOLE, as_version=4)
    notebook.cells = [
        notebook.cells[1],
        nbformat.v4.new_code_cell("import lib; print(lib.__file__)"),
    ]
    run(notebook, launched / "chapters")
    assert said(notebook.cells[0]) == "The book is here: nothing to fetch.\n"
    assert said(notebook.cells[1]).strip() == str(launched / "lib" / "__init__.py")
    assert not list((launched / "chapters").glob("book-*"))
