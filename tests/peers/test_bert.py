"""The text encoder beside `transformers.BertModel`, with every parameter random and in float64."""

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForMaskedLM, BertModel, RobertaConfig, RobertaModel

from lib.projection import project_nonnegative
from lib.sphere import lie_projected, walk
from lib.text import TextEncoder

WIDTH, HEADS, LAYERS, WORDS, POSITIONS = 12, 3, 2, 30, 24
EXACT = {"atol": 1e-12, "rtol": 0}

# Name: the settings that differ.
SETTINGS = {
    "plain": {},
    "one-head": {"num_attention_heads": 1},
    "two-heads": {"num_attention_heads": 2},
    "six-heads": {"num_attention_heads": 6},
    "wide": {"hidden_size": 40, "num_attention_heads": 5, "intermediate_size": 64},
    "narrow": {"intermediate_size": 5},
    "one-layer": {"num_hidden_layers": 1},
    "five-layers": {"num_hidden_layers": 5},
    "relu": {"hidden_act": "relu"},
    "tanh-gelu": {"hidden_act": "gelu_new"},
    "silu": {"hidden_act": "silu"},
    "large-eps": {"layer_norm_eps": 1e-2},
    "usual-eps": {"layer_norm_eps": 1e-5},
    "no-eps": {"layer_norm_eps": 0.0},
    "dropout": {"hidden_dropout_prob": 0.5, "attention_probs_dropout_prob": 0.5},
    "one-type": {"type_vocab_size": 1},
}

# Texts that end before their batch does: short (attention by the plain formula) and long.
LENGTHS = {"few-tokens": (7, 4, 1), "many-tokens": (21, 9, 2)}


@pytest.fixture
def model(randomised):
    """A function that makes a random BertModel in evaluation mode."""

    def make(pooler=False, attention="sdpa", **settings):
        return randomised(BertModel(config(attention, **settings), pooler)).double().eval()

    return make


def config(attention="sdpa", **settings):
    sizes = {
        "vocab_size": WORDS, "max_position_embeddings": POSITIONS, "hidden_size": WIDTH,
        "num_attention_heads": HEADS, "num_hidden_layers": LAYERS, "intermediate_size": 20,
    }  # fmt: skip
    return BertConfig(attn_implementation=attention, **sizes | settings)


def batch(lengths=(7, 4, 1)):
    """Random texts, with the word 0 as padding, and their mask in the form of transformers."""
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    return mask * torch.randint(1, WORDS, mask.shape), mask


def weights_of(mask):
    return mask.double().unsqueeze(1)


def both(theirs, numbers, mask):
    """The last state of the book's encoder and of theirs."""
    ours = TextEncoder.from_transformers(theirs)
    return ours(numbers, weights_of(mask)), theirs(numbers, mask).last_hidden_state


def distance(a, b):
    return (a - b).abs().max().item()


# ---- the same numbers ----------------------------------------------------------------------------


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_from_transformers_gives_the_numbers_of_transformers(model, settings, lengths):
    """At padding too: a token of weight 0 is seen by nobody, but sees the others."""
    u, expected = both(model(**settings), *batch(lengths))
    torch.testing.assert_close(u, expected, **EXACT)


def test_without_padding_no_weights_are_needed(model):
    theirs, (numbers, _) = model(), batch((7, 7))
    ours = TextEncoder.from_transformers(theirs)
    torch.testing.assert_close(ours(numbers), theirs(numbers).last_hidden_state, **EXACT)


def test_the_pooler_is_left_out(model):
    theirs, (numbers, mask) = model(pooler=True), batch()
    u, expected = both(theirs, numbers, mask)
    torch.testing.assert_close(u, expected, **EXACT)
    assert distance(theirs(numbers, mask).pooler_output, u[:, 0]) > 0.1


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_every_intermediate_state_is_the_same(model, lengths):
    """Not only the end: errors of two layers might cancel there."""
    theirs, (numbers, mask) = model(num_hidden_layers=3), batch(lengths)
    ours = TextEncoder.from_transformers(theirs)
    states = theirs(numbers, mask, output_hidden_states=True).hidden_states
    u = ours.norm(ours.embed(numbers))
    torch.testing.assert_close(u, states[0], **EXACT)
    for layer, state in zip(ours.encoder.layers, states[1:], strict=True):
        u = layer(u, weights_of(mask))
        torch.testing.assert_close(u, state, **EXACT)


