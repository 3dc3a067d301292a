"""Training gives the same losses and weights: twice, after an interruption, and in two processes."""

import json
import math
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from lib.training import train

pytestmark = pytest.mark.usefixtures("float64")

EPOCHS, BATCH, EXAMPLES = 3, 8, 44  # 44 is no multiple of 8: five batches an epoch, four left out
STEPS = EPOCHS * (EXAMPLES // BATCH)

# One run, as a program: the tests below start it alone, twice, and under torchrun.
PROGRAM = """
import json, sys, time, torch
from torch import nn
from torch.nn.functional import mse_loss
from lib.training import train

torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))
inputs, targets = torch.randn(44, 5), torch.randn(44, 2)
checkpoint, pause, result = sys.argv[1], float(sys.argv[2]), sys.argv[3]

def loss(model, x, y):
    time.sleep(pause)
    return mse_loss(model(x) * (1 + torch.rand(())), y)

optimiser = torch.optim.AdamW(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 0.01, total_steps=15)
losses = train(model, loss, (inputs, targets), optimiser, schedule, epochs=3, batch=8, seed=5,
               checkpoint=None if checkpoint == "none" else checkpoint, every=2)
import os
if os.environ.get("RANK", "0") == "0":
    weights = [p.detach().flatten().tolist() for p in model.parameters()]
    open(result, "w").write(json.dumps([losses, sum(weights, [])]))
"""


def start(root, *command):
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith("TORCHELASTIC")
    }
    return subprocess.Popen(
        [sys.executable, *command], cwd=root, env=environment | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def finish(process):
    try:
        output, _ = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        process.terminate()  # torchrun then ends its own processes
        output, _ = process.communicate()
        pytest.fail(f"the program did not end: {output}")
    assert process.returncode == 0, output
    return output


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    path = tmp_path_factory.mktemp("training") / "program.py"
    path.write_text(PROGRAM)
    return path


@pytest.fixture(scope="module")
def alone(program, root):
    """Losses and weights of the run in one process, not interrupted."""
    result = program.with_name("alone.json")
    finish(start(root, program, "none", "0", result))
    return json.loads(result.read_text())


def learner(rate=0.05):
    """A small model, a loss that draws a random number, examples and an optimiser."""
    torch.manual_seed(1)
    model = nn.Linear(5, 2)
    examples = torch.randn(EXAMPLES, 5), torch.randn(EXAMPLES, 2)

    def loss(model, x, y):
        return mse_loss(model(x) * (1 + torch.rand(())), y)

    return model, loss, examples, torch.optim.SGD(model.parameters(), lr=rate)


def run(seed=0, **more):
    model, loss, examples, optimiser = learner()
    losses = train(model, loss, examples, optimiser, epochs=EPOCHS, batch=BATCH, seed=seed, **more)
    return losses, model.weight.detach()


def test_a_run_has_one_loss_for_each_step_and_learns():
    model, loss, examples, optimiser = learner(rate=0.1)
    losses = train(model, loss, examples, optimiser, epochs=20, batch=BATCH)
    assert len(losses) == 20 * (EXAMPLES // BATCH)
    assert sum(losses[-10:]) < 0.8 * sum(losses[:10])


def test_the_same_seed_gives_the_same_digits_and_another_seed_others():
    losses, weight = run()
    torch.manual_seed(99)  # the state of the world outside does not matter
    again, same = run()
    assert losses == again and torch.equal(weight, same)
    other, different = run(seed=1)
    assert losses != other and not torch.equal(weight, different)


def test_chance_outside_is_left_alone():
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    model, loss, examples, optimiser = learner()
    torch.manual_seed(3)
    train(model, loss, examples, optimiser, epochs=1, batch=BATCH)
    assert torch.equal(torch.rand(4), expected)


def test_every_example_is_taken_at_most_once_in_an_epoch():
    model, _, _, optimiser = learner()
    seen = []

    def loss(model, x, number):
        seen.append(number.clone())
        return model(x).square().mean()

    examples = torch.randn(EXAMPLES, 5), torch.arange(EXAMPLES)
    train(model, loss, examples, optimiser, epochs=2, batch=BATCH)
    first, second = torch.cat(seen[:5]), torch.cat(seen[5:])
    assert len(first.unique()) == len(second.unique()) == 40
    assert not torch.equal(first, second)  # each epoch has an order of its own


def test_one_step_is_the_step_of_the_optimiser():
    """The first loss and the first step of gradient descent, written out."""
    model, _, examples, optimiser = learner()
    before = model.weight.detach().clone()
    taken = {}

    def loss(model, x, y):
        taken["batch"] = x, y
        return mse_loss(model(x), y)

    losses = train(
        model, loss, [part[:BATCH] for part in examples], optimiser, epochs=1, batch=BATCH
    )
    x, y = taken["batch"]
    bias = model.bias.detach() + 0.05 * model.bias.grad
    error = x @ before.T + bias - y
    assert losses == [pytest.approx(error.square().mean().item(), abs=1e-12)]
    gradient = 2 / error.numel() * error.T @ x
    torch.testing.assert_close(model.weight.detach(), before - 0.05 * gradient, atol=1e-12, rtol=0)


@pytest.mark.parametrize("broken_at", [0, 1, 7, 8, STEPS - 1])
def test_an_interrupted_run_goes_on_as_if_it_had_not_been(tmp_path, broken_at):
    losses, weight = run()
    file, calls = tmp_path / "state", []
    model, loss, examples, optimiser = learner()

    def breaking(model, x, y):
        calls.append(1)
        if len(calls) == broken_at + 1:
            raise KeyboardInterrupt
        return loss(model, x, y)

    settings = {"epochs": EPOCHS, "batch": BATCH, "checkpoint": file, "every": 2}
    with pytest.raises(KeyboardInterrupt):
        train(model, breaking, examples, optimiser, **settings)
    resumed, same = run(checkpoint=file, every=2)
    assert resumed == losses and torch.equal(same, weight)


def test_a_finished_run_is_not_trained_again(tmp_path):
    losses, weight = run(checkpoint=tmp_path / "state")
    again, same = run(checkpoint=tmp_path / "state")
    assert again == losses and torch.equal(same, weight)


def test_a_killed_program_goes_on_as_if_it_had_not_been(tmp_path, program, root, alone):
    """Killed without warning (SIGKILL) in the middle, started again: the same digits."""
    state, result = tmp_path / "state", tmp_path / "result.json"
    process = start(root, program, state, "0.2", result)
    deadline = time.monotonic() + 100
    while not state.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    done = len(torch.load(state, weights_only=True)["losses"])
    assert 0 < done < STEPS and not result.exists()
    finish(start(root, program, state, "0", result))
    assert json.loads(result.read_text()) == alone


def test_two_processes_have_the_losses_of_one(tmp_path, program, root, alone):
    """torchrun with two processes (DistributedDataParallel, gloo): losses and weights equal up to rounding."""
    result = tmp_path / "result.json"
    finish(
        start(
            root, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
            program, "none", "0", result,
        )
    )  # fmt: skip
    losses, weights = json.loads(result.read_text())
    assert len(losses) == STEPS
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(alone[0]), atol=1e-12, rtol=0)
    torch.testing.assert_close(torch.tensor(weights), torch.tensor(alone[1]), atol=1e-10, rtol=0)


def refused(words, **changes):
    model, loss, examples, optimiser = learner()
    settings = {"epochs": 1, "batch": BATCH} | changes
    loss, examples = settings.pop("loss", loss), settings.pop("examples", examples)
    with pytest.raises(ValueError, match="(?is)" + ".*".join(words.split(" … "))):
        train(model, loss, examples, optimiser, **settings)


def test_bad_input_is_refused(tmp_path):
    refused("epochs … whole number … 0 came", epochs=0)
    refused("examples in a batch … whole number … 2.5 came", batch=2.5)
    refused("every … whole number … -1 came", every=-1)
    refused("batch of 45 … 44 examples … smaller", batch=45)
    refused(r"same number of examples … \[3, 4\]", examples=(torch.ones(3, 5), torch.ones(4, 2)))
    refused("at least one tensor", examples=())
    refused("loss … function … None came", loss=None)
    refused(
        "loss of step 0 is nan … smaller learning rate", loss=lambda m, x, y: m(x).sum() * math.nan
    )


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    run(checkpoint=tmp_path / "state")
    refused("belongs to another run … remove it", checkpoint=tmp_path / "state")


def test_a_checkpoint_that_would_execute_code_is_refused(tmp_path):
    class Harmful:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "executed"),))

    torch.save({"run": Harmful()}, tmp_path / "state")
    refused("checkpoint … cannot be read", checkpoint=tmp_path / "state")
    assert not (tmp_path / "executed").exists()
