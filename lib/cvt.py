"""The convolutional transformer: kernels that are the same at every point of the picture, and a
coarser grid for keys and values.

    Q(x, ·) = W^Q ∫ k^Q(x − z) u(z, ·) dz + b^Q,    K and V alike, at every second point of each axis

The kernel of the query is a product: translation-invariant in the token x (a depthwise convolution
k, one for each feature), pointwise in the feature y (the matrix W). A network is a sequence of
stages, each on a coarser domain with more features, and each a walk down the river.
"""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lib.checks import require, require_count, require_images, require_real, trusted
from lib.convolution import ConvolutionalAttention, ConvolutionalLayer
from lib.parameters import copied_normalisation, copy_linear, require_kind
from lib.projection import Normalisation


class Stage(nn.Module):
    """One domain of the sequence: sample the image (or feature map) on a coarser grid, then walk through the layers.

    Called with (image, dt=1, steps=1), image (B, channels, H, W); returns the feature map (B, width,
    h, w) and the class point (B, 1, width), or None without one.
    Errors: `ValueError` when a layer has another width, or the image has other channels or is smaller
    than a patch.
    Explained in chapter 8, *The convolutional transformer* (chapters/cvt.ipynb).
    """

    def __init__(
        self,
        embedding: nn.Conv2d,
        layers: Sequence[ConvolutionalLayer],
        class_point: bool = False,
        eps: float = 1e-5,
    ) -> None:
        super().__init__()
        kinds = [type(layer).__name__ for layer in layers]
        require(
            isinstance(embedding, nn.Conv2d)
            and all(isinstance(layer, ConvolutionalLayer) for layer in layers),
            f"a stage needs a Conv2d and ConvolutionalLayers, but a {type(embedding).__name__} and {kinds} came",
        )
        width, widths = embedding.out_channels, [layer.attention.width for layer in layers]
        require(
            len(widths) > 0 and set(widths) == {width},
            f"a stage of width {width} needs at least one layer, each of that width, but widths {widths} came",
        )
        self.embedding, self.norm = embedding, Normalisation(width, eps)
        self.layers = nn.ModuleList(layers)
        self.class_point = nn.Parameter(0.02 * torch.randn(width)) if class_point else None

    def forward(
        self, image: Tensor, dt: float = 1.0, steps: int = 1
    ) -> tuple[Tensor, Tensor | None]:
        self._require_patches(image)
        u = self.embedding(image)  # (B, width, h, w)
        size, extra = tuple(u.shape[-2:]), int(self.class_point is not None)
        u = self.norm(u.flatten(2).mT)  # (B, h·w, width)
        if extra:
            u = torch.cat([self.class_point.expand(len(u), 1, -1), u], dim=1)
        for layer in self.layers:
            u = layer(u, size, dt, steps)
        point, u = u[:, :extra], u[:, extra:]
        return u.mT.unflatten(-1, size), point if extra else None

    def _require_patches(self, image: Tensor) -> None:
        W = self.embedding.weight
        channels = W.shape[1] * self.embedding.groups
        require_images("the image of a stage", image, channels, like=W)
        patch, padding = self.embedding.kernel_size, self.embedding.padding
        sides = [side + 2 * more for side, more in zip(image.shape[-2:], padding, strict=True)]
        require(
            all(side >= long for side, long in zip(sides, patch, strict=True)),
            f"an image must be at least as large as a patch of {patch} pixels, but {tuple(image.shape[-2:])} came",
        )


