"""The trained networks: their files, their number of parameters, and the table of what was measured."""

import random
import shutil

import pytest
import torch

from lib import trained as networks
from lib.trained import NETWORKS, SEEDS, classify, correct, measured, trained, unseen, untrained

ROWS = measured()


def row(name, seed, stride=4, steps=1, weights="unit", shift=0):
    wanted = {
        "name": name,
        "seed": seed,
        "stride": stride,
        "steps": steps,
        "weights": weights,
        "shift": shift,
    }
    found = [r["correct"] for r in ROWS if wanted.items() <= r.items()]
    assert len(found) == 1, f"{wanted} stands {len(found)} times in measured.csv"
    return found[0]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", NETWORKS)
def test_the_table_says_what_the_network_does(name, seed):
    """Measured again as it was trained; another processor may turn a digit or two."""
    assert correct(trained(name, seed), *unseen()) == pytest.approx(row(name, seed), abs=3)


@pytest.mark.parametrize(
    "name, way",
    [("octaves", {"stride": 3}), ("grids", {"stride": 2}), ("point", {"stride": 3}), ("steps", {"steps": 4})],
)  # fmt: skip
def test_the_table_says_what_another_grid_or_step_does(name, way):
    how = {"stride": 4, "steps": 1} | way
    right = correct(trained(name, 0), *unseen(), **how, dt=1 / how["steps"])
    assert right == pytest.approx(row(name, 0, **way), abs=3)


def test_all_networks_have_about_as_many_parameters():
    counts = [sum(p.numel() for p in untrained(name).parameters()) for name in NETWORKS]
    assert max(counts) < 1.03 * min(counts)


def test_the_same_seed_gives_the_same_network_and_another_seed_another():
    same, other = untrained("waves", 1).state_dict(), untrained("waves", 2).state_dict()
    again = untrained("waves", 1).state_dict()
    assert all(torch.equal(part, again[key]) for key, part in same.items())
    assert any(not torch.equal(part, other[key]) for key, part in same.items())


def test_labels_in_another_order_are_not_recognised():
    """A negative control: what is counted depends on the labels."""
    images, labels = unseen()
    order = list(range(200))
    random.Random(0).shuffle(order)
    assert correct(trained("waves"), images[:200], labels[order]) < 60


def test_a_network_gives_ten_scores_for_each_image():
    images, _ = unseen()
    assert classify(trained("cvt"), images[:3]).shape == (3, 10)
    assert classify(trained("point"), images[:3], stride=3).shape == (3, 10)


def test_bad_requests_are_refused(tmp_path, monkeypatch):
    images, labels = unseen()
    with pytest.raises(ValueError, match="no trained network 'resnet'.*choose one of"):
        trained("resnet")
    with pytest.raises(ValueError, match=r"seeds \(0, 1, 2\), but 7 came"):
        trained("waves", 7)
    with pytest.raises(ValueError, match="every image needs its label, but 3 images and 2 labels"):
        correct(trained("waves"), images[:3], labels[:2])
    with pytest.raises(ValueError, match="whole number.*0 came"):
        correct(trained("waves"), images[:3], labels[:3], batch=0)
    shutil.copytree(networks.WEIGHTS, tmp_path / "weights")
    monkeypatch.setattr(networks, "WEIGHTS", tmp_path / "weights")
    damaged = tmp_path / "weights" / "waves-0.safetensors"
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    with pytest.raises(ValueError, match="damaged.*SHA-256.*git checkout"):
        trained("waves")
    damaged.unlink()
    with pytest.raises(ValueError, match="missing.*git checkout"):
        trained("waves")
