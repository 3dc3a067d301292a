"""A trained transformer that people use: the sentence encoder all-MiniLM-L6-v2, from files that are only read.

`make setup` fetches the files; data/minilm.json says which they are, and their SHA-256. They hold
numbers (safetensors) and a table of words (JSON), and nothing that could be executed.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load as parse
from tokenizers import Tokenizer
from torch import Tensor

from lib.checks import require, require_file
from lib.text import TextEncoder

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".vendor" / "minilm"
SHA256 = json.loads((ROOT / "data" / "minilm.json").read_text(encoding="utf8"))["files"]


def numbered(
    sentences: Sequence[str], tokenizer: Tokenizer
) -> tuple[Tensor, Tensor, list[list[str]]]:
    """Sentences as one batch: numbers (B, N), weights (B, 1, N) with 0 at padding, and the words behind the numbers.

    Errors: `ValueError` when `sentences` is one string, or empty.
    Explained in chapter 9, *A trained transformer as a river* (chapters/minilm.ipynb).
    """
    require(
        isinstance(sentences, Sequence)
        and not isinstance(sentences, str)
        and len(sentences) > 0
        and all(isinstance(text, str) for text in sentences),
        f"a list of at least one sentence is needed, but {sentences!r} came",
    )
    batch = tokenizer.encode_batch(list(sentences))
    numbers = torch.tensor([text.ids for text in batch])
    weights = torch.tensor([text.attention_mask for text in batch]).double().unsqueeze(1)
    return numbers, weights, [text.tokens[: sum(text.attention_mask)] for text in batch]


def load(
    dtype: torch.dtype = torch.float32, folder: str | Path = FOLDER
) -> tuple[TextEncoder, Tokenizer]:
    """all-MiniLM-L6-v2 (6 layers, 12 heads, d = 384) and its tokenizer, from files that are read and never executed.

    Errors: `ValueError` when a file is missing or its SHA-256 is not the one in data/minilm.json.
    Source: https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2, Apache License 2.0.
    Explained in chapter 9, *A trained transformer as a river* (chapters/minilm.ipynb).
    """
    mend = "`make setup` fetches it (without make: python3 tools/tasks.py model)"
    files = {
        name: require_file(f"{name} of all-MiniLM-L6-v2", Path(folder) / name, sha256, mend)
        for name, sha256 in SHA256.items()
    }
    config = json.loads(files["config.json"])
    state = {
        name: values.to(dtype)
        for name, values in parse(files["model.safetensors"]).items()
        if values.is_floating_point()  # one entry is a list of the numbers 0..511
    }
    encoder = TextEncoder.from_state(state, config["num_attention_heads"], config["layer_norm_eps"])
    tokenizer = Tokenizer.from_str(files["tokenizer.json"].decode("utf8"))
    tokenizer.no_truncation()  # a longer text is an error, not a shorter text
    tokenizer.enable_padding()
    return encoder.requires_grad_(False), tokenizer
