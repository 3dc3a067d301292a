"""Translation-invariant kernels: a local integral that is the same at every point of the picture.

    (k ∗ u)(x, y) = ∫ k(z, y) u(x + z, y) dz      over a small window of z

Used inside attention, it makes queries, keys and values of what lies around a token instead of the
token alone; and keys and values at every second point of each axis are a coarser quadrature of the
attention integral.
"""

from numbers import Integral

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, gelu

from lib.attention import attend
from lib.checks import require, require_count, require_number, require_real, require_step
from lib.encoder import normalised_flow
from lib.feedforward import FeedForward
from lib.positions import pair
from lib.projection import Normalisation
from lib.splitting import Flow, lie

Size = tuple[int, int]


def local_integral(u: Tensor, k: Tensor, cell: float = 1.0, stride: int = 1) -> Tensor:
    """A translation-invariant integral map on a grid of the plane, one kernel for each feature.

        (k ∗ u)(x_i, y) = Σ_m cell · k(z_m, y) u(x_i + z_m, y),    at every stride-th point x_i

    Shapes: u (..., h, w, d), zero outside the picture; k (a, b, d) with a and b odd, its middle at
    z = 0; `cell` is the area of one cell. Returns (..., ⌈h/stride⌉, ⌈w/stride⌉, d). Units: those of
    k, times u, times area. On unit cells it is torch's depthwise convolution, which does not turn
    the kernel round: in the usual words it is a correlation.
    Errors: `ValueError` for shapes that do not fit, an even window, a cell without area, or numbers
    that are not finite.
    Source: H. Wu et al., *CvT: Introducing Convolutions to Vision Transformers*, arXiv 2103.15808,
    section 3.2.
    Explained in chapter 8, *The convolutional transformer* (chapters/cvt.ipynb).
    """
    require_real("the function u in a local integral", u, least_dims=3)
    require_real("the kernel k of a local integral", k, like=u)
    require_number("the area of a cell", cell)
    require(cell > 0, f"the area of a cell must be positive, but {cell:g} came")
    require_count("the stride of a local integral", stride)
    require(
        k.dim() == 3 and k.shape[-1] == u.shape[-1] > 0 and k.shape[0] % 2 == k.shape[1] % 2 == 1,
        "a local integral needs u (..., h, w, d) and a kernel (a, b, d) with a and b odd, but shapes "
        f"{tuple(u.shape)} and {tuple(k.shape)} came",
    )
    require(u.numel() > 0, f"a local integral needs at least one node, but u {tuple(u.shape)} came")
    a, b, d = k.shape
    image = u.reshape(-1, *u.shape[-3:]).permute(0, 3, 1, 2)  # (B, d, h, w)
    window = (cell * k).permute(2, 0, 1)[:, None]  # (d, 1, a, b)
    result = conv2d(image, window, None, stride, (a // 2, b // 2), groups=d).permute(0, 2, 3, 1)
    require_real("the result of a local integral", result)
    return result.reshape(*u.shape[:-3], *result.shape[1:])


class ConvolutionalAttention(nn.Module):
    """The attention velocity with translation-invariant kernels, keys and values on a coarser grid.

        A(u) = Σ_h ⟨γ_h, V_h⟩ W_h^O + b^O,    Q, K, V = W^{Q,K,V} (k^{Q,K,V} ∗ u) + b^{Q,K,V}

    Called with (u, size), the height and width of the grid of tokens: u (B, h·w, width), row by
    row; or (B, 1 + h·w, width) with a class point first, which passes the maps W but not the
    convolutions. Returns the shape of u. Dimensionless. The scale is 1/√width, the measure of all
    features, not of those of one head. Outside the picture u counts as zero. The convolutions have
    a bias, so that batch normalisation after them, an affine map when it is used, is part of them.
    Errors: `ValueError` when the width is not divisible by the heads, the convolution has no
    middle, or u does not fit.
    Source: H. Wu et al., *CvT: Introducing Convolutions to Vision Transformers*, arXiv 2103.15808,
    section 3.2; the scale is that of its published code.
    Explained in chapter 8, *The convolutional transformer* (chapters/cvt.ipynb).
    """

    def __init__(
        self, width: int, heads: int, kernel: int = 3, padding: int = 1, stride: int = 2
    ) -> None:
        super().__init__()
        for name, count in (("width", width), ("number of heads", heads), ("stride", stride)):
            require_count(f"the {name} of convolutional attention", count)
        require_count("the kernel of convolutional attention", kernel)
        require(width % heads == 0, f"the width {width} must be divisible by the {heads} heads")
        require(
            kernel % 2 == 1,
            f"the kernel of the queries must have a middle, an odd side, but {kernel} came",
        )
        require(
            isinstance(padding, Integral) and not isinstance(padding, bool) and padding >= 0,
            f"the padding of convolutional attention must be a whole number, not negative, but {padding!r} came",
        )
        self.width, self.heads = width, heads
        self.query = nn.Conv2d(width, width, kernel, 1, kernel // 2, groups=width)
        self.key = nn.Conv2d(width, width, kernel, stride, padding, groups=width)
        self.value = nn.Conv2d(width, width, kernel, stride, padding, groups=width)
        self.Q, self.K, self.V, self.O = (nn.Linear(width, width) for _ in range(4))

    def forward(self, u: Tensor, size: Size) -> Tensor:
        Q, K, V = self.split(u, size)
        heads = attend(Q, K, V, scale=self.width**-0.5)  # (B, H, N, d/H)
        return self.O(heads.transpose(1, 2).flatten(-2))  # (B, N, d)

    def split(self, u: Tensor, size: Size) -> tuple[Tensor, Tensor, Tensor]:
        """Q on the grid of the tokens, K and V on the coarser one, each of shape (B, H, N, d/H).

        Explained in chapter 8, *The convolutional transformer* (chapters/cvt.ipynb).
        """
        require_real("u in convolutional attention", u, least_dims=3, like=self.Q.weight)
        size = pair("the grid of tokens", size)
        kernel, padding = self.key.kernel_size[0], self.key.padding[0]
        require(
            min(size) + 2 * padding >= kernel,
            f"the grid of tokens, {size}, is too small for a kernel of side {kernel} with padding {padding}",
        )
        extra = u.shape[-2] - size[0] * size[1]
        require(
            u.dim() == 3 and u.shape[-1] == self.width and extra in (0, 1),
            f"u in convolutional attention must have shape (B, {size[0]}·{size[1]} or one more, {self.width}), "
            f"but {tuple(u.shape)} came",
        )
        point = u[:, :extra]  # the class point, or nothing
        image = u[:, extra:].unflatten(1, size).permute(0, 3, 1, 2)  # (B, d, h, w), a view
        parts = []
        for convolution, W in ((self.query, self.Q), (self.key, self.K), (self.value, self.V)):
            local = convolution(image).flatten(2).mT  # (B, N, d)
            part = W(torch.cat([point, local], dim=1) if extra else local)
            parts.append(part.unflatten(-1, (self.heads, -1)).transpose(1, 2))  # (B, H, N, d/H)
        return tuple(parts)


class ConvolutionalLayer(nn.Module):
    """A pre-norm layer with convolutional attention: one Lie step of the attention flow and the feed-forward flow.

    Called with (u, size, dt=1, steps=1); shapes and errors as in `ConvolutionalAttention`.
    Explained in chapter 8, *The convolutional transformer* (chapters/cvt.ipynb).
    """

    def __init__(self, attention: ConvolutionalAttention, hidden: int, eps: float = 1e-5) -> None:
        super().__init__()
        require(
            isinstance(attention, ConvolutionalAttention),
            f"a convolutional layer needs a ConvolutionalAttention, but a {type(attention).__name__} came",
        )
        width = attention.width
        self.attention = attention
        self.feed_forward = FeedForward(width, hidden, gelu)
        self.norm1, self.norm2 = Normalisation(width, eps), Normalisation(width, eps)

    def flows(self, size: Size) -> tuple[Flow, Flow]:
        """The attention flow and the feed-forward flow on a grid of this size.

        Explained in chapter 8, *The convolutional transformer* (chapters/cvt.ipynb).
        """
        return (
            normalised_flow(lambda u: self.attention(u, size), self.norm1, norm_first=True),
            normalised_flow(self.feed_forward, self.norm2, norm_first=True),
        )

    def forward(self, u: Tensor, size: Size, dt: float = 1.0, steps: int = 1) -> Tensor:
        require_step(dt)
        require_count("the number of steps in a layer", steps)
        flows = self.flows(size)
        for _ in range(steps):
            u = lie(flows, u, dt)
        return u
