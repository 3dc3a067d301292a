"""The text encoder: words and positions in, a mean over the tokens out, padding in between."""

import pytest
import torch
from torch import nn
from torch.nn.functional import gelu

from lib.encoder import Encoder, EncoderLayer
from lib.projection import project_mean_variance
from lib.sphere import lie_projected, rk4_tangent, walk
from lib.text import TextEncoder, sentence

pytestmark = pytest.mark.usefixtures("float64")

B, N, WIDTH, WORDS, POSITIONS = 3, 5, 6, 11, 8
EXACT = {"atol": 1e-12, "rtol": 0}


def text_encoder(layers=2, eps=1e-12, norm_first=False):
    """A text encoder with every parameter random."""
    parts = [EncoderLayer(WIDTH, 2, 9, norm_first, gelu, eps) for _ in range(layers)]
    ours = TextEncoder(WORDS, POSITIONS, Encoder(parts), eps)
    for parameter in ours.parameters():
        nn.init.normal_(parameter, std=0.5)
    return ours


def texts():
    return torch.randint(0, WORDS, (B, N))


PADDING = torch.tensor([[[1.0, 1, 1, 1, 1]], [[1, 1, 1, 0, 0]], [[1, 0, 0, 0, 0]]]).double()


def distance(a, b):
    return (a - b).abs().max().item()


# ---- in: a row of a table for each word, and one for each place ----------------------------------


def test_a_text_is_a_sum_of_rows_of_two_tables():
    ours, numbers = text_encoder(), texts()
    found = ours.embed(numbers)
    assert found.shape == (B, N, WIDTH)
    for text, row in zip(numbers, found, strict=True):
        for place, word in enumerate(text):
            expected = ours.words.weight[word] + ours.positions[place]
            torch.testing.assert_close(row[place], expected, **EXACT)


@pytest.mark.parametrize("weights", [None, PADDING], ids=["none", "padding"])
@pytest.mark.parametrize(("dt", "steps"), [(1.0, 1), (0.5, 3)])
def test_it_is_the_encoder_after_a_normalisation(weights, dt, steps):
    ours, numbers = text_encoder(), texts()
    expected = ours.encoder(ours.norm(ours.embed(numbers)), weights, dt, steps)
    assert torch.equal(ours(numbers, weights, dt, steps), expected)


def test_a_new_one_is_ready_to_be_trained():
    torch.manual_seed(0)
    ours = TextEncoder(WORDS, POSITIONS, Encoder([EncoderLayer(WIDTH, 2, 9)]))
    u = ours(texts())
    torch.testing.assert_close(u.mean(-1), torch.zeros(B, N), atol=1e-9, rtol=0)
    u[..., 0].square().sum().backward()
    for name, parameter in ours.named_parameters():
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


def test_without_positions_a_sentence_is_a_bag_of_words():
    """The equation itself does not know the order of the tokens: positions alone bring it in."""
    ours, numbers, weights = text_encoder(), texts(), torch.ones(B, 1, N)
    order = torch.tensor([3, 0, 4, 1, 2])
    before = sentence(ours(numbers), weights)
    assert distance(sentence(ours(numbers[:, order]), weights), before) > 1e-3
    nn.init.zeros_(ours.positions)
    u = ours(numbers)
    torch.testing.assert_close(ours(numbers[:, order]), u[:, order], **EXACT)
    torch.testing.assert_close(
        sentence(ours(numbers[:, order]), weights), sentence(u, weights), **EXACT
    )


# ---- padding -------------------------------------------------------------------------------------


def test_alone_and_in_a_batch_a_text_is_the_same():
    ours, numbers = text_encoder(), texts()
    together = ours(numbers, PADDING)
    e = sentence(together, PADDING)
    for text, weights, u, expected in zip(numbers, PADDING, together, e, strict=True):
        seen = weights[0] > 0
        alone = ours(text[seen][None])
        torch.testing.assert_close(alone[0], u[seen], **EXACT)
        found = sentence(alone, torch.ones(1, 1, int(seen.sum())))
        torch.testing.assert_close(found[0], expected, **EXACT)


def test_the_words_at_padding_do_not_matter():
    ours, numbers = text_encoder(), texts()
    other = torch.where(PADDING[:, 0] > 0, numbers, (numbers + 3) % WORDS)
    e = sentence(ours(numbers, PADDING), PADDING)
    assert torch.equal(sentence(ours(other, PADDING), PADDING), e)
    assert distance(sentence(ours(other), torch.ones(B, 1, N)), e) > 1e-2


