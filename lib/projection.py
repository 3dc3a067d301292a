"""Projections: layer normalisation and the rectifier are closest-point maps onto sets of functions.

    S1 = {u : mean_y u = σ1, var_y u = σ2²}      a sphere in a hyperplane:  layer normalisation
    S2 = {u : u ≥ 0}                             a convex cone:             the rectifier (ReLU)

P_S(v) is the element of S closest to v. It is what remains of an implicit time step of u_t ∈
−∂I_S(u), for any step size: the projection does not know Δt.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from lib.checks import (
    broadcast,
    require,
    require_count,
    require_number,
    require_real,
    require_squarable,
    require_weights,
    require_width,
)


def project_mean_variance(
    v: Tensor,
    mean: float = 0.0,
    variance: float = 1.0,
    weights: Tensor | None = None,
    eps: float = 0.0,
) -> Tensor:
    """P_S1(v), the function of given mean σ1 and variance σ2² that is closest to v along the last dimension.

        P_S1(v) = σ1 + σ2 (v − m) / √(s² + ε),    m, s² the mean and variance of v over Ωy (divisor
        |Ωy|)

    Shapes: v (..., d); weights (d,) of the grid of Ωy, None means unit cells. Returns (..., d).
    Units: those of v. With ε = 0 it is the exact projection, undefined where v is constant (every
    point of S1 is then equally close); ε > 0 keeps it defined and is what layer normalisation
    computes. Gain and bias are not part of the projection.
    Errors: `ValueError` for a variance that is not positive, a negative ε, or a constant v with ε =
    0.
    Source: Theorem 3.1 of Tai, Liu, Li and Chan, arXiv 2510.03989; J. L. Ba et al., *Layer
    Normalization*, arXiv 1607.06450.
    Explained in chapter 3, *Normalisation is a projection* (chapters/projection.ipynb).
    """
    _require_target(v, mean, variance, eps)
    weights = _weights(v, weights)
    if eps == 0:
        v = _of_size_one(v)
        _require_spread(v, weights)
    if weights is None:
        unit = layer_norm(v, v.shape[-1:], eps=eps)  # the same formula in one fused pass
    else:
        centred = v - _mean(v, weights)
        unit = centred * torch.rsqrt(_mean(centred**2, weights) + eps)
    return unit if (mean, variance) == (0.0, 1.0) else mean + variance**0.5 * unit


def project_mean_square(
    v: Tensor, mean_square: float = 1.0, weights: Tensor | None = None, eps: float = 0.0
) -> Tensor:
    """The function of given mean square σ² closest to v: S1 without the mean constraint, or RMSNorm.

        P(v) = σ v / √(mean(v²) + ε)

    Shapes and units as in `project_mean_variance`. Errors: `ValueError` for v = 0 with ε = 0, and
    as there.
    Source: B. Zhang and R. Sennrich, *Root Mean Square Layer Normalization*, arXiv 1910.07467.
    Explained in chapter 3, *Normalisation is a projection* (chapters/projection.ipynb).
    """
    _require_target(v, 0.0, mean_square, eps)
    weights = _weights(v, weights)
    if eps == 0:
        v = _of_size_one(v)
    square = _mean(v**2, weights)
    require(
        eps > 0 or bool((square > 0).all()),
        "the function v = 0 has no closest function of a given mean square (all are equally close); use eps > 0",
    )
    return mean_square**0.5 * v * torch.rsqrt(square + eps)


def project_nonnegative(v: Tensor) -> Tensor:
    """P_S2(v) = max(v, 0), the non-negative function closest to v: the rectifier (ReLU).

    Shapes: any; returns the same shape. Units: those of v. Errors: `ValueError` when v is not real
    and finite.
    Source: term III of the equation of Tai, Liu, Li and Chan, arXiv 2510.03989.
    Explained in chapter 4, *The feed-forward network* (chapters/feedforward.ipynb).
    """
    require_real("the function v to be projected onto v ≥ 0", v, least_dims=0)
    return torch.relu(v)


def tangent(w: Tensor, f: Tensor, weights: Tensor | None = None) -> Tensor:
    """The part of a velocity f that keeps w on S1(0, 1): the projection onto the tangent space at w.

        T_w f = f − mean(f) − mean(f w) w,    for w with mean 0 and variance 1

    Shapes: w and f (..., d), broadcast against each other; weights (d,). Units: those of f.
    Errors: `ValueError` when the shapes do not fit. That w lies on S1(0, 1) is the caller's duty:
    off it, this is no projection.
    Source: E. Hairer, C. Lubich and G. Wanner, *Geometric Numerical Integration*, chapter IV.
    Explained in chapter 5, *Operator splitting* (chapters/splitting.ipynb).
    """
    require_real("the point w on S1", w)
    require_real("the velocity f at w", f, like=w)
    require(
        w.shape[-1] == f.shape[-1] > 0,
        f"a velocity at w must have as many features as w, but w {tuple(w.shape)} and f {tuple(f.shape)} came",
    )
    broadcast("the dimensions of w and of the velocity at w", w.shape, f.shape)
    weights = _weights(w, weights)
    return f - _mean(f, weights) - _mean(f * w, weights) * w


class Normalisation(nn.Module):
    """Layer normalisation with learned gain g and bias c: the projection P_S1 and then a linear map in y.

        N(v) = g · P_S1(v) + c

    Only P_S1 is a projection. Applied twice, N gives something else, so g and c belong to the
    linear part of the equation.
    Shapes: v (..., width) to (..., width). Dimensionless. `eps` is ε of the projection.
    Errors: as in `project_mean_variance`.
    Source: J. L. Ba et al., *Layer Normalization*, arXiv 1607.06450.
    Explained in chapter 3, *Normalisation is a projection* (chapters/projection.ipynb).
    """

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        require_count("the width of a normalisation", width)
        require_number("eps of a normalisation", eps)
        require(
            eps == 0 or eps >= torch.finfo(torch.float32).tiny,
            f"eps of a normalisation must not be negative, nor below the smallest float32, but {eps:g} came",
        )
        self.width, self.eps = width, eps
        self.gain = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, v: Tensor) -> Tensor:
        require_width("v in a normalisation", v, self.width, like=self.gain)
        if self.eps == 0:
            return torch.addcmul(self.bias, self.gain, project_mean_variance(v))
        require_squarable("v in a normalisation", v)
        return layer_norm(v, v.shape[-1:], self.gain, self.bias, self.eps)  # g P(v) + c in one pass


def _mean(f: Tensor, weights: Tensor | None) -> Tensor:
    """The mean value over Ωy, with the last dimension kept; the weights add up to 1."""
    return f.mean(-1, keepdim=True) if weights is None else (f * weights).sum(-1, keepdim=True)


def _weights(v: Tensor, weights: Tensor | None) -> Tensor | None:
    """The weights as fractions of |Ωy|, in the precision of v, after making sure that they fit."""
    if weights is None:
        return None
    require_weights("weights of a projection", weights)
    largest = weights.max()
    require(
        weights.shape == v.shape[-1:] and bool(largest > 0),
        f"a projection along Ωy needs {v.shape[-1]} weights, not all zero, but shape {tuple(weights.shape)} "
        f"with the largest weight {largest.item():.3g} came",
    )
    weights = weights / largest  # first to a safe size: their sum may overflow
    return (weights / weights.sum()).to(v.dtype)


def _require_target(v: Tensor, mean: float, variance: float, eps: float) -> None:
    require_real("the function v to be projected", v)
    require(
        v.shape[-1] > 0,
        f"a function to be projected needs at least one feature, but shape {tuple(v.shape)} came",
    )
    require_number("the mean of a projection", mean)
    require_number("the variance (or mean square) of a projection", variance)
    require_number("eps of a projection", eps)
    require(
        variance > 0 and (eps == 0 or eps >= torch.finfo(v.dtype).tiny),
        "a projection needs a positive variance (or mean square), and eps either 0 or "
        f"not below the smallest number of {v.dtype}, but {variance:g} and eps = {eps:g} came",
    )
    if eps > 0:
        require_squarable("the function v to be projected", v)


def _of_size_one(v: Tensor) -> Tensor:
    """v times a power of two, so that its square neither overflows nor vanishes.

    An exact projection does not see the size of v, and a power of two costs no digit.
    """
    exponent = -torch.frexp(v.detach().abs().amax(-1, keepdim=True)).exponent
    most = torch.frexp(torch.tensor(torch.finfo(v.dtype).max, dtype=v.dtype)).exponent - 1
    return v * torch.ldexp(torch.ones_like(v[..., :1].detach()), exponent.clamp(max=most))


def _require_spread(v: Tensor, weights: Tensor | None) -> None:
    """Without ε, refuse functions that are constant up to rounding: there the closest point is not unique."""
    v = v.detach()
    if weights is not None:
        v = v[..., weights > 0]  # nodes of weight 0 are not seen
        weights = weights[weights > 0]
    size = v.abs().amax(-1, keepdim=True)
    spread = _mean((v - _mean(v, weights)) ** 2, weights).sqrt()
    require(
        bool((spread > 8 * torch.finfo(v.dtype).eps * size).all()),
        "a constant function has no unique closest function of mean σ1 and variance σ2² (all of S1 is equally close), "
        "but v is constant along its last dimension somewhere; use eps > 0",
    )
