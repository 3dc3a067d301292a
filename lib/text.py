"""A text is a function of the word's place: the encoder of BERT, read as the equation.

    u(x, ·, 0) = N(word(x) + position(x))       pre-processing: a row of a table for each word
    u_t        = A(u) + F(u), post-norm         the layers of lib.encoder
    ∫_Ωx u(x, ·, T) dx / |Ωx|                   post-processing: the mean over the tokens, length 1

Texts of different length stand in one batch: padding is a token of quadrature weight 0.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from lib.checks import (
    broadcast,
    is_finite,
    require,
    require_count,
    require_real,
    require_weights,
    require_width,
)
from lib.encoder import Encoder, EncoderLayer
from lib.parameters import copied_activation, fill, require_kind
from lib.projection import Normalisation, project_mean_variance
from lib.sphere import Layer, layers_before_gain


class TextEncoder(nn.Module):
    """Numbers of words in, the last state of the river out: a table of words, positions, and a post-norm encoder.

    Called with (numbers, weights=None, dt=1, steps=1); weights, dt and steps as in
    `lib.encoder.Encoder`.
    Shapes: numbers (B, N), whole numbers below `words`; weights of the tokens (B, 1, N), 0 at
    padding; returns u (B, N, width). Dimensionless. There is no dropout.
    Errors: `ValueError` when a number is no word of the table, or there are more tokens than
    positions.
    Source: J. Devlin et al., *BERT*, arXiv 1810.04805.
    Explained in chapter 9, *A trained transformer as a river* (chapters/minilm.ipynb).
    """

    def __init__(self, words: int, positions: int, encoder: Encoder, eps: float = 1e-12) -> None:
        super().__init__()
        require_count("the number of words", words)
        require_count("the number of positions", positions)
        require(
            isinstance(encoder, Encoder),
            f"a text encoder needs an Encoder, but a {type(encoder).__name__} came",
        )
        width = encoder.layers[0].width
        self.words = nn.Embedding(words, width)
        self.positions = nn.Parameter(0.02 * torch.randn(positions, width))
        self.norm = Normalisation(width, eps)
        self.encoder = encoder

    @classmethod
    def from_transformers(cls, model: nn.Module) -> "TextEncoder":
        """The same network with copies of the parameters of a `transformers.BertModel`, without dropout and pooler.

        It reads one text at a time (token type 0), as a sentence encoder does.
        Errors: `ValueError` for another kind of module, or one that looks in one direction only.
        Explained in chapter 9, *A trained transformer as a river* (chapters/minilm.ipynb).
        """
        require_kind("the model", model, "transformers.BertModel")
        config = model.config
        require(
            not config.is_decoder and not config.add_cross_attention,
            "the model must be an encoder, but its config says is_decoder or add_cross_attention",
        )
        require(
            len(model.encoder.layer) > 0, "the model must have at least one layer, but none came"
        )
        activation = copied_activation(model.encoder.layer[0].intermediate.intermediate_act_fn)
        return cls.from_state(
            model.state_dict(), config.num_attention_heads, config.layer_norm_eps, activation
        )

    @classmethod
    def from_state(
        cls,
        state: dict[str, Tensor],
        heads: int,
        eps: float,
        activation: Callable[[Tensor], Tensor] = gelu,
    ) -> "TextEncoder":
        """A text encoder with the parameters of a BERT under their usual names, in their precision.

        Errors: `ValueError` when a name is missing or a shape does not fit.
        Explained in chapter 9, *A trained transformer as a river* (chapters/minilm.ipynb).
        """
        count = len({name.split(".")[2] for name in state if name.startswith("encoder.layer.")})
        try:
            values = _our_names(state, count)
            hidden = state["encoder.layer.0.intermediate.dense.weight"].shape[0]
        except KeyError as error:
            raise ValueError(f"a BERT must have the parameter {error}, but it is missing") from None
        words, positions = values["words.weight"], values["positions"]
        layers = [
            EncoderLayer(words.shape[1], heads, hidden, activation=activation, eps=eps)
            for _ in range(count)
        ]
        ours = cls(len(words), len(positions), Encoder(layers), eps).to(words)
        fill(ours, values, "the BERT")
        return ours

    def embed(self, numbers: Tensor) -> Tensor:
        """word(x) + position(x), before the first normalisation. Shapes: numbers (B, N); returns (B, N, width).

        Explained in chapter 9, *A trained transformer as a river* (chapters/minilm.ipynb).
        """
        words, positions = self.words.num_embeddings, len(self.positions)
        require(
            isinstance(numbers, Tensor) and numbers.dtype == torch.int64 and numbers.dim() == 2,
            "the numbers of the words must be an int64 tensor of shape (B, N); lib.minilm.numbered makes one",
        )
        require(
            0 < numbers.shape[1] <= positions,
            f"a text must have 1 to {positions} tokens, but {numbers.shape[1]} came; split it",
        )
        require(
            numbers.numel() == 0 or bool(((numbers >= 0) & (numbers < words)).all()),
            f"the numbers of the words must lie in 0..{words - 1}; was the text numbered for another table?",
        )
        return self.words(numbers) + self.positions[: numbers.shape[1]]

    def forward(
        self, numbers: Tensor, weights: Tensor | None = None, dt: float = 1.0, steps: int = 1
    ) -> Tensor:
        return self.encoder(self.norm(self.embed(numbers)), weights, dt, steps)

    # ---- the same network in the coordinates w of lib.sphere ---------------------------------------

    def start(self, numbers: Tensor) -> Tensor:
        """w at t = 0: the projection of `embed` onto S1, before gain and bias. Shape (B, N, width).

        Explained in chapter 9, *A trained transformer as a river* (chapters/minilm.ipynb).
        """
        return project_mean_variance(self.embed(numbers), eps=self.norm.eps)

    def layers(self, weights: Tensor | None = None) -> list[Layer]:
        """The layers in the coordinates w, for `lib.sphere.walk`.

        Explained in chapter 9, *A trained transformer as a river* (chapters/minilm.ipynb).
        """
        return layers_before_gain(self.encoder, self.norm, weights)

    def finish(self, w: Tensor) -> Tensor:
        """u at the end: gain and bias of the last normalisation, u = g w + c.

        Explained in chapter 9, *A trained transformer as a river* (chapters/minilm.ipynb).
        """
        last = self.encoder.layers[-1].norm2
        require_width("w at the end", w, last.width, like=last.gain)
        return torch.addcmul(last.bias, last.gain, w)


def sentence(u: Tensor, weights: Tensor) -> Tensor:
    """The embedding of a sentence: the mean of u over Ωx, as a vector of length 1.

        e = m/|m|,    m = ∫_Ωx u dx / |Ωx| = Σ_j w_j u_j / Σ_j w_j

    Shapes: u (..., N, d), weights (..., 1, N); returns (..., d). The inner product of two embeddings
    is the cosine of their angle. Dimensionless.
    Errors: `ValueError` when shapes do not fit, a sentence has no token of positive weight, or m = 0.
    Source: N. Reimers and I. Gurevych, *Sentence-BERT*, arXiv 1908.10084.
    Explained in chapter 9, *A trained transformer as a river* (chapters/minilm.ipynb).
    """
    require_real("u at the end of a text encoder", u, least_dims=2)
    require_weights("the weights of the tokens", weights)
    require(
        weights.shape[-2:] == (1, u.shape[-2]) and bool((weights.amax(-1) > 0).all()),
        f"the weights of the tokens must have shape (..., 1, {u.shape[-2]}) and not all be 0 in one sentence, "
        f"but shape {tuple(weights.shape)} came",
    )
    broadcast("the leading dimensions of u and of the weights", u.shape[:-2], weights.shape[:-2])
    weights = (weights / weights.amax(-1, keepdim=True)).to(u.dtype)  # their sum may overflow
    m = (weights @ u / weights.sum(-1, keepdim=True)).squeeze(-2)
    length = m.norm(dim=-1, keepdim=True)
    require(
        is_finite(length) and bool((length > 0).all()),
        "the mean of u over the tokens must be finite and not 0, or the sentence has no direction",
    )
    return m / length


def _our_names(state: dict[str, Tensor], layers: int) -> dict[str, Tensor]:
    """The parameters of a BERT by the names of `TextEncoder`."""
    tables = [state[f"embeddings.{kind}_embeddings.weight"] for kind in _TABLES]
    words, positions, types = tables
    require(
        all(part.dim() == 2 and part.shape[1] == words.shape[1] for part in tables)
        and len(types) > 0,
        "the tables of words, positions and token types of a BERT must have one width, but "
        f"{[tuple(part.shape) for part in tables]} came",
    )
    ours = {
        "words.weight": words,
        # There is one text, so its token type is a constant, and belongs to the position.
        "positions": positions + types[0],
        "norm.gain": state["embeddings.LayerNorm.weight"],
        "norm.bias": state["embeddings.LayerNorm.bias"],
    }
    for number in range(layers):
        theirs, to = f"encoder.layer.{number}.", f"encoder.layers.{number}."
        for kind in ("weight", "bias"):
            parts = [state[f"{theirs}attention.self.{part}.{kind}"] for part in _QKV]
            require(
                len({part.shape for part in parts}) == 1,
                f"Q, K and V of a BERT must have one shape, but {[tuple(part.shape) for part in parts]} came",
            )
            ours[f"{to}attention.QKV.{kind}"] = torch.cat(parts)
            for name, source in _LINEAR.items():
                ours[f"{to}{name}.{kind}"] = state[f"{theirs}{source}.{kind}"]
        for name, source in _NORMS.items():
            ours[f"{to}{name}.gain"] = state[f"{theirs}{source}.weight"]
            ours[f"{to}{name}.bias"] = state[f"{theirs}{source}.bias"]
    return ours


_TABLES = ("word", "position", "token_type")
_QKV = ("query", "key", "value")
_LINEAR = {
    "attention.O": "attention.output.dense",
    "feed_forward.W1": "intermediate.dense",
    "feed_forward.W2": "output.dense",
}
_NORMS = {"norm1": "attention.output.LayerNorm", "norm2": "output.LayerNorm"}
