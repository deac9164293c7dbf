"""`blockyard inspect` on models of two rows, of latents, of sets, and of hidden symbols: what each axis is called."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
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
from blockyard.inspect.samples import symbol_text
from blockyard.runs.folder import RunFolder
from blockyard.tokenizer.symbols import Symbols
from tests import engine_runs

pytestmark = pytest.mark.xdist_group("inspect_rows")  # its runs are made once

SMALL = ("model.depth=2", "token_mixer.dropout=0", "trainer.max_steps=2", "data.batch_size=8")
TRANSLATE = ("data=translation", "tokenizer=char", "model=encoder_decoder", "head=token", "objective=translate")
PAIR = (5, 4)  # letters of source and target; the decoder's row begins with START, so both rows have five tokens


@pytest.fixture(scope="module")
def two_rows(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = tmp_path_factory.mktemp("two_rows")
    rows = ("".join(row) for row in itertools.permutations("abcdef", PAIR[0]))
    lines = dict.fromkeys(f"{row}\t{row[: PAIR[1]].translate(str.maketrans('abcdef', 'uvwxyz'))}" for row in rows)
    (folder / "pairs.tsv").write_text("\n".join(["en\tde", *lines][:120]) + "\n")
    words = (f"data.path={folder / 'pairs.tsv'}", "data.context=8", "data.source_context=8", "position=sinusoidal")
    return engine_runs.run(folder, *TRANSLATE, *SMALL, *words)


@pytest.fixture(scope="module")
def latents(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """As many latents as a row has symbols, so that lengths alone do not tell them apart."""
    words = ("data=code", "data.context=16", "tokenizer=char", "model=perceiver", "model.num_latents=16")
    more = ("head=token", "objective=masked_token", "position=learned")
    return engine_runs.run(tmp_path_factory.mktemp("latents"), *words, *more, *SMALL)


@pytest.fixture(scope="module")
def views(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    words = ("data=digits_views", "data.views=3", "tokenizer=view_cnn", "position=none", "head=mean_pool")
    return engine_runs.run(tmp_path_factory.mktemp("views"), *words, *SMALL)


@pytest.fixture(scope="module")
def hidden(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    words = ("data=code", "data.context=16", "tokenizer=char", "model=encoder", "position=learned", "head=token")
    return engine_runs.run(tmp_path_factory.mktemp("hidden"), *words, "objective=masked_token", *SMALL)


def looked(run: RunFolder, kind: str, *words: str) -> dict[str, Any]:
    """What a look has left: its JSON, after every picture of it was opened."""
    assert main(["inspect", f"run={run.path}", kind, "log=false", *words]) == 0
    found = read_json(run.path / "inspect" / f"{kind}.json")
    for name in found["pictures"]:
        with Image.open(run.path / "inspect" / name) as picture:
            picture.load()
    return found


def by_path(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {layer["path"]: layer for layer in found["layers"]}


def test_each_axis_of_two_rows_is_called_by_its_own_row(two_rows: RunFolder) -> None:
    maps, mixing = (by_path(looked(two_rows, kind, "samples=1")) for kind in ("attention", "mixing"))
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


def test_columns_are_named_wherever_those_below_are_others(
    two_rows: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[list[str]] = []
    monkeypatch.setattr(
        "blockyard.inspect.figures.attention_figure.name_ticks",
        lambda panel, names, side, which: drawn.append(names) if which == "x" else None,
    )
    layers = looked(two_rows, "attention", "samples=1", "heads=0")["layers"]
    keys = [layer["keys"] for layer in layers]
    assert drawn == [one for one, below in zip(keys, [*keys[1:], None], strict=True) if one != below]
    assert len(drawn) == 5  # of the two blocks of the encoder, the second


def test_a_mean_over_samples_has_places_and_no_letters(two_rows: RunFolder) -> None:
    for path, layer in by_path(looked(two_rows, "mixing", "samples=2")).items():
        assert layer["rows"] == layer["columns"] == ["0", "1", "2", "3", "4"], path


def test_pictures_are_numbered_in_one_way(two_rows: RunFolder) -> None:
    found = looked(two_rows, "attention", "samples=1")
    wanted = ["attention_maps", "attention_tokens", "attention_tokens_2", "attention_tokens_3", "attention_entropy"]
    assert found["pictures"] == [f"{name}.png" for name in wanted]


def test_latents_bear_no_letters(latents: RunFolder) -> None:
    text = by_path(looked(latents, "attention", "samples=1"))["write.token_mixer"]["queries"]
    numbers = [str(number) for number in range(16)]
    assert text != numbers
    for kind, names in (("attention", ("queries", "keys")), ("mixing", ("rows", "columns"))):
        layers = by_path(looked(latents, kind, "samples=1"))
        called = {path: tuple(layer[name] for name in names) for path, layer in layers.items()}
        assert called == {
            "read.token_mixer": (numbers, text),
            "blocks.0.token_mixer": (numbers, numbers),
            "blocks.1.token_mixer": (numbers, numbers),
            "write.token_mixer": (text, numbers),
        }


def test_views_are_numbered(views: RunFolder) -> None:
    for kind, names in (("attention", ("queries", "keys")), ("mixing", ("rows", "columns"))):
        found = looked(views, kind, "samples=1")
        assert [layer[name] for layer in found["layers"] for name in names] == [["0", "1", "2"]] * 4
        assert "attention_picture.png" not in found["pictures"]


def test_symbols_beyond_the_text_have_names(two_rows: RunFolder, hidden: RunFolder) -> None:
    maps = by_path(looked(two_rows, "attention", "samples=1"))
    assert maps["blocks.0.token_mixer"]["queries"][0] == "START"
    maps = by_path(looked(hidden, "attention", "samples=1"))
    assert maps["blocks.0.token_mixer"]["queries"] == maps["blocks.0.token_mixer"]["keys"]
    assert "MASK" in maps["blocks.0.token_mixer"]["queries"]
    mixing = by_path(looked(hidden, "mixing", "samples=1"))
    assert mixing["blocks.1.token_mixer"]["columns"] == maps["blocks.0.token_mixer"]["keys"]
    for run, named in ((two_rows, {"START"}), (hidden, {"MASK"})):
        names = looked(run, "circuits")["names"]
        assert named <= set(names)
        assert not any(name.startswith("#") and name != "#" for name in names)


class Words(TextTokenizer):
    """Reads the symbol 0 as a blank, 1 as nothing, and no other."""

    def spec(self, data: Any) -> TokenSpec:
        return TokenSpec((4,), vocabulary=2)

    def embedder(self, ctx: Any) -> Any:
        raise NotImplementedError

    def fit(self, texts: Any) -> None:
        raise NotImplementedError

    def encode(self, text: str) -> list[int]:
        raise NotImplementedError

    def decode(self, symbols: list[int]) -> str:
        return ["\n ", ""][symbols[0]]


@pytest.mark.parametrize(
    ("data", "tokenizer", "names"),
    [
        (ListOps(), Symbols(), {0: "0", 9: "9", 10: "[MAX", 13: "[SM", 14: "]", 15: "pad"}),
        (LongAgreement(), Symbols(), {0: "the", 5: "is", 7: "cat", 8: "cats", 33: "sees", 34: "see"}),
        (Copy(alphabet=3), Symbols(), {0: "0", 2: "2", 3: "_", 4: "GO"}),
        (AssociativeRecall(pairs=2, symbols=8), Symbols(), {0: "k0", 3: "k3", 4: "v0", 7: "v3"}),
        (Parity(), Symbols(), {0: "0", 1: "1"}),
        (TextFile(path="text.txt"), Words(), {0: "↵␣", 1: "#1", 2: "#2", 4: "START", 5: "END", 6: "MASK"}),
    ],
)
def test_what_data_and_tokenizer_call_a_symbol(data: DataModule, tokenizer: Tokenizer, names: dict[int, str]) -> None:
    more = {"start": 4, "end": 5, "mask": 6} if isinstance(tokenizer, Words) else {}
    ctx = SimpleNamespace(tokens=TokenSpec((4,), **more))
    loaded: Any = SimpleNamespace(data=data, tokenizer=tokenizer, model=SimpleNamespace(ctx=ctx))
    assert {symbol: symbol_text(loaded, symbol) for symbol in names} == names


def test_circuits_of_two_rows_and_of_latents(
    two_rows: RunFolder, latents: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    found = looked(two_rows, "circuits", "heads=0", "vocabulary=abu")
    assert [path for path, _ in found["qk_heads"]] == [
        f"{tower}blocks.{layer}.token_mixer" for tower in ("", "encoder.") for layer in (0, 1)
    ]
    assert [path for path, _ in found["ov_heads"]] == ["blocks.0.token_mixer", "blocks.1.token_mixer"]
    assert (len(found["qk_tables"]), len(found["ov_tables"])) == (4, 2)
    across = [head for head in found["heads"] if "cross" in head["path"]]
    assert [(head["qk"]["positive"], head["token_copying"]) for head in across] == [(None, None)] * 2
    found = looked(latents, "circuits")
    assert (found["pictures"], "qk_tables" in found) == (["circuits.png"], False)
    assert main(["inspect", f"run={latents.path}", "circuits", "vocabulary=ab"]) == 2
    assert "none of these heads compares symbols" in capsys.readouterr().err
