"""The vision transformer beside `transformers.ViTModel`, with every parameter random and in float64.

Theirs is compared with its fused attention ("sdpa"): the other one ("eager") takes its softmax in
float32 whatever the precision of the model.
"""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from transformers import DeiTConfig, DeiTModel, ViTConfig, ViTForImageClassification, ViTModel

from lib.attention import SelfAttention
from lib.positions import Table, centres
from lib.vit import VisionTransformer

B, WIDTH, HEADS, LAYERS = 3, 12, 3, 2
EXACT = {"atol": 1e-12, "rtol": 0}

# Name: the settings that differ from images of 12 × 12 pixels in patches of 4, that is N = 1 + 9.
SETTINGS = {
    "plain": {},
    "two-heads": {"num_attention_heads": 2},
    "six-heads": {"num_attention_heads": 6},
    "wide-images": {"image_size": (8, 20)},
    "tall-images": {"image_size": (20, 8)},
    "wide-patches": {"patch_size": (3, 6)},
    "tall-patches": {"patch_size": (6, 2), "image_size": (18, 10)},
    "one-patch": {"patch_size": 12},
    "one-channel": {"num_channels": 1},
    "no-qkv-bias": {"qkv_bias": False},
    "relu": {"hidden_act": "relu"},
    "tanh-gelu": {"hidden_act": "gelu_new"},
    "silu": {"hidden_act": "silu"},
    "relu-squared": {"hidden_act": "relu2"},
    "large-eps": {"layer_norm_eps": 1e-2},
    "no-eps": {"layer_norm_eps": 0.0},
    "dropout": {"hidden_dropout_prob": 0.5, "attention_probs_dropout_prob": 0.5},
    "narrow": {"intermediate_size": 5},
    "wide-pooler": {"pooler_output_size": 17},
    "relu-pooler": {"pooler_act": "relu"},
}


@pytest.fixture
def model(randomised):
    """A function that makes a random ViTModel in evaluation mode."""

    def make(pooler=True, attention="sdpa", **settings):
        config = {
            "hidden_size": WIDTH, "num_attention_heads": HEADS, "num_hidden_layers": LAYERS,
            "intermediate_size": 20, "image_size": 12, "patch_size": 4,
        } | settings  # fmt: skip
        config = ViTConfig(attn_implementation=attention, **config)
        return randomised(ViTModel(config, add_pooling_layer=pooler).double()).eval()

    return make


def images_for(theirs, batch=B):
    size = theirs.embeddings.image_size
    return torch.randn(batch, theirs.config.num_channels, *size)


def distance(a, b):
    return (a - b).abs().max().item()


# ---- the same numbers ----------------------------------------------------------------------------


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("pooler", [True, False], ids=["pooler", "no-pooler"])
def test_from_transformers_gives_the_numbers_of_transformers(model, settings, pooler):
    theirs = model(pooler, **settings)
    ours, images = VisionTransformer.from_transformers(theirs), images_for(theirs)
    u, expected = ours(images), theirs(images)
    torch.testing.assert_close(u, expected.last_hidden_state, **EXACT)
    if pooler:
        torch.testing.assert_close(ours.read_out(u), expected.pooler_output, **EXACT)
    else:  # then the state at the class point is all that is read out
        assert expected.pooler_output is None
        assert torch.equal(ours.read_out(u), u[:, 0])


def test_every_intermediate_state_is_the_same(model):
    """Not only the end: errors of two layers might cancel there."""
    theirs = model()
    ours, images = VisionTransformer.from_transformers(theirs), images_for(theirs)
    expected = theirs(images, output_hidden_states=True).hidden_states
    u = ours.sample(images)
    torch.testing.assert_close(u, expected[0], **EXACT)
    for layer, state in zip(ours.encoder.layers, expected[1:], strict=True):
        u = layer(u)
        torch.testing.assert_close(u, state, **EXACT)


def test_the_eager_attention_of_transformers_is_of_single_precision(model):
    """Why the comparison is with "sdpa": the eager model is not its own float64 model."""
    theirs = model(attention="eager")
    ours, images = VisionTransformer.from_transformers(theirs), images_for(theirs)
    gap = distance(ours(images), theirs(images).last_hidden_state)
    assert 1e-9 < gap < 1e-4


