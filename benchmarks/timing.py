"""How the benchmarks measure: two models in one process, in turns, as the median of the ratios.

Each turn times both, one right after the other, and the order changes from turn to turn, so that
whatever else the machine does falls on both. A ratio below 1 means that ours is faster.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

Call = Callable[[], Tensor]


def turns(description: str) -> int:
    """The number of turns asked for on the command line."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--turns", type=int, default=30, help="turns of both models")
    return parser.parse_args().turns


def title(peer: str, count: int) -> str:
    """The line above the figures: what they are, and on what machine."""
    threads = torch.get_num_threads()
    return f"ours / {peer}, torch {torch.__version__}, {threads} threads, median of {count} turns, float32"


def compare(size: str, ours: Call, theirs: Call, count: int) -> None:
    """Require equal results of the two calls, then print the ratios of "forward" and of "both"."""
    with torch.inference_mode():
        torch.testing.assert_close(ours(), theirs(), atol=1e-4, rtol=1e-4)
    for run in (forward, both):
        print(f"{size}  {run.__name__:8s} {ratio(run, ours, theirs, count):.2f}", flush=True)


def forward(call: Call) -> None:
    """One pass without gradients."""
    with torch.inference_mode():
        call()


def both(call: Call) -> None:
    """One pass and the gradient of the mean square of its result."""
    call().square().mean().backward()


def ratio(run: Callable[[Call], None], ours: Call, theirs: Call, count: int) -> float:
    """The median over all turns of the time of ours divided by that of theirs; two more turns warm up."""
    ratios = []
    for turn in range(count + 2):
        seconds = {}
        for call in (ours, theirs) if turn % 2 else (theirs, ours):
            start = time.perf_counter()
            run(call)
            seconds[call] = time.perf_counter() - start
        ratios.append(seconds[ours] / seconds[theirs])
    return statistics.median(ratios[2:])
