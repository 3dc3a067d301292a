"""all-MiniLM-L6-v2 from its files, in float64: beside transformers, torch and torchdiffeq.

`make setup` fetches the files.
"""

import hashlib
import pickle
import shutil
from functools import cache

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch.nn import functional as F
from torchdiffeq import odeint
from transformers import BertConfig, BertModel, BertTokenizerFast, PreTrainedTokenizerFast

from lib import minilm
from lib.projection import project_mean_variance, tangent
from lib.sphere import lie_geodesic, lie_projected, rk4_tangent, strang_tangent, walk
from lib.splitting import midpoint, strang
from lib.stability import largest_step, stiffest
from lib.text import sentence

GUITAR = "A man is playing a guitar."
SENTENCES = [
    GUITAR,
    "Someone plays an instrument.",
    "The stock market fell sharply today.",
    "The number of people who had come to listen to the music on that evening was larger than ever.",
]
ODD = [
    "",
    "Naïve Café: 北京, e\u0301tude!",
    "\tunaffable\n\n3.14159 × 10⁻²",
    "[MASK] [SEP] 😀 \u200d",
]
EXACT = {"atol": 1e-12, "rtol": 0}


@pytest.fixture(scope="module")
def model():
    return minilm.load(torch.float64)


@pytest.fixture(scope="module")
def encoder(model):
    return model[0]


@pytest.fixture
def batch(model):
    """The numbers and weights of four sentences, three of them with padding."""
    numbers, weights, _ = minilm.numbered(SENTENCES, model[1])
    return numbers, weights


@pytest.fixture(scope="module")
def theirs():
    """The same files, read by transformers."""
    config = BertConfig.from_json_file(minilm.FOLDER / "config.json")
    config._attn_implementation = "sdpa"
    bert = BertModel(config).double().eval()
    found = bert.load_state_dict(load_file(minilm.FOLDER / "model.safetensors"), strict=False)
    assert found.missing_keys == []
    assert found.unexpected_keys == ["embeddings.position_ids"]  # the numbers 0..511
    return bert.requires_grad_(False)


def distance(a, b):
    return (a - b).abs().max().item()


# ---- the same network ----------------------------------------------------------------------------


def test_it_is_the_network_of_transformers(encoder, theirs, batch):
    numbers, weights = batch
    assert (weights == 0).any(-1).sum() == 3
    expected = theirs(numbers, weights[:, 0].long(), output_hidden_states=True).hidden_states
    u = encoder.norm(encoder.embed(numbers))
    torch.testing.assert_close(u, expected[0], **EXACT)
    for layer, state in zip(encoder.encoder.layers, expected[1:], strict=True):
        u = layer(u, weights)
        torch.testing.assert_close(u, state, **EXACT)
    assert torch.equal(u, encoder(numbers, weights))


def test_it_has_six_layers_of_twelve_heads_and_384_features(encoder):
    layers = encoder.encoder.layers
    assert (len(layers), layers[0].attention.heads, layers[0].width) == (6, 12, 384)
    assert (encoder.words.num_embeddings, len(encoder.positions)) == (30522, 512)
    assert {parameter.requires_grad for parameter in encoder.parameters()} == {False}


def test_an_embedding_is_the_mean_over_the_tokens_with_length_one(encoder, theirs, batch):
    numbers, weights = batch
    mask = weights[:, 0].long()
    states = theirs(numbers, mask).last_hidden_state
    means = [state[seen.bool()].mean(0) for state, seen in zip(states, mask, strict=True)]
    expected = F.normalize(torch.stack(means), dim=-1)
    e = sentence(encoder(numbers, weights), weights)
    torch.testing.assert_close(e, expected, **EXACT)
    torch.testing.assert_close(e.square().sum(-1), torch.ones(4), **EXACT)


def test_single_precision_is_the_default_and_close(encoder, batch):
    single, _ = minilm.load()
    assert {parameter.dtype for parameter in single.parameters()} == {torch.float32}
    numbers, weights = batch
    u = single(numbers, weights)
    assert u.dtype == torch.float32
    assert distance(u, encoder(numbers, weights)) < 1e-3
    e = sentence(u, weights)
    assert distance(e, sentence(encoder(numbers, weights), weights)) < 1e-6


def test_padding_does_not_change_an_embedding(model, encoder, batch):
    numbers, weights = batch
    together = sentence(encoder(numbers, weights), weights)
    for text, expected in zip(SENTENCES, together, strict=True):
        numbers, weights, _ = minilm.numbered([text], model[1])
        assert (weights == 1).all()
        alone = sentence(encoder(numbers), weights)
        torch.testing.assert_close(alone[0], expected, **EXACT)