def test_before_gain_and_bias_every_state_is_the_same_too(model):
    """The states w of the walk on the constraint, with the gain and bias that the next norm gives."""
    theirs, (numbers, mask) = model(num_hidden_layers=3), batch()
    ours = TextEncoder.from_transformers(theirs)
    states = theirs(numbers, mask, output_hidden_states=True).hidden_states
    layers = ours.layers(weights_of(mask))
    w = walk(layers, ours.start(numbers), lie_projected, trajectory=True)
    norms = [ours.norm, *(layer.norm2 for layer in ours.encoder.layers)]
    for state, norm, before in zip(states, norms, w, strict=True):
        torch.testing.assert_close(norm.gain * before + norm.bias, state, **EXACT)
    torch.testing.assert_close(ours.finish(w[-1]), states[-1], **EXACT)


def test_large_parameters_keep_the_digits_they_can(model):
    """Gains of 30: compared with the size of the numbers."""
    theirs, (numbers, mask) = model(), batch()
    with torch.no_grad():
        for part in theirs.modules():
            if isinstance(part, nn.LayerNorm):
                part.weight *= 60
    u, expected = both(theirs, numbers, mask)
    size = expected.abs().max().item()
    assert size > 30
    torch.testing.assert_close(u, expected, atol=1e-12 * size, rtol=0)


def test_the_eager_attention_of_transformers_gives_the_same_numbers(model):
    """Unlike that of its ViT, which takes its softmax in float32."""
    u, expected = both(model(attention="eager"), *batch())
    torch.testing.assert_close(u, expected, **EXACT)


def test_single_precision_stays_single_precision(model):
    theirs, (numbers, mask) = model().float(), batch()
    ours = TextEncoder.from_transformers(theirs)
    assert {parameter.dtype for parameter in ours.parameters()} == {torch.float32}
    u = ours(numbers, weights_of(mask))
    assert u.dtype == torch.float32
    assert distance(u, theirs(numbers, mask).last_hidden_state) < 1e-4


def test_a_model_in_training_mode_is_taken_without_its_dropout(model):
    theirs, (numbers, mask) = model(hidden_dropout_prob=0.5).train(), batch()
    ours = TextEncoder.from_transformers(theirs)
    u = ours(numbers, weights_of(mask))
    assert distance(u, theirs(numbers, mask).last_hidden_state) > 1e-2
    torch.testing.assert_close(u, theirs.eval()(numbers, mask).last_hidden_state, **EXACT)


def test_from_transformers_copies(model):
    """Afterwards neither changes with the other."""
    theirs, (numbers, mask) = model(), batch()
    ours = TextEncoder.from_transformers(theirs)
    before = theirs(numbers, mask).last_hidden_state
    for parameter in ours.parameters():
        nn.init.normal_(parameter)
    assert torch.equal(theirs(numbers, mask).last_hidden_state, before)


def test_the_rectifier_is_the_projection(model):
    ours = TextEncoder.from_transformers(model(hidden_act="relu"))
    assert ours.encoder.layers[0].feed_forward.activation is project_nonnegative


# ---- the same gradients --------------------------------------------------------------------------


@pytest.fixture
def gradients(model):
    """Both encoders after one backward step, from a loss that reads the tokens that are not padding."""
    theirs, (numbers, mask) = model(), batch((7, 4, 2))
    ours, seen = TextEncoder.from_transformers(theirs), mask.bool()
    target = torch.randn(int(mask.sum()), WIDTH)
    (ours(numbers, weights_of(mask))[seen] - target).square().sum().backward()
    (theirs(numbers, mask).last_hidden_state[seen] - target).square().sum().backward()
    return ours, theirs, numbers


