"""The feed-forward network: a linear integral map, the projection onto u ≥ 0, and a second linear
integral map.

    F(u)(x, y) = ∫_Ωz W_2(y, z) P_S2( ∫_Ωy W_1(z, ỹ) u(x, ỹ) dỹ + b_1(z) ) dz + b_2(y)

It acts on the feature variable y alone, at each token x by itself; z runs over a hidden feature
domain Ωz of its own.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from lib.checks import require, require_callable, require_count, require_width
from lib.domain import Domain, integral_map
from lib.projection import project_nonnegative


def feed_forward(
    u: Tensor,
    W1: Tensor,
    b1: Tensor,
    W2: Tensor,
    b2: Tensor,
    features: Domain | None = None,
    hidden: Domain | None = None,
    activation: Callable[[Tensor], Tensor] = project_nonnegative,
) -> Tensor:
    """F(u), the feed-forward velocity on any grids of the features Ωy and the hidden features Ωz.

        F(u)_i = Σ_k W2_ik ω_k max(Σ_j W1_kj w_j u_j + b1_k, 0) + b2_i

    Shapes: u (..., d); W1 (m, d), b1 (m,), W2 (d, m), b2 (d,), samples of the kernels and biases at
    the nodes; `features` has d nodes (weights w), `hidden` has m (weights ω); None means unit
    cells. Returns (..., d). Dimensionless.
    Errors: `ValueError` when shapes do not fit or a number is not finite.
    Source: term III of the equation of Tai, Liu, Li and Chan, arXiv 2510.03989.
    Explained in chapter 4, *The feed-forward network* (chapters/feedforward.ipynb).
    """
    for grid in (features, hidden):
        require(
            grid is None or isinstance(grid, Domain),
            f"features and hidden features need a Domain or None, but {grid!r} came",
        )
    raised = integral_map(W1, u, None if features is None else features.weights, b1)  # (..., m)
    return integral_map(W2, activation(raised), None if hidden is None else hidden.weights, b2)


class FeedForward(nn.Module):
    """The feed-forward velocity with learned kernels on unit cells: what every standard transformer uses.

        F(u) = W_2 max(W_1 u + b_1, 0) + b_2

    Shapes: u (..., N, width) to (..., N, width), hidden width m = `hidden`. Dimensionless.
    `activation` is the projection onto u ≥ 0; another one (such as GELU, which is no projection)
    can be put in its place.
    Errors: `ValueError` when u does not fit or a width is not a positive whole number.
    Source: A. Vaswani et al., *Attention Is All You Need*, arXiv 1706.03762, section 3.3.
    Explained in chapter 4, *The feed-forward network* (chapters/feedforward.ipynb).
    """

    def __init__(
        self, width: int, hidden: int, activation: Callable[[Tensor], Tensor] = project_nonnegative
    ) -> None:
        super().__init__()
        require_count("the width of a feed-forward network", width)
        require_count("the hidden width of a feed-forward network", hidden)
        require_callable("the activation of a feed-forward network", activation)
        self.width, self.activation = width, activation
        self.W1 = nn.Linear(width, hidden)
        self.W2 = nn.Linear(hidden, width)

    def forward(self, u: Tensor) -> Tensor:
        require_width("u in a feed-forward network", u, self.width, like=self.W1.weight)
        if self.activation is project_nonnegative:
            # the same projection, in place: the largest array of a layer
            return self.W2(torch.relu_(self.W1(u)))
        return self.W2(self.activation(self.W1(u)))  # no name keeps the large arrays longer
