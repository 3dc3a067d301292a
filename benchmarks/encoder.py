"""Our encoder beside `torch.nn.TransformerEncoder`, with the same weights, in one run.

    .venv/bin/python benchmarks/encoder.py

Prints the time of ours divided by the time of torch's: below 1 ours is faster. "forward" is torch's
fast path (eval mode, no gradients); "both" is forward and backward. float32, no dropout; the two
results are compared first.
"""

import timing
import torch
from torch import nn

from lib.encoder import Encoder

SIZES = [(8, 256, 256, 8, 6), (1, 1024, 512, 8, 6)]  # batch, tokens, features, heads, layers


def pair(features: int, heads: int, layers: int) -> tuple[Encoder, nn.TransformerEncoder]:
    layer = nn.TransformerEncoderLayer(features, heads, 4 * features, dropout=0.0, batch_first=True)
    theirs = nn.TransformerEncoder(layer, layers).eval()
    return Encoder.from_torch(theirs).eval(), theirs


def compare(batch: int, tokens: int, features: int, heads: int, layers: int, turns: int) -> None:
    ours, theirs = pair(features, heads, layers)
    u = torch.randn(batch, tokens, features)
    size = f"(B, N, d, H, L) = {(batch, tokens, features, heads, layers)}"
    timing.compare(size, lambda: ours(u), lambda: theirs(u), turns)


def main() -> None:
    turns = timing.turns(__doc__)
    torch.manual_seed(0)
    print(timing.title("torch.nn.TransformerEncoder", turns))
    for size in SIZES:
        compare(*size, turns)


if __name__ == "__main__":
    main()
