"""Train the small networks of the book on the digits, and measure them.

    python data/make_weights.py waves 0        train one network with one seed (one to four minutes)
    python data/make_weights.py all            train every network that has no file yet
    python data/make_weights.py measure        measure all of them again (about fifteen minutes)

Writes data/weights. Training is done with one thread, so that another number of cores gives the
same weights; interrupted with Ctrl-C, it goes on from where it was. Another version of torch or
another processor may round in another way, and the weights then differ in their digits.
"""

import csv
import hashlib
import os
import sys
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy, pad
from torch.optim import AdamW
from torch.optim.lr_scheduler import OneCycleLR

from lib import parameters
from lib.datasets import digits
from lib.positions import quadrature
from lib.trained import (
    CONVOLUTIONAL,
    MEASURED,
    NETWORKS,
    SEEDS,
    TRAINED_ON,
    WEIGHTS,
    classify,
    correct,
    trained,
    unseen,
    untrained,
    weights_file,
)
from lib.training import train

EPOCHS, BATCH, RATE = 20, 100, 3e-3
STRIDES = (4, 3, 2, 1)  # 49, 81, 169 and 625 tokens
STEPS = (2, 3, 4, 8, 16)  # steps in a layer, besides one
SHIFTS = (1, 2, 3, 4)  # pixels
CHECKPOINTS = Path(__file__).resolve().parent.parent / "_build" / "training"


def drawn(name: str) -> dict:
    """How a batch is read in training: one grid and one step, unless the network is to meet several."""
    if name == "grids":
        return {"stride": STRIDES[torch.randint(3, ()).item()]}
    if name == "steps":
        steps = 1 + torch.randint(3, ()).item()
        return {"steps": steps, "dt": 1 / steps}
    return {}


def make(name: str, seed: int) -> None:
    """Train one network with one seed and write its parameters."""

    def loss(model, images, labels):
        return cross_entropy(classify(model, images, **drawn(name)), labels)

    images, labels = digits()
    examples = images[:TRAINED_ON, None], labels[:TRAINED_ON]
    model = untrained(name, seed)
    optimiser = AdamW(model.parameters(), lr=RATE, weight_decay=0.05)
    schedule = OneCycleLR(optimiser, RATE, total_steps=EPOCHS * (TRAINED_ON // BATCH))
    CHECKPOINTS.mkdir(parents=True, exist_ok=True)
    checkpoint = CHECKPOINTS / f"{name}-{seed}"
    train(
        model, loss, examples, optimiser, schedule,
        epochs=EPOCHS, batch=BATCH, seed=seed, checkpoint=checkpoint, label=f"{name} {seed}",
    )  # fmt: skip
    if int(os.environ.get("RANK", "0")) > 0:  # under torchrun one process writes for all
        return
    WEIGHTS.mkdir(exist_ok=True)
    parameters.write(model, weights_file(name, seed))
    checkpoint.unlink()
    write_sums()


def write_sums() -> None:
    """The SHA-256 of every file in data/weights, in the form that `sha256sum --check` reads."""
    files = sorted([*WEIGHTS.glob("*.safetensors"), *WEIGHTS.glob("*.csv")])
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    (WEIGHTS / "SHA256SUMS").write_text("".join(lines))


def ways(name: str) -> list[dict]:
    """The ways to read one network: other grids, other steps, shifted images."""
    usual = {"stride": 4, "steps": 1, "weights": "unit", "shift": 0}
    shifts = [usual | {"shift": shift} for shift in SHIFTS]
    steps = [usual | {"steps": n} for n in STEPS]
    if name in CONVOLUTIONAL:
        return [usual, *shifts, *steps]
    grids = [usual | {"stride": stride} for stride in STRIDES]
    if name == "point":
        return grids + [grid | {"weights": "kept"} for grid in grids[1:]]
    return grids + steps + shifts


def shifted(images: torch.Tensor, shift: int) -> list[torch.Tensor]:
    """The images moved by so many pixels to each of the four sides, what comes in empty."""
    moved = pad(images, (shift,) * 4)
    size = images.shape[-1]
    corners = [(0, shift), (2 * shift, shift), (shift, 0), (shift, 2 * shift)]
    return [moved[..., top : top + size, left : left + size] for top, left in corners]


def measure_one(name: str, seed: int, way: dict) -> int:
    """How many of the 1,000 unseen digits are right (for a shift: the mean of the four directions)."""
    model = trained(name, seed)
    images, labels = unseen()
    how = {"steps": way["steps"], "dt": 1 / way["steps"]}
    if name not in CONVOLUTIONAL:
        how["stride"] = way["stride"]
    if way["weights"] == "kept":
        tokens = ((28 - 4) // way["stride"] + 1) ** 2
        how["weights"] = quadrature(tokens, 49)
    if way["shift"] == 0:
        return correct(model, images, labels, **how)
    return round(
        sum(correct(model, part, labels, **how) for part in shifted(images, way["shift"])) / 4
    )


def measure() -> None:
    """Measure every network, seed and way, and write data/weights/measured.csv."""
    rows = []
    for name in NETWORKS:
        for seed in SEEDS:
            for way in ways(name):
                rows.append(
                    {"name": name, "seed": seed, **way, "correct": measure_one(name, seed, way)}
                )
                print(*rows[-1].values(), flush=True)
    with open(MEASURED, "w", newline="") as file:
        table = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    write_sums()


def main(what: str, *seeds: str) -> None:
    torch.set_num_threads(1)
    if what == "measure":
        measure()
    elif what == "all":
        for name in NETWORKS:
            for seed in SEEDS:
                if not weights_file(name, seed).is_file():
                    make(name, seed)
    else:
        for seed in seeds or SEEDS:
            make(what, int(seed))


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in (*NETWORKS, "all", "measure"):
        sys.exit(__doc__)
    main(*sys.argv[1:])
