"""The attention integral as a streamed quadrature: numerator and denominator are summed up together,
block by block, and γ is never stored.

The work is done by torch's fused kernel. It takes that way only for tensors of a certain form, and
this module brings Q, K, V and the weights into it.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from lib.checks import broadcast

# With fewer keys than fit into one vector of the processor, torch's fused kernel returns 0 where the
# scores are NaN or overflow: an error would become a plausible number. The plain formula keeps it.
FEW = 16


def stream(Q: Tensor, K: Tensor, V: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """softmax(scale Q Kᵀ + bias) V without its table of weights; what comes in must fit, `lib.attention` asks.

    Shapes: Q (..., N_q, d), K (..., N_k, d), V (..., N_k, d_v), bias (rows, N_k) or (..., rows, N_k)
    with one row or N_q, the logarithms of the quadrature weights. Returns (..., N_q, d_v).
    Explained in chapter 2, *The attention kernel* (chapters/attention.ipynb).
    """
    if K.shape[-2] < FEW:
        scores = Q @ K.mT * scale
        return torch.softmax(scores if bias is None else scores + bias, dim=-1) @ V
    d, d_v = Q.shape[-1], V.shape[-1]
    if d != d_v:  # columns of zeros change neither the scores nor the values that are kept
        Q, K, V = (pad(part, (0, max(d, d_v) - part.shape[-1])) for part in (Q, K, V))
    lead = common_lead(Q, K, V, bias)
    if bias is not None:
        if bias.dim() > 2:
            bias = _four(bias, lead)
        bias = bias.expand(*bias.shape[:-2], Q.shape[-2], K.shape[-2])  # a view: nothing is copied
    Q, K, V = (_four(part, lead) for part in (Q, K, V))
    result = scaled_dot_product_attention(Q, K, V, attn_mask=bias, scale=scale)
    if d_v < d:
        result = result[..., :d_v]
    return result.reshape(*lead, *result.shape[-2:])


def common_lead(*parts: Tensor | None) -> torch.Size:
    """The common leading dimensions of Q, K, V and the weights.

    Errors: `ValueError` when there are none.
    Explained in chapter 2, *The attention kernel* (chapters/attention.ipynb).
    """
    shapes = {part.shape[:-2] for part in parts if part is not None}
    if len(shapes) == 1:  # the usual case; torch's broadcast_shapes is slow
        return shapes.pop()
    return broadcast("the leading dimensions of Q, K, V and the weights", *shapes)


def _four(part: Tensor, lead: torch.Size) -> Tensor:
    """The same tensor with exactly two leading dimensions."""
    if part.shape[:-2] != lead:
        part = part.expand(*lead, *part.shape[-2:])
    return part if len(lead) == 2 else part.reshape(math.prod(lead), 1, *part.shape[-2:])
