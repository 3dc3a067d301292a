"""The browser of the tests and of benchmarks/widgets.py."""

import os
import shutil

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    # whatever a page asks of another host fails at once, and is seen in the list of requests
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]


def find():
    """The file of a Chrome or Chromium, or None."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return os.environ.get("BOOK_BROWSER") or next(filter(None, map(shutil.which, names)), None)
