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
from torch.nn.functional import pad, scaled_dot_product_attention

from lib.checks import (
    broadcast,
    is_finite,
    require,
    require_count,
    require_number,
    require_real,
    require_weights,
    require_width,
)

# With fewer keys than fit into one vector of the processor, torch's fused kernel returns 0 where the
# scores are NaN or overflow: an error would become a plausible number. The plain formula keeps it.
FEW = 16


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
    require(is_finite(gamma), _OVERFLOW)
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
    result = _stream(Q, K, V, bias, scale)
    require(is_finite(result), _OVERFLOW)
    return result


def attend_heads(
    Q: Tensor,
    K: Tensor,
    V: Tensor,
    W_O: Tensor | None = None,
    weights: Tensor | None = None,
    head_weights: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """Many heads as one more integral, over the head variable h ∈ Ωh.

        ∫_Ωh ∫_Ωx γ(x, x̃, h) V(x̃, y, h) dx̃ dh  ≈  Σ_h ω_h Σ_j w_j γ_ij(h) W_h^O V_j(h)

    Shapes: Q (..., H, N_q, d), K (..., H, N_k, d), V (..., H, N_k, d_v), with one head or H in each;
    W_O (H, d_out, d_v) brings the values of a head to the features of u, None means that V has them
    already; weights as in `attend`; head_weights ω (H,) of the grid of h, None means unit cells, a
    sum. Returns (..., N_q, d_out), or (..., N_q, d_v) without W_O. Dimensionless. `scale` is 1/√d
    unless given. No head is normalised against another: the weights ω do not cancel.
    Errors: `ValueError` as in `attend`, and for W_O or head_weights that do not fit.
    Source: A. Vaswani et al., *Attention Is All You Need*, arXiv 1706.03762, section 3.2.2, as the
    integral of Tai, Liu, Li and Chan, arXiv 2510.03989.
    Explained in chapter 6, *Many heads* (chapters/heads.ipynb).
    """
    for name, part in (("the queries Q", Q), ("the keys K", K), ("the values V", V)):
        require_real(f"{name} of many heads", part, least_dims=3)
    heads = attend(Q, K, V, weights, scale)  # (..., H, N_q, d_v)
    count, d_v = heads.shape[-3], heads.shape[-1]
    if head_weights is not None:
        require_weights("the weights of the heads", head_weights)
        require(
            head_weights.shape == (count,),
            f"the weights of the heads must be one for each of the {count} heads, but shape "
            f"{tuple(head_weights.shape)} came",
        )
        heads = heads * head_weights.to(heads.dtype)[:, None, None]
    if W_O is None:
        return heads.sum(-3)
    require_real("the output kernels W_O of the heads", W_O, like=Q)
    require(
        W_O.dim() == 3 and W_O.shape[0] == count and W_O.shape[2] == d_v,
        f"the output kernels W_O must have shape ({count}, d_out, {d_v}), one matrix for each head, "
        f"but shape {tuple(W_O.shape)} came",
    )
    result = torch.einsum("...hnv,hov->...no", heads, W_O)  # the sum over h and over the features
    require(is_finite(result), _OVERFLOW)
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


def _stream(Q: Tensor, K: Tensor, V: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """One call of torch's fused kernel in the form that never stores γ: 4 dimensions, d = d_v."""
    if K.shape[-2] < FEW:
        scores = Q @ K.mT * scale
        return torch.softmax(scores if bias is None else scores + bias, dim=-1) @ V
    d, d_v = Q.shape[-1], V.shape[-1]
    if d != d_v:  # columns of zeros change neither the scores nor the values that are kept
        Q, K, V = (pad(part, (0, max(d, d_v) - part.shape[-1])) for part in (Q, K, V))
    lead = _lead(Q, K, V, bias)
    if bias is not None:
        if bias.dim() > 2:
            bias = _four(bias, lead)
        bias = bias.expand(*bias.shape[:-2], Q.shape[-2], K.shape[-2])  # a view: nothing is copied
    Q, K, V = (_four(part, lead) for part in (Q, K, V))
    result = scaled_dot_product_attention(Q, K, V, attn_mask=bias, scale=scale)
    if d_v < d:
        result = result[..., :d_v]
    return result.reshape(*lead, *result.shape[-2:])


def _lead(*parts: Tensor | None) -> torch.Size:
    """The common leading dimensions of Q, K, V and the weights."""
    shapes = {part.shape[:-2] for part in parts if part is not None}
    if len(shapes) == 1:  # the usual case; torch's broadcast_shapes is slow
        return shapes.pop()
    return broadcast("the leading dimensions of Q, K, V and the weights", *shapes)


def _four(part: Tensor, lead: torch.Size) -> Tensor:
    """The same tensor with exactly two leading dimensions."""
    if part.shape[:-2] != lead:
        part = part.expand(*lead, *part.shape[-2:])
    return part if len(lead) == 2 else part.reshape(math.prod(lead), 1, *part.shape[-2:])


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
    _lead(Q, K, V, bias)
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


_OVERFLOW = (
    "the attention scores or the density γ are too large for this precision; make Q, K or the scale smaller, "
    "the weights larger, or use float64"
)
