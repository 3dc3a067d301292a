"""The small networks that the book trained on the handwritten digits, and what was measured on them.

Each was trained on the first 4,000 digits with three seeds by data/make_weights.py; the other 1,000
were not shown to it. Their parameters lie in data/weights, rounded to float16. All have about as
many of them, so that they can be compared.
"""

import csv
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from lib import parameters
from lib.checks import require, require_count, require_file
from lib.convolution import ConvolutionalAttention, ConvolutionalLayer
from lib.cvt import ConvolutionalTransformer, Stage
from lib.datasets import FOLDER, digits
from lib.encoder import Encoder, EncoderLayer
from lib.positions import Table, Waves
from lib.projection import Normalisation
from lib.vit import VisionTransformer

WEIGHTS = FOLDER / "weights"
MEASURED = WEIGHTS / "measured.csv"
SEEDS = (0, 1, 2)
TRAINED_ON = 4000  # of the 5,000 digits
BAND = (1, 2, 3)  # periods per side: seven tokens a side resolve up to 3.5
OCTAVES = tuple(2.0**k for k in range(8))  # 1 to 128: the higher ones no grid here resolves


def _vit(
    positions: Callable[[int], nn.Module], width: int = 48, class_point: bool = False
) -> VisionTransformer:
    layers = [EncoderLayer(width, 4, 2 * width, True, gelu, 1e-6) for _ in range(4)]
    encoder = Encoder(layers, Normalisation(width, 1e-6))
    return VisionTransformer(4, encoder, positions(width), class_point=class_point, outputs=10)


def _cvt(stride: int = 2) -> ConvolutionalTransformer:
    def stage(channels: int, width: int, heads: int, depth: int, patch: int) -> Stage:
        sample = nn.Conv2d(channels, width, patch, stride=2, padding=patch // 2)
        layers = [
            ConvolutionalLayer(ConvolutionalAttention(width, heads, stride=stride), 2 * width)
            for _ in range(depth)
        ]
        return Stage(sample, layers)

    return ConvolutionalTransformer([stage(1, 24, 2, 1, 5), stage(24, 48, 4, 3, 3)], outputs=10)


def _banded(width: int) -> Waves:
    return Waves(width, BAND)


# What each network is, and how it was trained: on 49 tokens and one step a layer, if nothing is said.
NETWORKS = {
    "waves": lambda: _vit(_banded),
    "octaves": lambda: _vit(lambda width: Waves(width, OCTAVES)),
    "table": lambda: _vit(lambda width: Table(width, (7, 7))),
    "point": lambda: _vit(_banded, class_point=True),
    "grids": lambda: _vit(_banded),  # on 49, 81 or 169 tokens at random
    "steps": lambda: _vit(_banded),  # with 1, 2 or 3 steps a layer at random
    "cvt": _cvt,  # convolutional: 196 tokens, then 49, keys at every second one of each axis
    "keys": lambda: _cvt(stride=1),  # the same with keys at every token
}
CONVOLUTIONAL = ("cvt", "keys")  # they sample the image themselves: no stride, no weights


def untrained(name: str, seed: int = 0) -> nn.Module:
    """One of the networks of the book with random parameters, the same for the same seed.

    Errors: `ValueError` for a name that is not in `NETWORKS`.
    Explained in chapter 7, *The vision transformer* (chapters/vit.ipynb).
    """
    require(
        name in NETWORKS, f"there is no trained network {name!r}; choose one of {sorted(NETWORKS)}"
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return NETWORKS[name]()


def trained(name: str, seed: int = 0) -> nn.Module:
    """One of the networks of the book with its trained parameters, from data/weights.

    Errors: `ValueError` for an unknown name or seed, or a file that is missing or damaged.
    Explained in chapter 7, *The vision transformer* (chapters/vit.ipynb).
    """
    model = untrained(name)
    require(seed in SEEDS, f"the networks were trained with the seeds {SEEDS}, but {seed!r} came")
    path = weights_file(name, seed)
    parameters.read(model, path, _sha256(path.name))
    return model.eval().requires_grad_(False)


def weights_file(name: str, seed: int) -> Path:
    """Where the parameters of a network lie. Explained in chapter 7, *The vision transformer* (chapters/vit.ipynb)."""
    return WEIGHTS / f"{name}-{seed}.safetensors"


def unseen() -> tuple[Tensor, Tensor]:
    """The 1,000 digits that no network was trained on: images (1000, 1, 28, 28), labels (1000,).

    Explained in chapter 7, *The vision transformer* (chapters/vit.ipynb).
    """
    images, labels = digits()
    return images[TRAINED_ON:, None], labels[TRAINED_ON:]


def classify(model: nn.Module, images: Tensor, **how) -> Tensor:
    """The scores of the ten digits, (B, 10); `how` goes to the network: stride, weights, dt, steps.

    Explained in chapter 7, *The vision transformer* (chapters/vit.ipynb).
    """
    state = model(images, **how)
    return model.read_out(*state) if isinstance(state, tuple) else model.read_out(state)


def correct(model: nn.Module, images: Tensor, labels: Tensor, batch: int = 50, **how) -> int:
    """How many of the images get their own label; `how` as in `classify`.

    Errors: `ValueError` when images and labels differ in number.
    Explained in chapter 7, *The vision transformer* (chapters/vit.ipynb).
    """
    require_count("images in a batch", batch)
    require(
        len(images) == len(labels) > 0,
        f"every image needs its label, but {len(images)} images and {len(labels)} labels came",
    )
    with torch.inference_mode():
        right = [
            (classify(model, part, **how).argmax(-1) == own).sum()
            for part, own in zip(images.split(batch), labels.split(batch), strict=True)
        ]
    return int(sum(right))


def measured() -> list[dict[str, str | int]]:
    """What data/make_weights.py measured on the 1,000 unseen digits, one row for each network, seed and way to read it.

    Keys: name, seed, stride, steps, weights ("unit" or "kept"), shift (pixels), correct (of 1000).
    Explained in chapter 7, *The vision transformer* (chapters/vit.ipynb).
    """
    mend = "`git checkout` brings it back"
    table = require_file("measured.csv", MEASURED, _sha256(MEASURED.name), mend)
    rows = csv.DictReader(table.decode("ascii").splitlines())
    text = ("name", "weights")
    return [{key: v if key in text else int(v) for key, v in row.items()} for row in rows]


def _sha256(file: str) -> str:
    """The SHA-256 that a file in data/weights must have."""
    lines = (WEIGHTS / "SHA256SUMS").read_text().splitlines()
    return dict(line.split()[::-1] for line in lines)[file]
