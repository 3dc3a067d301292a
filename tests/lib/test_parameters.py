"""Parameters in files and from other modules: exact copies, and nothing that is not what it says it is."""

import hashlib
import pickle

import pytest
import torch
from safetensors.torch import load, save
from torch import nn

from lib.checks import require_images
from lib.encoder import EncoderLayer
from lib.parameters import (
    copied_activation,
    copied_normalisation,
    copy_linear,
    fill,
    read,
    require_kind,
    write,
)
from lib.positions import Table, Waves
from lib.projection import project_nonnegative

pytestmark = pytest.mark.usefixtures("float64")


class Module(nn.Module):
    """Parameters of several shapes, and a number that is stored but not learned."""

    def __init__(self, width=4):
        super().__init__()
        self.layer = EncoderLayer(width, 2, 6)
        self.table = Table(width, (2, 3))
        self.waves = Waves(width, [1, 2])
        self.register_buffer("mean", torch.randn(width))


def sha(content):
    return hashlib.sha256(content).hexdigest()


# ---- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_what_is_read_is_what_was_written_rounded_once(tmp_path, dtype):
    ours, other, path = Module(), Module(), tmp_path / "weights.safetensors"
    before = {name: values.clone() for name, values in ours.state_dict().items()}
    digest = write(ours, path, dtype)
    assert digest == sha(path.read_bytes())
    assert all(torch.equal(before[name], values) for name, values in ours.state_dict().items())
    addresses = {name: values.data_ptr() for name, values in other.state_dict().items()}
    read(other, path, digest)
    for name, values in other.state_dict().items():
        assert torch.equal(values, before[name].to(dtype).double()), name
        assert values.dtype == torch.float64  # the precision of the module, not of the file
        assert values.data_ptr() == addresses[name]  # filled in place: optimisers still see it
    assert write(other, path, dtype) == digest  # rounding once more changes nothing


def test_the_same_parameters_make_the_same_file(tmp_path):
    ours = Module()
    digests = {write(ours, tmp_path / name, torch.float32) for name in ("a", "b")}
    assert len(digests) == 1


def test_by_default_half_the_bytes_of_single_precision(tmp_path):
    ours = Module()
    write(ours, tmp_path / "half")
    write(ours, tmp_path / "single", torch.float32)
    assert {part.dtype for part in load((tmp_path / "half").read_bytes()).values()} == {
        torch.float16
    }
    numbers = sum(part.numel() for part in ours.state_dict().values())
    sizes = [(tmp_path / name).stat().st_size for name in ("half", "single")]
    assert sizes[1] - sizes[0] == pytest.approx(2 * numbers, rel=0.05)


def test_a_path_may_be_text(tmp_path):
    ours = Module()
    digest = write(ours, str(tmp_path / "a"))
    read(ours, str(tmp_path / "a"), digest)


def test_a_parameter_that_half_precision_cannot_hold_is_refused(tmp_path):
    ours = Module()
    nn.init.constant_(ours.layer.norm1.gain, 1e5)
    with pytest.raises(ValueError, match=r"layer.norm1.gain must be finite in torch.float16"):
        write(ours, tmp_path / "a")
    assert not (tmp_path / "a").exists()
    write(ours, tmp_path / "a", torch.float32)


def test_a_parameter_that_is_nan_is_refused(tmp_path):
    ours = Module()
    nn.init.constant_(ours.layer.norm1.gain, torch.nan)
    with pytest.raises(ValueError, match=r"layer.norm1.gain must be finite"):
        write(ours, tmp_path / "a", torch.float64)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"(?s)parameters .*gone.safetensors is missing.*git ch"):
        read(Module(), tmp_path / "gone.safetensors", "0" * 64)
    with pytest.raises(ValueError, match="missing"):
        read(Module(), tmp_path, "0" * 64)  # a folder is no file


def test_a_file_with_one_other_bit_is_refused(tmp_path):
    ours, other, path = Module(), Module(), tmp_path / "a.safetensors"
    digest = write(ours, path)
    before = other.mean.clone()
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"a.safetensors is damaged.*{digest[:12]}.*git checkout"):
        read(other, path, digest)
    assert torch.equal(other.mean, before)


def test_a_file_of_another_module_is_refused_and_nothing_is_changed(tmp_path):
    path, other = tmp_path / "a.safetensors", Module()
    digest = write(Module(width=6), path)
    before = {name: values.clone() for name, values in other.state_dict().items()}
    with pytest.raises(ValueError, match=r"(?s)a.safetensors does not fit.*expected .*, came "):
        read(other, path, digest)
    assert all(torch.equal(before[name], values) for name, values in other.state_dict().items())


class Trap:
    """What a pickle may do: run any code when it is read."""

    def __reduce__(self):
        return (pytest.fail, ("a pickle was executed",))


