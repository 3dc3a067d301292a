"""The book's operators beside those of torch, with every parameter random and in float64."""

import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lib.attention import SelfAttention, attend, causal, kernel
from lib.encoder import Encoder, EncoderLayer
from lib.feedforward import FeedForward
from lib.projection import Normalisation, project_mean_square, project_mean_variance

B, N, WIDTH = 3, 5, 8
EXACT = {"atol": 1e-12, "rtol": 0}
EPSILONS = [0.0, 1e-12, 1e-6, 1e-5, 1e-3, 1.0]


def randomised(module):
    """The module with random parameters: gains of one and biases of zero would hide a term."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return module


def distance(a, b):
    return (a - b).abs().max().item()


# ---- projections ---------------------------------------------------------------------------------


@pytest.mark.parametrize("eps", EPSILONS)
@pytest.mark.parametrize("size", [None, 1.0, 0.3])
def test_the_projection_is_layer_norm(eps, size):
    """Without weights, with weights of one, and with weights of another equal size."""
    v = torch.randn(B, N, WIDTH)
    weights = None if size is None else torch.full((WIDTH,), size)
    ours = project_mean_variance(v, weights=weights, eps=eps)
    torch.testing.assert_close(ours, F.layer_norm(v, (WIDTH,), eps=eps), **EXACT)


@pytest.mark.parametrize("eps", EPSILONS)
@pytest.mark.parametrize("size", [None, 1.0, 0.3])
def test_the_projection_without_the_mean_is_rms_norm(eps, size):
    v = torch.randn(B, N, WIDTH)
    weights = None if size is None else torch.full((WIDTH,), size)
    ours = project_mean_square(v, weights=weights, eps=eps)
    torch.testing.assert_close(ours, F.rms_norm(v, (WIDTH,), eps=eps), **EXACT)


@pytest.mark.parametrize("eps", [1e-3, 1.0])
def test_weights_are_repeated_features(eps):
    """Whole-number weights count a feature several times, as layer norm of repeated values does."""
    v, counts = torch.randn(N, 3), torch.tensor([1, 3, 2])
    repeated = F.layer_norm(v.repeat_interleave(counts, -1), (6,), eps=eps)
    first = torch.tensor([0, 1, 4])
    ours = project_mean_variance(v, weights=counts.double(), eps=eps)
    torch.testing.assert_close(ours, repeated[:, first], **EXACT)


def test_the_projection_does_not_have_the_divisor_n_minus_1():
    v = torch.randn(N, WIDTH)
    wrong = (v - v.mean(-1, keepdim=True)) / v.std(-1, keepdim=True, correction=1)
    assert distance(project_mean_variance(v), wrong) > 1e-2


def test_normalisation_is_torchs_layer_norm_with_gain_and_bias():
    ours, theirs = Normalisation(WIDTH, 1e-3), randomised(nn.LayerNorm(WIDTH, 1e-3))
    ours.load_state_dict({"gain": theirs.weight, "bias": theirs.bias})
    v = torch.randn(B, N, WIDTH)
    torch.testing.assert_close(ours(v), theirs(v), **EXACT)


# ---- attention -----------------------------------------------------------------------------------


def triple(d_v=6):
    return torch.randn(B, 2, N, 4), torch.randn(B, 2, 7, 4), torch.randn(B, 2, 7, d_v)


@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("d_v", [4, 6])
def test_attention_on_unit_cells_is_softmax_attention(scale, d_v):
    Q, K, V = triple(d_v)
    rows = torch.softmax(Q @ K.mT * (scale or 4**-0.5), dim=-1)
    torch.testing.assert_close(kernel(Q, K, scale=scale), rows, **EXACT)
    torch.testing.assert_close(attend(Q, K, V, scale=scale), rows @ V, **EXACT)
    torch.testing.assert_close(
        attend(Q, K, V, scale=scale), F.scaled_dot_product_attention(Q, K, V, scale=scale), **EXACT
    )


def test_a_mask_of_torch_is_a_weight_of_zero():
    Q, K, V = triple()
    mask = torch.rand(B, 1, N, 7) > 0.4
    mask[..., 0] = True
    theirs = F.scaled_dot_product_attention(Q, K, V, attn_mask=mask)
    torch.testing.assert_close(attend(Q, K, V, mask.double()), theirs, **EXACT)


def test_an_additive_bias_of_torch_is_a_logarithm_of_weights():
    Q, K, V = triple()
    weights = torch.rand(B, 2, N, 7) + 0.01
    theirs = F.scaled_dot_product_attention(Q, K, V, attn_mask=weights.log())
    torch.testing.assert_close(attend(Q, K, V, weights), theirs, **EXACT)


def test_causal_weights_are_torchs_causal_mask():
    Q, K, V = (x[..., :N, :] for x in triple())
    theirs = F.scaled_dot_product_attention(Q, K, V, is_causal=True)
    torch.testing.assert_close(attend(Q, K, V, causal(torch.ones(N))), theirs, **EXACT)


def padding(lengths=(5, 3, 1)):
    """True where a batch of sequences of these lengths is filled up, shape (B, N)."""
    return torch.arange(N) >= torch.tensor(lengths)[:, None]


def self_attentions(heads, bias=True):
    """torch's multi-head attention and the book's, with the same random parameters."""
    theirs = randomised(nn.MultiheadAttention(WIDTH, heads, bias=bias, batch_first=True)).eval()
    ours = SelfAttention(WIDTH, heads)
    zero = torch.zeros(4 * WIDTH).split([3 * WIDTH, WIDTH])
    ours.load_state_dict({
        "QKV.weight": theirs.in_proj_weight, "QKV.bias": theirs.in_proj_bias if bias else zero[0],
        "O.weight": theirs.out_proj.weight, "O.bias": theirs.out_proj.bias if bias else zero[1],
    })  # fmt: skip
    return ours, lambda u, **masks: theirs(u, u, u, need_weights=False, **masks)[0]


@pytest.mark.parametrize("heads", [1, 2, 4, 8])
@pytest.mark.parametrize("bias", [True, False])
def test_self_attention_is_multi_head_attention(heads, bias):
    ours, theirs = self_attentions(heads, bias)
    u = torch.randn(B, N, WIDTH)
    torch.testing.assert_close(ours(u), theirs(u), **EXACT)
    torch.testing.assert_close(ours(u[0]), theirs(u[0]), **EXACT)


@pytest.mark.parametrize("heads", [1, 2, 4])
def test_a_key_padding_mask_is_a_weight_of_zero_in_a_batch(heads):
    ours, theirs = self_attentions(heads)
    u, pad = torch.randn(B, N, WIDTH), padding()
    weights = (~pad).double().unsqueeze(1)
    torch.testing.assert_close(ours(u, weights), theirs(u, key_padding_mask=pad), **EXACT)


@pytest.mark.parametrize("heads", [1, 2, 4])
def test_an_attention_mask_is_a_matrix_of_weights(heads):
    ours, theirs = self_attentions(heads)
    u, hidden = torch.randn(B, N, WIDTH), torch.rand(N, N) > 0.5
    hidden.fill_diagonal_(False)
    torch.testing.assert_close(ours(u, (~hidden).double()), theirs(u, attn_mask=hidden), **EXACT)
    weights = torch.rand(N, N) + 0.01
    torch.testing.assert_close(ours(u, weights), theirs(u, attn_mask=weights.log()), **EXACT)
    both = (~hidden).double() * (~padding((5, 5, 5))).double().unsqueeze(1)
    torch.testing.assert_close(ours(u, both), theirs(u, attn_mask=hidden), **EXACT)


# ---- the feed-forward network --------------------------------------------------------------------


def test_the_feed_forward_network_is_two_linear_layers():
    theirs = randomised(nn.Sequential(nn.Linear(WIDTH, 11), nn.ReLU(), nn.Linear(11, WIDTH)))
    ours = FeedForward(WIDTH, 11)
    names = {"W1": theirs[0], "W2": theirs[2]}
    ours.load_state_dict(
        {
            f"{name}.{key}": value
            for name, layer in names.items()
            for key, value in layer.state_dict().items()
        }
    )
    u = torch.randn(B, N, WIDTH)
    torch.testing.assert_close(ours(u), theirs(u), **EXACT)


# ---- the encoder ---------------------------------------------------------------------------------

ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "module": nn.SiLU(), "function": torch.tanh}
OPTIONS = list(
    itertools.product(
        [False, True], ACTIVATIONS, [1, 2, 4], [True, False], [False, True], [True, False]
    )
)


def torch_encoder(
    norm_first=False,
    activation="relu",
    heads=2,
    bias=True,
    last_norm=False,
    batch_first=True,
    **options,
):
    """A random torch encoder of two layers, in evaluation mode."""
    layer = nn.TransformerEncoderLayer(
        WIDTH, heads, 11, norm_first=norm_first, activation=ACTIVATIONS[activation], bias=bias,
        batch_first=batch_first, **options,
    )  # fmt: skip
    norm = nn.LayerNorm(WIDTH, bias=bias) if last_norm else None
    return randomised(nn.TransformerEncoder(layer, 2, norm, enable_nested_tensor=False)).eval()


def call_torch(encoder, u, **masks):
    """Call with u of shape (B, N, width), whatever the encoder's own convention."""
    batch_first = encoder.layers[0].self_attn.batch_first
    return (
        encoder(u, **masks) if batch_first else encoder(u.transpose(0, 1), **masks).transpose(0, 1)
    )