def test_a_token_of_weight_two_is_two_tokens():
    """Weights are a quadrature. Without positions the same word twice is one word of weight 2."""
    ours = text_encoder()
    nn.init.zeros_(ours.positions)
    once = torch.tensor([[4, 7, 2]])
    twice = torch.tensor([[4, 7, 7, 2]])
    weights = torch.tensor([[[1.0, 2, 1]]])
    torch.testing.assert_close(
        sentence(ours(once, weights), weights),
        sentence(ours(twice), torch.ones(1, 1, 4)),
        **EXACT,
    )


# ---- out: the mean over Ωx, with length 1 --------------------------------------------------------


def test_a_sentence_is_the_weighted_mean_with_length_one():
    u, weights = torch.randn(B, N, WIDTH), torch.rand(B, 1, N)
    e = sentence(u, weights)
    for state, row, found in zip(u, weights[:, 0], e, strict=True):
        mean = sum(w * token for w, token in zip(row, state, strict=True)) / row.sum()
        torch.testing.assert_close(found, mean / mean.norm(), **EXACT)


def test_the_size_of_weights_and_of_u_does_not_matter():
    u, weights = torch.randn(B, N, WIDTH), torch.rand(B, 1, N)
    e = sentence(u, weights)
    for size in (1e-300, 1e-9, 7.0, 1e300, 1.7e308):
        torch.testing.assert_close(sentence(u, size * weights), e, **EXACT)
    for size in (1e-100, 1e-15, 7.0, 1e100):
        torch.testing.assert_close(sentence(size * u, weights), e, **EXACT)
    torch.testing.assert_close(sentence(-u, weights), -e, **EXACT)


def test_sentences_of_any_number_of_leading_dimensions():
    u, weights = torch.randn(2, B, N, WIDTH), torch.rand(B, 1, N)
    e = sentence(u, weights)
    assert e.shape == (2, B, WIDTH)
    torch.testing.assert_close(e[1, 2], sentence(u[1, 2], weights[2]), **EXACT)
    torch.testing.assert_close(sentence(u, weights[0])[:, 0], e[:, 0], **EXACT)


def test_weights_in_double_precision_leave_single_precision_alone():
    u, weights = torch.randn(B, N, WIDTH), torch.rand(B, 1, N)
    e = sentence(u.float(), weights)
    assert e.dtype == torch.float32
    assert distance(e, sentence(u, weights)) < 1e-6


def test_a_sentence_is_differentiable():
    u, weights = torch.randn(2, 3, 4, requires_grad=True), torch.rand(2, 1, 3)
    assert torch.autograd.gradcheck(lambda u: sentence(u, weights), u)


# ---- the coordinates w ---------------------------------------------------------------------------


@pytest.mark.parametrize("weights", [None, PADDING], ids=["none", "padding"])
@pytest.mark.parametrize("eps", [0.0, 1e-12, 1e-2])
def test_a_walk_of_projected_steps_is_the_encoder(weights, eps):
    ours, numbers = text_encoder(eps=eps), texts()
    w = walk(ours.layers(weights), ours.start(numbers), lie_projected)
    torch.testing.assert_close(ours.finish(w), ours(numbers, weights), **EXACT)


def test_padding_changes_no_text_in_any_walk():
    ours, numbers = text_encoder(eps=0.0), texts()
    together = walk(ours.layers(PADDING), ours.start(numbers), rk4_tangent, 4)
    for text, weights, w in zip(numbers, PADDING, together, strict=True):
        seen = weights[0] > 0
        alone = walk(ours.layers(), ours.start(text[seen][None]), rk4_tangent, 4)
        torch.testing.assert_close(alone[0], w[seen], **EXACT)


def test_start_and_finish_are_a_normalisation_in_two_parts():
    ours, numbers = text_encoder(eps=1e-3), texts()
    w = ours.start(numbers)
    assert torch.equal(w, project_mean_variance(ours.embed(numbers), eps=1e-3))
    norm, last = ours.norm, ours.encoder.layers[-1].norm2
    torch.testing.assert_close(norm.gain * w + norm.bias, norm(ours.embed(numbers)), **EXACT)
    torch.testing.assert_close(ours.finish(w), last.gain * w + last.bias, **EXACT)


def test_a_pre_norm_text_encoder_has_no_such_coordinates():
    ours, numbers = text_encoder(norm_first=True), texts()
    assert ours(numbers).shape == (B, N, WIDTH)
    with pytest.raises(ValueError, match="post-norm layers, but a pre-norm layer came"):
        ours.layers()


# ---- the names of BERT ---------------------------------------------------------------------------


