"""A copy of the book for launching: notebooks that fetch the rest of the book when they are opened alone.

    python3 tools/tasks.py launch             write the last commit into _build/launch
    python3 tools/tasks.py launch --push      and push that to the branch `launch` of origin

Binder takes the whole branch; Colab opens only the notebook file. So each notebook of the copy begins
with a cell that fetches the book at the very commit it was written from, and calls `ready` below. The
notebooks in chapters/ have no such cell. Standard library only: `ready` runs where nothing is installed.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent))

import tasks
from address import VARIABLE, address_of, git, origin

BRANCH = "launch"
FOLDER = tasks.BUILD / "launch"

CELL = """\
# Set-up. Opened alone, as on Colab, this notebook first fetches the rest of its book.
import os
import subprocess
import sys
from pathlib import Path

ADDRESS = {address}
COMMIT = {commit}  # the library and this notebook are of one commit

root = Path.cwd().parent
if (root / "lib" / "explore.py").is_file():
    print("The book is here: nothing to fetch.")
    sys.path.insert(0, str(root))
else:
    root = Path.cwd() / f"book-{{COMMIT[:8]}}"
    fetch = ["fetch", "--quiet", "--depth", "1", ADDRESS, COMMIT]
    subprocess.run(["git", "init", "--quiet", root], check=True)
    subprocess.run(["git", "-C", root, *fetch], check=True)
    subprocess.run(["git", "-C", root, "checkout", "--quiet", COMMIT], check=True)
    os.chdir(root / "chapters")
    sys.path.insert(0, str(root))
    from tools.launch import ready

    ready({name})"""


# In the launched notebook --------------------------------------------------------------------------


def required():
    """What lib and the chapters import, as pip names it."""
    import tomllib

    project = tomllib.loads(tasks.read(tasks.ROOT / "pyproject.toml"))["project"]
    return [*project["dependencies"], *project["optional-dependencies"]["chapters"]]


def missing(requirements):
    """Those of which no version at all is installed."""
    absent = []
    for each in requirements:
        try:
            distribution(re.match(r"[\w.-]+", each)[0])
        except PackageNotFoundError:
            absent.append(each)
    return absent


def ready(name):
    """Make everything ready for a notebook in this copy of the book.

    Only what is missing is installed, and without what it depends on: a hosted notebook has its own
    torch and ipywidgets, and replacing one of them breaks it.
    """
    packages = missing(required())
    if packages:
        tasks.run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", *packages)
        importlib.invalidate_caches()
    if "lib.minilm" in tasks.read(tasks.ROOT / "chapters" / name):
        tasks.setup_model()
    tasks.say(f"ready for {name}; installed: {', '.join(packages) or 'nothing'}")


# In the repository --------------------------------------------------------------------------------


def address_to_fetch():
    """The address that launched notebooks fetch from; without one, stop and say what to do."""
    remote = origin()
    address = address_of(remote)
    if not address and os.environ.get(VARIABLE) and re.match(r"(https|file)://", remote):
        address = remote  # another host, or a folder: no buttons, but it can be fetched
    if not address:
        tasks.fail(
            "Launched notebooks need an address to fetch the book from, and this checkout has no GitHub "
            f"repository as its origin. Name one: make launch {VARIABLE}=https://github.com/owner/name"
        )
    return address


def with_set_up(notebook, address, commit, name):
    """Put the set-up cell below the title of a notebook (parsed JSON)."""
    source = CELL.format(
        address=json.dumps(address), commit=json.dumps(commit), name=json.dumps(name)
    )
    cell = {
        "cell_type": "code",
        "execution_count": None,
        "id": "set-up",
        "metadata": {},
        "outputs": [],
        "source": source.splitlines(keepends=True),
    }
    notebook["cells"].insert(1, cell)
    return notebook


def write(archive, folder, address, commit):
    """Unpack an archive of the repository (bytes of a tar file) and add the set-up cells."""
    shutil.rmtree(folder, ignore_errors=True)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")
    for path in sorted((folder / "chapters").glob("*.ipynb")):
        notebook = with_set_up(json.loads(tasks.read(path)), address, commit, path.name)
        text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
        path.write_text(text, encoding="utf8", newline="\n")


def archive_of(commit):
    """A commit as the bytes of a tar file. What is not committed is not launched."""
    command = ["git", "-C", tasks.ROOT, "archive", "--format=tar", commit]
    done = subprocess.run(command, capture_output=True)
    if done.returncode:
        tasks.fail(f"git could not read the commit: {done.stderr.decode().strip()}")
    return done.stdout


def push(folder, commit):
    """Push a folder to the branch `launch` of origin, as one commit on top of the one it was made from.

    The same commit and folder give the same commit again, so that nothing is pushed twice.
    """
    date = git("show", "-s", "--format=%cI", commit)
    names = {
        f"GIT_{who}_{what}": "the book"
        for who in ("AUTHOR", "COMMITTER")
        for what in ("NAME", "EMAIL")
    }
    dates = {f"GIT_{who}_DATE": date for who in ("AUTHOR", "COMMITTER")}
    folders = {"GIT_WORK_TREE": str(folder), "GIT_INDEX_FILE": str(tasks.BUILD / "launch.index")}
    env = {**os.environ, **names, **dates, **folders}
    git("add", "--all", "--force", str(folder), env=env)
    tree = git("write-tree", env=env)
    made = git(
        "commit-tree", tree, "-p", commit, "-m", f"The book of {commit}, for launching", env=env
    )
    if not made:
        tasks.fail("git could not make the commit for launching.")
    tasks.run("git", "push", "--force", "origin", f"{made}:refs/heads/{BRANCH}")


def main(arguments):
    if not set(arguments) <= {"--push"}:
        tasks.fail(f"launch knows only --push, not {' '.join(arguments)}")
    address, commit = address_to_fetch(), git("rev-parse", "HEAD")
    write(archive_of(commit or "HEAD"), FOLDER, address, commit)
    tasks.say(
        f"{FOLDER.relative_to(tasks.ROOT)} is commit {commit[:8]}, which it fetches from {address}"
    )
    if git("status", "--porcelain"):
        tasks.say("changes that are not committed are not in it")
    if not os.environ.get(VARIABLE) and not git("branch", "--remotes", "--contains", commit):
        tasks.say(
            "origin does not have this commit yet, so its notebooks find nothing until you push it"
        )
    if "--push" in arguments:
        push(FOLDER, commit)


if __name__ == "__main__":
    main(sys.argv[1:])
