"""Training: the same losses and the same weights every time, on one process or several, interrupted or not.

All chance is a function of the seed and of the number of the step or epoch, and of nothing else. So
a run that was interrupted goes on exactly as if it had not been, and the processes of a distributed
run draw the same numbers without speaking to each other. Optimiser and schedule are torch's own.
"""

import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from tqdm.auto import tqdm

from lib.checks import require, require_callable, require_count

Loss = Callable[..., Tensor]


def train(
    model: nn.Module,
    loss: Loss,
    examples: Sequence[Tensor],
    optimiser: Optimizer,
    schedule: LRScheduler | None = None,
    *,
    epochs: int,
    batch: int,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    every: int = 20,
    label: str = "training",
) -> list[float]:
    """Train the model in place, and return the loss of every step.

        each step:  g = ∇ (1/batch) Σ loss(model, examples of the batch),  then optimiser and schedule

    `loss(model, *examples)` is the mean loss of a batch; what it draws at random is the same in
    every run. An epoch shuffles the examples and takes ⌊examples/batch⌋ batches.
    With a `checkpoint` file the state is written after every `every` steps; called again with the
    same arguments, training goes on from there and gives the same losses and weights to the last
    digit (on the same machine with the same number of threads).
    Under `torchrun` each process takes its share of every batch (DistributedDataParallel, gloo); the
    losses are those of one process up to rounding. On several machines the checkpoint must lie in a
    folder that all of them see.
    Errors: `ValueError` when the examples differ in number, the batch does not fit, a loss is not
    finite, or the checkpoint is of another run.
    Explained in chapter 7, *The vision transformer* (chapters/vit.ipynb).
    """
    require_callable("the loss in training", loss)
    for name, count in (("epochs", epochs), ("examples in a batch", batch), ("every", every)):
        require_count(f"{name} in training", count)
    total = _count(examples, batch)
    per_epoch = total // batch
    run = {"seed": seed, "batch": batch, "examples": total, "epochs": epochs}
    parts = {"model": model, "optimiser": optimiser}
    if schedule is not None:
        parts["schedule"] = schedule
    losses = _resume(checkpoint, parts, run)

    def walk(step_loss: nn.Module, rank: int, world: int) -> None:
        bar = tqdm(
            total=epochs * per_epoch, initial=len(losses), desc=label, unit="step", disable=rank > 0
        )
        with bar:
            for step in range(len(losses), epochs * per_epoch):
                epoch, place = divmod(step, per_epoch)
                chosen = _order(seed, epoch, total)[place * batch : (place + 1) * batch]
                torch.manual_seed(_mix(seed, 1 + step))  # the same in all processes
                optimiser.zero_grad()
                value = step_loss(*(part[chosen[rank::world]] for part in examples))
                value.backward()
                losses.append(_mean(value, world))
                require(
                    torch.isfinite(torch.tensor(losses[-1])).item(),
                    f"the loss of step {step} is {losses[-1]}; a smaller learning rate may help",
                )
                optimiser.step()
                if schedule is not None:
                    schedule.step()
                bar.update()
                bar.set_postfix(loss=f"{losses[-1]:.3f}", refresh=False)
                if rank == 0 and ((step + 1) % every == 0 or step + 1 == epochs * per_epoch):
                    _save(checkpoint, parts, run, losses)

    with _processes() as (rank, world), torch.random.fork_rng(devices=[]):
        require(
            batch % world == 0,
            f"a batch of {batch} examples cannot be shared equally by {world} processes; take a multiple of {world}",
        )
        step_loss = _StepLoss(model, loss)
        if world == 1:
            walk(step_loss, rank, world)
        else:  # the wrapper must be gone before the group is: destroyed with it, the two can deadlock
            walk(DistributedDataParallel(step_loss), rank, world)
    return losses


class _StepLoss(nn.Module):
    """The loss as a module, so that DistributedDataParallel sees one forward pass, whatever it calls."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, *examples: Tensor) -> Tensor:
        return self.loss(self.model, *examples)


# ---- chance --------------------------------------------------------------------------------------


def _mix(seed: int, number: int) -> int:
    """A seed for one step or epoch, far from those of the others."""
    return (seed * 1_000_003 + number) * 2_654_435_761 % 2**63


@lru_cache(maxsize=1)
def _order(seed: int, epoch: int, total: int) -> Tensor:
    """The order of the examples in one epoch."""
    return torch.randperm(total, generator=torch.Generator().manual_seed(_mix(seed, -1 - epoch)))


# ---- several processes ---------------------------------------------------------------------------


@contextmanager
def _processes() -> Iterator[tuple[int, int]]:
    """The rank of this process and the number of all; joins the group that `torchrun` announced."""
    if distributed.is_initialized():
        yield distributed.get_rank(), distributed.get_world_size()
    elif "TORCHELASTIC_RUN_ID" in os.environ:
        distributed.init_process_group("gloo")
        try:
            yield distributed.get_rank(), distributed.get_world_size()
        finally:
            distributed.destroy_process_group()
    else:
        yield 0, 1


def _mean(value: Tensor, world: int) -> float:
    """The mean of a number over all processes."""
    value = value.detach().double()
    if world > 1:
        distributed.all_reduce(value)
    return (value / world).item()


# ---- the state on disk ---------------------------------------------------------------------------


def _save(checkpoint: str | Path | None, parts: dict, run: dict, losses: list[float]) -> None:
    """Write all state beside the file first, then put it in its place: what is there is never half a state."""
    if checkpoint is None:
        return
    checkpoint = Path(checkpoint)
    state = {name: part.state_dict() for name, part in parts.items()}
    unfinished = checkpoint.with_name(checkpoint.name + ".new")
    torch.save({**state, "run": run, "losses": losses}, unfinished)
    os.replace(unfinished, checkpoint)


def _resume(checkpoint: str | Path | None, parts: dict, run: dict) -> list[float]:
    """Fill model, optimiser and schedule from the checkpoint, and return the losses so far."""
    if checkpoint is None or not Path(checkpoint).is_file():
        return []
    try:
        state = torch.load(checkpoint, weights_only=True)  # numbers only, nothing is executed
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise ValueError(
            f"the checkpoint {checkpoint} cannot be read: it is damaged or no checkpoint; remove it and start anew"
        ) from error
    require(
        isinstance(state, dict) and state.get("run") == run and parts.keys() <= state.keys(),
        f"the checkpoint {checkpoint} belongs to another run: it says {state.get('run')}, but this one is {run}; "
        "remove it, or choose another file",
    )
    for name, part in parts.items():
        part.load_state_dict(state[name])
    return state["losses"]


def _count(examples: Sequence[Tensor], batch: int) -> int:
    """The number of examples, the same in each tensor and enough for one batch."""
    require(len(examples) > 0, "training needs at least one tensor of examples, but none came")
    counts = sorted({len(part) for part in examples})
    require(
        len(counts) == 1,
        f"training needs tensors with the same number of examples, but {counts} came",
    )
    require(
        counts[0] >= batch,
        f"a batch of {batch} examples cannot be taken from {counts[0]} examples; take a smaller batch",
    )
    return counts[0]