def test_single_precision_stays_single_precision(model):
    theirs = model().float()
    ours, images = VisionTransformer.from_transformers(theirs), images_for(theirs).float()
    assert {parameter.dtype for parameter in ours.parameters()} == {torch.float32}
    u = ours(images)
    assert u.dtype == torch.float32
    assert distance(u, theirs(images).last_hidden_state) < 1e-3


def test_a_model_in_training_mode_is_taken_without_its_dropout(model):
    theirs = model(hidden_dropout_prob=0.5).train()
    ours, images = VisionTransformer.from_transformers(theirs), images_for(theirs)
    assert distance(ours(images), theirs(images).last_hidden_state) > 1e-2
    torch.testing.assert_close(ours(images), theirs.eval()(images).last_hidden_state, **EXACT)


def test_all_gradients_are_those_of_transformers(model):
    """With equal gradients everywhere the two are one function, not two that meet at a point."""
    theirs = model()
    ours = VisionTransformer.from_transformers(theirs)
    images = [images_for(theirs).requires_grad_()]
    images.append(images[0].detach().clone().requires_grad_())
    u, expected = ours(images[0]), theirs(images[1])
    target = torch.randn_like(u)
    ((u - target).square().sum() + ours.read_out(u).square().sum()).backward()
    state, pooled = expected.last_hidden_state, expected.pooler_output
    ((state - target).square().sum() + pooled.square().sum()).backward()
    pairs = [(images[0].grad, images[1].grad)]

    def linear(mine, *parts):
        pairs.append((mine.weight.grad, torch.cat([part.weight.grad for part in parts])))
        pairs.append((mine.bias.grad, torch.cat([part.bias.grad for part in parts])))

    def norm(mine, part):
        pairs.append((mine.gain.grad, part.weight.grad))
        pairs.append((mine.bias.grad, part.bias.grad))

    embeddings = theirs.embeddings
    linear(ours.embedding, embeddings.patch_embeddings.projection)
    positions = embeddings.position_embeddings.grad[0]
    pairs.append((ours.class_point.grad, embeddings.cls_token.grad[0, 0]))
    pairs.append((ours.class_point.grad, positions[0]))  # of a sum both terms have the gradient
    pairs.append((ours.positions.values.grad.flatten(0, 1), positions[1:]))
    for mine, layer in zip(ours.encoder.layers, theirs.layers, strict=True):
        attention = layer.attention
        linear(mine.attention.QKV, attention.q_proj, attention.k_proj, attention.v_proj)
        linear(mine.attention.O, attention.o_proj)
        linear(mine.feed_forward.W1, layer.mlp.fc1)
        linear(mine.feed_forward.W2, layer.mlp.fc2)
        norm(mine.norm1, layer.layernorm_before)
        norm(mine.norm2, layer.layernorm_after)
    norm(ours.encoder.norm, theirs.layernorm)
    linear(ours.head, theirs.pooler.dense)
    assert len({id(mine) for mine, _ in pairs}) == 1 + len(list(ours.parameters()))
    for mine, expected in pairs:
        scale = expected.abs().max().item()
        torch.testing.assert_close(mine, expected, atol=1e-12 * max(scale, 1), rtol=0)


def test_from_transformers_copies(model):
    """Afterwards neither changes with the other."""
    theirs = model()
    ours, images = VisionTransformer.from_transformers(theirs), images_for(theirs)
    before = theirs(images).last_hidden_state
    for parameter in ours.parameters():
        nn.init.normal_(parameter)
    assert torch.equal(theirs(images).last_hidden_state, before)


# ---- other grids ---------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(16, 16), (24, 24), (20, 32), (8, 8), (4, 12), (12, 24), (44, 8)])
def test_positions_between_the_nodes_are_those_of_transformers(model, size):
    """Theirs resizes its table bicubically, ours reads it as a function at the centres of the patches."""
    theirs = model()
    ours, images = VisionTransformer.from_transformers(theirs), torch.randn(B, 3, *size)
    expected = theirs(images, interpolate_pos_encoding=True)
    torch.testing.assert_close(ours(images), expected.last_hidden_state, **EXACT)