@pytest.mark.parametrize("norm_first, activation, heads, bias, last_norm, batch_first", OPTIONS)
def test_from_torch_gives_the_numbers_of_torch(
    norm_first, activation, heads, bias, last_norm, batch_first
):
    theirs = torch_encoder(norm_first, activation, heads, bias, last_norm, batch_first)
    ours, u = Encoder.from_torch(theirs), torch.randn(B, N, WIDTH)
    torch.testing.assert_close(
        ours(u), call_torch(theirs, u), **EXACT
    )  # with gradients: no fast path
    with torch.no_grad():
        torch.testing.assert_close(ours(u), call_torch(theirs, u), **EXACT)  # torch's fast path


@pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
@pytest.mark.parametrize("fast", [False, True], ids=["plain", "fast"])
@pytest.mark.parametrize("last_norm", [False, True])
def test_padding_of_a_batch_gives_the_numbers_of_torch(norm_first, fast, last_norm):
    theirs = torch_encoder(norm_first, last_norm=last_norm)
    ours, u, pad = Encoder.from_torch(theirs), torch.randn(B, N, WIDTH), padding()
    with torch.set_grad_enabled(not fast):
        result = ours(u, (~pad).double().unsqueeze(1))
        torch.testing.assert_close(result[~pad], theirs(u, src_key_padding_mask=pad)[~pad], **EXACT)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_padding_gives_the_numbers_of_torchs_nested_tensors():
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 11, batch_first=True)
    theirs = randomised(nn.TransformerEncoder(layer, 2, enable_nested_tensor=True)).eval()
    u, pad = torch.randn(B, N, WIDTH), padding()
    with torch.no_grad():
        result = Encoder.from_torch(theirs)(u, (~pad).double().unsqueeze(1))
        torch.testing.assert_close(result[~pad], theirs(u, src_key_padding_mask=pad)[~pad], **EXACT)


@pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
def test_a_causal_encoder_gives_the_numbers_of_torch(norm_first):
    theirs, u = torch_encoder(norm_first), torch.randn(B, N, WIDTH)
    mask = nn.Transformer.generate_square_subsequent_mask(N)
    ours = Encoder.from_torch(theirs)(u, causal(torch.ones(N)))
    torch.testing.assert_close(ours, theirs(u, mask=mask), **EXACT)


@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (2, 1, 3)], ids=str)
def test_any_number_of_leading_dimensions_gives_the_numbers_of_torch(lead):
    theirs, u = torch_encoder(), torch.randn(*lead, N, WIDTH)
    flat = u.reshape(-1, N, WIDTH)
    torch.testing.assert_close(
        Encoder.from_torch(theirs)(u).reshape(flat.shape), theirs(flat), **EXACT
    )


@pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
def test_layers_that_differ_are_taken_one_by_one(norm_first):
    """Other heads, hidden width, activation and eps (two of them in one layer)."""
    theirs = torch_encoder(norm_first, last_norm=True)
    odd = nn.TransformerEncoderLayer(
        WIDTH, 4, 17, activation="gelu", batch_first=True, norm_first=not norm_first
    )
    theirs.layers[1] = randomised(odd).eval()
    odd.norm1.eps, odd.norm2.eps, theirs.norm.eps = 1e-1, 1e-2, 1e-3
    u = torch.randn(B, N, WIDTH)
    torch.testing.assert_close(Encoder.from_torch(theirs)(u), theirs(u), **EXACT)


@pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
def test_dropout_is_left_out(norm_first):
    theirs = torch_encoder(norm_first, dropout=0.5)
    ours, u = Encoder.from_torch(theirs.train()), torch.randn(B, N, WIDTH)
    assert distance(ours(u), theirs(u)) > 1e-2
    torch.testing.assert_close(ours(u), theirs.eval()(u), **EXACT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_from_torch_keeps_precision_and_device(dtype):
    theirs = torch_encoder(last_norm=True).to(dtype)
    ours, u = Encoder.from_torch(theirs), torch.randn(B, N, WIDTH, dtype=dtype)
    device = theirs.layers[0].linear1.weight.device
    assert {(p.dtype, p.device) for p in ours.parameters()} == {(dtype, device)}
    assert ours(u).dtype == dtype
    assert distance(ours(u), theirs(u)) < (1e-5 if dtype == torch.float32 else 1e-12)


def test_from_torch_copies_every_parameter():
    """Afterwards neither encoder changes with the other, a learned activation included."""
    theirs = torch_encoder()
    for layer in theirs.layers:
        layer.activation = nn.PReLU()
    ours, u = Encoder.from_torch(theirs), torch.randn(B, N, WIDTH)
    before = theirs(u)
    torch.testing.assert_close(ours(u), before, **EXACT)
    addresses = {p.data_ptr() for p in theirs.parameters()}
    assert addresses.isdisjoint(p.data_ptr() for p in ours.parameters())
    randomised(ours)
    assert torch.equal(theirs(u), before)


# ---- gradients -----------------------------------------------------------------------------------


TORCH_NAMES = {
    "attention.QKV.": "self_attn.in_proj_",
    "attention.O.": "self_attn.out_proj.",
    "feed_forward.W1.": "linear1.",
    "feed_forward.W2.": "linear2.",
    "gain": "weight",
}


def pairs_of_parameters(ours, theirs):
    """Every parameter of a layer of the book beside the one of torch's layer."""
    counterparts = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        for ours_, theirs_ in TORCH_NAMES.items():
            name = name.replace(ours_, theirs_)
        yield parameter, counterparts.pop(name)
    assert not counterparts


@pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
@pytest.mark.parametrize("padded", [False, True])
def test_all_gradients_are_those_of_torch(norm_first, padded):
    theirs = torch_encoder(norm_first, "gelu", last_norm=True)
    ours = Encoder.from_torch(theirs)
    pad = padding() if padded else torch.zeros(B, N, dtype=torch.bool)
    u, target = torch.randn(B, N, WIDTH), torch.randn(B, N, WIDTH)
    inputs = [u.clone().requires_grad_(), u.clone().requires_grad_()]
    results = (
        ours(inputs[0], (~pad).double().unsqueeze(1)),
        theirs(inputs[1], src_key_padding_mask=pad),
    )
    for result in results:
        ((result - target)[~pad] ** 2).sum().backward()
    torch.testing.assert_close(inputs[0].grad, inputs[1].grad, atol=1e-10, rtol=1e-10)
    pairs = [(ours.norm.gain, theirs.norm.weight), (ours.norm.bias, theirs.norm.bias)]
    for layers in zip(ours.layers, theirs.layers, strict=True):
        pairs += pairs_of_parameters(*layers)
    assert len(pairs) == 2 + 2 * 12
    for mine, expected in pairs:
        torch.testing.assert_close(mine.grad, expected.grad, atol=1e-10, rtol=1e-10)


# ---- negative controls: what is not the same must not look the same ------------------------------


def wrong_eps(encoder):
    encoder.layers[0].norm1.eps = 1e-3


def wrong_scale(encoder):
    layer = encoder.layers[0].attention
    layer.QKV.weight.data[:WIDTH] *= (
        1 / 2**0.5
    )  # the scale 1/√d instead of 1/√(d/heads), for two heads
    layer.QKV.bias.data[:WIDTH] *= 1 / 2**0.5


def wrong_activation(encoder):
    encoder.layers[0].feed_forward.activation = lambda v: F.gelu(v, approximate="tanh")


def wrong_order(encoder):
    encoder.layers[0].norm_first = not encoder.layers[0].norm_first


def wrong_number_of_heads(encoder):
    encoder.layers[0].attention.heads = 4


def norms_exchanged(encoder):
    layer = encoder.layers[0]
    layer.norm1, layer.norm2 = layer.norm2, layer.norm1


def wrong_divisor(encoder):
    """The variance with N − 1: a gain that is too small by √((N − 1)/N)."""
    encoder.layers[0].norm1.gain.data *= ((WIDTH - 1) / WIDTH) ** 0.5


def no_last_norm(encoder):
    encoder.norm = None


@pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
@pytest.mark.parametrize(
    "spoil",
    [
        wrong_eps,
        wrong_scale,
        wrong_activation,
        wrong_order,
        wrong_number_of_heads,
        norms_exchanged,
        wrong_divisor,
        no_last_norm,
    ],
)
def test_a_wrong_encoder_gives_other_numbers(norm_first, spoil):
    theirs = torch_encoder(norm_first, "gelu", heads=2, last_norm=True)
    ours, u = Encoder.from_torch(theirs), torch.randn(B, N, WIDTH)
    torch.testing.assert_close(ours(u), theirs(u), **EXACT)
    spoil(ours)
    assert distance(ours(u), theirs(u)) > 1e-6


@pytest.mark.parametrize("dt, steps", [(0.5, 1), (1.0, 2), (0.5, 2)])
def test_other_steps_give_other_numbers(dt, steps):
    theirs, u = torch_encoder(), torch.randn(B, N, WIDTH)
    assert distance(Encoder.from_torch(theirs)(u, dt=dt, steps=steps), theirs(u)) > 1e-3


def test_weights_that_are_not_equal_give_other_numbers():
    theirs, u = torch_encoder(), torch.randn(B, N, WIDTH)
    ours = Encoder.from_torch(theirs)
    torch.testing.assert_close(ours(u, torch.full((N,), 0.3)), theirs(u), **EXACT)
    assert distance(ours(u, torch.rand(N)), theirs(u)) > 1e-3


def test_a_single_layer_can_be_taken_over():
    theirs, u = torch_encoder(True).layers[0], torch.randn(B, N, WIDTH)
    torch.testing.assert_close(EncoderLayer.from_torch(theirs)(u), theirs(u), **EXACT)