def test_all_gradients_are_those_of_transformers(gradients):
    """With equal gradients everywhere the two are one function, not two that meet at a point."""
    ours, theirs, _ = gradients
    pairs = []

    def linear(mine, *parts):
        pairs.append((mine.weight, torch.cat([part.weight.grad for part in parts])))
        pairs.append((mine.bias, torch.cat([part.bias.grad for part in parts])))

    def norm(mine, part):
        pairs.append((mine.gain, part.weight.grad))
        pairs.append((mine.bias, part.bias.grad))

    embeddings = theirs.embeddings
    pairs.append((ours.words.weight, embeddings.word_embeddings.weight.grad))
    pairs.append((ours.positions, embeddings.position_embeddings.weight.grad))
    norm(ours.norm, embeddings.LayerNorm)
    for mine, layer in zip(ours.encoder.layers, theirs.encoder.layer, strict=True):
        attention = layer.attention.self
        linear(mine.attention.QKV, attention.query, attention.key, attention.value)
        linear(mine.attention.O, layer.attention.output.dense)
        linear(mine.feed_forward.W1, layer.intermediate.dense)
        linear(mine.feed_forward.W2, layer.output.dense)
        norm(mine.norm1, layer.attention.output.LayerNorm)
        norm(mine.norm2, layer.output.LayerNorm)
    assert {id(mine) for mine, _ in pairs} == {id(part) for part in ours.parameters()}
    for mine, expected in pairs:
        scale = expected.abs().max().item()
        torch.testing.assert_close(mine.grad, expected, atol=1e-12 * max(scale, 1), rtol=0)


def test_the_gradient_of_the_token_type_is_the_sum_over_the_positions(gradients):
    """The type is added at every position: in the book the two are one table."""
    ours, theirs, _ = gradients
    types = theirs.embeddings.token_type_embeddings.weight.grad
    torch.testing.assert_close(types[0], ours.positions.grad.sum(0), atol=1e-9, rtol=1e-12)
    assert types[0].abs().max() > 0.1
    assert (types[1] == 0).all()  # no token is of the second type


def test_padding_has_no_gradient(gradients):
    """The word 0 stands at padding only, and the last positions are not reached."""
    ours, _, numbers = gradients
    assert (ours.words.weight.grad[0] == 0).all()
    assert (ours.positions.grad[numbers.shape[1] :] == 0).all()
    assert (ours.positions.grad[: numbers.shape[1]] != 0).any(-1).all()


def test_transformers_never_learns_the_word_of_padding(model):
    """An honest difference: read as a word, 0 has a gradient here, and by definition none there."""
    theirs, numbers = model(), torch.zeros(1, 3, dtype=torch.int64)
    ours = TextEncoder.from_transformers(theirs)
    torch.testing.assert_close(ours(numbers), theirs(numbers).last_hidden_state, **EXACT)
    ours(numbers)[..., 0].square().sum().backward()
    theirs(numbers).last_hidden_state[..., 0].square().sum().backward()
    assert ours.words.weight.grad[0].abs().max() > 1e-3
    assert (theirs.embeddings.word_embeddings.weight.grad[0] == 0).all()


# ---- negative controls: what is not the same must not look the same ------------------------------


def other_eps(text):
    """torch's usual 1e-5; theirs has 1e-12, from its configuration."""
    for layer in text.encoder.layers:
        layer.norm1.eps = layer.norm2.eps = 1e-5


def other_first_eps(text):
    """The normalisation before the first layer alone."""
    text.norm.eps = 1e-5


def approximate_gelu(text):
    """The tanh formula is close to GELU, but not GELU."""
    for layer in text.encoder.layers:
        layer.feed_forward.activation = nn.GELU(approximate="tanh")


def rectifier(text):
    """ReLU is the projection of chapter 4, but not what BERT uses."""
    for layer in text.encoder.layers:
        layer.feed_forward.activation = nn.ReLU()


def scale_of_the_width(text):
    """1/√d instead of 1/√(d/H): the scale belongs to the features of one head."""
    for layer in text.encoder.layers:
        layer.attention.QKV.weight.data[:WIDTH] *= HEADS**-0.5
        layer.attention.QKV.bias.data[:WIDTH] *= HEADS**-0.5


def other_heads(text):
    """The features dealt out to two heads instead of three."""
    for layer in text.encoder.layers:
        layer.attention.heads = 2


def pre_norm(text):
    """Normalised before each step, as in ViT and GPT, instead of after."""
    for layer in text.encoder.layers:
        layer.norm_first = True


def norms_exchanged(text):
    """Each normalisation has gain and bias of its own."""
    for layer in text.encoder.layers:
        layer.norm1, layer.norm2 = layer.norm2, layer.norm1


def no_first_norm(text):
    """The sum of word and position is normalised before the first layer."""
    text.norm = nn.Identity()


def no_positions(text):
    """Without them a permutation of the words would not matter."""
    nn.init.zeros_(text.positions)


def positions_shifted(text):
    """As where the count begins at 1, or after a word of padding."""
    text.positions.data = text.positions.data.roll(1, 0)