def test_a_paraphrase_is_nearer_than_another_subject(encoder, batch):
    numbers, weights = batch
    e = sentence(encoder(numbers, weights), weights)
    guitar, instrument, market, music = e
    assert guitar @ instrument > 0.6
    assert (guitar @ market).abs() < 0.1
    assert guitar @ music > guitar @ market


# ---- words ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("theirs", [PreTrainedTokenizerFast, BertTokenizerFast])
def test_words_are_numbered_as_transformers_numbers_them(model, theirs):
    texts = SENTENCES + ODD
    peer = theirs(tokenizer_file=str(minilm.FOLDER / "tokenizer.json"), pad_token="[PAD]")
    expected = peer(texts, padding=True, return_tensors="pt")
    numbers, weights, words = minilm.numbered(texts, model[1])
    assert torch.equal(numbers, expected["input_ids"])
    assert torch.equal(weights[:, 0].long(), expected["attention_mask"])
    assert weights.shape == (8, 1, numbers.shape[1])
    for row, mask, names in zip(numbers, weights[:, 0], words, strict=True):
        assert names == peer.convert_ids_to_tokens(row[mask.bool()])


def test_the_first_sentence_has_nine_words(model):
    _, _, words = minilm.numbered([GUITAR], model[1])
    assert words == [["[CLS]", "a", "man", "is", "playing", "a", "guitar", ".", "[SEP]"]]


def test_a_text_that_is_too_long_is_refused_and_not_cut(model, encoder):
    numbers, _, _ = minilm.numbered(["word " * 510], model[1])
    assert numbers.shape == (1, 512)
    longer, _, _ = minilm.numbered(["word " * 511], model[1])
    with pytest.raises(ValueError, match="must have 1 to 512 tokens, but 513 came; split it"):
        encoder(longer)


NO_LISTS = {
    "string": GUITAR,
    "empty": [],
    "none": None,
    "number": 3,
    "numbers": [1, 2],
    "mixed": ["a", None],
}


@pytest.mark.parametrize("sentences", NO_LISTS.values(), ids=NO_LISTS)
def test_sentences_come_in_a_list(model, sentences):
    with pytest.raises(ValueError, match="a list of at least one sentence is needed, but .* came"):
        minilm.numbered(sentences, model[1])


# ---- files ---------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    """A copy of the two small files, and a large one that ends too early."""
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(minilm.FOLDER / name, tmp_path / name)
    with open(minilm.FOLDER / "model.safetensors", "rb") as file:
        (tmp_path / "model.safetensors").write_bytes(file.read(100_000))
    return tmp_path


@pytest.mark.parametrize("name", minilm.SHA256)
def test_a_damaged_file_is_named_and_mended_by_the_set_up(folder, name):
    content = bytearray((folder / name).read_bytes())
    content[-3] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"{name} of all-MiniLM.* is damaged.*`make setup`"):
        minilm.load(folder=folder)


@pytest.mark.parametrize("name", minilm.SHA256)
def test_a_missing_file_is_named_and_fetched_by_the_set_up(folder, name):
    (folder / name).unlink()
    with pytest.raises(ValueError, match=rf"{name} of all-MiniLM.* is missing.*`make setup`"):
        minilm.load(folder=str(folder))


class Trap:
    """What a pickle may do: run any code when it is read."""

    def __reduce__(self):
        return (pytest.fail, ("a pickle was executed",))


def test_a_file_that_could_run_code_is_not_executed_even_with_its_own_hash(folder, monkeypatch):
    path = folder / "model.safetensors"
    path.write_bytes(pickle.dumps(Trap()))
    own = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setitem(minilm.SHA256, path.name, own)
    with pytest.raises(SafetensorError):
        minilm.load(folder=folder)


# ---- the trained network as one step of two equations --------------------------------------------


def test_one_projected_step_a_layer_is_the_trained_network(encoder, batch):
    numbers, weights = batch
    w = walk(encoder.layers(weights), encoder.start(numbers), lie_projected)
    torch.testing.assert_close(encoder.finish(w), encoder(numbers, weights), **EXACT)


def test_one_geodesic_step_a_layer_is_the_trained_network_up_to_eps(encoder, batch):
    """With ε a projection gives the mean square s²/(s² + ε) instead of 1. Without it the two are one."""
    numbers, weights = batch
    layers, w = encoder.layers(weights), encoder.start(numbers)
    assert 1e-10 < 1 - w.square().mean(-1).min() < 1e-9
    gap = distance(encoder.finish(walk(layers, w, lie_geodesic)), encoder(numbers, weights))
    assert 1e-10 < gap < 1e-7
    w = project_mean_variance(encoder.embed(numbers))
    layers = [layer._replace(eps=0.0) for layer in layers]
    projected, geodesic = (walk(layers, w, scheme) for scheme in (lie_projected, lie_geodesic))
    torch.testing.assert_close(projected, geodesic, **EXACT)


