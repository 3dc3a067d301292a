"""Time steps: how the computer walks down the river, and how it splits a hard equation into easy ones.

A *velocity* is a function f(u) with u_t = f(u). A *flow* is a function flow(u, dt) that moves u for the time dt. `euler`, `midpoint`
and `rk4` turn a velocity into a flow; `lie` and `strang` make the flow of a sum out of the flows of its parts; `constrained`
keeps a flow on a set. A layer of a transformer is one `lie` step with dt = 1.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lib.checks import require, require_count, require_real, require_step
from lib.projection import project_mean_variance, tangent

Velocity = Callable[[Tensor], Tensor]
Flow = Callable[[Tensor, float], Tensor]


# ---- one step of u_t = f(u) ----------------------------------------------------------------------


def euler(velocity: Velocity, u: Tensor, dt: float) -> Tensor:
    """One explicit Euler step u + Δt f(u), of order 1: what a skip connection computes.

    Shapes: u any, `velocity` keeps the shape. Units: dt in the unit of t. Errors: `ValueError` when dt is not positive.
    Explained in chapter 5, *Operator splitting* (chapters/splitting.ipynb).
    """
    require_step(dt)
    return u + dt * velocity(u)


def midpoint(velocity: Velocity, u: Tensor, dt: float) -> Tensor:
    """One explicit midpoint step u + Δt f(u + ½Δt f(u)), of order 2. Shapes and errors as in `euler`.

    Explained in chapter 5, *Operator splitting* (chapters/splitting.ipynb).
    """
    require_step(dt)
    return u + dt * velocity(u + dt / 2 * velocity(u))


def rk4(velocity: Velocity, u: Tensor, dt: float) -> Tensor:
    """One step of the classical Runge-Kutta method, of order 4. Shapes and errors as in `euler`.

        u + Δt (k₁ + 2k₂ + 2k₃ + k₄)/6

    Source: E. Hairer, S. P. Nørsett and G. Wanner, *Solving Ordinary Differential Equations I*, section II.1.
    Explained in chapter 5, *Operator splitting* (chapters/splitting.ipynb).
    """
    require_step(dt)
    k1 = velocity(u)
    k2 = velocity(u + dt / 2 * k1)
    k3 = velocity(u + dt / 2 * k2)
    k4 = velocity(u + dt * k3)
    return u + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


# ---- splitting u_t = f_1(u) + f_2(u) + ... -------------------------------------------------------


def lie(flows: Sequence[Flow], u: Tensor, dt: float) -> Tensor:
    """Lie splitting: one flow after the other, each for the whole step. Order 1, unless the flows commute.

        u ← Φ_m^Δt ∘ ... ∘ Φ_1^Δt (u)

    Shapes: u any, each flow keeps the shape. Errors: `ValueError` when dt is not positive or there is no flow.
    Source: S. MacNamara and G. Strang, *Operator Splitting*, doi 10.1007/978-3-319-41589-5_3.
    Explained in chapter 5, *Operator splitting* (chapters/splitting.ipynb).
    """
    _require_flows(flows, dt)
    for flow in flows:
        u = flow(u, dt)
    return u


def strang(flows: Sequence[Flow], u: Tensor, dt: float) -> Tensor:
    """Strang splitting: half a step of each flow there, a full one of the last, half a step of each back. Order 2.

        u ← Φ_1^{Δt/2} ∘ ... ∘ Φ_m^Δt ∘ ... ∘ Φ_1^{Δt/2} (u)

    The order is 2 when every flow is itself of order 2 or better. Shapes and errors as in `lie`.
    Source: G. Strang, *On the construction and comparison of difference schemes*, doi 10.1137/0705041.
    Explained in chapter 5, *Operator splitting* (chapters/splitting.ipynb).
    """
    _require_flows(flows, dt)
    *halves, last = flows
    for flow in halves:
        u = flow(u, dt / 2)
    u = last(u, dt)
    for flow in reversed(halves):
        u = flow(u, dt / 2)
    return u


# ---- constraints and relaxation ------------------------------------------------------------------


def constrained(velocity: Velocity, step: Callable[[Velocity, Tensor, float], Tensor] = midpoint) -> Flow:
    """The flow of w_t = P_T(w) f(w) on S1(0, 1): steps along the constraint, then the projection onto it.

        w ← P_S1( step of the tangent field P_T(w) f(w) )

    The tangent field keeps the order of `step`; projecting after a step of the plain field f falls back to order 1 in a
    Strang splitting. Shapes: w (..., d) with mean 0 and variance 1 along d. Errors: as in the step and the projection.
    Source: E. Hairer, C. Lubich and G. Wanner, *Geometric Numerical Integration*, section IV.4.
    Explained in chapter 5, *Operator splitting* (chapters/splitting.ipynb).
    """

    def along(w: Tensor) -> Tensor:
        # A stage of the step may leave S1 a little; the field is that of the nearest point on S1.
        w = project_mean_variance(w)
        return tangent(w, velocity(w))

    return lambda w, dt: project_mean_variance(step(along, w, dt))


def relax(u: Tensor, v: Tensor, dt: float) -> Tensor:
    """The relaxed value θu + (1 − θ)v with θ = 1/(1 + Δt), which is (u + Δt v)/(1 + Δt).

    Seen this way a skip connection averages the old value u with the proposal v; Δt = 1 is the plain average. The factor
    1 + Δt disappears in the next projection P_S1 when its ε is divided by (1 + Δt)². Shapes: u and v alike.
    Errors: `ValueError` when dt is not positive or the shapes differ.
    Source: Tai, Liu, Li and Chan, arXiv 2510.03989.
    Explained in chapter 5, *Operator splitting* (chapters/splitting.ipynb).
    """
    require_step(dt)
    require(
        u.shape == v.shape,
        f"relaxation averages two functions on the same grid, but their shapes are {tuple(u.shape)} and {tuple(v.shape)}",
    )
    theta = 1 / (1 + dt)
    return theta * u + (1 - theta) * v


# ---- many steps ----------------------------------------------------------------------------------


def evolve(step: Flow, u: Tensor, t0: float, t1: float, steps: int, trajectory: bool = False) -> Tensor:
    """Walk from t0 to t1 in equal steps u ← step(u, dt), dt = (t1 − t0)/steps.

    Shapes: u any; returns the state at t1, or with `trajectory` the states at all steps + 1 times, stacked in front:
    (steps + 1, ...). Errors: `ValueError` when t1 ≤ t0 or steps < 1.
    Explained in chapter 5, *Operator splitting* (chapters/splitting.ipynb).
    """
    require_count("the number of steps", steps)
    require(
        -float("inf") < t0 < t1 < float("inf"),
        f"a walk goes forward in time, from t0 to a later t1, but t0 = {t0:g} and t1 = {t1:g} came",
    )
    require_real("the state u at the start of a walk", u, least_dims=0)
    states = [u]
    for _ in range(steps):
        u = step(u, (t1 - t0) / steps)
        if trajectory:
            states.append(u)
    return torch.stack(states) if trajectory else u


def _require_flows(flows: Sequence[Flow], dt: float) -> None:
    require_step(dt)
    require(len(flows) > 0, "a splitting needs at least one flow, but none came")