SPOILS = [
    other_eps, other_first_eps, approximate_gelu, rectifier, scale_of_the_width, other_heads,
    pre_norm, norms_exchanged, no_first_norm, no_positions, positions_shifted,
]  # fmt: skip


@pytest.mark.parametrize("spoil", SPOILS)
def test_a_wrong_text_encoder_gives_other_numbers(model, spoil):
    theirs, (numbers, mask) = model(), batch()
    ours, expected = TextEncoder.from_transformers(theirs), theirs(numbers, mask).last_hidden_state
    torch.testing.assert_close(ours(numbers, weights_of(mask)), expected, **EXACT)
    spoil(ours)
    assert distance(ours(numbers, weights_of(mask)), expected) > 1e-7


def test_one_text_has_a_token_type_too(model):
    """It is a constant, but not 0."""
    theirs, (numbers, mask) = model(), batch()
    ours = TextEncoder.from_transformers(theirs)
    with torch.no_grad():
        ours.positions -= theirs.embeddings.token_type_embeddings.weight[0]
    found = ours(numbers, weights_of(mask))
    assert distance(found, theirs(numbers, mask).last_hidden_state) > 1e-2


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_padding_must_be_weighted_by_zero(model, lengths):
    theirs, (numbers, mask) = model(), batch(lengths)
    ours, expected = TextEncoder.from_transformers(theirs), theirs(numbers, mask).last_hidden_state
    u = ours(numbers)
    torch.testing.assert_close(u[0], expected[0], **EXACT)  # the longest text has no padding
    assert distance(u[1, 0], expected[1, 0]) > 1e-2


def test_the_second_of_two_texts_is_not_read(model):
    """A limit: the token type 1 of theirs marks a second text, and ours has none."""
    theirs, (numbers, mask) = model(), batch()
    ours = TextEncoder.from_transformers(theirs)
    types = torch.zeros_like(numbers)
    u = ours(numbers, weights_of(mask))
    expected = theirs(numbers, mask, token_type_ids=types).last_hidden_state
    torch.testing.assert_close(u, expected, **EXACT)
    types[:, 2:] = 1
    other = theirs(numbers, mask, token_type_ids=types).last_hidden_state
    assert distance(u[0], other[0]) > 1e-2


@pytest.mark.parametrize(("dt", "steps"), [(0.5, 2), (0.5, 1), (1.0, 2)])
def test_other_steps_are_another_network(model, dt, steps):
    """Theirs is the river in steps of Δt = 1, one a layer."""
    theirs, (numbers, mask) = model(), batch()
    ours = TextEncoder.from_transformers(theirs)
    found = ours(numbers, weights_of(mask), dt, steps)
    assert distance(found, theirs(numbers, mask).last_hidden_state) > 1e-2


# ---- what is refused -----------------------------------------------------------------------------


class Another(BertModel):
    """A subclass may compute anything."""


def with_rms_norm():
    theirs = BertModel(config())
    theirs.encoder.layer[0].output.LayerNorm = nn.RMSNorm(WIDTH)
    return theirs


REFUSED = {
    "nothing": (lambda: None, "BertModel, but a NoneType came"),
    "subclass": (lambda: Another(config()), "BertModel, but a Another came"),
    "language-model": (
        lambda: BertForMaskedLM(config()),
        "BertModel, but a BertForMaskedLM came",
    ),
    "roberta": (
        lambda: RobertaModel(RobertaConfig(**small())),
        "BertModel, but a RobertaModel came",
    ),
    "linear": (lambda: nn.Linear(3, 3), "BertModel, but a Linear came"),
    "decoder": (lambda: BertModel(config(is_decoder=True)), "an encoder, but .*is_decoder"),
    "cross-attention": (
        lambda: BertModel(config(is_decoder=True, add_cross_attention=True)),
        "an encoder, but .*add_cross_attention",
    ),
    "no-layers": (lambda: BertModel(config(num_hidden_layers=0)), "at least one layer"),
    "rms-norm": (with_rms_norm, r"layer.0.output.LayerNorm.bias.* is missing"),
}


def small():
    return {
        "vocab_size": 9, "max_position_embeddings": 9, "hidden_size": 4, "num_attention_heads": 2,
        "num_hidden_layers": 1, "intermediate_size": 5,
    }  # fmt: skip


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_a_bert_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        TextEncoder.from_transformers(make())
