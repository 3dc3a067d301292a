"""What the book may cost, and what a page does cost. Standard library only."""

import re

PAGE_BYTES = (
    1_500_000  # of one page and its pictures, as stored, without the scripts that pages share
)
BOOK_SECONDS = 300  # of `make book` from a clean clone on two cores, once everything is installed
FIRST_WIDGET_SECONDS = 2.0  # until the first widget of a page can be used, from this machine
SLIDER_SECONDS = 0.050  # from the key to the new picture


def bytes_of(page):
    """The bytes of a built page and of the pictures that it shows, as they are stored, uncompressed.

    The pictures of widgets are in the page itself. Style sheets, scripts and the logo are not counted:
    the browser keeps them from page to page.
    """
    names = set(re.findall(r'src="(?:\.\./)*(_images/[^"]+)"', page.read_text(encoding="utf8")))
    site = next(folder for folder in page.parents if (folder / "_static").is_dir())
    return page.stat().st_size + sum((site / name).stat().st_size for name in names)
