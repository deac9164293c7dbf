"""Images from a decoder of image tokens: the same with a cache and without, completions, the judge, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import blockyard
from blockyard.cli import main
from blockyard.errors import UserError
from blockyard.generate.images import generate_images
from blockyard.generate.judge import distances, read_by
from blockyard.runs.folder import RunFolder
from blockyard.runs.load import Loaded
from tests.support import engine_runs
from tests.support.tiny import DRAWS, SHORTEST

pytestmark = pytest.mark.xdist_group("generate_images")  # its runs are made once


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("images")


@pytest.fixture(scope="module")
def conditional(outputs: Path) -> RunFolder:
    return engine_runs.run(outputs, "tokenizer.condition=class", base=DRAWS)


@pytest.fixture(scope="module")
def plain(outputs: Path) -> RunFolder:
    return engine_runs.run(outputs, "tokenizer.order=snake", "position=rope", base=DRAWS)


@pytest.fixture(scope="module")
def judge(outputs: Path) -> RunFolder:
    return engine_runs.run(outputs, base=SHORTEST)


@pytest.fixture(scope="module")
def loaded(conditional: RunFolder) -> Loaded:
    return blockyard.load(conditional.path)


def test_images_are_the_same_with_a_cache_and_without_and_alone(loaded: Loaded) -> None:
    cached = generate_images(loaded, 3, seed=4)
    assert torch.equal(cached.images, generate_images(loaded, 3, seed=4, cache=False).images)
    assert torch.equal(cached.images[:1], generate_images(loaded, 1, seed=4).images)
    assert cached.classes is not None
    assert cached.classes.tolist() == [0, 1, 2]
    assert cached.images.max() <= 16
    assert len(cached.images.unique()) > 5
    alone = generate_images(loaded, 1, label=2, seed=6)
    assert torch.equal(alone.images, cached.images[2:])


@pytest.mark.parametrize("run", ["conditional", "plain"])
def test_completions_keep_what_was_given(run: str, request: pytest.FixtureRequest) -> None:
    result = generate_images(blockyard.load(request.getfixturevalue(run).path), 4, given=3)
    assert result.true is not None
    assert result.given[:3].all()
    assert not result.given[3:].any()
    assert torch.equal(result.images[:, :, :3], result.true[:, :, :3])
    assert not torch.equal(result.images, result.true)


def test_given_columns_and_classes_of_test_images(outputs: Path) -> None:
    run_folder = engine_runs.run(outputs, "tokenizer.order=column", "tokenizer.condition=class", base=DRAWS)
    result = generate_images(blockyard.load(run_folder.path), 2, given=2, label=7)
    assert result.true is not None
    assert result.classes is not None
    assert result.classes.tolist() == [7, 7]
    assert torch.equal(result.images[..., :2], result.true[..., :2])
    assert result.given[:, :2].all()


def test_the_judge_and_the_nearest_training_image(loaded: Loaded, judge: RunFolder) -> None:
    result = generate_images(loaded, 5)
    reader = blockyard.load(judge.path)
    reading = read_by(reader, result)
    split: Any = reader.data.load(reader.tokenizer).test
    inputs = (result.images.float() - split.preprocess.moments.mean) / split.preprocess.moments.std
    with torch.no_grad():
        read = reader.model(inputs).argmax(-1)
    assert torch.equal(reading.read, read)
    assert reading.share == pytest.approx(float((read == torch.arange(5)).float().mean()))
    near = distances(result)
    train: Any = loaded.data.load(loaded.tokenizer).train
    train_images = train.images.images.float()
    expected = [(train_images - image.float()).square().mean((1, 2, 3)).sqrt().min() / 16 for image in result.images]
    torch.testing.assert_close(near.drawn, torch.stack(expected))
    copies = distances(type(result)(train.images.images[:5], *(getattr(result, n) for n in list(vars(result))[1:])))
    assert copies.drawn.max() < 1e-6
    assert near.test.min() > 0.01


def test_the_command_writes_a_picture(
    conditional: RunFolder, judge: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "a.png"
    overrides = ["images=10", f"judge={judge.path}", "nearest=true", "top_k=5", f"out={out}"]
    assert main(["generate", f"run={conditional.path}", *overrides]) == 0
    shown = capsys.readouterr()
    assert "of 10 images as the class asked for" in shown.out
    assert "distance to the nearest training image: median" in shown.out
    assert "640 tokens in 64 steps" in shown.err
    with Image.open(out) as picture:
        assert picture.size == (8 * (10 * 10 - 2), 8 * 8)
    assert main(["generate", f"run={conditional.path}", "images=3", "given=4"]) == 0
    with Image.open(conditional.path / "samples.png") as picture:
        assert picture.size == (8 * (3 * 10 - 2), 8 * (3 * 10 - 2))


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("images=4", "class=10"), "has 10 classes, 0 to 9"),
        (("images=4", "given=8"), "has 8 rows of tokens; give fewer"),
        (("images=400", "given=1"), "the test split has 359 images to complete"),
        (("images=0",), "a whole number from 1 to 1024"),
        (("images=4", "prompt=a"), "prompt= has no effect with images="),
        (("images=4", "beam=2"), "beam= has no effect with images="),
        (("class=3",), "class= needs images=16"),
        (("images=4", "out=a.jpg"), "expected the name of a PNG file"),
        (("images=4", "temperature=0", "top_k=3"), "top_k=3 has no effect with temperature=0"),
        (("prompt=a",), "generate needs a model of text; images=16 draws some"),
    ],
)
def test_the_command_refuses(
    conditional: RunFolder, arguments: tuple[str, ...], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", f"run={conditional.path}", *arguments]) == 2
    assert problem in capsys.readouterr().err


def test_runs_that_do_not_fit_are_refused(plain: RunFolder, conditional: RunFolder, judge: RunFolder) -> None:
    draws, reader = blockyard.load(plain.path), blockyard.load(judge.path)
    with pytest.raises(UserError, match="does not draw images"):
        generate_images(reader, 2)
    with pytest.raises(UserError, match="was trained without classes"):
        generate_images(draws, 2, label=3)
    with pytest.raises(UserError, match="draws images of no class"):
        read_by(reader, generate_images(draws, 2))
    with pytest.raises(UserError, match="does not classify images"):
        read_by(draws, generate_images(blockyard.load(conditional.path), 2))


def test_patches_of_real_values_are_drawn_alike_with_a_cache_and_without(outputs: Path) -> None:
    base = ("data=digits", "tokenizer=patch_values", "head=mixture", "objective=patch_density")
    run_folder = engine_runs.run(outputs, *base, "tokenizer.condition=class", "tokenizer.order=column", base=DRAWS)
    own = blockyard.load(run_folder.path)
    cached = generate_images(own, 3, seed=4, given=1)
    assert torch.equal(cached.images, generate_images(own, 3, seed=4, given=1, cache=False).images)
    assert torch.equal(cached.images[1:2], generate_images(own, 2, seed=4, given=1).images[1:])
    assert cached.true is not None
    assert torch.equal(cached.images[..., :4], cached.true[..., :4])
    assert len(cached.images[..., 4:].unique()) > 5
    with pytest.raises(UserError, match=r"top_k=3: .* draws patches from a density"):
        generate_images(own, 1, top_k=3)
    with torch.no_grad():
        own.model.head.proj.bias.fill_(torch.nan)
    with pytest.raises(UserError, match="predictions are not finite"):
        generate_images(own, 1)
