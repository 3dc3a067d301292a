"""The transformer encoder as a walk down the river: one layer is one step of operator splitting.

    post-norm (Vaswani et al.):   u ← N₁(u + Δt A(u)),    u ← N₂(u + Δt F(u))
    pre-norm (ViT, GPT):          u ← u + Δt A(N₁ u),     u ← u + Δt F(N₂ u)

A is the attention integral ⟨γ, V⟩, F the feed-forward map, N a projection onto S1 followed by gain
and bias. With Δt = 1 these are the layers that everyone uses; the same weights can be walked in
smaller steps.
"""

from collections.abc import Callable, Iterable

from torch import Tensor, nn

from lib.attention import SelfAttention
from lib.checks import (
    require,
    require_count,
    require_real,
    require_step,
    require_weights,
    require_width,
    trusted,
)
from lib.feedforward import FeedForward
from lib.parameters import copied_activation, copied_normalisation, copy_linear, require_kind
from lib.projection import Normalisation, project_nonnegative
from lib.splitting import Flow, Velocity, euler, lie


def normalised_flow(velocity: Velocity, norm: Normalisation, norm_first: bool) -> Flow:
    """The Euler flow of a velocity f with its normalisation N, after the step or (norm_first) before it.

        post-norm:  (u, Δt) ↦ N(u + Δt f(u))        pre-norm:  (u, Δt) ↦ u + Δt f(N u)

    Explained in chapter 5, *Operator splitting* (chapters/splitting.ipynb).
    """
    if norm_first:  # the velocity is taken at the projected point; u itself stays free
        return lambda u, dt: euler(lambda v: velocity(norm(v)), u, dt)
    return lambda u, dt: norm(euler(velocity, u, dt))


class EncoderLayer(nn.Module):
    """One layer: a Lie step of the attention flow and the feed-forward flow, each with its normalisation.

    Called with (u, weights=None, dt=1, steps=1) it takes `steps` steps of size dt, so it walks the
    time dt · steps.
    Shapes: u (..., N, width) to (..., N, width); weights as in `lib.attention.attend` (padding of a
    batch: (B, 1, N)). Dimensionless. There is no dropout: the layer is the one that is used after
    training.
    Errors: `ValueError` when u or the weights do not fit, dt is not positive, or steps < 1.
    Source: A. Vaswani et al., *Attention Is All You Need*, arXiv 1706.03762, section 3.1.
    Explained in chapter 5, *Operator splitting* (chapters/splitting.ipynb).
    """

    def __init__(
        self,
        width: int,
        heads: int,
        hidden: int,
        norm_first: bool = False,
        activation: Callable[[Tensor], Tensor] = project_nonnegative,
        eps: float = 1e-5,
    ) -> None:
        super().__init__()
        self.width, self.norm_first = width, norm_first
        self.attention = SelfAttention(width, heads)
        self.feed_forward = FeedForward(width, hidden, activation)
        self.norm1 = Normalisation(width, eps)
        self.norm2 = Normalisation(width, eps)

    @classmethod
    def from_torch(cls, layer: nn.TransformerEncoderLayer) -> "EncoderLayer":
        """The same layer with copies of the parameters of a `torch.nn.TransformerEncoderLayer`, without its dropout.

        Errors: `ValueError` for another kind of layer.
        Explained in chapter 5, *Operator splitting* (chapters/splitting.ipynb).
        """
        require_kind("the layer", layer, "torch.nn.TransformerEncoderLayer")
        attention = layer.self_attn
        require(
            attention._qkv_same_embed_dim
            and attention.bias_k is None
            and not attention.add_zero_attn,
            "the layer's attention must have no extra keys (add_bias_kv, add_zero_attn) and keys as wide as u",
        )
        ours = cls(
            attention.embed_dim,
            attention.num_heads,
            layer.linear1.out_features,
            layer.norm_first,
            copied_activation(layer.activation),
        ).to(layer.linear1.weight)
        ours.norm1, ours.norm2 = (
            copied_normalisation(layer.norm1),
            copied_normalisation(layer.norm2),
        )
        copy_linear(ours.attention.QKV, attention.in_proj_weight, attention.in_proj_bias)
        copy_linear(ours.attention.O, attention.out_proj.weight, attention.out_proj.bias)
        copy_linear(ours.feed_forward.W1, layer.linear1.weight, layer.linear1.bias)
        copy_linear(ours.feed_forward.W2, layer.linear2.weight, layer.linear2.bias)
        return ours

    def flows(self, weights: Tensor | None = None) -> tuple[Flow, Flow]:
        """The two flows whose Lie splitting is the layer: attention, then feed-forward, each with its normalisation.

        Explained in chapter 5, *Operator splitting* (chapters/splitting.ipynb).
        """
        return (
            normalised_flow(lambda u: self.attention(u, weights), self.norm1, self.norm_first),
            normalised_flow(self.feed_forward, self.norm2, self.norm_first),
        )

    def forward(
        self, u: Tensor, weights: Tensor | None = None, dt: float = 1.0, steps: int = 1
    ) -> Tensor:
        require_width("u in an encoder layer", u, self.width, like=self.norm1.gain)
        require_step(dt)
        require_count("the number of steps in a layer", steps)
        if weights is not None:
            require_weights("attention weights", weights)
        flows = self.flows(weights)
        with trusted():
            for _ in range(steps):
                u = lie(flows, u, dt)
        require_real("the state u at the end of an encoder layer", u)
        return u


