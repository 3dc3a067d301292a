"""Time steps: how the computer walks down the river, and how it splits a hard equation into easy
ones.

A *velocity* is a function f(u) with u_t = f(u). A *flow* is a function flow(u, dt) that moves u for
the time dt. `euler`, `midpoint` and `rk4` turn a velocity into a flow; `lie` and `strang` make the
flow of a sum out of the flows of its parts; `constrained` keeps a flow on a set. A layer of a
transformer is one `lie` step with dt = 1.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lib.checks import (
    require,
    require_callable,
    require_count,
    require_number,
    require_real,
    require_step,
)
from lib.projection import project_mean_variance, tangent

Velocity = Callable[[Tensor], Tensor]
Flow = Callable[[Tensor, float], Tensor]


# ---- one step of u_t = f(u) ----------------------------------------------------------------------


def euler(velocity: Velocity, u: Tensor, dt: float) -> Tensor:
    """One explicit Euler step u + Δt f(u), of order 1: what a skip connection computes.

    Shapes: u any, `velocity` keeps the shape. Units: dt in the unit of t. Errors: `ValueError` when
    dt is not positive.
    Explained in chapter 5, *Operator splitting* (chapters/splitting.ipynb).
    """
    f = _field(velocity, u, dt)
    return torch.add(u, f(u), alpha=dt)  # u + dt f(u) in one pass


def midpoint(velocity: Velocity, u: Tensor, dt: float) -> Tensor:
    """One explicit midpoint step u + Δt f(u + ½Δt f(u)), of order 2. Shapes and errors as in `euler`.

    Explained in chapter 5, *Operator splitting* (chapters/splitting.ipynb).
    """
    f = _field(velocity, u, dt)
    return u + dt * f(u + dt / 2 * f(u))


def rk4(velocity: Velocity, u: Tensor, dt: float) -> Tensor:
    """One step of the classical Runge-Kutta method, of order 4. Shapes and errors as in `euler`.

        u + Δt (k₁ + 2k₂ + 2k₃ + k₄)/6

    Source: E. Hairer, S. P. Nørsett and G. Wanner, *Solving Ordinary Differential Equations I*,
    section II.1.
    Explained in chapter 5, *Operator splitting* (chapters/splitting.ipynb).
    """
    f = _field(velocity, u, dt)
    k1 = f(u)
    k2 = f(u + dt / 2 * k1)
    k3 = f(u + dt / 2 * k2)
    k4 = f(u + dt * k3)
    return u + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


# ---- splitting u_t = f_1(u) + f_2(u) + ... -------------------------------------------------------


def lie(flows: Sequence[Flow], u: Tensor, dt: float) -> Tensor:
    """Lie splitting: one flow after the other, each for the whole step. Order 1, unless the flows commute.

        u ← Φ_m^Δt ∘ ... ∘ Φ_1^Δt (u)

    Shapes: u any, each flow keeps the shape. Errors: `ValueError` when dt is not positive or there
    is no flow.
    Source: S. MacNamara and G. Strang, *Operator Splitting*, doi 10.1007/978-3-319-41589-5_3.
    Explained in chapter 5, *Operator splitting* (chapters/splitting.ipynb).
    """
    _require_flows(flows, u, dt)
    for flow in flows:
        u = _move(flow, u, dt)
    return u


def strang(flows: Sequence[Flow], u: Tensor, dt: float) -> Tensor:
    """Strang splitting: half a step of each flow there, a full one of the last, half a step of each back. Order 2.

        u ← Φ_1^{Δt/2} ∘ ... ∘ Φ_m^Δt ∘ ... ∘ Φ_1^{Δt/2} (u)

    The order is 2 when every flow is itself of order 2 or better and smooth. Shapes and errors as in `lie`.
    Source: G. Strang, *On the construction and comparison of difference schemes*, doi
    10.1137/0705041.
    Explained in chapter 5, *Operator splitting* (chapters/splitting.ipynb).
    """
    _require_flows(flows, u, dt)
    *halves, last = flows
    for flow in halves:
        u = _move(flow, u, dt / 2)
    u = _move(last, u, dt)
    for flow in reversed(halves):
        u = _move(flow, u, dt / 2)
    return u


# ---- constraints and relaxation ------------------------------------------------------------------


def constrained(
    velocity: Velocity, step: Callable[[Velocity, Tensor, float], Tensor] = midpoint
) -> Flow:
    """The flow of w_t = T_w f(w) on S1(0, 1): steps along the constraint, then the projection onto it.

        w ← P_S1( step of the tangent field T_w f(w) )

    The tangent field keeps the order of `step`; projecting after a step of the plain field f falls
    back to order 1 in a Strang splitting. Shapes: w (..., d) with mean 0 and variance 1 along d.
    Errors: as in the step and the projection.
    Source: E. Hairer, C. Lubich and G. Wanner, *Geometric Numerical Integration*, section IV.4.
    Explained in chapter 5, *Operator splitting* (chapters/splitting.ipynb).
    """

    require_callable("the velocity of a constrained flow", velocity)
    require_callable("the step of a constrained flow", step)

    def along(w: Tensor) -> Tensor:
        # A stage of the step may leave S1 a little; the field is that of the nearest point on S1.
        w = project_mean_variance(w)
        return tangent(w, velocity(w))

    return lambda w, dt: project_mean_variance(step(along, w, dt))


def relax(u: Tensor, v: Tensor, dt: float) -> Tensor:
    """The relaxed value θu + (1 − θ)v with θ = 1/(1 + Δt), which is (u + Δt v)/(1 + Δt).

    Seen this way a skip connection averages the old value u with the proposal v; Δt = 1 is the
    plain average. The factor 1 + Δt disappears in the next projection P_S1 when its ε is divided by
    (1 + Δt)². Shapes: u and v alike.
    Errors: `ValueError` when dt is not positive or the shapes differ.
    Source: after Tai, Liu, Li and Chan, arXiv 2510.03989, who take Δt = 1.
    Explained in chapter 5, *Operator splitting* (chapters/splitting.ipynb).
    """
    require_step(dt)
    require_real("the old value u in a relaxation", u, least_dims=0)
    require_real("the proposal v in a relaxation", v, least_dims=0, like=u)
    require(
        u.shape == v.shape,
        f"relaxation averages two functions on the same grid, but {tuple(u.shape)} and {tuple(v.shape)} came",
    )
    theta = 1 / (1 + dt)
    return theta * u + (1 - theta) * v


# ---- many steps ----------------------------------------------------------------------------------


def evolve(
    step: Flow, u: Tensor, t0: float, t1: float, steps: int, trajectory: bool = False
) -> Tensor:
    """Walk from t0 to t1 in equal steps u ← step(u, dt), dt = (t1 − t0)/steps.

    Shapes: u any; returns the state at t1, or with `trajectory` the states at all steps + 1 times,
    stacked in front: (steps + 1, ...). Errors: `ValueError` when t1 ≤ t0 or steps < 1.
    Explained in chapter 5, *Operator splitting* (chapters/splitting.ipynb).
    """
    require_callable("the step of a walk", step)
    require_count("the number of steps", steps)
    require_number("the time t0", t0)
    require_number("the time t1", t1)
    require(
        t0 < t1,
        f"a walk goes forward in time, from t0 to a later t1, but t0 = {t0:g} and t1 = {t1:g} came",
    )
    require_real("the state u at the start of a walk", u, least_dims=0)
    states = [u]
    for _ in range(steps):
        u = _move(step, u, (t1 - t0) / steps)
        if trajectory:
            states.append(u)
    return torch.stack(states) if trajectory else u


def _field(velocity: Velocity, u: Tensor, dt: float) -> Velocity:
    """The velocity, held to the shape of u wherever it is asked."""
    require_step(dt)
    require_callable("the velocity of a step", velocity)
    require_real("the state u of a step", u, least_dims=0)
    return lambda v: _like(u, "a velocity", velocity(v))


def _move(flow: Flow, u: Tensor, dt: float) -> Tensor:
    """The state after a flow, held to the shape of u."""
    return _like(u, "the state u after a flow (take smaller steps?)", flow(u, dt))


def _like(u: Tensor, name: str, result: Tensor) -> Tensor:
    require_real(name, result, least_dims=0)
    require(
        result.shape == u.shape,
        f"{name} must have the shape {tuple(u.shape)} of u, but shape {tuple(result.shape)} came",
    )
    return result


def _require_flows(flows: Sequence[Flow], u: Tensor, dt: float) -> None:
    require_step(dt)
    require_real("the state u of a splitting", u, least_dims=0)
    require(
        isinstance(flows, Sequence) and len(flows) > 0 and all(callable(flow) for flow in flows),
        f"a splitting needs a list of at least one flow(u, dt), but {flows!r} came",
    )
