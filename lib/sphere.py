"""Flows on the constraint: a post-norm transformer in the coordinates in which it is an equation.

A layer normalisation is u = g w + c with w = P_S1(v). The gain g and the bias c are no part of the
projection; walked in small steps they would be applied once in each. So write every state by w, the
point on S1 before gain and bias. A stage of the network with the velocity B then is

    w ← P_S1( w + Δt f(w) ),    f(w) = (g − 1) w + c + B(g w + c)

With Δt = 1 this is the trained network. For Δt → 0 it is w_t = T_w (f_A(w) + f_F(w)) on a product of
spheres, one for each token: gain and bias have become a linear drift.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from lib.checks import require, require_callable, require_real, require_width, trusted
from lib.encoder import Encoder
from lib.projection import Normalisation, project_mean_variance
from lib.splitting import Flow, Velocity, constrained, euler, evolve, lie, midpoint, rk4, strang


class Layer(NamedTuple):
    """One post-norm layer in the coordinates w: its two velocities, and ε of its projections.

    Explained in chapter 9, *A trained transformer as a river* (chapters/minilm.ipynb).
    """

    attention: Velocity
    feed_forward: Velocity
    eps: float = 0.0


Scheme = Callable[[Layer], Flow]


def before_gain(velocity: Velocity, norm: Normalisation) -> Velocity:
    """The velocity of w, where u = g w + c are the gain and bias of the normalisation that made u.

        f(w) = (g − 1) w + c + B(g w + c)

    It is made so that w + f(w) = u + B(u): one step of size 1 from w is the network's own step from
    u. Shapes: `velocity` B and the result keep the shape (..., N, d) of w. Dimensionless.
    Errors: `ValueError` when B is no function, `norm` no Normalisation, or w has another width.
    Explained in chapter 9, *A trained transformer as a river* (chapters/minilm.ipynb).
    """
    require_callable("the velocity of a stage", velocity)
    require(
        isinstance(norm, Normalisation),
        f"the normalisation before a stage must be a Normalisation, but a {type(norm).__name__} came",
    )

    def f(w: Tensor) -> Tensor:
        require_width("w before gain and bias", w, norm.width, like=norm.gain)
        u = torch.addcmul(norm.bias, norm.gain, w)
        return u - w + velocity(u)

    return f


def layers_before_gain(
    encoder: Encoder, first: Normalisation, weights: Tensor | None = None
) -> list[Layer]:
    """The layers of a post-norm encoder in the coordinates w; `first` is the normalisation before the first layer.

    The attention of a layer takes gain and bias from the norm before it, which is norm2 of the
    layer before; its feed-forward map takes them from norm1 of its own layer. Shapes: weights as in
    `lib.attention.attend`.
    Errors: `ValueError` for a pre-norm layer (its u is not constrained: it can be walked in small
    steps as it is) or two different ε in one layer.
    Explained in chapter 9, *A trained transformer as a river* (chapters/minilm.ipynb).
    """
    require(
        isinstance(encoder, Encoder), f"an Encoder is needed, but a {type(encoder).__name__} came"
    )
    layers, norm = [], first
    for layer in encoder.layers:
        require(
            not layer.norm_first,
            "the coordinates w belong to post-norm layers, but a pre-norm layer came; walk it as it is, "
            "with lib.encoder",
        )
        require(
            layer.norm1.eps == layer.norm2.eps,
            f"both norms of a layer must have the same eps, but {layer.norm1.eps:g} and {layer.norm2.eps:g} came",
        )
        attention = _with_weights(layer.attention, weights)
        layers.append(
            Layer(
                before_gain(attention, norm),
                before_gain(layer.feed_forward, layer.norm1),
                layer.norm1.eps,
            )
        )
        norm = layer.norm2
    return layers


# ---- one step of a layer, for the time dt: four ways -----------------------------------------------


def lie_projected(layer: Layer) -> Flow:
    """Lie splitting with projected Euler steps, of order 1: with dt = 1 the trained network itself.

        w ← P_S1(w + Δt f_A(w)),    w ← P_S1(w + Δt f_F(w))

    Explained in chapter 9, *A trained transformer as a river* (chapters/minilm.ipynb).
    """

    def projected(velocity: Velocity) -> Flow:
        return lambda w, dt: project_mean_variance(euler(velocity, w, dt), eps=layer.eps)

    return lambda w, dt: lie([projected(layer.attention), projected(layer.feed_forward)], w, dt)


def lie_geodesic(layer: Layer) -> Flow:
    """Lie splitting along great circles, of order 1: with dt = 1 the trained network too, and yet another equation.

        w ← cos(Δt θ) w + sin(Δt θ) e,    θ(w) = ∠(w, P_S1(w + f(w)))

    e is the tangent of mean square 1 that points from w to P_S1(w + f(w)). For Δt → 0 the token
    moves along T_w f too, but with the speed θ = arctan(|T_w f| / (1 + mean(f w))).
    Errors: `ValueError` when P_S1(w + f(w)) is the point opposite to w: all great circles lead there.
    Explained in chapter 9, *A trained transformer as a river* (chapters/minilm.ipynb).
    """

    def along_circle(velocity: Velocity) -> Flow:
        def flow(w: Tensor, dt: float) -> Tensor:
            target = project_mean_variance(euler(velocity, w, 1.0), eps=layer.eps)
            cosine = (w * target).mean(-1, keepdim=True)
            across = target - cosine * w
            square = across.square().mean(-1, keepdim=True)
            require(
                bool(((cosine > 0) | (square > (8 * torch.finfo(w.dtype).eps) ** 2)).all()),
                "a step must not lead to the point of S1 opposite to w, where all great circles meet, "
                "but w + f(w) = −s w with s > 0 came",
            )
            moves = square > torch.finfo(w.dtype).tiny
            # Where nothing moves, sin(Δt θ)/sin θ is Δt. The where() inside keeps its gradient finite.
            sine = torch.where(moves, square, 1).sqrt()
            theta = torch.where(moves, torch.atan2(sine, cosine), 0)
            ratio = torch.where(moves, torch.sin(dt * theta) / sine, dt)
            return torch.cos(dt * theta) * w + ratio * across

        return flow

    return lambda w, dt: lie(
        [along_circle(layer.attention), along_circle(layer.feed_forward)], w, dt
    )


def strang_tangent(layer: Layer) -> Flow:
    """Strang splitting of midpoint steps along the constraint, of order 2: attention for Δt/2, feed-forward, attention.

    Explained in chapter 9, *A trained transformer as a river* (chapters/minilm.ipynb).
    """
    parts = [constrained(layer.attention, midpoint), constrained(layer.feed_forward, midpoint)]
    return lambda w, dt: strang(parts, w, dt)


def rk4_tangent(layer: Layer) -> Flow:
    """The classical Runge-Kutta method along the constraint, of order 4, for both velocities at once: no splitting.

    Explained in chapter 9, *A trained transformer as a river* (chapters/minilm.ipynb).
    """
    return constrained(lambda w: layer.attention(w) + layer.feed_forward(w), rk4)


# ---- the whole walk --------------------------------------------------------------------------------


def walk(
    layers: list[Layer], w: Tensor, scheme: Scheme, steps: int = 1, trajectory: bool = False
) -> Tensor:
    """Walk through all layers, each for the time 1 in `steps` steps of the scheme.

    Shapes: w (..., N, d) with mean 0 and variance 1 along d; returns the last state, or with
    `trajectory` all len(layers)·steps + 1 states, stacked in front. Units: t in layers.
    Errors: `ValueError` when there is no layer, w is not finite, or steps < 1.
    Explained in chapter 9, *A trained transformer as a river* (chapters/minilm.ipynb).
    """
    require(len(layers) > 0, "a walk needs at least one layer, but none came")
    require_callable("the scheme of a walk", scheme)
    require_real("the state w at the start of a walk", w, least_dims=2)
    states = [w.unsqueeze(0)]
    with trusted():
        for layer in layers:
            along = evolve(scheme(layer), states[-1][-1], 0.0, 1.0, steps, trajectory=True)
            states.append(along[1:])
    require_real("the state w at the end of a walk", states[-1])
    return torch.cat(states) if trajectory else states[-1][-1]


def _with_weights(attention: Callable[..., Tensor], weights: Tensor | None) -> Velocity:
    return lambda u: attention(u, weights)
