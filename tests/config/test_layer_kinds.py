"""Kinds of layers on a command line: overrides become the nodes in which a kind differs."""

from __future__ import annotations

import pytest

from blockyard.config.build import Components
from blockyard.config.check import check
from blockyard.config.choices import catalog
from blockyard.config.compose import Composed, compose
from blockyard.config.layer_kinds import described, nodes_of_kinds, with_position
from blockyard.config.override_grammar import parse_override
from blockyard.config.schema import options
from blockyard.layers.pattern import Pattern
from blockyard.runs.identity import identity

DECODER = (
    *("data=code", "tokenizer=byte", "model=decoder", "objective=next_token", "head=token", "position=rope"),
    *("logger=none", "data.context=16", "model.dim=32", "model.depth=4"),
)


def composed_of(*overrides: str) -> Composed:
    """The composed config of a small decoder, in which nothing is wrong."""
    composed = compose([*DECODER, *overrides])
    assert check(composed) == []
    return composed


def issues_of(*overrides: str) -> list[str]:
    """Everything that is wrong with a small decoder."""
    return [f"{issue.key}: {issue.text}" for issue in check(compose([*DECODER, *overrides]))]


FAR = "layers.pattern=[base,far]"


def test_a_kind_has_the_nodes_in_which_it_differs() -> None:
    config = composed_of(FAR, "layers.kinds.far=[position=none,channel_mixer.expansion=2]").config
    nodes = nodes_of_kinds(config)["far"]
    assert set(nodes) == {"position", "channel_mixer"}
    assert nodes["channel_mixer"] == config["channel_mixer"] | {"expansion": 2}
    assert config["layers"]["kinds"]["far"]["norm"] is None


def test_an_override_by_its_key_is_the_same() -> None:
    """Behind the list of the kind, whose overrides it replaces."""
    listed = composed_of(FAR, "layers.kinds.far=[position=none,token_mixer=windowed_attention,token_mixer.window=5]")
    typed = composed_of(
        *(FAR, "layers.kinds.far=[position=none,token_mixer=windowed_attention]"),
        *("layers.kinds.far.token_mixer.window=5",),
    )
    alone = composed_of(
        *(FAR, "layers.kinds.far.position=none", "layers.kinds.far.token_mixer=windowed_attention"),
        *("layers.kinds.far.token_mixer.window=5",),
    )
    assert listed.config["layers"] == typed.config["layers"] == alone.config["layers"]


def test_a_kind_stands_behind_the_command_line() -> None:
    """Options of the config's own choice hold in a kind that keeps the choice, and not in one that takes another."""
    config = composed_of(
        *("layers.pattern=[base,kept,changed]", "token_mixer.num_kv_heads=2", "model.heads=4"),
        *("layers.kinds.kept=[token_mixer.dropout=0.1]", "layers.kinds.changed=[token_mixer=windowed_attention]"),
    ).config
    nodes = nodes_of_kinds(config)
    assert nodes["kept"]["token_mixer"] == config["token_mixer"] | {"dropout": 0.1}
    assert nodes["changed"]["token_mixer"]["num_kv_heads"] is None


def test_over_a_preset() -> None:
    """A kind of a preset keeps the preset's options."""
    composed = compose(["data=code", "preset=llama", "logger=none", FAR, "layers.kinds.far=[position=none]"])
    assert check(composed) == []
    assert set(nodes_of_kinds(composed.config)["far"]) == {"position"}


def test_a_choice_of_members() -> None:
    """A kind whose mixer is made of others by name."""
    config = composed_of(FAR, "layers.kinds.far=[position=none,token_mixer=cycle,token_mixer.pattern=[conv,pool]]")
    members = nodes_of_kinds(config.config)["far"]["token_mixer"]["members"]
    assert set(members) == {"conv", "pool"}


@pytest.mark.parametrize("name", sorted(catalog.choices("layers")))
def test_shipped_choices(name: str) -> None:
    composed = composed_of(f"layers={name}")
    assert ("layers" in composed.config) == (name != "same")
    model = Components(composed.config).model(0)
    assert len(set(model.kinds)) == (1 if name == "same" else 2)


def test_identity_is_that_of_what_is_built() -> None:
    """An alike model has that of a config before there was the family; another kind gives another."""
    plain = compose(list(DECODER)).config
    assert identity(composed_of("layers=same").config) == identity(plain)
    far = identity(composed_of(FAR, "layers.kinds.far=[position=none]").config)
    assert far != identity(plain)
    assert far == identity(composed_of(FAR, "layers.kinds.far.position=none").config)
    assert far != identity(composed_of(FAR, "layers.kinds.far=[position=alibi]").config)