def test_without_interpolation_transformers_refuses_other_sizes(model):
    theirs, images = model(), torch.randn(B, 3, 16, 16)
    with pytest.raises(ValueError, match="doesn't match model"):
        theirs(images)


def test_positions_of_a_table_that_is_not_square_are_read_too(model):
    """Theirs takes every table for a square one when it interpolates, and fails; ours does not."""
    theirs = model(image_size=(8, 20))
    ours, images = VisionTransformer.from_transformers(theirs), torch.randn(B, 3, 16, 40)
    with pytest.raises(RuntimeError, match="shape"):
        theirs(images, interpolate_pos_encoding=True)
    table = theirs.embeddings.position_embeddings[0, 1:].unflatten(0, (2, 5)).permute(2, 0, 1)
    resized = F.interpolate(table[None], (4, 10), mode="bicubic", align_corners=False)
    found = ours.positions(centres((16, 40), (4, 4), (4, 4)))
    torch.testing.assert_close(found, resized[0].permute(1, 2, 0), **EXACT)
    assert ours(images).shape == (B, 1 + 40, WIDTH)


def test_patches_that_do_not_fill_the_image_are_refused(model):
    """Theirs drops the pixels that are left over without a word: they may be anything, even NaN."""
    theirs = model(image_size=14)  # three patches of 4, and 2 pixels more
    ours, images = VisionTransformer.from_transformers(theirs), torch.randn(B, 3, 14, 14)
    changed = images.clone()
    changed[..., 12:] = torch.nan
    assert torch.equal(theirs(images).last_hidden_state, theirs(changed).last_hidden_state)
    with pytest.raises(ValueError, match=r"patches must fill the image.*patch 4.*14 came; crop"):
        ours(images)
    cropped = ours(images[..., :12, :12])
    torch.testing.assert_close(cropped, theirs(images).last_hidden_state, **EXACT)


# ---- negative controls: what is not the same must not look the same ------------------------------


def scale_of_the_width(vit):
    """1/√d instead of 1/√(d/H): the scale belongs to the features of one head."""
    for layer in vit.encoder.layers:
        layer.attention.QKV.weight.data[:WIDTH] *= HEADS**-0.5
        layer.attention.QKV.bias.data[:WIDTH] *= HEADS**-0.5


def other_eps(vit):
    """torch's usual 1e-5; theirs has 1e-12, from its configuration."""
    for layer in vit.encoder.layers:
        layer.norm1.eps = layer.norm2.eps = 1e-5


def other_last_eps(vit):
    """The last normalisation alone."""
    vit.encoder.norm.eps = 1e-5


def post_norm(vit):
    """Normalised after each step, as in Vaswani et al., instead of before."""
    for layer in vit.encoder.layers:
        layer.norm_first = False


def approximate_gelu(vit):
    """The tanh formula is close to GELU, but not GELU."""
    for layer in vit.encoder.layers:
        layer.feed_forward.activation = nn.GELU(approximate="tanh")


def rectifier(vit):
    """ReLU is the projection of chapter 4, but not what ViT uses."""
    for layer in vit.encoder.layers:
        layer.feed_forward.activation = nn.ReLU()


def no_last_norm(vit):
    """A pre-norm encoder ends with a state that is not normalised."""
    vit.encoder.norm = None


def no_positions(vit):
    """Without them a permutation of the patches would not matter."""
    nn.init.zeros_(vit.positions.values)


def positions_transposed(vit):
    """Rows and columns exchanged: with a square grid no shape would tell."""
    vit.positions.values.data = vit.positions.values.data.transpose(0, 1).contiguous()


def no_position_of_the_class_point(theirs):
    """The class token has a position too, which is added to it."""

    def spoil(vit):
        vit.class_point.data -= theirs.embeddings.position_embeddings[0, 0]

    return spoil


def other_heads(vit):
    """The features dealt out to two heads instead of three."""
    for layer in vit.encoder.layers:
        layer.attention.heads = 2


