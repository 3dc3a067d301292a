"""The convolutional transformer beside `transformers.CvtModel`, in float64 and with everything random.

Random are all parameters and the stored means and variances of batch normalisation. Their model
needs at least 1, 2 and 3 layers in its three stages. Outputs are compared relative to their size,
which is about 10.
"""

import pytest
import torch
from torch import nn
from transformers import CvtConfig, CvtForImageClassification, CvtModel, ViTConfig, ViTModel

from lib.attention import attend
from lib.convolution import ConvolutionalAttention
from lib.cvt import ConvolutionalTransformer
from lib.encoder import normalised_flow

B = 2
SHAPES = [(32, 32), (33, 47), (37, 30), (24, 51)]  # pixels: even and odd, square and not

# Name: the settings that differ from those of `model`.
SETTINGS = {
    "plain": {},
    "no-class-token": {"cls_token": [False, False, False]},
    "one-head": {"num_heads": [1, 1, 1]},
    "many-heads": {"num_heads": [4, 2, 8]},
    "no-qkv-bias": {"qkv_bias": [False, False, False]},
    "some-qkv-bias": {"qkv_bias": [True, False, True]},
    "stride-1": {"stride_kv": [1, 1, 1]},
    "stride-3": {"stride_kv": [3, 3, 3]},
    "strides-1-2-3": {"stride_kv": [3, 2, 1]},
    "kernel-1": {"kernel_qkv": [1, 1, 1], "padding_q": [0, 0, 0], "padding_kv": [0, 0, 0]},
    "kernel-5": {"kernel_qkv": [5, 5, 5], "padding_q": [2, 2, 2], "padding_kv": [2, 2, 2]},
    "kernels-differ": {"kernel_qkv": [5, 3, 1], "padding_q": [2, 1, 0], "padding_kv": [2, 1, 0]},
    "other-padding": {"padding_kv": [0, 2, 3]},
    "patches": {
        "patch_sizes": [5, 2, 3],
        "patch_stride": [2, 2, 1],
        "patch_padding": [0, 0, 2],
        "stride_kv": [3, 2, 2],
    },
    "hidden": {"mlp_ratio": [1.0, 2.5, 3.0]},
    "deeper": {"depth": [2, 2, 4]},
    "one-channel": {"num_channels": 1},
    "dropout": {"drop_rate": [0.5, 0.5, 0.5], "drop_path_rate": [0.1, 0.1, 0.5]},
    "two-class-tokens": {
        "embed_dim": [8, 8, 8],
        "num_heads": [2, 2, 4],
        "cls_token": [True, False, True],
    },
    "class-token-lost": {
        "embed_dim": [8, 8, 8],
        "num_heads": [2, 2, 4],
        "cls_token": [True, True, False],
    },
}


@pytest.fixture
def model(randomised):
    """A function that makes a random CvtModel in evaluation mode."""

    def make(kind=CvtModel, **settings):
        config = {
            "embed_dim": [8, 12, 16], "num_heads": [2, 3, 4], "depth": [1, 2, 3],
            "mlp_ratio": [2.0, 2.0, 2.0],
        } | settings  # fmt: skip
        return randomised(kind(CvtConfig(**config)).double()).eval()

    return make


def images_for(theirs, size=(33, 47)):
    return torch.randn(B, theirs.config.num_channels, *size)


def assert_same(found, expected, digits=1e-12):
    scale = max(expected.abs().max().item(), 1.0)
    torch.testing.assert_close(found, expected, atol=digits * scale, rtol=0)


def distance(a, b):
    return ((a - b).abs().max() / b.abs().max()).item()


# ---- the same numbers ----------------------------------------------------------------------------


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("size", SHAPES, ids=str)
def test_from_transformers_gives_the_numbers_of_transformers(model, settings, size):
    theirs = model(**settings)
    ours, images = ConvolutionalTransformer.from_transformers(theirs), images_for(theirs, size)
    (image, point), expected = ours(images), theirs(images)
    assert_same(image, expected.last_hidden_state)
    if expected.cls_token_value is None:
        assert point is None
    else:
        assert_same(point, expected.cls_token_value)


def test_every_stage_is_the_same(model):
    """Not only the end: errors of two stages might cancel there."""
    theirs = model()
    ours, image = ConvolutionalTransformer.from_transformers(theirs), images_for(theirs)
    expected = theirs(image, output_hidden_states=True).hidden_states
    for stage, state in zip(ours.stages, expected, strict=True):
        image, _ = stage(image)
        assert_same(image, state)


