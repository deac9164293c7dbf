"""What `export format=hf` writes beside the weights: a tokenizer with equal ids, class names, a card of the hub."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from huggingface_hub import ModelCard
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch.testing import assert_close

from blockyard.atomic_files import read_json, write_json
from blockyard.contracts import Inputs
from blockyard.report.comparison import compare
from blockyard.report.home.hub_card import hub_card
from blockyard.runs.load import Loaded, load
from blockyard.runs.weights_file import WEIGHTS, write_weights
from blockyard.weights.convert.converter import converters
from blockyard.weights.convert.exporting import LibraryModel, export_weights
from tests.report.page_data import HOSTILE
from tests.report.report_runs import NORMS, sweep
from tests.support.helpers import stir
from tests.support.tolerances import FLOAT32_STEPS
from tests.support.untrained import untrained

TEXT = "def f(x):\n    return  x  # didn't . \u00e4\u00f6 \u4e16\n\n" * 4
SMALL = ("model.dim=16", "model.depth=1", "model.heads=2")
CODE = ("data=code", "data.context=64", *SMALL)
UNKNOWN = "\u00df <unk>\x1c \ufffd<|mask|"  # of which the tokenizers have not learned most
MODEL = LibraryModel("gpt2", "GPT2LMHeadModel", "AutoModelForCausalLM", has_tokenizer=True)


def exported(tmp_path: Path, *overrides: str, text: str | None = TEXT) -> tuple[Loaded, Path, list[str]]:
    """A run with random weights, the folder of its export, and what was printed."""
    loaded = load(untrained(tmp_path / "run", *overrides, text=text))
    stir(loaded.model)
    result = export_weights(loaded, tmp_path / "hub", kind="hf")
    return loaded, result.folder, result.lines


@torch.no_grad()
@pytest.mark.parametrize(
    ("preset", "tokenizer"),
    [*(("gpt2", name) for name in ("byte", "char", "word", "bpe")), *((name, "byte") for name in ("llama", "qwen3"))],
)
def test_auto_classes_give_equal_ids_and_predictions(preset: str, tokenizer: str, tmp_path: Path) -> None:
    """Without `tokenizer_class`, transformers would split texts by the rules of Qwen, and add a token to GPT-2's."""
    loaded, folder, lines = exported(tmp_path, f"preset={preset}", *CODE, f"tokenizer={tokenizer}")
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    for text in (TEXT, UNKNOWN):
        ids = loaded.tokenizer.encode(text)
        assert theirs(text)["input_ids"] == ids
        assert theirs.decode(ids) == loaded.tokenizer.decode(ids)
    assert len(theirs) == loaded.model.ctx.tokens.vocabulary
    assert theirs.model_max_length == 64
    inputs = torch.tensor([loaded.tokenizer.encode(TEXT)[:64]])
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert_close(model(inputs).logits, loaded.model(inputs), **FLOAT32_STEPS)
    body = transformers.AutoModel.from_pretrained(folder)
    assert body(inputs).last_hidden_state.shape == (1, inputs.shape[1], 16)
    assert lines == [
        f"transformers.AutoModelForCausalLM.from_pretrained('{folder}')",
        f"transformers.{type(model).__name__}.from_pretrained('{folder}')",
        f"transformers.AutoTokenizer.from_pretrained('{folder}')",
    ]
    with pytest.raises(AssertionError):  # the comparison depends on the weights
        assert_close(stir(model)(inputs).logits, loaded.model(inputs), **FLOAT32_STEPS)


@pytest.mark.parametrize("preset", sorted(name for name, one in converters().items() if one.library == "transformers"))
def test_the_class_in_the_files_is_taken_for_every_architecture(preset: str, tmp_path: Path) -> None:
    """Whatever rules an architecture has of its own in transformers, the tokenizer is that of the file."""
    from blockyard.tokenizer.byte import Byte

    Byte().to_tokenizers().save(str(tmp_path / "tokenizer.json"))
    write_json(tmp_path / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})
    write_json(tmp_path / "config.json", {"model_type": converters()[preset].model_type})
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs(TEXT)["input_ids"] == Byte().encode(TEXT)