def cosines(e):
    """The cosines of the angles between different sentences."""
    return (e @ e.T)[~torch.eye(len(e), dtype=torch.bool)]


def test_naive_small_steps_do_not_come_near_the_network(encoder, model):
    """With gain and bias in each step, sixteen steps a layer make all sentences the same."""
    numbers, weights, _ = minilm.numbered(SENTENCES[:3], model[1])
    trained = sentence(encoder(numbers, weights), weights)
    assert cosines(trained).min() < 0.1
    naive = sentence(encoder(numbers, weights, dt=1 / 16, steps=16), weights)
    assert cosines(naive).min() > 0.999
    assert (naive * trained).sum(-1).abs().max() < 0.3
    w = walk(encoder.layers(weights), encoder.start(numbers), lie_projected, 16)
    walked = sentence(encoder.finish(w), weights)
    assert cosines(walked).min() < 0.5


# ---- orders, for one sentence of nine words ------------------------------------------------------

FIRST, LAST = 0, 5


@pytest.fixture(scope="module")
def river(model):
    """A function for the error of a scheme, in a number of steps, at the end of one layer.

    The layer begins where it does in the trained network. The exact end is that of torchdiffeq's
    method of order 5 with a tolerance of 1e-10, on the tangent field.
    """
    encoder, tokenizer = model
    numbers, _, _ = minilm.numbered([GUITAR], tokenizer)
    layers, time = encoder.layers(), torch.tensor([0.0, 1.0], dtype=torch.float64)
    states = project_mean_variance(
        walk(layers, encoder.start(numbers), lie_projected, trajectory=True)
    )

    @cache
    def exact(number):
        def along(_, w):
            return field(layers[number], w)

        end = odeint(along, states[number], time, method="dopri5", rtol=1e-10, atol=1e-10)[-1]
        return project_mean_variance(end)

    @cache
    def error(scheme, steps, number):
        w = walk([layers[number]], states[number], scheme, steps)
        return (w - exact(number)).norm().item()

    return error


def field(layer, w):
    """The equation of one layer, T_w (f_A(w) + f_F(w)), at the point of S1 nearest to w."""
    w = project_mean_variance(w)
    return tangent(w, layer.attention(w) + layer.feed_forward(w))


def measured_order(error, scheme, counts, number):
    """The slope of the error over the step, in logarithms."""
    slope, _ = np.polyfit(np.log(counts), np.log([error(scheme, n, number) for n in counts]), 1)
    return -slope


def strang_plain(layer):
    """Strang splitting that projects after steps that did not go along the constraint."""

    def plain(velocity):
        return lambda w, dt: project_mean_variance(midpoint(velocity, w, dt))

    parts = [plain(layer.attention), plain(layer.feed_forward)]
    return lambda w, dt: strang(parts, w, dt)


def test_the_reference_agrees_with_many_steps_of_order_four(river):
    assert river(rk4_tangent, 64, LAST) < 1e-6


ORDERS = {
    "lie": (lie_projected, 1, 0.1, [8, 16, 32]),
    "strang": (strang_tangent, 2, 0.1, [8, 16, 32]),
    "rk4": (rk4_tangent, 4, 0.3, [16, 32, 64]),
}


@pytest.mark.parametrize("scheme, expected, within, counts", ORDERS.values(), ids=ORDERS)
def test_orders_on_the_trained_weights(river, scheme, expected, within, counts):
    assert measured_order(river, scheme, counts, LAST) == pytest.approx(expected, abs=within)


def test_projecting_after_plain_stages_falls_back_to_order_one(river):
    slope = measured_order(river, strang_plain, [16, 32], LAST)
    assert slope == pytest.approx(1, abs=0.1)


def test_orders_in_the_stiff_first_layer(river):
    assert measured_order(river, lie_projected, [16, 32], FIRST) == pytest.approx(1, abs=0.1)
    assert measured_order(river, strang_tangent, [32, 64], FIRST) == pytest.approx(2, abs=0.15)


def test_the_first_layer_is_too_stiff_for_large_steps(river):
    """Δt = 1/4 is beyond what an explicit step can take: the error is of another size."""
    assert river(strang_tangent, 4, FIRST) > 10 * river(strang_tangent, 8, FIRST)


def test_what_limits_the_steps_is_the_first_word(model):
    """The stiffest direction of the first feed-forward field lives on [CLS], where every text begins."""
    encoder, tokenizer = model
    numbers, _, _ = minilm.numbered([GUITAR], tokenizer)
    layer, w = encoder.layers()[0], encoder.start(numbers)[0]
    value, share = stiffest(lambda w: tangent(w, layer.feed_forward(w)), w)
    assert share[0] > 0.999
    assert largest_step(value) == pytest.approx(0.13, abs=0.01)