class ConvolutionalTransformer(nn.Module):
    """The stages one after the other: images in, the last feature map and its class point out.

    Called with (images, dt=1, steps=1), images (B, channels, height, width) of any size; returns
    the feature map (B, width, h, w) and the class point (B, 1, width), or None without one.
    Dimensionless. There is no dropout, and batch normalisation is part of the convolutions.
    Errors: `ValueError` when the images do not fit or are not finite.
    Source: H. Wu et al., *CvT: Introducing Convolutions to Vision Transformers*, arXiv 2103.15808.
    Explained in chapter 8, *The convolutional transformer* (chapters/cvt.ipynb).
    """

    def __init__(self, stages: Sequence[Stage], outputs: int | None = None) -> None:
        super().__init__()
        kinds = [type(stage).__name__ for stage in stages]
        require(
            len(stages) > 0 and all(isinstance(stage, Stage) for stage in stages),
            f"a convolutional transformer needs at least one Stage and nothing else, but {kinds} came",
        )
        if outputs is not None:
            require_count("the number of outputs", outputs)
        self.stages = nn.ModuleList(stages)
        width = stages[-1].embedding.out_channels
        self.norm = None if outputs is None else Normalisation(width)
        self.head = None if outputs is None else nn.Linear(width, outputs)

    @classmethod
    def from_transformers(cls, model: nn.Module) -> "ConvolutionalTransformer":
        """The same network with copies of the parameters of a `transformers.CvtModel` as it is used after training.

        Batch normalisation, there with its stored mean and variance, is multiplied into the
        convolutions.
        Errors: `ValueError` for another kind of module, or settings that this network does not have.
        Explained in chapter 8, *The convolutional transformer* (chapters/cvt.ipynb).
        """
        require_kind("the model", model, "transformers.CvtModel")
        return cls([_stage(stage) for stage in model.encoder.stages])

    def forward(
        self, images: Tensor, dt: float = 1.0, steps: int = 1
    ) -> tuple[Tensor, Tensor | None]:
        W = self.stages[0].embedding.weight
        require_images("the images", images, channels=W.shape[1], like=W)
        image, point = images, None
        with trusted():
            for stage in self.stages:
                image, point = stage(image, dt, steps)
        require_real("the feature map at the end of a convolutional transformer", image)
        return image, point

    def read_out(self, image: Tensor, point: Tensor | None) -> Tensor:
        """Post-processing: u at the class point or, without one, its mean over Ωx; with a head, u is first normalised.

        Shapes: what the model returns; gives (B, outputs), or (B, width) without a head.
        Errors: `ValueError` when the feature map does not fit.
        Explained in chapter 8, *The convolutional transformer* (chapters/cvt.ipynb).
        """
        W = self.stages[-1].embedding.weight
        require_images("the feature map to be read out", image, len(W), like=W)
        u = image.flatten(2).mT if point is None else point
        return u.mean(1) if self.head is None else self.head(self.norm(u).mean(1))


def _stage(stage: nn.Module) -> Stage:
    """One stage of a `transformers.CvtModel` as one of the book."""
    embedding = stage.embedding.convolution_embeddings
    point = getattr(stage, "cls_token", None)
    ours = Stage(
        copy.deepcopy(embedding.projection),
        [_layer(layer) for layer in stage.layers],
        point is not None,
    ).to(embedding.projection.weight)
    ours.norm = copied_normalisation(embedding.normalization)
    if point is not None:
        with torch.no_grad():
            ours.class_point.copy_(point[0, 0])
    return ours


def _layer(layer: nn.Module) -> ConvolutionalLayer:
    """One layer of a `transformers.CvtModel` as one of the book."""
    theirs, first, last = layer.attention.attention, layer.intermediate.dense, layer.output.dense
    names = ("query", "key", "value")
    projections = [getattr(theirs, f"convolution_projection_{name}") for name in names]
    require(
        all(hasattr(projection, "convolution_projection") for projection in projections),
        "queries, keys and values must come from depthwise convolutions, but qkv_projection_method is another; "
        'it must be "dw_bn"',
    )
    local = [projection.convolution_projection for projection in projections]
    query, key = local[0].convolution, local[1].convolution
    middle = query.kernel_size[0] // 2
    require(
        query.stride == (1, 1) and query.padding == (middle, middle),
        "the queries must lie on the grid of the tokens (stride_q 1 and padding_q kernel_qkv // 2), but "
        f"stride_q {query.stride[0]} and padding_q {query.padding[0]} came",
    )
    attention = ConvolutionalAttention(
        theirs.embed_dim, theirs.num_heads, key.kernel_size[0], key.padding[0], key.stride[0]
    )
    ours = ConvolutionalLayer(attention, first.out_features).to(first.weight)
    for name, part in zip(names, local, strict=True):
        copy_linear(
            getattr(attention, name), *_with_batch_norm(part.convolution, part.normalization)
        )
        linear = getattr(theirs, f"projection_{name}")
        copy_linear(getattr(attention, name[0].upper()), linear.weight, linear.bias)
    copy_linear(attention.O, layer.attention.output.dense.weight, layer.attention.output.dense.bias)
    copy_linear(ours.feed_forward.W1, first.weight, first.bias)
    copy_linear(ours.feed_forward.W2, last.weight, last.bias)
    ours.norm1 = copied_normalisation(layer.layernorm_before)
    ours.norm2 = copied_normalisation(layer.layernorm_after)
    return ours


def _with_batch_norm(convolution: nn.Conv2d, norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """Weight and bias of a convolution followed by batch normalisation with its stored statistics.

    g (k ∗ u − m)/√(s² + ε) + c is affine in u, so it is a convolution with another kernel and a
    bias.
    """
    gain = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
    return convolution.weight * gain[:, None, None, None], norm.bias - gain * norm.running_mean
