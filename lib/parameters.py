"""Where parameters come from: copied out of a module of another library, or read from a file.

Copies are exact, so that what is computed with them can be compared digit by digit. A file holds
numbers and nothing that could be executed (safetensors), and is read only if its SHA-256 is the
expected one.
"""

import copy
import hashlib
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from lib.checks import is_finite, require, require_file
from lib.projection import Normalisation, project_nonnegative


def require_kind(name: str, module: object, kind: str) -> None:
    """Require exactly the class `kind`, written with its library: "torch.nn.LayerNorm", "transformers.ViTModel".

    A subclass is refused: it may compute something else with the same parameters. Compared by name,
    so that a library that nobody uses need not be installed.
    Explained in chapter 5, *Operator splitting* (chapters/splitting.ipynb).
    """
    library, _, cls = kind.rpartition(".")
    came = type(module)
    require(
        came.__name__ == cls and came.__module__.split(".")[0] == library.split(".")[0],
        f"{name} must be a {kind}, but a {came.__name__} came",
    )


def copy_linear(ours: nn.Module, weight: Tensor, bias: Tensor | None) -> None:
    """Copy weight and bias into a linear map or a convolution; bias None (bias=False) is a bias of zero.

    Errors: `ValueError` when the weight has another shape.
    Explained in chapter 5, *Operator splitting* (chapters/splitting.ipynb).
    """
    require(
        weight.shape == ours.weight.shape,
        f"the weight of a linear map must have shape {tuple(ours.weight.shape)}, but {tuple(weight.shape)} came",
    )
    with torch.no_grad():
        ours.weight.copy_(weight)
        ours.bias.copy_(torch.zeros_like(ours.bias) if bias is None else bias)


def copied_normalisation(norm: nn.LayerNorm) -> Normalisation:
    """torch's layer normalisation as one of the book, with a copy of its gain and bias.

    Explained in chapter 3, *Normalisation is a projection* (chapters/projection.ipynb).
    """
    require_kind("the normalisation", norm, "torch.nn.LayerNorm")
    require(
        len(norm.normalized_shape) == 1 and norm.weight is not None,
        "the normalisation must act on the features alone and have a gain, but "
        f"normalized_shape = {tuple(norm.normalized_shape)}, elementwise_affine = {norm.elementwise_affine} came",
    )
    ours = Normalisation(norm.normalized_shape[0], norm.eps).to(norm.weight)
    with torch.no_grad():
        ours.gain.copy_(norm.weight)
        if norm.bias is not None:
            ours.bias.copy_(norm.bias)
    return ours


def copied_activation(activation: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """torch's ReLU by its name in this book, `project_nonnegative`; any other activation as a copy.

    Explained in chapter 4, *The feed-forward network* (chapters/feedforward.ipynb).
    """
    is_relu = activation is torch.nn.functional.relu or isinstance(activation, nn.ReLU)
    return project_nonnegative if is_relu else copy.deepcopy(activation)


def write(module: nn.Module, path: str | Path, dtype: torch.dtype = torch.float16) -> str:
    """Write the parameters of a module to a safetensors file and return its SHA-256.

    They are rounded to `dtype`; what is said about the file must be measured after reading it back.
    Errors: `ValueError` when a parameter is not finite, or too large for `dtype`.
    Explained in chapter 7, *The vision transformer* (chapters/vit.ipynb).
    """
    rounded = {name: values.to(dtype).contiguous() for name, values in module.state_dict().items()}
    for name, values in rounded.items():
        require(
            is_finite(values),
            f"the parameter {name} must be finite in {dtype}, but NaN or infinity came; write it in torch.float32",
        )
    content = save(rounded)
    Path(path).write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def read(module: nn.Module, path: str | Path, sha256: str) -> None:
    """Fill a module with the parameters of a safetensors file, in the precision of the module.

    Errors: `ValueError` when the file is missing, its SHA-256 is another one, it is no safetensors
    file, or a name or shape in it is not one of the module's.
    Explained in chapter 7, *The vision transformer* (chapters/vit.ipynb).
    """
    path = Path(path)
    mend = "`git checkout` brings it back"
    content = require_file(f"the file of parameters {path.name}", path, sha256, mend)
    try:
        values = load(content)
    except SafetensorError as error:
        raise ValueError(
            f"the file of parameters {path.name} must be a safetensors file, but: {error}"
        ) from None
    fill(module, values, path.name)


def fill(module: nn.Module, values: dict[str, Tensor], name: str) -> None:
    """Copy named tensors into a module that must have exactly these names and shapes.

    Errors: `ValueError` that names what differs.
    Explained in chapter 7, *The vision transformer* (chapters/vit.ipynb).
    """
    own = module.state_dict()
    wanted = {key: tuple(part.shape) for key, part in own.items()}
    came = {key: tuple(part.shape) for key, part in values.items()}
    differ = sorted(key for key in wanted.keys() | came.keys() if wanted.get(key) != came.get(key))
    require(
        not differ,
        f"{name} does not fit the module: "
        + "; ".join(
            f"{key} expected {wanted.get(key)}, came {came.get(key)}" for key in differ[:3]
        ),
    )
    with torch.no_grad():
        for key, part in own.items():
            part.copy_(values[key])
