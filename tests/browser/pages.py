"""Which pages the browser is to visit: those of the table of contents."""

import yaml


def listed(root):
    """All pages of the book, as paths below the site."""
    toc = yaml.safe_load((root / "_toc.yml").read_text(encoding="utf8"))
    entries = [entry for part in toc.get("parts", [toc]) for entry in part["chapters"]]
    return [f"{name}.html" for name in [toc["root"], *(entry["file"] for entry in entries)]]


def notebooks(root):
    """The pages that are made from a notebook: the chapters."""
    return [path for path in listed(root) if (root / path).with_suffix(".ipynb").is_file()]
