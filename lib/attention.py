"""Attention: every token feels all others through a non-local integral over Ωx.

    s(x, x̃) = ⟨Q(x,·), K(x̃,·)⟩_Ωy / √|Ωy|          how much x asks of x̃
    γ(x, x̃) = exp s(x, x̃) / ∫_Ωx exp s(x, z) dz      a density in x̃: it integrates to 1
    ⟨γ, V⟩(x) = ∫_Ωx γ(x, x̃) V(x̃) dx̃                 the velocity that attention gives to u

On a grid with weights w_j this is softmax_j(s_ij + log w_j) · V_j, because w_j e^{s_ij} = e^{s_ij +
log w_j}. Hence equal weights cancel, unequal weights are an additive bias, and the weight 0 (log 0
= −∞) is a mask. Several heads are one more integral, over h ∈ Ωh, and on unit cells a sum.
"""

import math

import torch
from torch import Tensor, nn

from lib.checks import (
    is_finite,
    require,
    require_count,
    require_number,
    require_real,
    require_weights,
    require_width,
)
from lib.streaming import common_lead, stream


def kernel(
    Q: Tensor, K: Tensor, weights: Tensor | None = None, scale: float | None = None
) -> Tensor:
    """The attention kernel γ, a density over the keys: Σ_j w_j γ_ij = 1 in every row i.

        γ_ij = e^{s_ij} / Σ_k w_k e^{s_ik},    s_ij = scale · Q_i · K_j

    Shapes: Q (..., N_q, d), K (..., N_k, d); weights (N_k,) or (..., N_q, N_k), None means unit
    cells. Returns (..., N_q, N_k). Dimensionless; γ is a density per unit of x̃, not a matrix of
    probabilities (those are w_j γ_ij). `scale` is 1/√d unless given. It is made for looking at:
    `attend` gives ⟨γ, V⟩ and never stores γ.
    Errors: `ValueError` for shapes that do not fit, negative or non-finite numbers, or a row that
    sees no node.
    Source: term I of the equation of Tai, Liu, Li and Chan, arXiv 2510.03989.
    Explained in chapter 2, *The attention kernel* (chapters/attention.ipynb).
    """
    scale, bias = _arguments(Q, K, K, weights, scale)
    scores = Q @ K.mT * scale  # (..., N_q, N_k)
    if bias is None:
        gamma = torch.softmax(scores, dim=-1)
    else:  # w_j γ_ij = softmax_j(s_ij + log w_j), which is 0 at a node of weight 0
        gamma = torch.softmax(scores + bias, dim=-1) / torch.where(weights > 0, weights, 1).to(
            Q.dtype
        )
    require(is_finite(gamma), OVERFLOW)
    return gamma


def attend(
    Q: Tensor, K: Tensor, V: Tensor, weights: Tensor | None = None, scale: float | None = None
) -> Tensor:
    """The attention integral ⟨γ, V⟩_Ωx, computed as a streamed quadrature: γ is never stored.

        ⟨γ, V⟩_i = Σ_j w_j γ_ij V_j = Σ_j w_j e^{s_ij} V_j / Σ_j w_j e^{s_ij}

    Shapes: Q (..., N_q, d), K (..., N_k, d), V (..., N_k, d_v); weights (N_k,) or (..., N_q, N_k),
    None means unit cells, the weight 0 hides a node (and has gradient 0). Returns (..., N_q, d_v).
    Dimensionless. `scale` is 1/√d unless given. (With fewer than 16 keys γ is a small array, and is
    stored.)
    Second and forward-mode derivatives need torch's slower path:
    `torch.nn.attention.sdpa_kernel(SDPBackend.MATH)`.
    Errors: `ValueError` for shapes that do not fit, negative or non-finite numbers, or a row that
    sees no node.
    Source: term I of the equation of Tai, Liu, Li and Chan, arXiv 2510.03989.
    Explained in chapter 2, *The attention kernel* (chapters/attention.ipynb).
    """
    scale, bias = _arguments(Q, K, V, weights, scale)
    result = stream(Q, K, V, bias, scale)
    require(is_finite(result), OVERFLOW)
    return result


def causal(weights: Tensor) -> Tensor:
    """Weights that let the point x see only [0, x]: the integral over Ωx becomes one of Volterra type.

        w_ij = w_j for j ≤ i, else 0

    Shapes: weights (N,); returns (N, N), row i for the point x_i. Units: those of dx.
    Errors: `ValueError` when the weights are not one non-negative number for each node.
    Explained in chapter 2, *The attention kernel* (chapters/attention.ipynb).
    """
    require_weights("the weights of a causal integral", weights)
    require(
        weights.dim() == 1,
        f"causal needs weights of shape (N,), but their shape is {tuple(weights.shape)}",
    )
    return torch.tril(weights.expand(len(weights), -1))