def norms_exchanged(vit):
    """Each normalisation has gain and bias of its own."""
    for layer in vit.encoder.layers:
        layer.norm1, layer.norm2 = layer.norm2, layer.norm1


SPOILS = [
    scale_of_the_width, other_eps, other_last_eps, post_norm, approximate_gelu, rectifier,
    no_last_norm, no_positions, positions_transposed, other_heads, norms_exchanged,
]  # fmt: skip


@pytest.mark.parametrize("spoil", SPOILS)
def test_a_wrong_vision_transformer_gives_other_numbers(model, spoil):
    theirs = model()
    ours, images = VisionTransformer.from_transformers(theirs), images_for(theirs)
    expected = theirs(images).last_hidden_state
    torch.testing.assert_close(ours(images), expected, **EXACT)
    spoil(ours)
    assert distance(ours(images), expected) > 1e-7


def test_the_class_token_has_a_position(model):
    theirs = model()
    ours, images = VisionTransformer.from_transformers(theirs), images_for(theirs)
    with torch.no_grad():
        no_position_of_the_class_point(theirs)(ours)
    assert distance(ours(images), theirs(images).last_hidden_state) > 1e-3


def test_the_pooler_has_a_hyperbolic_tangent(model):
    theirs = model()
    ours, images = VisionTransformer.from_transformers(theirs), images_for(theirs)
    ours.activation = nn.Identity()
    assert distance(ours.read_out(ours(images)), theirs(images).pooler_output) > 1e-2


@pytest.mark.parametrize(("dt", "steps"), [(0.5, 2), (0.5, 1), (1.0, 2)])
def test_other_steps_are_another_network(model, dt, steps):
    """Theirs is the river in steps of Δt = 1, one a layer."""
    theirs = model()
    ours, images = VisionTransformer.from_transformers(theirs), images_for(theirs)
    found = ours(images, dt=dt, steps=steps)
    assert distance(found, theirs(images).last_hidden_state) > 1e-3


# ---- what is refused -----------------------------------------------------------------------------


class Another(ViTModel):
    """A subclass may compute anything."""


def small(**settings):
    sizes = {"hidden_size": 12, "num_attention_heads": 3, "num_hidden_layers": 1}
    return sizes | {"intermediate_size": 8, "image_size": 12, "patch_size": 4} | settings


def with_rms_norm():
    theirs = ViTModel(ViTConfig(**small()))
    theirs.layernorm = nn.RMSNorm(12)
    return theirs


REFUSED = {
    "nothing": (lambda: None, "ViTModel, but a NoneType came"),
    "subclass": (lambda: Another(ViTConfig(**small())), "ViTModel, but a Another came"),
    "classifier": (
        lambda: ViTForImageClassification(ViTConfig(**small())),
        "ViTModel, but a ViTForImageClassification came",
    ),
    "deit": (lambda: DeiTModel(DeiTConfig(**small())), "ViTModel, but a DeiTModel came"),
    "torch": (lambda: nn.TransformerEncoder, "ViTModel, but a type came"),
    "own": (lambda: SelfAttention(4, 2), "ViTModel, but a SelfAttention came"),
    "rms-norm": (with_rms_norm, "normalisation must be a torch.nn.LayerNorm, but a RMSNorm came"),
    "narrow-heads": (
        lambda: ViTModel(ViTConfig(**small(num_attention_heads=5))),
        "width 12 must be divisible by the 5 heads|5 heads of width 2 came",
    ),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_a_vision_transformer_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        VisionTransformer.from_transformers(make())


def test_heads_of_another_width_are_refused():
    config = ViTConfig(**small())
    config.head_dim = 8
    with pytest.raises(ValueError, match="as wide as u, 12, but 3 heads of width 8 came"):
        VisionTransformer.from_transformers(ViTModel(config))


def test_the_table_is_the_one_of_the_model(model):
    """The first number of a node counts downwards, as the rows of the image do."""
    theirs = model(image_size=(8, 20))
    table = VisionTransformer.from_transformers(theirs).positions
    assert isinstance(table, Table)
    expected = theirs.embeddings.position_embeddings[0, 1 + 1 * 5 + 3]  # second row, fourth column
    assert torch.equal(table.values[1, 3], expected)
