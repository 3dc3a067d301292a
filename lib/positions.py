"""Where the tokens of an image lie, and how the network is told: positions as functions on a square.

A token x is the centre of a patch, a point of [0, 1]². How densely the tokens lie is a choice of
grid; what tells them apart is a function p(x) that is added to them, and a function can be read on
any grid. Whether what is read there means anything is a question of its frequencies.
"""

from collections.abc import Sequence
from numbers import Integral

import torch
from torch import Tensor, nn
from torch.nn.functional import grid_sample

from lib.checks import require, require_count, require_number, require_real


def centres(pixels: tuple[int, int], patch: tuple[int, int], stride: tuple[int, int]) -> Tensor:
    """The centres of the patches of an image in [0, 1]², first coordinate downwards: the nodes of Ωx.

        x_i = (patch/2 + i · stride)/pixels,    i = 0, ..., (pixels − patch)/stride

    Shapes: returns (n_1, n_2, 2), float64. Units: fractions of the image's height and width.
    Errors: `ValueError` when a stride does not divide what is left beside one patch (some pixels
    would belong to no patch), or a side is not a positive whole number.
    Explained in chapter 7, *The vision transformer* (chapters/vit.ipynb).
    """
    pixels, patch, stride = (
        pair("an image", pixels),
        pair("a patch", patch),
        pair("a stride", stride),
    )
    axes = []
    for side, long, step in zip(pixels, patch, stride, strict=True):
        require(
            side >= long and (side - long) % step == 0,
            f"patches must fill the image: with patch {long} and stride {step} a side must have {long} + k · {step} "
            f"pixels, but {side} came; crop or pad the image, or choose another patch or stride",
        )
        first = torch.arange(0, side - long + 1, step, dtype=torch.float64)
        axes.append((first + long / 2) / side)
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1)


def waves(x: Tensor, frequencies: Tensor) -> Tensor:
    """Sines and cosines of given frequencies in each coordinate of x: a position as a function on [0, 1]².

        sin(2π f x_a), cos(2π f x_a)    for each frequency f and each coordinate a = 1, 2

    Shapes: x (..., 2), frequencies (F,) in periods per side of the image; returns (..., 4F).
    Dimensionless.
    Errors: `ValueError` when a number is not finite, x does not have two coordinates, or there is no
    frequency.
    Source: A. Vaswani et al., *Attention Is All You Need*, arXiv 1706.03762, section 3.5, with
    frequencies and coordinates of our choice.
    Explained in chapter 7, *The vision transformer* (chapters/vit.ipynb).
    """
    require_real("the positions x", x)
    require_real("the frequencies of positions", frequencies, like=x)
    require(
        x.shape[-1] == 2 and frequencies.dim() == 1 and len(frequencies) > 0,
        "positions need points (..., 2) and frequencies (F,), at least one, but shapes "
        f"{tuple(x.shape)} and {tuple(frequencies.shape)} came",
    )
    angles = 2 * torch.pi * (x[..., None] * frequencies).flatten(-2)  # (..., 2F)
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


class Waves(nn.Module):
    """Positions as a function: p(x) = W waves(x), defined at every x of the square, with a learned W.

    Called with points x (n_1, n_2, 2), returns (n_1, n_2, width).
    Explained in chapter 7, *The vision transformer* (chapters/vit.ipynb).
    """

    def __init__(self, width: int, frequencies: Sequence[float]) -> None:
        super().__init__()
        require_count("the width of positions", width)
        frequencies = torch.as_tensor(frequencies, dtype=torch.get_default_dtype())
        require_real("the frequencies of positions", frequencies)
        require(
            frequencies.dim() == 1 and len(frequencies) > 0,
            f"positions need a list of frequencies, at least one, but shape {tuple(frequencies.shape)} came",
        )
        self.register_buffer("frequencies", frequencies, persistent=False)
        self.W = nn.Linear(4 * len(frequencies), width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.W(waves(x.to(self.frequencies), self.frequencies))


class Table(nn.Module):
    """Positions as a table on one grid, as the vision transformer learns them; between its nodes, bicubic.

    The table's own nodes are the centres of n_1 × n_2 equal cells. Called with points x (m_1, m_2,
    2), returns (m_1, m_2, width): at its own nodes the table itself, elsewhere its bicubic
    interpolation, continued as constant beyond the outer nodes.
    Errors: `ValueError` when the points are not finite or of another shape.
    Explained in chapter 7, *The vision transformer* (chapters/vit.ipynb).
    """

    def __init__(self, width: int, grid: tuple[int, int]) -> None:
        super().__init__()
        require_count("the width of positions", width)
        grid = pair("a grid of positions", grid)
        self.values = nn.Parameter(0.02 * torch.randn(*grid, width))
        self.register_buffer("nodes", centres(grid, (1, 1), (1, 1)), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        require_real("the positions x", x)
        require(
            x.dim() == 3 and x.shape[-1] == 2 and x.numel() > 0,
            f"a table of positions needs points (n_1, n_2, 2), but shape {tuple(x.shape)} came",
        )
        if x.shape == self.nodes.shape and torch.allclose(x.to(self.nodes), self.nodes):
            return self.values
        points = (2 * x.to(self.values) - 1).flip(-1)  # grid_sample wants [-1, 1], rightwards first
        image = self.values.permute(2, 0, 1)  # (width, n_1, n_2)
        between = grid_sample(
            image[None], points[None], "bicubic", padding_mode="border", align_corners=False
        )
        return between[0].permute(1, 2, 0)


def quadrature(tokens: int, measure: float) -> Tensor:
    """Weights for a class point and `tokens` nodes of Ωx: 1 for the class point, |Ωx|/N for each of the others.

    Unit cells let the measure of Ωx grow with the number of tokens, so that the class point loses
    its share of attention on a finer grid. These weights keep it.
    Shapes: returns (1 + tokens,), float64. `measure` is |Ωx|: the number of tokens in training.
    Errors: `ValueError` when there is no token or the measure is not positive.
    Explained in chapter 7, *The vision transformer* (chapters/vit.ipynb).
    """
    require_count("the number of tokens", tokens)
    require_number("the measure of Ωx", measure)
    require(measure > 0, f"the measure of Ωx must be positive, but {measure:g} came")
    weights = torch.full((1 + tokens,), measure / tokens, dtype=torch.float64)
    weights[0] = 1.0
    return weights


def pair(name: str, size: int | Sequence[int]) -> tuple[int, int]:
    """Height and width in pixels, from a pair or from one number for both.

    Explained in chapter 7, *The vision transformer* (chapters/vit.ipynb).
    """
    sides = (size, size) if isinstance(size, Integral) else size
    require(
        isinstance(sides, Sequence) and len(sides) == 2,
        f"{name} needs one whole number or two, but {size!r} came",
    )
    for side in sides:
        require_count(f"the side of {name}", side)
    return tuple(sides)