@pytest.mark.parametrize("class_token", [True, False])
def test_the_read_out_is_the_one_of_the_classifier(model, class_token):
    """Normalised, then the class token or the mean over all places, then a linear map."""
    theirs = model(CvtForImageClassification, cls_token=[False, False, class_token], num_labels=7)
    ours, images = ConvolutionalTransformer.from_transformers(theirs.cvt), images_for(theirs)
    ours = ConvolutionalTransformer(ours.stages, outputs=7)
    names = {"gain": theirs.layernorm.weight, "bias": theirs.layernorm.bias}
    ours.norm.load_state_dict(names)
    ours.head.load_state_dict(theirs.classifier.state_dict())
    # Without a class token theirs fails unless it is also asked for the states in between.
    expected = theirs(images, output_hidden_states=True).logits
    assert_same(ours.read_out(*ours(images)), expected)


def test_single_precision_stays_single_precision(model):
    theirs = model().float()
    ours, images = ConvolutionalTransformer.from_transformers(theirs), images_for(theirs).float()
    assert {parameter.dtype for parameter in ours.parameters()} == {torch.float32}
    image, _ = ours(images)
    assert image.dtype == torch.float32
    assert_same(image, theirs(images).last_hidden_state, 1e-3)


def test_a_model_in_training_mode_is_taken_as_it_is_used_afterwards(model):
    """In training, batch normalisation takes mean and variance of the batch instead of the stored ones."""
    theirs = model()
    images = images_for(theirs)
    expected = theirs(images).last_hidden_state
    ours = ConvolutionalTransformer.from_transformers(theirs.train())
    assert_same(ours(images)[0], expected)
    assert distance(ours(images)[0], theirs(images).last_hidden_state) > 1e-2


@pytest.mark.parametrize("class_token", [True, False])
def test_gradients_are_those_of_transformers(model, class_token):
    """With respect to the image, and to every parameter that is the same number in both.

    The convolutions are not: batch normalisation is multiplied into ours.
    """
    theirs = model(cls_token=[False, False, class_token])
    ours = ConvolutionalTransformer.from_transformers(theirs)
    images = [images_for(theirs).requires_grad_()]
    images.append(images[0].detach().clone().requires_grad_())
    results = [ours(images[0]), theirs(images[1], return_dict=False)]
    target = torch.randn_like(results[0][0])
    for image, *point in results:
        loss = (image - target).square().sum()
        (loss + point[0].square().sum() if class_token else loss).backward()
    pairs = [(images[0].grad, images[1].grad)]
    for mine, stage in zip(ours.stages, theirs.encoder.stages, strict=True):
        embedding = stage.embedding.convolution_embeddings
        pairs += linear(mine.embedding, embedding.projection)
        pairs += norm(mine.norm, embedding.normalization)
        if mine.class_point is not None:
            pairs.append((mine.class_point.grad, stage.cls_token.grad[0, 0]))
        for layer, part in zip(mine.layers, stage.layers, strict=True):
            attention = part.attention.attention
            pairs += linear(layer.attention.Q, attention.projection_query)
            pairs += linear(layer.attention.K, attention.projection_key)
            pairs += linear(layer.attention.V, attention.projection_value)
            pairs += linear(layer.attention.O, part.attention.output.dense)
            pairs += linear(layer.feed_forward.W1, part.intermediate.dense)
            pairs += linear(layer.feed_forward.W2, part.output.dense)
            pairs += norm(layer.norm1, part.layernorm_before)
            pairs += norm(layer.norm2, part.layernorm_after)
            for name in ("query", "key", "value"):  # the bias of a convolution is the one after it
                projection = getattr(attention, f"convolution_projection_{name}")
                after = projection.convolution_projection.normalization
                pairs.append((getattr(layer.attention, name).bias.grad, after.bias.grad))
    largest = max(expected.abs().max().item() for _, expected in pairs)
    for mine, expected in pairs:
        torch.testing.assert_close(mine, expected, atol=1e-12 * largest, rtol=1e-9)


def linear(mine, theirs):
    return [(mine.weight.grad, theirs.weight.grad), (mine.bias.grad, theirs.bias.grad)]


def norm(mine, theirs):
    return [(mine.gain.grad, theirs.weight.grad), (mine.bias.grad, theirs.bias.grad)]


def test_from_transformers_copies(model):
    """Afterwards neither changes with the other."""
    theirs = model()
    ours, images = ConvolutionalTransformer.from_transformers(theirs), images_for(theirs)
    before = theirs(images).last_hidden_state
    for parameter in ours.parameters():
        nn.init.normal_(parameter)
    assert torch.equal(theirs(images).last_hidden_state, before)


