"""Our convolutional transformer beside `transformers.CvtModel`, with the same weights, in one run.

    .venv/bin/python benchmarks/cvt.py

Prints the time of ours divided by the time of theirs: below 1 ours is faster. Theirs runs in
evaluation mode, where batch normalisation uses its stored statistics. "forward" is one pass in
inference mode, "both" is forward and backward. float32, images of 224 × 224 pixels; the two results
are compared first.
"""

import timing
import torch
from transformers import CvtConfig, CvtModel

from lib.cvt import ConvolutionalTransformer

SIZES = [(8, (1, 2, 3)), (1, (1, 2, 10))]  # batch, layers in the three stages


def compare(batch: int, layers: tuple[int, int, int], turns: int) -> None:
    peer = CvtModel(CvtConfig(depth=list(layers))).eval()  # widths 64, 192, 384; heads 1, 3, 6
    ours = ConvolutionalTransformer.from_transformers(peer).eval()
    images = torch.randn(batch, 3, 224, 224)
    size = f"(B, layers) = {(batch, layers)}"
    timing.compare(size, lambda: ours(images)[0], lambda: peer(images).last_hidden_state, turns)


def main() -> None:
    turns = timing.turns(__doc__)
    torch.manual_seed(0)
    print(timing.title("transformers.CvtModel", turns))
    for size in SIZES:
        compare(*size, turns)


if __name__ == "__main__":
    main()