def test_tokens_that_an_objective_added_are_special(tmp_path: Path) -> None:
    loaded, folder, lines = exported(tmp_path, "preset=bert", *CODE, "tokenizer=char")
    mask = loaded.model.ctx.tokens.mask
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    assert (theirs.mask_token, theirs.mask_token_id) == ("<|mask|>", mask)
    assert theirs("def <|mask|>(x)")["input_ids"] == [
        *loaded.tokenizer.encode("def "),
        mask,
        *loaded.tokenizer.encode("(x)"),
    ]
    assert any("mask_token is <|mask|>" in line for line in lines)
    assert transformers.AutoModelForMaskedLM.from_pretrained(folder).config.vocab_size > mask


def test_start_and_end_of_what_is_written_are_special(tmp_path: Path) -> None:
    loaded, folder, _ = exported(tmp_path, "preset=t5", "data=translation", "tokenizer=byte", *SMALL)
    tokens, theirs = loaded.model.ctx.tokens, transformers.AutoTokenizer.from_pretrained(folder)
    assert (theirs.bos_token_id, theirs.eos_token_id) == (tokens.start, tokens.end)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
    assert (model.config.decoder_start_token_id, model.config.eos_token_id) == (tokens.start, tokens.end)


@torch.no_grad()
def test_a_classifier_of_texts_names_its_classes(tmp_path: Path) -> None:
    """And its tokenizer puts the token in front of a text in whose place the run has its class token."""
    overrides = ("preset=bert", "data=code_topics", "data.context=32", "tokenizer=byte", "objective=classify")
    loaded, folder, lines = exported(
        *(tmp_path, *overrides, *SMALL, "head=class_token", "head.hidden=tanh", "model.prefix.class_token=true")
    )
    names = loaded.data.spec.class_names
    text = TEXT[:32]
    ids = torch.tensor([loaded.tokenizer.encode(text)])
    expected = loaded.model(Inputs(ids, lengths=torch.tensor([ids.shape[1]])))[0].softmax(-1)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    inputs = transformers.AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")
    assert_close(model(**inputs).logits[0].softmax(-1), expected, **FLOAT32_STEPS)
    assert tuple(model.config.id2label[number] for number in range(len(names))) == names
    assert model.config.label2id[names[3]] == 3
    assert any("class token" in line for line in lines)


def test_special_tokens_around_a_text_stay_out(tmp_path: Path) -> None:
    """A run never reads those of `tokenizer=pretrained`; an import keeps its file as it was."""
    written = Tokenizer(models.WordLevel({"[CLS]": 0, "def": 1, "f": 2}, unk_token="[CLS]"))
    written.pre_tokenizer = pre_tokenizers.Whitespace()
    written.post_processor = processors.TemplateProcessing("[CLS] $A", special_tokens=[("[CLS]", 0)])
    written.save(str(tmp_path / "tokenizer.json"))
    pretrained = ("tokenizer=pretrained", f"tokenizer.path={tmp_path / 'tokenizer.json'}")
    loaded, folder, lines = exported(tmp_path, "preset=gpt2", *CODE, *pretrained)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    assert theirs("def f")["input_ids"] == loaded.tokenizer.encode("def f") == [1, 2]
    assert any("are left out, as in the run" in line for line in lines)
    write_json(loaded.folder.path / "import.json", {})
    lines = export_weights(loaded, tmp_path / "again", kind="hf").lines
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "again")("def f")["input_ids"] == [0, 1, 2]
    assert any("puts its special tokens around a text" in line for line in lines)


