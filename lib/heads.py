"""Many heads: the head as one more continuous variable of the attention integral.

    u_t(x, ·) = ∫_Ωh ∫_Ωx γ(x, x̃, h) V(x̃, ·, h) dx̃ dh

On unit cells the integral over h is a sum, and the sum is what concatenate-and-project computes.
"""

import torch
from torch import Tensor

from lib.attention import OVERFLOW, attend
from lib.checks import is_finite, require, require_real, require_weights


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
    require(is_finite(result), OVERFLOW)
    return result
