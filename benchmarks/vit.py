"""Our vision transformer beside `transformers.ViTModel`, with the same weights, in one run.

    .venv/bin/python benchmarks/vit.py

Prints the time of ours divided by the time of theirs: below 1 ours is faster. Theirs runs in
evaluation mode with torch's fused attention ("sdpa"). "forward" is one pass in inference mode,
"both" is forward and backward. float32, images of 224 × 224 pixels; the two results are compared
first.
"""

import timing
import torch
from transformers import ViTConfig, ViTModel

from lib.vit import VisionTransformer

SIZES = [(8, 192, 3, 12), (1, 384, 6, 12)]  # batch, features, heads, layers; patches of 16 pixels


def theirs(features: int, heads: int, layers: int) -> ViTModel:
    config = ViTConfig(
        hidden_size=features,
        num_attention_heads=heads,
        num_hidden_layers=layers,
        intermediate_size=4 * features,
        attn_implementation="sdpa",
    )
    return ViTModel(config, add_pooling_layer=False).eval()


def compare(batch: int, features: int, heads: int, layers: int, turns: int) -> None:
    peer = theirs(features, heads, layers)
    ours = VisionTransformer.from_transformers(peer).eval()
    images = torch.randn(batch, 3, 224, 224)
    size = f"(B, d, H, L) = {(batch, features, heads, layers)}"
    timing.compare(size, lambda: ours(images), lambda: peer(images).last_hidden_state, turns)


def main() -> None:
    turns = timing.turns(__doc__)
    torch.manual_seed(0)
    print(timing.title("transformers.ViTModel", turns))
    for size in SIZES:
        compare(*size, turns)


if __name__ == "__main__":
    main()