def evaluated(tmp_path: Path, claim: str) -> Loaded:
    """A cell of a sweep with a comparison, three finished seeds and weights."""
    values = {"post": {0: 0.90, 1: 0.91, 2: 0.905}, "pre": {0: 0.93, 1: 0.95, 2: 0.94}}
    recorded = {"data": {"fingerprint": "f00d", "train": 10, "validation": 2, "test": 3}}
    plan = sweep(
        *(tmp_path, NORMS, values),
        question={"claim": claim, "expect": "pre > post"},
        summaries={arm: {"weights": "best.ckpt"} for arm in NORMS},
        facts=dict.fromkeys(NORMS, recorded),
    )
    write_json(plan.folder / "comparison.json", compare(plan, changes=False).as_dict())
    run = tmp_path / next(cell.run for cell in plan.cells if cell.variant == "pre" and cell.seed == 1)
    config = json.loads((run / "summary.json").read_text())
    assert config["metrics"]["test/accuracy"] == 0.95
    from blockyard.config.build import Components
    from blockyard.runs.folder import RunFolder

    write_weights(run / WEIGHTS, Components(RunFolder.open(run).config).model(0).state_dict())
    return replace(load(run), weights="best.ckpt", step=100)


def test_the_card_is_one_of_the_hub(tmp_path: Path) -> None:
    """It is read by the hub's own reader: question, verdict, data, metrics over the seeds, licence."""
    loaded = evaluated(tmp_path, "Pre-norm is better")
    text = hub_card(loaded, MODEL, "apache-2.0")
    (tmp_path / "README.md").write_text(text)
    card = ModelCard.load(tmp_path / "README.md")
    assert card.data.license == "apache-2.0"
    assert {"blockyard", "gpt2", "digits"} <= set(card.data.tags)
    results = {result.metric_name: result for result in card.data.eval_results}
    assert results["test/accuracy"].metric_value == 0.95
    assert (results["test/accuracy"].dataset_name, results["test/accuracy"].dataset_split) == ("digits", "test")
    assert results["val/accuracy"].dataset_split == "validation"
    assert "| test/accuracy | 0.95 | 0.94 ± 0.01 |" in text
    assert "Pre-norm is better: the sweep norms, of which this is the arm pre. Verdict: **" in text
    for part in ("| fingerprint | f00d |", "train 10, validation 2, test 3", "CC-BY-4.0", "Alpaydin and Kaynak 1998"):
        assert part in text
    assert str(tmp_path) not in text


def test_text_in_a_card_is_escaped(tmp_path: Path) -> None:
    text = hub_card(evaluated(tmp_path, f"{' '.join(HOSTILE)} | a `b` [c](d)\n# no heading"), MODEL)
    assert [hostile for hostile in HOSTILE if hostile in text] == []
    (line,) = [line for line in text.splitlines() if "the sweep norms" in line]
    assert "\\| a \\`b\\` \\[c\\](d) \\# no heading" in line
    assert "license: unknown" in text
    assert "None was stated" in text


@pytest.mark.parametrize("versions", [{"blockyard": "<script>alert(1)</script>\x1b[31m\n# x"}, ["blockyard"], 3])
def test_texts_of_the_records_in_a_card_are_escaped(versions: object, tmp_path: Path) -> None:
    """A run folder may come from a stranger: run.json and summary.json name versions, identity, weights and data."""
    hostile = "<script>`x`\x1b[31m\n# heading"
    loaded = evaluated(tmp_path, "x")
    facts = read_json(loaded.folder.path / "run.json")
    data = {"fingerprint": hostile, "train": hostile}
    write_json(loaded.folder.path / "run.json", facts | {"versions": versions, "identity": hostile, "data": data})
    summary = read_json(loaded.folder.path / "summary.json")
    write_json(loaded.folder.path / "summary.json", summary | {"weights": hostile})
    text = hub_card(loaded, MODEL)
    assert "trained with blockyard" in text
    assert "<script>" not in text
    assert "\x1b" not in text
    assert "\n# heading" not in text


def test_metrics_of_other_weights_are_not_those_of_the_card(tmp_path: Path) -> None:
    text = hub_card(replace(evaluated(tmp_path, "x"), weights="last.ckpt"), MODEL)
    assert "model-index" not in text
    assert "evaluated with best.ckpt, and these weights, `last.ckpt`, were not" in text