class SelfAttention(nn.Module):
    """The velocity ⟨γ, V⟩_Ωx that attention gives to u, with H heads and learned kernels W^Q, W^K, W^V, W^O.

        A(u) = Σ_h ⟨γ_h, V_h⟩ W_h^O + b^O,    Q, K, V = W^{Q,K,V} u + b^{Q,K,V}

    Shapes: u (..., N, width) to (..., N, width), any number of leading dimensions; weights as in
    `attend`. Padding of a batch is the weight 0 in shape (B, 1, N). Dimensionless. Each head has
    width/heads features and the scale 1/√(width/heads).
    Errors: `ValueError` when the width is not divisible by the heads, or u does not fit.
    Source: A. Vaswani et al., *Attention Is All You Need*, arXiv 1706.03762, section 3.2.
    Explained in chapter 2, *The attention kernel* (chapters/attention.ipynb).
    """

    def __init__(self, width: int, heads: int = 1) -> None:
        super().__init__()
        require_count("the width of attention", width)
        require_count("the number of heads", heads)
        require(
            width % heads == 0,
            f"the width must be divisible by the number of heads, but width = {width} and heads = {heads}",
        )
        self.width, self.heads = width, heads
        self.QKV = nn.Linear(
            width, 3 * width
        )  # the three maps stacked: one product instead of three
        self.O = nn.Linear(width, width)

    def forward(self, u: Tensor, weights: Tensor | None = None) -> Tensor:
        Q, K, V = self.split(u)
        if isinstance(weights, Tensor) and weights.dim() > 2:
            require(
                weights.dim() <= u.dim(),
                f"weights for u {tuple(u.shape)} must be (N,), (N, N) or (B, N, N), or (B, 1, N) for "
                f"the padding of a batch, but shape {tuple(weights.shape)} came",
            )
            weights = weights.unsqueeze(-3)  # (..., 1, N_q, N_k): the same for every head
        heads = attend(Q, K, V, weights)  # (..., H, N, d/H)
        return self.O(heads.transpose(-2, -3).flatten(-2))  # (..., N, d)

    def split(self, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Q, K and V of every head, each of shape (..., H, N, d/H).

        Explained in chapter 2, *The attention kernel* (chapters/attention.ipynb).
        """
        require_width("u in self-attention", u, self.width, like=self.QKV.weight)
        parts = self.QKV(u).unflatten(-1, (3, self.heads, -1))  # (..., N, 3, H, d/H)
        return tuple(part.transpose(-2, -3) for part in parts.unbind(-3))


def _arguments(
    Q: Tensor, K: Tensor, V: Tensor, weights: Tensor | None, scale: float | None
) -> tuple[float, Tensor | None]:
    """The scale and the logarithms of the weights, after making sure that everything fits."""
    require_real("the queries Q", Q, least_dims=2)
    require_real("the keys K", K, least_dims=2, like=Q)
    require_real("the values V", V, least_dims=2, like=Q)
    require(
        Q.shape[-1] == K.shape[-1] > 0,
        f"queries and keys are functions of the same features y, but Q {tuple(Q.shape)} and K {tuple(K.shape)} came",
    )
    require(
        V.shape[-2] == K.shape[-2] > 0,
        "keys and values are functions of the same tokens x̃, at least one, but "
        f"K {tuple(K.shape)} and V {tuple(V.shape)} came",
    )
    if scale is None:
        scale = 1 / math.sqrt(Q.shape[-1])
    require_number("the scale of attention", scale)
    bias = None if weights is None else _log_weights(weights, Q.shape[-2], K.shape[-2]).to(Q.dtype)
    common_lead(Q, K, V, bias)
    return scale, bias


def _log_weights(weights: Tensor, rows: int, columns: int) -> Tensor:
    """log w up to a constant in each row, (..., rows or 1, columns); every row must see a node."""
    require_weights("attention weights", weights)
    require(
        weights.shape[-1] == columns and (weights.dim() == 1 or weights.shape[-2] in (1, rows)),
        f"attention weights must have shape ({columns},) or (..., {rows}, {columns}), but shape "
        f"{tuple(weights.shape)} came; padding of a batch is (B, 1, {columns})",
    )
    largest = weights.detach().amax(-1, keepdim=True)
    require(
        bool((largest > 0).all()),
        "every row of attention must see at least one node of positive weight, but one sees none; "
        "its integral has no meaning, so give that row a node or leave it out",
    )
    # Only ratios of weights matter, so equal ones become log 1 = 0 to the last digit. The where()
    # inside keeps the gradient at weight 0 finite.
    ratio = weights / largest
    bias = torch.where(ratio > 0, torch.where(ratio > 0, ratio, 1).log(), -torch.inf)
    return bias if bias.dim() > 1 else bias.unsqueeze(0)


OVERFLOW = (
    "the attention scores or the density γ are too large for this precision; make Q, K or the scale smaller, "
    "the weights larger, or use float64"
)