# ---- negative controls: what is not the same must not look the same ------------------------------


def layers(cvt):
    return [layer for stage in cvt.stages for layer in stage.layers]


def scale_of_the_heads(cvt):
    """1/√(d/H), as in every other transformer, instead of 1/√d: the published code has the latter."""
    for layer in layers(cvt):
        factor = layer.attention.heads**0.5
        layer.attention.Q.weight.data *= factor
        layer.attention.Q.bias.data *= factor


def eps_of_the_configuration(cvt):
    """Their configuration says 1e-12, but no normalisation of theirs reads it: all have torch's 1e-5."""
    for layer in layers(cvt):
        layer.norm1.eps = layer.norm2.eps = 1e-12
    for stage in cvt.stages:
        stage.norm.eps = 1e-12


def eps_of_the_patches(cvt):
    """The normalisation after the patches alone."""
    cvt.stages[0].norm.eps = 1e-12


def post_norm(cvt):
    """Normalised after each step instead of before."""
    for layer in layers(cvt):
        layer.flows = lambda size, layer=layer: (
            normalised_flow(lambda u: layer.attention(u, size), layer.norm1, norm_first=False),
            normalised_flow(layer.feed_forward, layer.norm2, norm_first=False),
        )


def approximate_gelu(cvt):
    """The tanh formula is close to GELU, but not GELU."""
    for layer in layers(cvt):
        layer.feed_forward.activation = lambda v: nn.functional.gelu(v, approximate="tanh")


def last_norm(cvt):
    """CvtModel ends without a normalisation, its classifier adds it."""
    forward, width = cvt.forward, cvt.stages[-1].embedding.out_channels

    def normalised(images):
        image, point = forward(images)
        image = nn.functional.layer_norm(image.movedim(1, -1), (width,)).movedim(-1, 1)
        return image, nn.functional.layer_norm(point, (width,))

    cvt.forward = normalised


def no_padding_of_the_picture(cvt):
    """Outside the picture u is zero; repeating its border is another operator."""
    for layer in layers(cvt):
        for part in (layer.attention.query, layer.attention.key, layer.attention.value):
            part.padding_mode = "replicate"
            part._reversed_padding_repeated_twice = [1, 1, 1, 1]


def kernels_turned(cvt):
    """A convolution in the sense of mathematics turns its kernel round; torch's does not."""
    for layer in layers(cvt):
        for part in (layer.attention.query, layer.attention.key, layer.attention.value):
            part.weight.data = part.weight.data.flip(-1, -2)


def same_kernel_for_keys_and_values(cvt):
    """Queries, keys and values have a convolution each."""
    for layer in layers(cvt):
        layer.attention.value = layer.attention.key


def keys_at_every_point(cvt):
    """Keys and values at all points are a finer quadrature, not the same one."""
    for layer in layers(cvt):
        layer.attention.key.stride = layer.attention.value.stride = (1, 1)


def class_point_through_the_convolution(cvt):
    """The class point as one more place of the picture, which its middle weight and bias would reach."""
    for layer in cvt.stages[-1].layers:
        layer.attention.__class__ = Everywhere


class Everywhere(ConvolutionalAttention):
    """As if the class point were a picture of one token, and passed the convolutions as well."""

    def forward(self, u, size):
        image = u[:, 1:].unflatten(1, size).permute(0, 3, 1, 2)
        point = u[:, :1].mT[..., None]  # (B, d, 1, 1)
        parts = []
        for convolution, W in ((self.query, self.Q), (self.key, self.K), (self.value, self.V)):
            kept = convolution(point).flatten(2).mT
            part = W(torch.cat([kept, convolution(image).flatten(2).mT], 1))
            parts.append(part.unflatten(-1, (self.heads, -1)).transpose(1, 2))
        heads = attend(*parts, scale=self.width**-0.5)
        return self.O(heads.transpose(1, 2).flatten(-2))


SPOILS = [
    scale_of_the_heads, eps_of_the_configuration, eps_of_the_patches, post_norm, approximate_gelu,
    last_norm, no_padding_of_the_picture, kernels_turned, same_kernel_for_keys_and_values,
    keys_at_every_point, class_point_through_the_convolution,
]  # fmt: skip


@pytest.mark.parametrize("spoil", SPOILS)
def test_a_wrong_convolutional_transformer_gives_other_numbers(model, spoil):
    theirs = model()
    ours, images = ConvolutionalTransformer.from_transformers(theirs), images_for(theirs)
    expected = theirs(images)
    assert_same(ours(images)[0], expected.last_hidden_state)
    spoil(ours)
    image, point = ours(images)
    assert distance(image, expected.last_hidden_state) > 1e-10  # a hundred times the tolerance
    assert distance(point, expected.cls_token_value) > 1e-10


