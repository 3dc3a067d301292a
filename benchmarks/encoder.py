"""Our encoder beside `torch.nn.TransformerEncoder`, with the same weights, in one run.

    .venv/bin/python benchmarks/encoder.py

Prints the time of ours divided by the time of torch's: below 1 ours is faster. Both run in this
process, one after the other in turns, and the median of the repeats counts, so that whatever else
the machine does falls on both. "forward" is torch's fast path (eval mode, no gradients); "both" is
forward and backward. float32, no dropout; the two results are compared first.
"""

import argparse
import statistics
import time

import torch
from torch import nn

from lib.encoder import Encoder

SIZES = [(8, 256, 256, 8, 6), (1, 1024, 512, 8, 6)]  # batch, tokens, features, heads, layers


def pair(features: int, heads: int, layers: int) -> tuple[Encoder, nn.TransformerEncoder]:
    layer = nn.TransformerEncoderLayer(features, heads, 4 * features, dropout=0.0, batch_first=True)
    theirs = nn.TransformerEncoder(layer, layers).eval()
    return Encoder.from_torch(theirs).eval(), theirs


def forward(model: nn.Module, u: torch.Tensor) -> None:
    with torch.inference_mode():
        model(u)


def both(model: nn.Module, u: torch.Tensor) -> None:
    model(u).square().mean().backward()


def ratio(run, models, u: torch.Tensor, repeats: int) -> float:
    """The median time of the first model divided by that of the second, measured in turns."""
    seconds = [[], []]
    for repeat in range(repeats + 2):  # the first two warm up
        for model, times in zip(models, seconds, strict=True):
            start = time.perf_counter()
            run(model, u)
            if repeat >= 2:
                times.append(time.perf_counter() - start)
    ours, theirs = map(statistics.median, seconds)
    return ours / theirs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15)
    repeats = parser.parse_args().repeats
    torch.manual_seed(0)
    print(f"ours / torch.nn.TransformerEncoder, torch {torch.__version__}, ", end="")
    print(f"{torch.get_num_threads()} threads, median of {repeats}")
    for batch, tokens, features, heads, layers in SIZES:
        models = pair(features, heads, layers)
        u = torch.randn(batch, tokens, features)
        with torch.inference_mode():
            torch.testing.assert_close(models[0](u), models[1](u), atol=1e-4, rtol=1e-4)
        size = f"(B, N, d, H, L) = {(batch, tokens, features, heads, layers)}"
        for run in (forward, both):
            print(f"{size}  {run.__name__:8s} {ratio(run, models, u, repeats):.2f}", flush=True)


if __name__ == "__main__":
    main()
