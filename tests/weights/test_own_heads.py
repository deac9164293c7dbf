"""An output layer that differs from the table it is declared to be: transformers does not tie both, and nor do we."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

from blockyard.errors import UserError
from blockyard.weights.convert.importing import import_weights
from tests.support.library_checkpoints import again, closeness, imported, predicted, saved
from tests.support.library_models import CASES

# The table and the head of each class that ties them.
TABLES = {
    "gpt2": ("transformer.wte.weight", "lm_head.weight"),
    "smollm3": ("model.embed_tokens.weight", "lm_head.weight"),
    "gemma2": ("model.embed_tokens.weight", "lm_head.weight"),
    "gemma3": ("model.embed_tokens.weight", "lm_head.weight"),
    "palm": ("model.embed_tokens.weight", "lm_head.weight"),
    "falcon_h1_tied": ("model.embed_tokens.weight", "lm_head.weight"),
    "mamba2_biases": ("backbone.embeddings.weight", "lm_head.weight"),
    "t5": ("shared.weight", "lm_head.weight"),
    "bert": ("bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"),
    "fnet": ("fnet.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"),
}
ALWAYS_TIED = {
    "whisper": ("model.decoder.embed_tokens.weight", "proj_out.weight"),
    "modernbert": ("model.embeddings.tok_embeddings.weight", "decoder.weight"),
}


def add(folder: Path, name: str, make: Callable[[dict[str, Any]], torch.Tensor]) -> None:
    """Put a further tensor into the file of a folder."""
    path = folder / "model.safetensors"
    weights = load_file(path)
    save_file(weights | {name: make(weights)}, path, metadata={"format": "pt"})


def random_like(table: str) -> Callable[[dict[str, Any]], torch.Tensor]:
    """Makes random numbers of a table's shape."""
    return lambda weights: torch.randn(weights[table].shape, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("case", TABLES)
@pytest.mark.sampled(3)
def test_a_head_of_its_own_is_imported(case: str, tmp_path: Path) -> None:
    table, head = TABLES[case]
    before = predicted(case, saved(case, tmp_path / "theirs"))
    assert json.loads((tmp_path / "theirs" / "config.json").read_text()).get("tie_word_embeddings", True)
    add(tmp_path / "theirs", head, random_like(table))
    expected = predicted(case, again(case, tmp_path / "theirs"))
    close = closeness(case, expected)
    assert_close(imported(case, tmp_path / "theirs", tmp_path / "ours"), expected, **close)
    with pytest.raises(AssertionError):  # the head is not the table
        assert_close(before, expected, **close)


@pytest.mark.parametrize("case", ALWAYS_TIED)
def test_a_head_that_the_preset_always_ties_is_refused(case: str, tmp_path: Path) -> None:
    table, head = ALWAYS_TIED[case]
    saved(case, tmp_path / "theirs")
    add(tmp_path / "theirs", head, random_like(table))
    with pytest.raises(UserError, match=f"{head} differs from {table}"):
        import_weights(tmp_path / "theirs", tmp_path / "ours")


def test_a_copy_of_the_table_is_read_as_tied(tmp_path: Path) -> None:
    """Files of some programs hold the table twice."""
    table, head = TABLES["gpt2"]
    expected = predicted("gpt2", saved("gpt2", tmp_path / "theirs"))
    add(tmp_path / "theirs", head, lambda weights: weights[table].clone())
    result = import_weights(tmp_path / "theirs", tmp_path / "copy")
    assert "head.tied=true" in result.source.foreign.overrides
    assert result.unread == []
    assert_close(imported("gpt2", tmp_path / "theirs", tmp_path / "ours"), expected, **closeness("gpt2", expected))


@pytest.mark.parametrize(
    ("case", "copy", "original"),
    [
        ("t5", "decoder.embed_tokens.weight", "shared.weight"),
        ("bert", "cls.predictions.decoder.bias", "cls.predictions.bias"),
    ],
)
def test_another_weight_that_ours_has_once_is_refused(case: str, copy: str, original: str, tmp_path: Path) -> None:
    saved(case, tmp_path / "theirs")
    add(tmp_path / "theirs", copy, random_like(original))
    with pytest.raises(UserError, match=f"{copy} differs from {original}"):
        import_weights(tmp_path / "theirs", tmp_path / "ours")


@pytest.mark.parametrize("resaved", [False, True])
def test_version_1_1_of_t5(resaved: bool, tmp_path: Path) -> None:
    """Its files say that nothing is tied; transformers 5 saves them as tied, with a head, and not scaled."""
    config = transformers.T5Config(
        vocab_size=258,
        d_model=16,
        d_kv=6,
        d_ff=40,
        num_layers=2,
        num_heads=4,
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
    )
    folder = tmp_path / "theirs"
    saved("t5", folder, config)
    add(folder, "lm_head.weight", random_like("shared.weight"))
    path = folder / "config.json"
    published = json.loads(path.read_text()) | {"tie_word_embeddings": False}
    del published["scale_decoder_outputs"]
    path.write_text(json.dumps(published))
    model = again("t5", folder)
    if resaved:
        folder = tmp_path / "resaved"
        model.save_pretrained(folder)
        declared = json.loads((folder / "config.json").read_text())
        assert (declared["tie_word_embeddings"], declared["scale_decoder_outputs"]) == (True, False)
    expected = predicted("t5", model)
    assert_close(imported("t5", folder, tmp_path / "ours"), expected, **closeness("t5", expected))
    assert CASES["t5"].config().scale_decoder_outputs  # the original divides
