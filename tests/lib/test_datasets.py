"""The data: what is in them, and that a damaged file is refused with advice."""

import hashlib
import shutil

import pytest
import torch

from lib import datasets


def test_nile():
    year, flow = datasets.nile()
    assert year.dtype == flow.dtype == torch.float64
    assert torch.equal(year, torch.arange(1871, 1971, dtype=torch.float64))
    assert flow.shape == (100,)
    assert flow[[0, 42, 99]].tolist() == [1120, 456, 740]
    assert flow.mean().item() == pytest.approx(919.35)
    # the well-known change: the river carries less after 1898
    assert flow[year < 1899].mean() > flow[year >= 1899].mean() + 200


def test_digits():
    images, labels = datasets.digits()
    assert images.shape == (5000, 28, 28)
    assert (images.dtype, labels.dtype) == (torch.float32, torch.int64)
    assert (images.min().item(), images.max().item()) == (0, 1)
    assert torch.equal(labels, torch.arange(10).repeat(500))


def test_digits_are_not_shuffled_against_their_labels():
    """Each image is nearer to the mean image of its own label than to most of the others."""
    images, labels = datasets.digits()
    means = torch.stack([images[labels == digit].mean(0) for digit in range(10)]).flatten(1)
    nearest = torch.cdist(images.flatten(1), means).argmin(1)
    assert (nearest == labels).float().mean() > 0.75


@pytest.mark.parametrize("name", datasets.SHA256)
def test_hash_and_source_are_stated(root, name):
    content = (root / "data" / name).read_bytes()
    assert hashlib.sha256(content).hexdigest() == datasets.SHA256[name]
    text = (root / "data" / "README.md").read_text(encoding="utf8")
    assert datasets.SHA256[name] in text
    assert f"| {len(content):,} |" in text
    assert "Licence:" in text.split(f"## `{name}`")[1].split("##")[0]


@pytest.fixture
def folder(root, tmp_path, monkeypatch):
    """A copy of the data that may be damaged."""
    for name in datasets.SHA256:
        shutil.copy(root / "data" / name, tmp_path)
    monkeypatch.setattr(datasets, "FOLDER", tmp_path)
    return tmp_path


READERS = [("nile.csv", datasets.nile), ("digits.npz", datasets.digits)]


@pytest.mark.parametrize(("name", "reader"), READERS)
def test_one_changed_byte_is_refused(folder, name, reader):
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"data/{name} is damaged.*git checkout data/{name}"):
        reader()


@pytest.mark.parametrize(("name", "reader"), READERS)
def test_a_missing_file_says_what_to_do(folder, name, reader):
    (folder / name).unlink()
    with pytest.raises(ValueError, match=f"data/{name} is missing.*python data/make_data.py"):
        reader()


def test_windows_line_ends_are_refused(folder):
    """Git may rewrite line ends; then the file is another one, and .gitattributes must say so."""
    text = (folder / "nile.csv").read_bytes().replace(b"\n", b"\r\n")
    (folder / "nile.csv").write_bytes(text)
    with pytest.raises(ValueError, match="damaged"):
        datasets.nile()