class Encoder(nn.Module):
    """A stack of layers, walked one after the other, and a last normalisation where there is one.

    Shapes, call and errors as in `EncoderLayer`: (u, weights=None, dt=1, steps=1); `steps` steps of
    size dt in every layer.
    Source: A. Vaswani et al., *Attention Is All You Need*, arXiv 1706.03762, section 3.1.
    Explained in chapter 5, *Operator splitting* (chapters/splitting.ipynb).
    """

    def __init__(self, layers: Iterable[EncoderLayer], norm: Normalisation | None = None) -> None:
        super().__init__()
        require(
            isinstance(layers, Iterable) and not isinstance(layers, EncoderLayer),
            f"an encoder needs a list of layers, but a {type(layers).__name__} came",
        )
        layers = list(layers)
        require(
            norm is None or isinstance(norm, Normalisation),
            f"the last norm of an encoder must be a Normalisation or None, but a {type(norm).__name__} came",
        )
        kinds = [type(layer).__name__ for layer in layers]
        require(
            len(layers) > 0 and all(isinstance(layer, EncoderLayer) for layer in layers),
            f"an encoder needs at least one EncoderLayer and nothing else, but {kinds} came",
        )
        self.layers = nn.ModuleList(layers)
        self.norm = norm

    @classmethod
    def from_torch(cls, encoder: nn.TransformerEncoder) -> "Encoder":
        """The same encoder with copies of the parameters of a `torch.nn.TransformerEncoder`, without its dropout.

        Post- or pre-norm, any number of heads, any activation, with or without a last
        normalisation.
        Errors: `ValueError` for another kind of module.
        Explained in chapter 5, *Operator splitting* (chapters/splitting.ipynb).
        """
        require_kind("the encoder", encoder, "torch.nn.TransformerEncoder")
        norm = None if encoder.norm is None else copied_normalisation(encoder.norm)
        return cls([EncoderLayer.from_torch(layer) for layer in encoder.layers], norm)

    def forward(
        self, u: Tensor, weights: Tensor | None = None, dt: float = 1.0, steps: int = 1
    ) -> Tensor:
        require_real("u in an encoder", u)
        if weights is not None:
            require_weights("attention weights", weights)
        with trusted():
            for layer in self.layers:
                u = layer(u, weights, dt, steps)
            u = u if self.norm is None else self.norm(u)
        require_real("the state u at the end of an encoder", u)
        return u