@pytest.mark.parametrize(
    "kind", ["torch.save", "torch.save-old", "pickle", "trap", "text", "empty"]
)
def test_a_file_that_could_run_code_is_refused_even_with_its_own_hash(tmp_path, kind):
    path, ours = tmp_path / "a.safetensors", Module()
    if kind.startswith("torch.save"):
        torch.save(ours.state_dict(), path, _use_new_zipfile_serialization=not kind.endswith("old"))
    elif kind == "pickle":
        path.write_bytes(pickle.dumps({"mean": 1.0}))
    elif kind == "trap":
        path.write_bytes(pickle.dumps(Trap()))
    else:
        path.write_text("mean = 1" if kind == "text" else "")
    with pytest.raises(ValueError, match=r"a.safetensors must be a safetensors file"):
        read(ours, path, sha(path.read_bytes()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v.pop("mean"), r"mean expected \(4,\), came None"),
        (lambda v: v.update(extra=torch.ones(2)), r"extra expected None, came \(2,\)"),
        (lambda v: v.update(mean=torch.ones(5)), r"mean expected \(4,\), came \(5,\)"),
        (lambda v: v.update(mean=torch.ones(1)), r"mean expected \(4,\), came \(1,\)"),
        (lambda v: v.update(mean=torch.ones(1, 4)), r"mean expected \(4,\), came \(1, 4\)"),
        (
            lambda v: v.update({"table.values": torch.ones(3, 2, 4)}),
            r"table.values expected \(2, 3, 4\), came \(3, 2, 4\)",
        ),
        (lambda v: v.clear(), "layer.attention.O.bias expected"),
    ],
)
@pytest.mark.parametrize("by_file", [False, True])
def test_other_names_and_shapes_are_refused(tmp_path, change, message, by_file):
    """Also those that would broadcast, and would fill a parameter with copies of one number."""
    ours = Module()
    values = dict(ours.state_dict())
    change(values)
    with pytest.raises(ValueError, match=message):
        if by_file:
            path = tmp_path / "a"
            path.write_bytes(save(values))
            read(ours, path, sha(path.read_bytes()))
        else:
            fill(ours, values, "the parameters")


def test_to_fill_is_to_copy():
    ours, values = Module(), dict(Module().state_dict())
    fill(ours, values, "the parameters")
    assert all(torch.equal(ours.state_dict()[name], part) for name, part in values.items())
    values["mean"] += 1
    assert not torch.equal(ours.mean, values["mean"])
    assert all(parameter.requires_grad for parameter in ours.parameters())


# ---- parts of other modules ----------------------------------------------------------------------


def test_a_linear_map_is_copied():
    ours, theirs = nn.Linear(3, 2), nn.Linear(3, 2)
    copy_linear(ours, theirs.weight, theirs.bias)
    u = torch.randn(5, 3)
    assert torch.equal(ours(u), theirs(u))
    assert ours.weight.data_ptr() != theirs.weight.data_ptr()
    assert ours.weight.requires_grad
    assert ours.weight.grad_fn is None


def test_no_bias_is_a_bias_of_zero():
    ours, theirs = nn.Linear(3, 2), nn.Linear(3, 2, bias=False)
    copy_linear(ours, theirs.weight, theirs.bias)
    u = torch.randn(5, 3)
    torch.testing.assert_close(ours(u), theirs(u))


@pytest.mark.parametrize("shape", [(3, 2), (1, 3), (3,), (2, 3, 1)])
def test_a_weight_of_another_shape_is_refused(shape):
    with pytest.raises(ValueError, match=r"weight of a linear map must have shape \(2, 3\)"):
        copy_linear(nn.Linear(3, 2), torch.ones(shape), None)


@pytest.mark.parametrize("bias", [True, False])
def test_a_normalisation_is_copied(bias):
    theirs = nn.LayerNorm(4, eps=0.1, bias=bias)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter)
    ours, u = copied_normalisation(theirs), torch.randn(5, 4)
    torch.testing.assert_close(ours(u), theirs(u), atol=1e-14, rtol=0)
    nn.init.normal_(ours.gain)
    assert (ours(u) - theirs(u)).abs().max() > 1e-3


@pytest.mark.parametrize("relu", [torch.relu, nn.functional.relu, nn.ReLU(), nn.ReLU(inplace=True)])
def test_the_rectifier_is_the_projection(relu):
    copied, v = copied_activation(relu), torch.randn(9)
    assert torch.equal(copied(v), torch.relu(v))
    assert copied is project_nonnegative or relu is torch.relu


def test_a_learned_activation_is_copied():
    theirs = nn.PReLU()
    copied = copied_activation(theirs)
    nn.init.constant_(theirs.weight, 7.0)
    assert copied.weight.item() == 0.25


class LayerNorm(nn.LayerNorm):
    """A class of the same name from somewhere else, and a subclass."""


def test_kinds_are_exact():
    require_kind("the norm", nn.LayerNorm(3), "torch.nn.LayerNorm")
    for other in (LayerNorm(3), nn.Linear(3, 3), nn.LayerNorm, None):
        with pytest.raises(ValueError, match="the norm must be a torch.nn.LayerNorm, but a"):
            require_kind("the norm", other, "torch.nn.LayerNorm")


def test_images_need_four_dimensions_and_their_channels():
    require_images("the images", torch.ones(1, 3, 4, 5), 3)
    for shape in [(3, 4, 5), (1, 1, 4, 5), (1, 3, 4), (1, 3, 0, 5), (0, 3, 4, 5)]:
        with pytest.raises(ValueError, match=r"images must have shape \(B, 3, height, width\)"):
            require_images("the images", torch.ones(shape), 3)