def state_of(ours):
    """The parameters under the names that BERT's files have; two token types, the second one unused."""
    types = torch.randn(2, WIDTH)
    state = {
        "embeddings.word_embeddings.weight": ours.words.weight,
        "embeddings.position_embeddings.weight": ours.positions - types[0],
        "embeddings.token_type_embeddings.weight": types,
        "embeddings.LayerNorm.weight": ours.norm.gain,
        "embeddings.LayerNorm.bias": ours.norm.bias,
    }
    for number, layer in enumerate(ours.encoder.layers):
        name = f"encoder.layer.{number}."
        for kind in ("weight", "bias"):
            parts = getattr(layer.attention.QKV, kind).chunk(3)
            for part, values in zip(("query", "key", "value"), parts, strict=True):
                state[f"{name}attention.self.{part}.{kind}"] = values
            state[f"{name}attention.output.dense.{kind}"] = getattr(layer.attention.O, kind)
            state[f"{name}intermediate.dense.{kind}"] = getattr(layer.feed_forward.W1, kind)
            state[f"{name}output.dense.{kind}"] = getattr(layer.feed_forward.W2, kind)
        state[f"{name}attention.output.LayerNorm.weight"] = layer.norm1.gain
        state[f"{name}attention.output.LayerNorm.bias"] = layer.norm1.bias
        state[f"{name}output.LayerNorm.weight"] = layer.norm2.gain
        state[f"{name}output.LayerNorm.bias"] = layer.norm2.bias
    return {name: values.detach().clone() for name, values in state.items()}


def test_from_state_reads_the_names_of_bert():
    ours, numbers = text_encoder(layers=3, eps=1e-3), texts()
    state = state_of(ours)
    unused = {"pooler.dense.weight": torch.randn(WIDTH, WIDTH), "cls.bias": torch.randn(3)}
    copied = TextEncoder.from_state(state | unused, heads=2, eps=1e-3)
    torch.testing.assert_close(copied(numbers, PADDING), ours(numbers, PADDING), **EXACT)
    assert len(copied.encoder.layers) == 3


def test_from_state_keeps_the_precision_and_copies():
    ours, numbers = text_encoder(), texts()
    state = {name: values.float() for name, values in state_of(ours).items()}
    copied = TextEncoder.from_state(state, 2, 1e-12)
    assert {parameter.dtype for parameter in copied.parameters()} == {torch.float32}
    u = copied(numbers)
    for values in state.values():
        values.zero_()
    assert torch.equal(copied(numbers), u)


def test_from_state_takes_another_activation():
    ours, numbers = text_encoder(), texts()
    copied = TextEncoder.from_state(state_of(ours), 2, 1e-12, torch.tanh)
    assert distance(copied(numbers), ours(numbers)) > 1e-3
    for layer in copied.encoder.layers:
        layer.feed_forward.activation = gelu
    torch.testing.assert_close(copied(numbers), ours(numbers), **EXACT)


with torch.random.fork_rng():
    NAMES = list(state_of(text_encoder()))


@pytest.mark.parametrize("name", NAMES)
def test_a_parameter_that_is_missing_is_named(name):
    state = state_of(text_encoder())
    del state[name]
    with pytest.raises(
        ValueError, match=f"a BERT must have the parameter '{name}', but it is miss"
    ):
        TextEncoder.from_state(state, 2, 1e-12)


def test_a_layer_that_is_missing_is_named():
    state = state_of(text_encoder(layers=3))
    gap = {name: values for name, values in state.items() if "layer.1." not in name}
    with pytest.raises(ValueError, match=r"must have the parameter 'encoder\.layer\.1\."):
        TextEncoder.from_state(gap, 2, 1e-12)
    none = {name: values for name, values in state.items() if "layer" not in name}
    with pytest.raises(ValueError, match=r"must have the parameter 'encoder\.layer\.0\."):
        TextEncoder.from_state(none, 2, 1e-12)


OTHERS = {
    "narrower": lambda values: values[..., :-1],
    "wider": lambda values: torch.cat([values, values[..., :1]], -1),
    "one": lambda values: values[..., :1],
    "more-dimensions": lambda values: values[None],
    "fewer-dimensions": lambda values: values[0],
}


@pytest.mark.parametrize("change", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("name", NAMES)
def test_a_parameter_of_another_shape_is_refused(name, change):
    """Also one that would broadcast: a table of one column, say."""
    state = state_of(text_encoder())
    state[name] = change(state[name])
    with pytest.raises(ValueError, match=r"must have one width|must have one shape|does not fit"):
        TextEncoder.from_state(state, 2, 1e-12)
