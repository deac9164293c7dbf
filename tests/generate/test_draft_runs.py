"""`generate draft=`: runs that draft for others, their refusals, and what the command writes."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import blockyard
from blockyard.cli import main
from blockyard.commands.completion import complete
from blockyard.errors import UserError
from blockyard.generate.api import generate, generate_all
from blockyard.runs.load import Loaded
from blockyard.tokenizer.byte import Byte
from tests.support import engine_runs

pytestmark = pytest.mark.xdist_group("generate_draft")  # its runs are made once

PROMPTS = [*"dristcfnlyx=([{#w0", "def", "import os"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Loaded]:
    outputs = tmp_path_factory.mktemp("drafts")
    overrides = {
        "big": ("tokenizer=char", "position=rope"),
        "small": ("tokenizer=char", "position=learned", "model.depth=1"),
    }
    loaded_runs: dict[str, Loaded] = {
        name: blockyard.load(engine_runs.text_run(outputs, *arguments).path) for name, arguments in overrides.items()
    }
    with torch.no_grad():  # runs of five steps repeat one character: more contrast, so that the past matters
        for loaded in loaded_runs.values():
            for parameter in loaded.model.parameters():
                parameter.mul_(1.7)
    return loaded_runs | {"bytes": replace(loaded_runs["small"], tokenizer=Byte())}


@pytest.mark.sampled(100)
@pytest.mark.parametrize("draft", ["small", "ngram"])
def test_greedy_text_of_20_prompts_is_that_of_plain_decoding(runs: dict[str, Loaded], draft: str) -> None:
    assert len(PROMPTS) == 20
    settings: dict[str, Any] = {"max_tokens": 20, "temperature": 0}
    plain, drafted = (
        generate_all(runs["big"], PROMPTS, **settings, **more)
        for more in ({}, {"draft": runs.get(draft, draft), "draft_tokens": 3})
    )
    for stream in (plain, drafted):
        for _ in stream:
            pass
    assert [text.text for text in drafted.texts] == [text.text for text in plain.texts]
    assert drafted.stats.steps < 20 * 20 == drafted.stats.tokens


def test_the_command_prints_passes_and_acceptance(runs: dict[str, Loaded], capsys: pytest.CaptureFixture[str]) -> None:
    big, small = (str(runs[name].folder.path) for name in ("big", "small"))
    assert main(["generate", f"run={big}", "prompt=def ", "max_tokens=20", f"draft={small}", "draft_tokens=2"]) == 0
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert re.search(r"^20 tokens in \d+ steps, .*; draft=\S+ proposed \d+ tokens in [\d.]+ of [\d.]+ s, ", line)
    assert re.search(r"acceptance [\d.]+, [\d.]+ tokens a pass \(expected [\d.]+\)$", line)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"draft": "bytes"}, "has another tokenizer than"),
        ({"draft": "/nope"}, "draft=/nope: no"),
        ({"draft": "ngram", "beam": 2}, "beam=2 and draft= exclude each other"),
        ({"draft_tokens": 3}, "draft_tokens=3 has no effect without draft=RUN"),
        ({"draft": "ngram", "draft_tokens": 65}, "draft_tokens=65: expected an integer from 1 to 64"),
    ],
    ids=str,
)
def test_refusals(runs: dict[str, Loaded], settings: dict[str, Any], message: str) -> None:
    settings = {key: runs.get(value, value) if key == "draft" else value for key, value in settings.items()}
    with pytest.raises(UserError, match=re.escape(message)):
        generate(runs["big"], "a", **settings)


def test_a_draft_that_is_no_decoder_of_text_is_refused(runs: dict[str, Loaded], tmp_path: Path) -> None:
    digits = engine_runs.run(tmp_path, "trainer.max_steps=2", "trainer.eval_every=2")
    with pytest.raises(UserError, match="is not a decoder of text; use a smaller run of the same data, or draft=ngram"):
        generate(runs["big"], "a", draft=digits.path)
    assert main(["generate", f"run={digits.path}", "images=2", "draft=ngram"]) == 2


def test_drafts_are_completed() -> None:
    assert complete("blockyard generate run=x draft=")[-1] == "draft=ngram"
