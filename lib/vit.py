"""The vision transformer: an image is a function on a square, read patch by patch, and then walked
down the river.

    u(x, ·, 0) = ∫_patch(x) W(·, z) image(z) dz + b + p(x)      pre-processing
    u_t = A(N u) + F(N u)                                       the pre-norm encoder
    ∫_Ωx u(x, ·, T) dx, or u at the class point                 post-processing, then a linear map

The tokens x are the centres of the patches, points of the square [0, 1]². How densely they lie is a
choice of grid: `stride` pixels from one to the next. The class token is one more point of Ωx, which
lies in no picture.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

from lib.checks import require, require_count, require_images, require_width
from lib.encoder import Encoder, EncoderLayer
from lib.parameters import copied_activation, copied_normalisation, copy_linear, require_kind
from lib.positions import Table, centres, pair


class VisionTransformer(nn.Module):
    """An image in, the last state of the river out: patches, positions, pre-norm encoder, last normalisation.

    Called with (images, weights=None, dt=1, steps=1, stride=None). `stride` is the distance of
    neighbouring tokens in pixels, a pair or one number; None means the patch itself, the usual
    grid. `weights` are those of `lib.attention.attend` (see `lib.positions.quadrature`), dt and steps those of
    `lib.encoder.EncoderLayer`.
    Shapes: images (B, channels, height, width); returns u (B, N, width), with the class point first
    where there is one: (B, 1 + N, width). Dimensionless. There is no dropout.
    Errors: `ValueError` when images do not fit, or the patches do not fill them.
    Source: A. Dosovitskiy et al., *An Image is Worth 16x16 Words*, arXiv 2010.11929.
    Explained in chapter 7, *The vision transformer* (chapters/vit.ipynb).
    """

    def __init__(
        self,
        patch: int | tuple[int, int],
        encoder: Encoder,
        positions: nn.Module,
        channels: int = 1,
        class_point: bool = False,
        outputs: int | None = None,
        activation: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        require(
            isinstance(encoder, Encoder) and isinstance(positions, nn.Module),
            "a vision transformer needs an Encoder and a module of positions, but a "
            f"{type(encoder).__name__} and a {type(positions).__name__} came",
        )
        require_count("the number of channels", channels)
        if outputs is not None:
            require_count("the number of outputs", outputs)
        self.patch, self.width = pair("a patch", patch), encoder.layers[0].width
        self.encoder, self.positions = encoder, positions
        self.embedding = nn.Conv2d(channels, self.width, self.patch, self.patch)
        self.class_point = nn.Parameter(0.02 * torch.randn(self.width)) if class_point else None
        self.head = None if outputs is None else nn.Linear(self.width, outputs)
        self.activation = activation

    @classmethod
    def from_transformers(cls, model: nn.Module) -> "VisionTransformer":
        """The same network with copies of the parameters of a `transformers.ViTModel`, without its dropout.

        The pooler, where there is one, becomes `read_out`. The position of the class token is added
        to the class point, which is what the sum of the two is.
        Errors: `ValueError` for another kind of module, or heads that together are not as wide as u.
        Explained in chapter 7, *The vision transformer* (chapters/vit.ipynb).
        """
        require_kind("the model", model, "transformers.ViTModel")
        config, embeddings = model.config, model.embeddings
        encoder = Encoder(
            [_layer(layer, config) for layer in model.layers], copied_normalisation(model.layernorm)
        )
        projection = embeddings.patch_embeddings.projection
        patch = projection.kernel_size
        image = pair("an image", config.image_size)
        grid = tuple(side // long for side, long in zip(image, patch, strict=True))
        pooler = model.pooler
        ours = cls(
            patch,
            encoder,
            Table(config.hidden_size, grid),
            config.num_channels,
            class_point=True,
            outputs=None if pooler is None else pooler.dense.out_features,
            activation=None if pooler is None else copied_activation(pooler.activation),
        ).to(projection.weight)
        copy_linear(ours.embedding, projection.weight, projection.bias)
        with torch.no_grad():
            positions = embeddings.position_embeddings[0]
            ours.class_point.copy_(embeddings.cls_token[0, 0] + positions[0])
            ours.positions.values.copy_(positions[1:].unflatten(0, grid))
        if pooler is not None:
            copy_linear(ours.head, pooler.dense.weight, pooler.dense.bias)
        return ours

    def sample(self, images: Tensor, stride: int | tuple[int, int] | None = None) -> Tensor:
        """u(x, ·, 0): the integral over each patch, plus its position; the class point first where there is one.

        Shapes: images (B, channels, height, width); returns (B, N, width) or (B, 1 + N, width).
        Explained in chapter 7, *The vision transformer* (chapters/vit.ipynb).
        """
        W = self.embedding.weight
        require_images("the images", images, channels=W.shape[1], like=W)
        stride = self.patch if stride is None else pair("a stride", stride)
        x = centres(tuple(images.shape[-2:]), self.patch, stride)
        u = conv2d(images, W, self.embedding.bias, stride).permute(0, 2, 3, 1)
        p = self.positions(x)  # (n_1, n_2, width), one for all images u (B, n_1, n_2, width)
        require(
            p.shape == u.shape[1:],
            f"positions must have shape {tuple(u.shape[1:])}, but {tuple(p.shape)} came",
        )
        u = (u + p).flatten(1, 2)  # (B, N, width)
        if self.class_point is None:
            return u
        return torch.cat([self.class_point.expand(len(u), 1, -1), u], dim=1)

    def forward(
        self,
        images: Tensor,
        weights: Tensor | None = None,
        dt: float = 1.0,
        steps: int = 1,
        stride: int | tuple[int, int] | None = None,
    ) -> Tensor:
        return self.encoder(self.sample(images, stride), weights, dt, steps)

    def read_out(self, u: Tensor) -> Tensor:
        """Post-processing: u at the class point or, without one, its mean over Ωx; then the linear head.

        Shapes: u as returned by the model; returns (B, outputs), or (B, width) without a head.
        Errors: `ValueError` when u is not finite or of another width.
        Explained in chapter 7, *The vision transformer* (chapters/vit.ipynb).
        """
        require_width("u to be read out", u, self.width, like=self.embedding.weight)
        pooled = u.mean(-2) if self.class_point is None else u[..., 0, :]
        scores = pooled if self.head is None else self.head(pooled)
        return scores if self.activation is None else self.activation(scores)


def _layer(layer: nn.Module, config) -> EncoderLayer:
    """One layer of a `transformers.ViTModel` as one of the book."""
    attention, mlp = layer.attention, layer.mlp
    require(
        attention.num_attention_heads * attention.head_dim == config.hidden_size,
        f"the heads must together be as wide as u, {config.hidden_size}, but {attention.num_attention_heads} heads "
        f"of width {attention.head_dim} came",
    )
    ours = EncoderLayer(
        config.hidden_size,
        attention.num_attention_heads,
        mlp.fc1.out_features,
        norm_first=True,
        activation=copied_activation(mlp.activation_fn),
    ).to(mlp.fc1.weight)
    parts = (attention.q_proj, attention.k_proj, attention.v_proj)
    bias = None if parts[0].bias is None else torch.cat([part.bias for part in parts])
    copy_linear(ours.attention.QKV, torch.cat([part.weight for part in parts]), bias)
    copy_linear(ours.attention.O, attention.o_proj.weight, attention.o_proj.bias)
    copy_linear(ours.feed_forward.W1, mlp.fc1.weight, mlp.fc1.bias)
    copy_linear(ours.feed_forward.W2, mlp.fc2.weight, mlp.fc2.bias)
    ours.norm1 = copied_normalisation(layer.layernorm_before)
    ours.norm2 = copied_normalisation(layer.layernorm_after)
    return ours
