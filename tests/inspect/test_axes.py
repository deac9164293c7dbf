"""The axis labels of `blockyard inspect` for two sequences, latents, sets and masked tokens."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from matplotlib.figure import Figure
from PIL import Image

from blockyard.atomic_files import read_json
from blockyard.cli import main
from blockyard.contracts import DataModule, TextTokenizer, Tokenizer, TokenSpec
from blockyard.data.associative_recall import AssociativeRecall
from blockyard.data.copy import Copy
from blockyard.data.listops import ListOps
from blockyard.data.long_agreement import LongAgreement
from blockyard.data.parity import Parity
from blockyard.data.text_file import TextFile
from blockyard.inspect.labels import token_text
from blockyard.runs.folder import RunFolder
from blockyard.tokenizer.symbols import Symbols
from tests.support import engine_runs
from tests.support.every import every
from tests.support.tiny import DRAWS_CAPTIONS, ON_CPU, ONE_BATCH, ONE_LAYER, TRANSLATE, steps

pytestmark = pytest.mark.xdist_group("inspect_rows")  # its runs are made once

TWO_STEPS = ("model.depth=2", "token_mixer.dropout=0", "trainer.max_steps=2", "data.batch_size=8")
PAIR = (5, 4)  # letters of source and target; the decoder's input begins with START, so both sequences have five tokens


@pytest.fixture(scope="module")
def translation(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = tmp_path_factory.mktemp("translation")
    sources = ("".join(letters) for letters in itertools.permutations("abcdef", PAIR[0]))
    lines = dict.fromkeys(
        f"{source}\t{source[: PAIR[1]].translate(str.maketrans('abcdef', 'uvwxyz'))}" for source in sources
    )
    (folder / "pairs.tsv").write_text("\n".join(["en\tde", *lines][:120]) + "\n")
    overrides = (f"data.path={folder / 'pairs.tsv'}", "data.context=8", "data.source_context=8", "position=sinusoidal")
    return engine_runs.run(folder, *TRANSLATE, *TWO_STEPS, *overrides)


@pytest.fixture(scope="module")
def latents(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """As many latents as a sequence has tokens, so that their lengths agree."""
    overrides = ("data=code", "data.context=16", "tokenizer=char", "model=perceiver", "model.num_latents=16")
    more = ("head=token", "objective=masked_token", "position=learned")
    return engine_runs.run(tmp_path_factory.mktemp("latents"), *overrides, *more, *TWO_STEPS)


@pytest.fixture(scope="module")
def views(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    overrides = ("data=digits_views", "data.views=3", "tokenizer=view_cnn", "position=none", "head=mean_pool")
    return engine_runs.run(tmp_path_factory.mktemp("views"), *overrides, *TWO_STEPS)


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    overrides = ("data=code", "data.context=16", "tokenizer=char", "model=encoder", "position=learned", "head=token")
    return engine_runs.run(tmp_path_factory.mktemp("masked"), *overrides, "objective=masked_token", *TWO_STEPS)


def inspect_run(run: RunFolder, kind: str, *options: str, drawn: bool = False) -> dict[str, Any]:
    """Returns the JSON of an inspection, after opening each of its figures.

    drawn: matplotlib draws them, which takes two thirds of the time; they are composed in any case
    """
    with pytest.MonkeyPatch.context() as patch:
        if not drawn:
            patch.setattr(Figure, "savefig", lambda _, path, **options: Image.new("L", (1, 1)).save(path, "PNG"))
        assert main(["inspect", f"run={run.path}", kind, "log=false", *options]) == 0
    numbers = read_json(run.path / "inspect" / f"{kind}.json")
    for name in numbers["pictures"]:
        with Image.open(run.path / "inspect" / name) as figure:
            figure.load()
    return numbers


def by_path(numbers: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {layer["path"]: layer for layer in numbers["layers"]}


@pytest.mark.full
def test_each_axis_has_the_labels_of_its_own_sequence(translation: RunFolder) -> None:
    maps, mixing = (
        by_path(inspect_run(translation, kind, "samples=1", drawn=True)) for kind in ("attention", "mixing")
    )
    assert maps.keys() == mixing.keys()
    source, target = mixing["encoder.blocks.0.token_mixer"]["rows"], mixing["blocks.0.token_mixer"]["rows"]
    assert len(source) == len(target) == PAIR[0]
    assert set(source) <= set("abcdef")
    assert set(target[1:]) <= set("uvwxyz")
    for path, layer in mixing.items():
        rows = source if path.startswith("encoder") else target
        columns = source if path.startswith("encoder") or "cross" in path else target
        assert (layer["rows"], layer["columns"]) == (rows, columns), path
        assert (maps[path]["queries"], maps[path]["keys"]) == (rows, columns), path


def test_columns_are_labelled_unless_those_below_are_the_same(
    translation: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[list[str]] = []
    monkeypatch.setattr(
        "blockyard.inspect.panels.label_ticks",
        lambda panel, labels, side, which: drawn.append(labels) if which == "x" and panel.get_title() else None,
    )
    layers = inspect_run(translation, "attention", "samples=1", "heads=0")["layers"]
    keys = [layer["keys"] for layer in layers]
    assert drawn == [one for one, below in zip(keys, [*keys[1:], None], strict=True) if one != below]
    assert len(drawn) == 5  # of the encoder's two blocks, only the second


def test_a_mean_over_samples_has_indices_as_labels(translation: RunFolder) -> None:
    for path, layer in by_path(inspect_run(translation, "mixing", "samples=2")).items():
        assert layer["rows"] == layer["columns"] == ["0", "1", "2", "3", "4"], path


@pytest.mark.full
def test_figure_names_are_numbered(translation: RunFolder) -> None:
    numbers = inspect_run(translation, "attention", "samples=1", drawn=True)
    expected = ["attention_maps", "attention_tokens", "attention_tokens_2", "attention_tokens_3", "attention_entropy"]
    assert numbers["pictures"] == [f"{name}.png" for name in expected]


def test_latents_are_labelled_by_index(latents: RunFolder) -> None:
    inspected = {kind: by_path(inspect_run(latents, kind, "samples=1")) for kind in ("attention", "mixing")}
    text = inspected["attention"]["write.token_mixer"]["queries"]
    numbers = [str(number) for number in range(16)]
    assert text != numbers
    for kind, names in (("attention", ("queries", "keys")), ("mixing", ("rows", "columns"))):
        layers = inspected[kind]
        labels = {path: tuple(layer[name] for name in names) for path, layer in layers.items()}
        assert labels == {
            "read.token_mixer": (numbers, text),
            "blocks.0.token_mixer": (numbers, numbers),
            "blocks.1.token_mixer": (numbers, numbers),
            "write.token_mixer": (text, numbers),
        }


def test_views_are_labelled_by_index(views: RunFolder) -> None:
    for kind, names in (("attention", ("queries", "keys")), ("mixing", ("rows", "columns"))):
        numbers = inspect_run(views, kind, "samples=1")
        assert [layer[name] for layer in numbers["layers"] for name in names] == [["0", "1", "2"]] * 4
        assert "attention_picture.png" not in numbers["pictures"]


@pytest.mark.full
def test_special_tokens_have_names(translation: RunFolder, masked: RunFolder) -> None:
    maps = by_path(inspect_run(translation, "attention", "samples=1"))
    assert maps["blocks.0.token_mixer"]["queries"][0] == "START"
    maps = by_path(inspect_run(masked, "attention", "samples=1"))
    assert maps["blocks.0.token_mixer"]["queries"] == maps["blocks.0.token_mixer"]["keys"]
    assert "MASK" in maps["blocks.0.token_mixer"]["queries"]
    mixing = by_path(inspect_run(masked, "mixing", "samples=1"))
    assert mixing["blocks.1.token_mixer"]["columns"] == maps["blocks.0.token_mixer"]["keys"]
    for run, special in ((translation, {"START"}), (masked, {"MASK"})):
        names = inspect_run(run, "circuits")["names"]
        assert special <= set(names)
        assert not any(name.startswith("#") and name != "#" for name in names)


class TwoTokens(TextTokenizer):
    """Decodes token 0 as whitespace and token 1 as an empty text."""

    def spec(self, data: Any) -> TokenSpec:
        return TokenSpec((4,), vocabulary=2)

    def embedder(self, ctx: Any) -> Any:
        raise NotImplementedError

    def fit(self, texts: Any) -> None:
        raise NotImplementedError

    def encode(self, text: str) -> list[int]:
        raise NotImplementedError

    def decode(self, token_ids: list[int]) -> str:
        return ["\n ", ""][token_ids[0]]


@pytest.mark.parametrize(
    ("data", "tokenizer", "names"),
    [
        (ListOps(), Symbols(), {0: "0", 9: "9", 10: "[MAX", 13: "[SM", 14: "]", 15: "pad"}),
        (LongAgreement(), Symbols(), {0: "the", 5: "is", 7: "cat", 8: "cats", 33: "sees", 34: "see"}),
        (Copy(alphabet=3), Symbols(), {0: "0", 2: "2", 3: "_", 4: "GO"}),
        (AssociativeRecall(pairs=2, symbols=8), Symbols(), {0: "k0", 3: "k3", 4: "v0", 7: "v3"}),
        (Parity(), Symbols(), {0: "0", 1: "1"}),
        (TextFile(path="text.txt"), TwoTokens(), {0: "↵␣", 1: "#1", 2: "#2", 4: "START", 5: "END", 6: "MASK"}),
    ],
)
def test_token_text_comes_from_data_or_tokenizer(data: DataModule, tokenizer: Tokenizer, names: dict[int, str]) -> None:
    more = {"start": 4, "end": 5, "mask": 6} if isinstance(tokenizer, TwoTokens) else {}
    ctx = SimpleNamespace(tokens=TokenSpec((4,), **more))
    loaded: Any = SimpleNamespace(data=data, tokenizer=tokenizer, model=SimpleNamespace(ctx=ctx))
    assert {token_id: token_text(loaded, token_id) for token_id in names} == names


@pytest.mark.full
def test_circuits_of_cross_attention_and_latents(
    translation: RunFolder, latents: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers = inspect_run(translation, "circuits", "heads=0", "vocabulary=abu", drawn=True)
    assert [path for path, _ in numbers["qk_heads"]] == [
        f"{tower}blocks.{layer}.token_mixer" for tower in ("", "encoder.") for layer in (0, 1)
    ]
    assert [path for path, _ in numbers["ov_heads"]] == ["blocks.0.token_mixer", "blocks.1.token_mixer"]
    assert (len(numbers["qk_tables"]), len(numbers["ov_tables"])) == (4, 2)
    cross = [head for head in numbers["heads"] if "cross" in head["path"]]
    assert [(head["qk"]["positive"], head["token_copying"]) for head in cross] == [(None, None)] * 2
    numbers = inspect_run(latents, "circuits", drawn=True)
    assert (numbers["pictures"], "qk_tables" in numbers) == (["circuits.png"], False)
    assert main(["inspect", f"run={latents.path}", "circuits", "vocabulary=ab"]) == 2
    assert "none of these heads has token circuits" in capsys.readouterr().err


@pytest.mark.full
def test_circuits_show_no_tokens_of_a_source_of_another_kind(tmp_path: Path) -> None:
    """Pictures in front of a caption, and words that an encoder reads before codes are drawn."""
    small = (*ON_CPU, *ONE_LAYER, *steps(2, None), *ONE_BATCH, "data.samples=64", "data.batch_size=8")
    caption = engine_runs.run(tmp_path / "caption", base=("experiment=canvas_captions", *small))
    names = inspect_run(caption, "circuits", drawn=True)["names"]
    assert {"a", "START"} <= set(names)
    drawing = engine_runs.run(tmp_path / "drawing", base=DRAWS_CAPTIONS)
    numbers = inspect_run(drawing, "circuits")
    assert {path for path, _ in numbers["qk_heads"]} == {"blocks.0.token_mixer"}
    assert any("encoder block 0: it reads a source" in text for text in numbers["left_out"])
    assert every(name.isdigit() or name in ("START", "END") for name in numbers["names"])
