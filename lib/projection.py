"""Projections: layer normalisation and the rectifier are closest-point maps onto sets of functions.

    S1 = {u : mean_y u = σ1, var_y u = σ2²}      a sphere in a hyperplane:  layer normalisation
    S2 = {u : u ≥ 0}                             a convex cone:             the rectifier (ReLU)

P_S(v) is the element of S closest to v. It is what remains of an implicit time step of u_t ∈ −∂I_S(u), for any step size:
the projection does not know Δt.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from lib.checks import require, require_count, require_real, require_weights


def project_mean_variance(
    v: Tensor, mean: float = 0.0, variance: float = 1.0, weights: Tensor | None = None, eps: float = 0.0
) -> Tensor:
    """P_S1(v), the function of given mean σ1 and variance σ2² that is closest to v along the last dimension.

        P_S1(v) = σ1 + σ2 (v − m) / √(s² + ε),    m, s² the mean and variance of v over Ωy (divisor |Ωy|)

    Shapes: v (..., d); weights (d,) of the grid of Ωy, None means unit cells. Returns (..., d). Units: those of v.
    With ε = 0 it is the exact projection, undefined where v is constant (every point of S1 is then equally close);
    ε > 0 keeps it defined and is what layer normalisation computes. Gain and bias are not part of the projection.
    Errors: `ValueError` for a variance that is not positive, a negative ε, or a constant v with ε = 0.
    Source: Theorem 3.1 of Tai, Liu, Li and Chan, arXiv 2510.03989; J. L. Ba et al., *Layer Normalization*, arXiv 1607.06450.
    Explained in chapter 3, *Normalisation is a projection* (chapters/projection.ipynb).
    """
    _require_target(v, variance, eps)
    weights = _weights(v, weights)
    if eps == 0:
        _require_spread(v, weights)
    if weights is None:
        unit = layer_norm(v, v.shape[-1:], eps=eps)  # the same formula in one fused pass
    else:
        centred = v - _mean(v, weights)
        unit = centred * torch.rsqrt(_mean(centred**2, weights) + eps)
    return unit if (mean, variance) == (0.0, 1.0) else mean + variance**0.5 * unit


def project_mean_square(v: Tensor, mean_square: float = 1.0, weights: Tensor | None = None, eps: float = 0.0) -> Tensor:
    """The function of given mean square σ² closest to v: S1 without the mean constraint, or RMSNorm.

        P(v) = σ v / √(mean(v²) + ε)

    Shapes and units as in `project_mean_variance`. Errors: `ValueError` for v = 0 with ε = 0, and as there.
    Source: B. Zhang and R. Sennrich, *Root Mean Square Layer Normalization*, arXiv 1910.07467.
    Explained in chapter 3, *Normalisation is a projection* (chapters/projection.ipynb).
    """
    _require_target(v, mean_square, eps)
    weights = _weights(v, weights)
    square = v.square().mean(-1, keepdim=True) if weights is None else _mean(v**2, weights)
    require(
        eps > 0 or bool((square > 0).all()),
        "the function v = 0 has no closest function of a given mean square (all are equally close); use eps > 0",
    )
    return mean_square**0.5 * v * torch.rsqrt(square + eps)


def project_nonnegative(v: Tensor) -> Tensor:
    """P_S2(v) = max(v, 0), the non-negative function closest to v: the rectifier (ReLU).

    Shapes: any; returns the same shape. Units: those of v. Errors: `ValueError` when v is not real and finite.
    Source: equation (1), term III, of Tai, Liu, Li and Chan, arXiv 2510.03989.
    Explained in chapter 4, *The feed-forward network* (chapters/feedforward.ipynb).
    """
    require_real("the function v to be projected onto v ≥ 0", v, least_dims=0)
    return torch.relu(v)


def tangent(w: Tensor, f: Tensor, weights: Tensor | None = None) -> Tensor:
    """The part of a velocity f that keeps w on S1(0, 1): the projection onto the tangent space at w.

        P_T(w) f = f − mean(f) − mean(f w) w,    for w with mean 0 and variance 1

    Shapes: w and f (..., d), broadcast against each other; weights (d,). Units: those of f.
    Errors: `ValueError` when the shapes do not fit. That w lies on S1(0, 1) is the caller's duty: off it, this is no projection.
    Source: E. Hairer, C. Lubich and G. Wanner, *Geometric Numerical Integration*, chapter IV.
    Explained in chapter 5, *Operator splitting* (chapters/splitting.ipynb).
    """
    require_real("the point w on S1", w)
    require_real("the velocity f at w", f)
    require(
        w.shape[-1] == f.shape[-1],
        f"a velocity at w must have as many features as w, but w has shape {tuple(w.shape)} and f {tuple(f.shape)}",
    )
    weights = _weights(w, weights)
    return f - _mean(f, weights) - _mean(f * w, weights) * w


class Normalisation(nn.Module):
    """Layer normalisation with learned gain g and bias c: the projection P_S1 and then a linear map in y.

        N(v) = g · P_S1(v) + c

    Only P_S1 is a projection. Applied twice, N gives something else, so g and c belong to the linear part of the equation.
    Shapes: v (..., width) to (..., width). Dimensionless. `eps` is ε of the projection.
    Errors: as in `project_mean_variance`.
    Source: J. L. Ba et al., *Layer Normalization*, arXiv 1607.06450.
    Explained in chapter 3, *Normalisation is a projection* (chapters/projection.ipynb).
    """

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        require_count("the width of a normalisation", width)
        self.eps = eps
        self.gain = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, v: Tensor) -> Tensor:
        return torch.addcmul(self.bias, self.gain, project_mean_variance(v, eps=self.eps))


def _mean(f: Tensor, weights: Tensor | None) -> Tensor:
    """The mean value over Ωy, with the last dimension kept."""
    if weights is None:
        return f.mean(-1, keepdim=True)
    return (f * weights).sum(-1, keepdim=True) / weights.sum()


def _weights(v: Tensor, weights: Tensor | None) -> Tensor | None:
    """The weights in the precision of v, after making sure that they fit."""
    if weights is None:
        return None
    require_weights("the weights of a projection", weights)
    require(
        weights.shape == v.shape[-1:] and bool(weights.sum() > 0),
        f"a projection along Ωy needs {v.shape[-1]} weights, not all zero, but weights of shape "
        f"{tuple(weights.shape)} came for v of shape {tuple(v.shape)}",
    )
    return weights.to(v.dtype)


def _require_target(v: Tensor, variance: float, eps: float) -> None:
    require_real("the function v to be projected", v)
    require(
        0 < variance < float("inf") and 0 <= eps < float("inf"),
        "a projection needs a positive variance (or mean square) and eps ≥ 0, but "
        f"{variance:g} and eps = {eps:g} came",
    )


def _require_spread(v: Tensor, weights: Tensor | None) -> None:
    """Without ε, refuse functions that are constant up to rounding: there the closest point is not unique."""
    size = v.detach().abs().amax(-1, keepdim=True)
    centred = v.detach() - _mean(v.detach(), weights)
    spread = _mean((centred / size.clamp_min(torch.finfo(v.dtype).tiny)) ** 2, weights).sqrt()
    require(
        bool((spread > 8 * torch.finfo(v.dtype).eps).all()),
        "a constant function has no unique closest function of mean σ1 and variance σ2² (all of S1 is equally close), "
        "but v is constant along its last dimension somewhere; use eps > 0",
    )
