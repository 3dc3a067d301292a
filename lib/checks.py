"""What may go into the operators of the book: the questions that every module asks of its input.

A wrong input must never become a NaN or a plausible wrong number, so each public function asks
first. Every error names the concept, says what was expected and what came, and how to mend it.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from numbers import Integral, Real
from pathlib import Path

import torch
from torch import Tensor

_TRUSTED = ContextVar("trusted", default=False)


@contextmanager
def trusted() -> Iterator[None]:
    """Within this block no tensor is searched for NaN: for a caller that looks at what goes in and at what comes out.

    A walk through many layers would otherwise read each of its intermediate results once more.
    Shapes are still checked.
    """
    token = _TRUSTED.set(True)
    try:
        yield
    finally:
        _TRUSTED.reset(token)


def require(condition: bool, message: str) -> None:
    """Raise `ValueError(message)` unless the condition holds."""
    if not condition:
        raise ValueError(message)


def is_finite(values: Tensor) -> bool:
    """True when no entry is NaN or infinite, and always within a `trusted` block.

    One sum is enough in the usual case, since NaN and infinity survive addition; only when it fails
    (a sum of large finite numbers may overflow) is every entry looked at.
    """
    if _TRUSTED.get():
        return True
    values = values.detach()
    return bool(torch.isfinite(values.sum())) or bool(torch.isfinite(values).all())


def require_real(
    name: str, values: Tensor, least_dims: int = 1, like: Tensor | None = None
) -> None:
    """Require a finite floating-point tensor with at least `least_dims` dimensions, in the precision of `like`."""
    require(
        isinstance(values, Tensor),
        f"{name} must be a torch tensor, but a {type(values).__name__} came; use torch.as_tensor(...)",
    )
    require(
        values.is_floating_point(),
        f"{name} must hold real numbers (float64 or float32), but dtype {values.dtype} came; convert with .double()",
    )
    require(
        values.dim() >= least_dims,
        f"{name} must have at least {least_dims} dimension(s), but shape {tuple(values.shape)} came",
    )
    require(
        is_finite(values),
        f"{name} must be finite, but NaN or infinity came; look for a division by zero or an overflow before it",
    )
    require(
        like is None or like.dtype == values.dtype,
        f"{name} must have the precision of what it meets, {None if like is None else like.dtype}, but "
        f"{values.dtype} came; convert one of them with .double() or .float()",
    )


def require_squarable(name: str, values: Tensor) -> None:
    """Require numbers whose squares are finite too; not asked within a `trusted` block."""
    require(
        _TRUSTED.get() or is_finite(values.detach() ** 2),
        f"{name} is too large to be squared in {values.dtype}; scale it down",
    )


def require_weights(name: str, weights: Tensor) -> None:
    """Require quadrature weights: finite, real, at least one, none negative."""
    require_real(name, weights)
    require(
        weights.numel() > 0, f"{name} must be at least one, but shape {tuple(weights.shape)} came"
    )
    smallest = weights.detach().min().item()
    require(
        smallest >= 0,
        f"{name} are quadrature weights and must not be negative, but {smallest:.3g} came; a weight of 0 hides a node",
    )


def require_width(name: str, u: Tensor, width: int, like: Tensor | None = None) -> None:
    """Require functions sampled at `width` feature nodes, of shape (..., N, width)."""
    require_real(name, u, least_dims=2, like=like)
    require(
        u.shape[-1] == width,
        f"{name} must have shape (..., N, {width}), with {width} features last, but shape {tuple(u.shape)} came",
    )


def require_images(name: str, images: Tensor, channels: int, like: Tensor | None = None) -> None:
    """Require images of shape (B, channels, height, width)."""
    require_real(name, images, like=like)
    require(
        images.dim() == 4 and images.shape[1] == channels and images.numel() > 0,
        f"{name} must have shape (B, {channels}, height, width), but shape {tuple(images.shape)} came; "
        "a batch of one image without channels needs [None, None]",
    )


def require_number(name: str, value: float) -> None:
    """Require a finite real number (a Python number, not a tensor)."""
    require(
        isinstance(value, Real)
        and not isinstance(value, bool)
        and -float("inf") < value < float("inf"),
        f"{name} must be a finite real number, but {value!r} came; of a tensor with one entry use .item()",
    )


def require_step(dt: float) -> None:
    """Require a positive, finite time step dt."""
    require_number("the time step dt", dt)
    require(dt > 0, f"the time step dt must be positive, but dt = {float(dt):g} came")


def require_count(name: str, count: int) -> None:
    """Require a whole number of at least one."""
    require(
        isinstance(count, Integral) and not isinstance(count, bool) and count >= 1,
        f"{name} must be a whole number of at least 1, but {count!r} came",
    )


def require_file(name: str, path: Path, sha256: str, mend: str) -> bytes:
    """The bytes of a file, which must be the one with this SHA-256; `mend` says how to get it back."""
    require(path.is_file(), f"{name} is missing (looked for {path}); {mend}")
    content = path.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    require(
        found == sha256,
        f"{name} is damaged or another one: expected SHA-256 {sha256[:12]}…, but {found[:12]}… came; {mend}",
    )
    return content


def require_callable(name: str, function: object) -> None:
    """Require something that can be called."""
    require(callable(function), f"{name} must be a function, but {function!r} came")


def broadcast(name: str, *shapes: tuple[int, ...]) -> torch.Size:
    """The common leading dimensions, or a `ValueError` that names what does not fit."""
    try:
        return torch.broadcast_shapes(*shapes)
    except RuntimeError:
        came = ", ".join(str(tuple(shape)) for shape in shapes)
        raise ValueError(f"{name} must be equal or 1 in each place, but {came} came") from None
