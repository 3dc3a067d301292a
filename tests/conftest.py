"""What all tests share."""

from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parent.parent

# The same examples on every run: a failure here is a fact about the book, not about the weather.
settings.register_profile("book", deadline=None, derandomize=True)
settings.load_profile("book")


@pytest.fixture(scope="session")
def root():
    """The folder of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def site():
    """The folder of the built site."""
    folder = ROOT / "_build" / "html"
    if not (folder / "chapters" / "index.html").is_file():
        pytest.fail("There is no built site in _build/html: run `make book` first.")
    return folder


@pytest.fixture(scope="session")
def pages(site):
    """The built pages of the book, by name: {"index": path, "river": path, ...}."""
    return {path.stem: path for path in sorted((site / "chapters").glob("*.html"))}
