"""Continuous domains and their grids: where tokens and features live.

A transformer acts on functions u(x, y): x in Ωx says which token, y in Ωy says which feature. The
computer knows such a function at finitely many nodes. A `Domain` is a set of nodes x_i with weights
w_i, and

    ∫_Ω f(x) dx  ≈  Σ_i w_i f(x_i).

The whole book rests on this one sum; an array of shape (N, d) is a function on a grid with N and d
nodes.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lib.checks import (
    broadcast,
    require,
    require_callable,
    require_count,
    require_number,
    require_real,
    require_weights,
)


@dataclass(frozen=True, eq=False)
class Domain:
    """An interval (or any set) Ω seen through nodes x_i and quadrature weights w_i ≥ 0.

        ∫_Ω f(x) dx ≈ Σ_i w_i f(x_i)

    Shapes: `nodes` (n,), or (n, k) for points in k dimensions; `weights` (n,). Units: the nodes
    carry the unit of x, the weights the unit of dx; both are dimensionless for tokens and features.
    Errors: `ValueError` when shapes differ, a number is not finite, a weight is negative, or all
    weights are zero.
    Source: P. J. Davis and P. Rabinowitz, *Methods of Numerical Integration*, chapter 2.
    Explained in chapter 1, *Continuous domains* (chapters/domain.ipynb).
    """

    nodes: Tensor
    weights: Tensor

    def __post_init__(self) -> None:
        require_real("the nodes of a domain", self.nodes)
        require_weights("the weights of a domain", self.weights)
        require(
            self.weights.shape == self.nodes.shape[:1],
            "a domain needs one weight for each node, but there are nodes of shape "
            f"{tuple(self.nodes.shape)} and weights of shape {tuple(self.weights.shape)}",
        )
        require(
            0 < self.measure < float("inf"),
            f"a domain must have a positive, finite measure, but its weights add up to {self.measure:g}",
        )

    # ---- grids -----------------------------------------------------------------------------------

    @classmethod
    def unit_cells(cls, n: int) -> "Domain":
        """n cells of length 1, each with a node in its middle: w_i = 1 and |Ω| = n.

        This is the grid that every standard transformer uses without saying so: with it, ⟨f, g⟩ is
        the dot product.
        Explained in chapter 1, *Continuous domains* (chapters/domain.ipynb).
        """
        return cls.midpoint(n, 0.0, float(n))

    @classmethod
    def midpoint(cls, n: int, a: float = 0.0, b: float = 1.0) -> "Domain":
        """n equal cells of [a, b] with a node in the middle of each; error O(n⁻²) for smooth functions.

        Explained in chapter 1, *Continuous domains* (chapters/domain.ipynb).
        """
        h = _cell(n, a, b)
        return cls(
            a + h * (torch.arange(n, dtype=torch.float64) + 0.5),
            torch.full((n,), h, dtype=torch.float64),
        )

    @classmethod
    def trapezoid(cls, n: int, a: float = 0.0, b: float = 1.0) -> "Domain":
        """n equally spaced nodes from a to b, the two at the ends with half a weight; error O(n⁻²).

        Explained in chapter 1, *Continuous domains* (chapters/domain.ipynb).
        """
        require(
            isinstance(n, int) and n >= 2,
            f"the trapezoid rule needs at least 2 nodes, but n = {n!r} came",
        )
        h = _cell(n - 1, a, b)
        weights = torch.full((n,), h, dtype=torch.float64)
        weights[[0, -1]] = h / 2
        return cls(torch.linspace(a, b, n, dtype=torch.float64), weights)

    @classmethod
    def gauss(cls, n: int, a: float = 0.0, b: float = 1.0) -> "Domain":
        """The n Gauss-Legendre nodes of [a, b]: exact for polynomials up to degree 2n − 1.

        Explained in chapter 1, *Continuous domains* (chapters/domain.ipynb).
        """
        half = _cell(n, a, b) * n / 2
        nodes, weights = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(n))
        return cls((a + b) / 2 + half * nodes, half * weights)

    # ---- functions on the grid -------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.weights)

    def __repr__(self) -> str:
        return f"Domain({len(self)} nodes, measure {self.measure:g})"

    @property
    def measure(self) -> float:
        """|Ω| = ∫_Ω 1 = Σ_i w_i. Explained in chapter 1, *Continuous domains* (chapters/domain.ipynb)."""
        return self.weights.sum().item()

    def sample(self, f: Callable[[Tensor], Tensor]) -> Tensor:
        """The values f(x_i) of a function, shape (n, ...).

        Explained in chapter 1, *Continuous domains* (chapters/domain.ipynb).
        """
        require_callable("a function to be sampled", f)
        values = f(self.nodes)
        require_real("the samples of the function", values)
        require(
            values.shape[0] == len(self),
            f"a sampled function must have {len(self)} values, one for each node, but shape {tuple(values.shape)} came",
        )
        return values

    def sample_kernel(self, W: Callable[[Tensor, Tensor], Tensor], other: "Domain") -> Tensor:
        """The matrix W(y_i, ỹ_j) of a kernel, y_i the nodes of this domain and ỹ_j those of the other, shape (n, m).

        Explained in chapter 1, *Continuous domains* (chapters/domain.ipynb).
        """
        require_callable("a kernel to be sampled", W)
        require(isinstance(other, Domain), f"the other domain must be a Domain, but {other!r} came")
        values = W(self.nodes[:, None], other.nodes[None, :])
        require_real("the samples of the kernel", values, least_dims=0)
        shape = (len(self), len(other))
        require(
            broadcast("the dimensions of a sampled kernel", values.shape, shape) == shape,
            f"a kernel between these domains must have shape {shape}, but shape {tuple(values.shape)} came",
        )
        return values.expand(shape)

    def integrate(self, f: Tensor, dim: int = -1) -> Tensor:
        """∫_Ω f = Σ_i w_i f_i along dimension `dim`, which must hold n values; that dimension is gone afterwards.

        Errors: `ValueError` when the dimension does not fit the grid.
        Explained in chapter 1, *Continuous domains* (chapters/domain.ipynb).
        """
        return (f * self._along(f, dim, self.weights)).sum(dim)

    def inner(self, f: Tensor, g: Tensor, dim: int = -1) -> Tensor:
        """⟨f, g⟩_Ω = ∫_Ω f g along dimension `dim`; f and g are broadcast against each other.

        Explained in chapter 1, *Continuous domains* (chapters/domain.ipynb).
        """
        require_real("the function f in an inner product", f)
        require_real("the function g in an inner product", g, like=f)
        broadcast("the dimensions of two functions in an inner product", f.shape, g.shape)
        return self.integrate(f * g, dim)

    def mean(self, f: Tensor, dim: int = -1) -> Tensor:
        """The mean value m = (1/|Ω|) ∫_Ω f. Explained in chapter 1, *Continuous domains* (chapters/domain.ipynb)."""
        return (f * self._along(f, dim, self.weights / self.measure)).sum(dim)

    def variance(self, f: Tensor, dim: int = -1) -> Tensor:
        """The variance (1/|Ω|) ∫_Ω (f − m)², with divisor |Ω| (N on unit cells, not N − 1).

        Explained in chapter 1, *Continuous domains* (chapters/domain.ipynb).
        """
        centred = f - self.mean(f, dim).unsqueeze(dim)
        return self.mean(centred**2, dim)

    def _along(self, f: Tensor, dim: int, weights: Tensor) -> Tensor:
        """The weights in the precision of f, shaped so that they multiply its dimension `dim`."""
        require_real("a function on a domain", f)
        require(
            isinstance(dim, int) and -f.dim() <= dim < f.dim() and f.shape[dim] == len(self),
            f"a function on this domain must have {len(self)} values along dimension {dim}, "
            f"but shape {tuple(f.shape)} came",
        )
        shape = [1] * f.dim()
        shape[dim] = len(self)
        return weights.to(f.dtype).reshape(shape)


def integral_map(
    kernel: Tensor, u: Tensor, weights: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """A linear integral map in the feature variable: the continuous form of a linear layer.

        (𝒲u)(x, y) = ∫_Ωy W(y, ỹ) u(x, ỹ) dỹ + b(y)  ≈  Σ_j W_ij w_j u_j + b_i

    Shapes: kernel W (d_out, d_in), the samples W(y_i, ỹ_j); u (..., d_in); weights (d_in,) of the
    grid of ỹ, None means unit cells; bias (d_out,). Returns (..., d_out). Dimensionless. On unit
    cells it is `torch.nn.functional.linear`.
    Errors: `ValueError` when the shapes do not fit or a number is not finite.
    Source: term III of the equation of Tai, Liu, Li and Chan, arXiv 2510.03989.
    Explained in chapter 1, *Continuous domains* (chapters/domain.ipynb).
    """
    require_real("the kernel W of an integral map", kernel)
    require_real("the function u in an integral map", u, like=kernel)
    require(
        kernel.dim() == 2 and u.shape[-1] == kernel.shape[-1] > 0,
        f"an integral map needs kernel (d_out, d_in) and u (..., d_in), but kernel {tuple(kernel.shape)} "
        f"and u {tuple(u.shape)} came",
    )
    if bias is not None:
        require_real("the bias b of an integral map", bias, like=kernel)
        require(
            bias.shape == kernel.shape[:1],
            f"the bias b of an integral map needs {kernel.shape[0]} values, but shape {tuple(bias.shape)} came",
        )
    if weights is not None:
        require_weights("the weights of an integral map", weights)
        require(
            weights.shape == kernel.shape[1:],
            f"an integral map needs {kernel.shape[1]} weights, but shape {tuple(weights.shape)} came",
        )
        kernel = kernel * weights.to(kernel.dtype)
    result = torch.nn.functional.linear(u, kernel, bias)
    require_real("the result of an integral map", result)
    return result


def _cell(n: int, a: float, b: float) -> float:
    """The length of one of n equal cells of [a, b]."""
    require_count("the number n of nodes", n)
    require_number("the end a of an interval", a)
    require_number("the end b of an interval", b)
    require(a < b, f"an interval [a, b] needs a < b, but [{a:g}, {b:g}] came")
    return (b - a) / n
