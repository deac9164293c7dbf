"""Data that is named alone: what nobody typed follows from the data, and what was typed stays."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from blockyard.config import presets
from blockyard.config.check import check
from blockyard.config.choices import catalog
from blockyard.config.compose import compose
from blockyard.config.recipes import name_for
from blockyard.contracts import DataSpec
from blockyard.runs.identity import identity
from blockyard.sweep.plan.planner import make_plan

NEED_CLASSES = ("dataset", "lightning")  # data whose class is the user's own
SHORT = ("code", "co2", "digits", "table")  # data of the short suite
FULL = pytest.mark.full
TYPED = ((), ("tokenizer=bpe",), ("position=none",), ("model=decoder",), ("head=token",), ("objective=regress",))


@pytest.mark.parametrize("name", [name for name in catalog.choices("data") if name not in NEED_CLASSES])
def test_data_alone_lacks_at_most_its_file(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert {issue.key for issue in check(compose([f"data={name}"]), builds=False)} <= {"data"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in SHORT else FULL) for name in catalog.choices("data")]
)
def test_a_refusal_changes_only_what_was_not_typed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else was typed with the data, no refusal proposes other data, or another choice of a typed family."""
    monkeypatch.chdir(tmp_path)
    for typed in TYPED:
        composed = compose([f"data={name}", *typed])
        for issue in check(composed, builds=False):
            proposed = {override.partition("=")[0] for override in issue.legal if " " not in override}
            assert "data" not in proposed, (typed, str(issue))
            alternatives = {*catalog.families()} & proposed
            fixed = {override.partition("=")[0] for override in typed}
            assert not alternatives & fixed or alternatives <= fixed, (typed, str(issue))


@pytest.mark.parametrize("name", catalog.choices("recipe"))
def test_recipes_are_named_by_modality_target_and_source(name: str) -> None:
    """A recipe makes choices of families alone, and no name but one that some data can have."""
    read, _, source = name.partition("_from_")
    modality, _, target = read.partition("_")
    values = None
    declared_target: str | None = target
    if target in ("", "joined", "ids"):
        declared_target = None
    if target == "future":
        declared_target = "values"
    if target in ("future", "values"):
        values = (4, 1) if target == "future" else (1,)
    spec = DataSpec(
        modality,
        (8,),
        target=declared_target,
        values=values,
        joined=target == "joined",
        vocabulary=8 if target == "ids" else None,
        source=DataSpec(source, (8,)) if source else None,
    )
    assert name_for(spec) == name
    assert presets.choices("recipe", name).keys() <= {*catalog.run_keys()} - {"data"}


def test_typed_choices_and_values_take_precedence() -> None:
    composed = compose(["data=code", "tokenizer=byte", "model.dim=32", "trainer.max_steps=7"])
    assert composed.recipe is not None
    assert composed.recipe.name == "text"
    assert composed.choices["tokenizer"] == "byte"
    assert (composed.config["model"]["dim"], composed.config["trainer"]["max_steps"]) == (32, 7)
    assert composed.config["optimizer"]["lr"] == compose(["data=code"]).config["optimizer"]["lr"] == 2e-3
    assert not check(composed, builds=False)


@pytest.mark.parametrize(
    "overrides",
    [
        "data=digits",
        "data=digits block=post_norm",
        "experiment=gpt_code_small data=text_file",
        "data=code tokenizer=char position=rope model=decoder head=token objective=next_token",
        "data=code_topics tokenizer=word position=none",
        "data=code preset=llama",
    ],
)
def test_a_config_that_works_alone_has_no_recipe(overrides: str) -> None:
    composed = compose(overrides.split())
    assert composed.recipe is None
    assert "recipe" not in composed.choices
    assert identity(composed.config) == identity(compose([*overrides.split(), "recipe=null"]).config)


def test_a_preset_keeps_the_task_of_the_recipe() -> None:
    """Models of pictures read texts, with the tokenizer, the head and the objective that the texts need."""
    composed = compose(["data=code_topics", "preset=bert"])
    assert not check(composed, builds=False)
    assert (composed.choices["tokenizer"], composed.choices["objective"]) == ("word", "classify")
    assert composed.choices["block"] == "post_norm"


def test_a_class_of_a_package_that_is_not_allowed_is_not_imported(tmp_path: Path) -> None:
    """A recipe asks data for its specification, and so must not reach data that `check` refuses."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mine.yaml").write_text("_target_: antigravity.Data\n")
    composed = compose(["data=mine"], [str(tmp_path)])
    assert composed.recipe is None
    assert any("allowed package" in str(issue) for issue in check(composed, builds=False))
    assert "antigravity" not in sys.modules


def test_the_context_fits_the_texts(tmp_path: Path) -> None:
    path = tmp_path / "texts.csv"
    path.write_text("text,label\n" + "".join(f"{'a b ' * 20}{n},{n % 2}\n" for n in range(100)))
    assert compose(["data=table", f"data.path={path}"]).config["data"]["context"] == 48  # 41 words
    composed = compose(["data=table", f"data.path={path}", "data.context=20"])
    assert composed.config["data"]["context"] == 20
    assert composed.recipe is not None
    assert not any("data.context" in line for line in composed.recipe.described())  # it was not chosen here


@pytest.mark.parametrize(
    ("overrides", "every"),
    [
        ("callbacks=early_stopping", None),
        ("callbacks=early_stopping trainer.max_epochs=null trainer.max_steps=500", None),
        ("callbacks=early_stopping trainer.eval_every=7", 7),
        ("", 100000),
    ],
)
def test_early_stopping_evaluates_each_epoch_where_the_recipe_evaluates_at_the_end(
    tmp_path: Path, overrides: str, every: int | None
) -> None:
    path = tmp_path / "numbers.csv"
    path.write_text("width,height,label\n" + "".join(f"{n},{n / 2},{n % 2}\n" for n in range(40)))
    composed = compose(["data=table", f"data.path={path}", *overrides.split()])
    assert composed.config["trainer"]["eval_every"] == every
    assert composed.recipe is not None
    described = any(line.startswith("trainer.eval_every=null: ") for line in composed.recipe.described())
    assert described == (every is None)
    steps = compose(["data=code", "callbacks=early_stopping"]).config["trainer"]["eval_every"]
    assert steps == 500  # of the recipe


def test_a_table_of_numbers_is_read_by_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "numbers.csv"
    path.write_text("width,name,height,label\n" + "".join(f"{n},x{n},{n / 2},{n % 2}\n" for n in range(40)))
    composed = compose(["data=table", f"data.path={path}"])
    assert composed.config["data"]["columns"] == ["width", "height"]
    assert composed.choices["tokenizer"] == "columns"


def test_every_arm_of_a_sweep_has_the_recipe_of_the_base(tmp_path: Path) -> None:
    """An arm that names a tokenizer differs in nothing else from the baseline."""
    file = tmp_path / "units.yaml"
    file.write_text(
        "claim: words are enough\nbase: [data=code_topics]\nbaseline: word\nseeds: 2\nexpect: word ~ char\n"
        "margin: 0.02\narms: {word: [], char: [tokenizer=char]}\n"
    )
    plan = make_plan(file, outputs=str(tmp_path))
    word, char = (plan.variants[name].config for name in ("word", "char"))
    assert word["model"] == char["model"]
    assert word["optimizer"] == char["optimizer"]
    assert "recipe=text_class" in plan.question["base"]
    assert plan.facts["notes"][0].startswith("recipe=text_class: data=code_topics reads texts")