def test_a_size_is_matched() -> None:
    composed = compose([*(text for text in DECODER if "dim" not in text), "layers=single_mixers", "match.params=60000"])
    assert check(composed) == []
    count = sum(parameter.numel() for parameter in Components(composed.config).meta_model().parameters())
    assert count == pytest.approx(60000, rel=0.05)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["layers.kinds.far=[token_mixer=convv]"], "layers.kinds.far: token_mixer: unknown token_mixer 'convv'"),
        (["layers.kinds.far=[model.dim=3]"], "layers.kinds.far: model.dim: layers cannot differ in model"),
        (
            ["layers.kinds.far=[token_mixer.reach=3]"],
            "layers.kinds.far: token_mixer.reach: token_mixer (Att",
        ),
        (
            ["layers.kinds.far.token_mixer.reach=3"],
            "layers.kinds.far: token_mixer.reach: token_mixer (Att",
        ),
        (["layers.kinds.far=3"], "layers.kinds.far: invalid value 3: expected a list of overrides"),
        (["layers.kinds.far=[3]"], "layers.kinds.far: invalid value [3]: expected a list of overrides"),
        ([], "layers: layers names the kind 'far'"),
        (["layers.kinds.far=[token_mixer=token_mlp,position=none]"], "layers.kinds.far: model with token_mixer:"),
        (["layers.kinds.far=[position=learned]"], "layers.kinds.far: position with layers: position=learned acts on"),
        (["layers.kinds.far=[token_mixer.num_kv_heads=3]"], "layers.kinds.far: token_mixer: token_mixer.num_kv"),
        (["layers.kinds.far=[position=none]", "layers.kinds.near=[position=none]"], "layers: layers.kinds.near is in"),
        (
            ["layers.kinds.far=[position=none]", "layers.pattern=[base,base,base,base,far]"],
            "layers: layers.pattern: far ",
        ),
    ],
)
def test_refusals(overrides: list[str], expected: str) -> None:
    issues = issues_of(FAR, *overrides)
    assert [issue for issue in issues if issue.startswith(expected)], issues


@pytest.mark.parametrize("text", ["5", "far", "[position=none]"])
def test_kinds_that_are_no_mapping_are_refused(text: str) -> None:
    problems = check(compose(["experiment=gpt_code_small", f"layers.kinds={text}", "logger=none"]))
    assert [issue.key for issue in problems] == ["layers.kinds"]


def test_kinds_are_described_as_they_are_typed() -> None:
    kinds = options(Pattern)["kinds"]
    assert kinds.describe() == "lists of overrides, by name"
    assert kinds.problem(3) == "expected lists of overrides, by name: {far: [position=none]}"


def test_what_a_kind_is_called() -> None:
    """Its choices, with the options that differ from the config's own, or from the defaults of another choice."""
    config = composed_of(
        "layers.pattern=[base,near,far]",
        "layers.kinds.near=[token_mixer=windowed_attention,token_mixer.window=5]",
        "layers.kinds.far=[position.base=500]",
    ).config
    assert described(config, "near", {"position": "rope"})["token_mixer"] == "windowed_attention window=5"
    assert described(config, "far", {"position": "rope"})["position"] == "rope base=500"
    assert described(config, "base", {"position": "rope"})["position"] == "rope"


def test_an_evaluation_changes_the_scheme_of_every_layer_that_has_it() -> None:
    config = composed_of(
        *("layers.pattern=[base,near,far,other]", "layers.kinds.near=[position.base=500]"),
        *("layers.kinds.far=[position=none]", "layers.kinds.other=[norm=rms]"),
    ).config
    changed = with_position(config, {"scaling": "yarn"})
    assert changed["position"] == config["position"] | {"scaling": "yarn"}
    nodes, before = nodes_of_kinds(changed), nodes_of_kinds(config)
    assert nodes["near"]["position"] == before["near"]["position"] | {"scaling": "yarn"}
    assert nodes["far"] == before["far"]
    assert nodes["other"] == before["other"]


def test_a_mistake_of_the_command_line_is_reported_once() -> None:
    issues = issues_of(FAR, "layers.kinds.far=[position=none]", "token_mixer.reach=3")
    assert len(issues) == 1


def test_what_a_kind_inherits_is_not_refused_for_it() -> None:
    """The config's own scheme acts in the layers that have its port, as with token_mixer=cycle."""
    composed_of(FAR, "layers.kinds.far=[token_mixer=conv]")
    assert issues_of(FAR, "layers.kinds.far=[token_mixer=conv,position=alibi]")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("layers.kinds.far=[position=none]", ["position=none"]),
        ("layers.kinds.far=[ position=none , norm=rms ]", ["position=none", "norm=rms"]),
        ("layers.kinds.far=[token_mixer.pattern=[conv,pool]]", ["token_mixer.pattern=[conv,pool]"]),
        ("layers.kinds.far=['position=none']", ["position=none"]),
        ("layers.kinds.far=[]", []),
    ],
)
def test_lists_of_overrides_need_no_quotes(text: str, value: list[str]) -> None:
    assert parse_override(text).value() == value


def test_lists_of_overrides_are_swept() -> None:
    override = parse_override("layers.kinds.far=[position=none],[position=alibi,norm=rms]")
    assert override.is_sweep_override()
    assert list(override.sweep_string_iterator()) == ["['position=none']", "['position=alibi','norm=rms']"]
