"""`init` in a config: identities, the head of another task, and everything that is refused before compute."""

from __future__ import annotations

import inspect
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from blockyard.config.build import Components
from blockyard.config.check import check
from blockyard.config.compose import Composed, compose
from blockyard.runs.folder import RunFolder
from blockyard.runs.identity import identity
from blockyard.weights.sources import find_source, read_weights
from tests.support.engine_runs import run
from tests.support.fork import blockyard
from tests.support.tiny import SHORTEST, TEXT


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return run(tmp_path_factory.mktemp("digits"), base=SHORTEST)


@pytest.fixture(scope="module")
def weights(digits: RunFolder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The weights of that run in a file."""
    path = tmp_path_factory.mktemp("weights") / "digits.safetensors"
    save_file(dict(read_weights(find_source(str(digits.path))).tensors), path)
    return path


def composed(*overrides: str, base: tuple[str, ...] = SHORTEST) -> Composed:
    return compose([*base, *overrides])


def refused(*overrides: str, base: tuple[str, ...] = SHORTEST) -> str:
    return "\n".join(map(str, check(composed(*overrides, base=base))))


def sound(*overrides: str) -> dict:
    result = composed(*overrides)
    assert not check(result), [str(issue) for issue in check(result)]
    return result.config


def test_a_run_is_a_source_in_a_process_of_its_own(digits: RunFolder) -> None:
    """A process that has not imported PyTorch begins with stand-ins for it, which cannot read a checkpoint."""
    command = [sys.executable, "-m", "blockyard", "check", *SHORTEST, f"init.from={digits.path}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "tensors taken" in done.stdout


def test_a_config_whose_weights_are_drawn_has_no_such_node() -> None:
    result = composed()
    assert "init" not in result.config
    assert "init" not in result.choices
    assert identity(result.config) == identity(sound("init.strict=true", "init.which=best", "init=default"))


def test_the_content_is_part_of_the_identity_and_the_path_is_not(weights: Path, tmp_path: Path) -> None:
    def of(path: Path, *overrides: str) -> str:
        return identity(sound(f"init.from={path}", *overrides))

    copy, changed = tmp_path / "copy.safetensors", tmp_path / "changed.safetensors"
    copy.write_bytes(weights.read_bytes())
    tensors = load_file(weights)
    save_file(tensors | {"final_norm.weight": tensors["final_norm.weight"] + 1e-6}, changed)
    assert of(copy) == of(weights) == of(weights, "init.strict=false")
    others = (
        of(changed),
        of(weights, "init.freeze=[embedder]"),
        of(weights, "init.freeze=[embedder]", "init.unfreeze_at=2"),
        of(weights, "init.freeze=[embedder]", "init.unfreeze_at=1"),
        of(weights, "init.freeze=[embedder,blocks]", "init.unfreeze_at=1", "init.unfreeze_every=1"),
        of(weights, "init.parts=[blocks]"),
        of(weights, "init.lora.rank=2"),
        of(weights, "init.lora.rank=2", "init.lora.alpha=2"),
        of(weights, "init.lora.rank=2", "init.lora.layers=[token_mixer]"),
        of(weights, "optimizer.layer_decay=0.5"),
        identity(sound()),
    )
    assert len({of(weights), *others}) == len(others) + 1
    # A part that is drawn has a seed.
    assert of(weights, "init.parts=[blocks]", "init.seed=1") != of(weights, "init.parts=[blocks]")


def test_a_run_and_a_file_with_its_weights_are_one_source(digits: RunFolder, weights: Path) -> None:
    of_run, of_file = (sound(f"init.from={path}")["init"] for path in (digits.path, weights))
    assert of_run["sha256"] == of_file["sha256"]
    assert of_run["from"] == str(digits.path)


def test_the_head_comes_along_only_from_a_run_that_predicts_the_same(digits: RunFolder, weights: Path) -> None:
    def outside(*overrides: str) -> set[str]:
        components = Components(sound(*overrides))
        transfer = components.init.transfer(components, components.meta_model(adapted=False))
        return {name.partition(".")[0] for name in transfer.outside}

    assert outside(f"init.from={digits.path}") == set()
    assert outside(f"init.from={weights}") == {"head"}
    assert outside(f"init.from={weights}", "init.parts=[blocks,head]") == {"embedder", "position", "final_norm"}
    assert outside(f"init.from={digits.path}", "head=attention_pool") == {"head"}


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["model.dim=32"], "position.table (4 x 16 there, 4 x 32 here)"),
        (["model.depth=2"], "it lacks blocks.1."),
        (["norm=rms"], "it also has blocks.0."),
        (["position=none", "init.parts=[position]"], "no part 'position'"),
        (["init.parts=[block]"], "did you mean blocks?; it has embedder, position, blocks, final_norm, head"),
        (["init.freeze=[heat]"], "init.freeze: this model has no part 'heat'"),
        (["init.freeze=[embedder,position,blocks,final_norm,head]"], "leaves nothing to train"),
        (["init.unfreeze_at=3"], "nothing is frozen"),
        (["init.freeze=[blocks]", "init.unfreeze_every=3"], "counts from init.unfreeze_at"),
        (["init.freeze=[blocks]", "init.unfreeze_at=3.0"], "ambiguous"),
        (["init.freeze=[blocks]", "init.unfreeze_at=1", "trainer.devices=2"], "use one device"),
        (["init.lora.rank=2", "init.freeze=[blocks]"], "leave init.freeze out"),
        (["init.lora.alpha=2"], "no effect with init.lora.rank=0"),
        (["init.lora.rank=2", "init.lora.layers=[nowhere]"], "no linear layer"),
        (["init.lora.rank=2", "trainer.strategy=fsdp"], "not sharded"),
        (["init.lora.rnk=2"], "no field 'rnk'"),
        (["init.seed=1"], "init.seed: init.from="),
        (["init.sha256=abc"], "its weights are not those that the config names"),
        (["init.from=[1]"], "expected text or null"),
        (["init.which=first"], "one of best, last"),
        (["init.parts=blocks"], "a list of text"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(digits: RunFolder, overrides: list[str], reason: str) -> None:
    assert reason in refused(f"init.from={digits.path}", *overrides)


@pytest.mark.parametrize(
    "override", ["init.parts=[blocks]", "init.strict=false", "init.which=last", "init.lora.rank=2", "init.sha256=abc"]
)
def test_an_option_of_a_source_without_one_is_refused(override: str) -> None:
    assert "nothing is taken without init.from" in refused(override)


def test_leaving_what_does_not_fit_is_a_choice(digits: RunFolder) -> None:
    for overrides in (["model.depth=2"], ["block=post_norm"], ["position=none"]):
        sound(f"init.from={digits.path}", "init.strict=false", *overrides)
    assert "no tensor of it fits" in refused(
        f"init.from={digits.path}", "init.strict=false", "init.parts=[blocks]", "model.dim=32"
    )


def test_random_weights_can_be_frozen_too() -> None:
    assert sound("init.freeze=[blocks]")["init"]["freeze"] == ["blocks"]


def test_a_learned_tokenizer_comes_from_the_run_or_the_embedder_stays(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(inspect.getsource(textwrap))
    data = ("data=text_file", f"data.path={tmp_path / 'module.py'}")
    bpe = (*TEXT, *data, "tokenizer=bpe", "tokenizer.vocab_size=300", f"outputs={tmp_path}")
    source = run(tmp_path, base=bpe)
    assert not refused(f"init.from={source.path}", base=bpe)
    other = (*bpe, "tokenizer.vocab_size=320", f"init.from={source.path}")
    assert "learned its own token ids" in refused(base=other)
    assert "learned its own token ids" not in refused("init.parts=[blocks]", base=other)
    for parts in ("[embed*,blocks]", "[blocks,head]", "[*]"):  # a head has a row for each token id too
        assert "learned its own token ids" in refused(f"init.parts={parts}", "init.strict=false", base=other)
    byte = (*TEXT, *data, "tokenizer=byte", f"outputs={tmp_path}", f"init.from={source.path}")
    assert "learned its own token ids" in refused(base=byte)
    path = tmp_path / "text.safetensors"
    save_file(dict(read_weights(find_source(str(source.path))).tensors), path)
    assert "does not say which" in refused(f"init.from={path}", base=bpe)
    assert not refused(f"init.from={path}", "init.parts=[blocks]", base=bpe)


def test_a_tokenizer_that_learns_nothing_has_token_ids_of_its_own(tmp_path: Path) -> None:
    """The vectors of bytes would stand for pairs of them, of which there may be as many."""
    (tmp_path / "module.py").write_text(inspect.getsource(textwrap))
    text = (*TEXT, "data=text_file", f"data.path={tmp_path / 'module.py'}", f"outputs={tmp_path}")
    source = run(tmp_path, base=(*text, "tokenizer=byte"))
    bpe = (*text, "tokenizer=bpe", "tokenizer.vocab_size=256", f"init.from={source.path}")
    assert "has its own token ids, and the one here has other options; use tokenizer=byte" in refused(base=bpe)
    assert "token ids" not in refused("init.parts=[blocks]", base=bpe)
    values = "token_mixer.value_embedding=all"
    own = run(tmp_path, base=(*text, "tokenizer=byte", values))
    bpe = (*bpe[:-1], f"init.from={own.path}", values)
    assert "has its own token ids" in refused("init.parts=[blocks]", "init.strict=false", base=bpe)


def test_additions_have_no_rates_under_mup(digits: RunFolder) -> None:
    assert "init.lora.rank: the parametrization has no rates of additions" in refused(
        f"init.from={digits.path}", "init.lora.rank=2", "parametrization=mup"
    )


@pytest.mark.full
def test_it_exits_with_2_before_compute_and_check_says_what_is_taken(digits: RunFolder, tmp_path: Path) -> None:
    short = [*SHORTEST, f"init.from={digits.path}"]
    done = blockyard(tmp_path, "train", *short, "model.dim=32")
    assert done.returncode == 2
    assert "its shapes differ" in done.stderr
    assert not list(tmp_path.glob("outputs/*/s*"))
    shown = blockyard(tmp_path, "check", *short, "init.lora.rank=2")
    assert shown.returncode == 0
    assert "tensors taken" in shown.stdout
    model = Components(sound(*short[len(SHORTEST) :], "init.lora.rank=2")).meta_model()
    trained, total = (sum(p.numel() for p in model.parameters() if p.requires_grad or every) for every in (False, True))
    assert f"{trained:,} of {total:,} parameters" in shown.stdout
    assert torch.tensor(trained) < total