def without_gain(norm):
    norm.weight.data.fill_(1.0)


def without_bias(norm):
    norm.bias.data.zero_()


def without_mean(norm):
    norm.running_mean.zero_()


def without_variance(norm):
    norm.running_var.fill_(1.0)


def without_eps(norm):
    norm.eps = 0.0


PARTS = [without_gain, without_bias, without_mean, without_variance, without_eps]


@pytest.mark.parametrize("left_out", [PARTS, *([part] for part in PARTS)], ids=lambda parts: (
    "all" if len(parts) > 1 else parts[0].__name__
))  # fmt: skip
def test_every_part_of_batch_normalisation_counts(model, left_out):
    """The model with a part of its batch normalisation left out is another one, and ours sees the difference."""
    theirs = model()
    images = images_for(theirs)
    expected = theirs(images).last_hidden_state
    for module in theirs.modules():
        if isinstance(module, nn.BatchNorm2d):
            for leave_out in left_out:
                leave_out(module)
    ours = ConvolutionalTransformer.from_transformers(theirs)
    assert distance(ours(images)[0], expected) > 1e-8
    assert_same(ours(images)[0], theirs(images).last_hidden_state)


@pytest.mark.parametrize(("dt", "steps"), [(0.5, 2), (0.5, 1), (1.0, 2)])
def test_other_steps_are_another_network(model, dt, steps):
    """Theirs is the river in steps of Δt = 1, one a layer."""
    theirs = model()
    ours, images = ConvolutionalTransformer.from_transformers(theirs), images_for(theirs)
    assert distance(ours(images, dt, steps)[0], theirs(images).last_hidden_state) > 1e-3


# ---- what is refused -----------------------------------------------------------------------------


class Another(CvtModel):
    """A subclass may compute anything."""


def small(**settings):
    return CvtConfig(
        **({"embed_dim": [4, 4, 4], "num_heads": [1, 2, 2], "depth": [1, 2, 3]} | settings)
    )


def with_rms_norm():
    theirs = CvtModel(small())
    theirs.encoder.stages[1].layers[0].layernorm_after = nn.RMSNorm(4)
    return theirs


REFUSED = {
    "nothing": (lambda: None, "CvtModel, but a NoneType came"),
    "subclass": (lambda: Another(small()), "CvtModel, but a Another came"),
    "classifier": (
        lambda: CvtForImageClassification(small()),
        "CvtModel, but a CvtForImageClassification came",
    ),
    "vit": (
        lambda: ViTModel(ViTConfig(hidden_size=4, num_attention_heads=2, num_hidden_layers=1)),
        "CvtModel, but a ViTModel came",
    ),
    "rms-norm": (with_rms_norm, "normalisation must be a torch.nn.LayerNorm, but a RMSNorm came"),
    "average": (
        lambda: CvtModel(small(qkv_projection_method=["avg"] * 3)),
        'depthwise convolutions.*must be "dw_bn"',
    ),
    "linear": (
        lambda: CvtModel(small(qkv_projection_method=["dw_bn", "dw_bn", "linear"])),
        'depthwise convolutions.*must be "dw_bn"',
    ),
    "stride-of-queries": (
        lambda: CvtModel(small(stride_q=[1, 1, 2])),
        "queries must lie on the grid.*stride_q 2 and padding_q 1 came",
    ),
    "padding-of-queries": (
        lambda: CvtModel(small(padding_q=[1, 0, 1])),
        "queries must lie on the grid.*stride_q 1 and padding_q 0 came",
    ),
    "even-kernel": (
        lambda: CvtModel(small(kernel_qkv=[2, 2, 2])),
        "kernel of the queries must have a middle.*2 came",
    ),
    "heads": (
        lambda: CvtModel(small(num_heads=[1, 2, 3])),
        "width 4 must be divisible by the 3 heads",
    ),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_what_this_network_does_not_have_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        ConvolutionalTransformer.from_transformers(make())


def test_images_smaller_than_a_patch_are_refused(model):
    theirs = model()
    ours, images = ConvolutionalTransformer.from_transformers(theirs), torch.randn(B, 3, 2, 40)
    with pytest.raises(RuntimeError):
        theirs(images)
    with pytest.raises(ValueError, match=r"at least as large as a patch of \(7, 7\)"):
        ours(images)
