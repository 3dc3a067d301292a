"""Build the book twice from nothing and compare the two sites byte for byte.

    python3 tools/tasks.py twice        some ten minutes; the site that it leaves is the second one

What may differ is named in `EXPLAINED`; anything else is an error.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent))

import tasks

# {file: what is not compared in it}
EXPLAINED = {"chapters/about.html": rb'<td class="seconds">[^<]*'}  # how long the notebooks took


def contents(site):
    """{name: bytes} of a site, without what may differ."""
    found = {}
    for path in sorted(path for path in site.rglob("*") if path.is_file()):
        name = path.relative_to(site).as_posix()
        found[name] = re.sub(EXPLAINED.get(name, rb"(?!)"), b"", path.read_bytes())
    return found


def differences(first, second):
    """The names of the files that are not the same in two sites."""
    one, other = contents(first), contents(second)
    return sorted(name for name in {*one, *other} if one.get(name) != other.get(name))


def build():
    for name in ("stamp", ".jupyter_cache"):
        path = tasks.BUILD / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    tasks.build([])


def main():
    with tempfile.TemporaryDirectory() as folder:
        build()
        shutil.copytree(tasks.SITE, Path(folder, "first"))
        build()
        different = differences(Path(folder, "first"), tasks.SITE)
    if different:
        raise SystemExit("Two builds differ in\n  " + "\n  ".join(different))
    print("Two builds give the same site byte for byte, except for the seconds in chapters/about.html.")


if __name__ == "__main__":
    main()
