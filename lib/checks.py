"""What may go into the operators of the book: the questions that every module asks of its input.

A wrong input must never become a NaN or a plausible wrong number, so each public function asks first. Every
error names the concept, says what was expected and what came, and how to mend it.
"""

import torch
from torch import Tensor


def require(condition: bool, message: str) -> None:
    """Raise `ValueError(message)` unless the condition holds."""
    if not condition:
        raise ValueError(message)


def is_finite(values: Tensor) -> bool:
    """True when no entry is NaN or infinite.

    One sum is enough in the usual case, since NaN and infinity survive addition; only when it fails
    (a sum of large finite numbers may overflow) is every entry looked at.
    """
    total = values.detach().sum()
    return bool(torch.isfinite(total)) or bool(torch.isfinite(values.detach()).all())


def require_real(name: str, values: Tensor, least_dims: int = 1) -> None:
    """Require a finite floating-point tensor with at least `least_dims` dimensions."""
    require(
        isinstance(values, Tensor),
        f"{name} must be a torch tensor, but a {type(values).__name__} came; use torch.as_tensor(...)",
    )
    require(
        values.is_floating_point(),
        f"{name} must hold real numbers (float64 or float32), but its dtype is {values.dtype}; use {name}.double()",
    )
    require(
        values.dim() >= least_dims,
        f"{name} must have at least {least_dims} dimension(s), but its shape is {tuple(values.shape)}",
    )
    require(
        is_finite(values),
        f"{name} must be finite, but it holds NaN or infinity; look for a division by zero or an overflow before it",
    )


def require_weights(name: str, weights: Tensor) -> None:
    """Require quadrature weights: finite, real, none negative."""
    require_real(name, weights)
    require(
        not bool((weights.detach() < 0).any()),
        f"{name} are quadrature weights and must not be negative, but the smallest is "
        f"{weights.min().item():.3g}; a weight of 0 hides a node",
    )


def require_width(name: str, u: Tensor, width: int) -> None:
    """Require functions sampled at `width` feature nodes: shape (..., N, width)."""
    require_real(name, u, least_dims=2)
    require(
        u.shape[-1] == width,
        f"{name} must have shape (..., N, {width}), with {width} features last, but its shape is {tuple(u.shape)}",
    )


def require_step(dt: float) -> None:
    """Require a positive, finite time step dt."""
    require(
        0 < float(dt) < float("inf"),
        f"the time step dt must be positive and finite, but dt = {float(dt):g} came",
    )


def require_count(name: str, count: int) -> None:
    """Require a whole number of at least one."""
    require(
        isinstance(count, int) and not isinstance(count, bool) and count >= 1,
        f"{name} must be a whole number of at least 1, but {count!r} came",
    )
