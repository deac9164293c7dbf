"""Sweep files: what is wrong with one is said at once, with the key, the value and what would be legal."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from blockyard.sweep.spec import sweep_yaml
from blockyard.sweep.spec.question import BadQuestionError, parse, read

GOOD = """
# Does it matter?
#
# command    blockyard sweep good
claim: One is better
source: Somebody 2020
base: [experiment=vit_digits, schedule.warmup=0]
baseline: post
arms:
  post: [block=post_norm]
  pre: [block=pre_norm]
seeds: 5
tune: {optimizer.lr: [3e-4, 1e-3]}
tune_seeds: 2
metric: test/accuracy
expect: pre > post
"""


FORMS = "a list, such as [0, 1, 2], {from: 1000, count: 5}, or {first: 3, most: 20, until: decided}"
ARMS = "arms: {a: [block=pre_norm], b: [block=post_norm]}"


def problems(text: str, name: str = "file") -> list[str]:
    with pytest.raises(BadQuestionError) as caught:
        parse(sweep_yaml.parse(textwrap.dedent(text)), name=name)
    return caught.value.problems


def test_a_good_file(tmp_path):
    (tmp_path / "good.yaml").write_text(GOOD.lstrip())
    question = read(tmp_path / "good.yaml")
    assert (question.name, question.keys.baseline, question.seeds) == ("good", "post", (0, 1, 2, 3, 4))
    assert question.header == "Does it matter?\n\ncommand    blockyard sweep good"
    assert [arm.name for arm in question.arms] == ["post", "pre"]
    assert question.tune == {"optimizer.lr": [3e-4, 1e-3]}
    assert question.keys.tune_seeds == 2
    plain = question.as_dict()
    assert plain["arms"] == {"post": ["block=post_norm"], "pre": ["block=pre_norm"]}
    assert plain["kind"] == "arms"


def test_what_a_file_may_leave_out():
    question = parse(sweep_yaml.parse(f"claim: x\n{ARMS}"), name="x")
    assert (question.keys.baseline, question.seeds, question.base, question.keys.metric) == ("a", (0, 1, 2), [], None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ARMS, "claim: missing; write one sentence"),
        (f"claim: 3\n{ARMS}", "claim: expected one sentence that the sweep could prove wrong, not 3"),
        (f"claim:\n{ARMS}", "claim: expected one sentence that the sweep could prove wrong, not null"),
        (f"claim: x\n{ARMS}\nseed: 3", "seed: unknown key; did you mean seeds? (keys: claim, source,"),
        (f"claim: x\n{ARMS}\nexpct: a > b", "did you mean expect?"),
        (
            "claim: x",
            "exactly one of arms, grid, zip, one_at_a_time, leave_one_out must define the arms; this file has none",
        ),
        (f"claim: x\n{ARMS}\ngrid: {{block: [pre_norm]}}", "this file has arms and grid"),
        ("claim: x\narms: {}", "arms: {} is empty or not a mapping; give a name and a list of overrides"),
        ("claim: x\narms: [a, b]", 'arms: ["a", "b"] is empty or not a mapping'),
        ("claim: x\narms: {a: 3}", "arms.a: 3 is not a list of overrides; write [key=value, ...]"),
        ("claim: x\narms: {a: [3]}", "arms.a: 3 is not an override"),
        ("claim: x\narms: {a: [block]}", "arms.a: 'block' has no value; write block=VALUE"),
        ("claim: x\narms: {a: ['=3']}", "has no key"),
        ("claim: x\narms: {a b: [block=pre_norm]}", "arms: invalid arm name 'a b'; use letters"),
        ("claim: x\narms: {../up: [block=pre_norm]}", "arms: invalid arm name '../up'"),
        (
            "claim: x\narms: {a: ['data.seed=${seed}']}",
            "arms.a: 'data.seed=${seed}' reads the seed, but an arm has one",
        ),
        ("claim: x\narms: {a: [seed=3]}", "arms.a: seed cannot be set here; the sweep's `seeds:` sets it"),
        ("claim: x\narms: {a: [force=true]}", "--retry"),
        ("claim: x\narms: {a: [hydra.run.dir=/]}", "Hydra's own keys are not part"),
        (
            f"claim: x\nbase: ['allow=[os]']\n{ARMS}",
            "base: allow cannot be set here; packages are allowed on the command",
        ),
        (f"claim: x\nbase: [outputs=/etc]\n{ARMS}", "outputs=DIR"),
        (f"claim: x\nbase: experiment=vit_digits\n{ARMS}", 'base: "experiment=vit_digits" is not a list'),
        (f"claim: x\nbase: [++seed=1]\n{ARMS}", "base: seed cannot be set here"),
        (f"claim: x\n{ARMS}\nbaseline: c", "baseline: unknown arm 'c' (arms: a, b)"),
        (f"claim: x\n{ARMS}\nmetric: speed", "or a cost: parameters, "),
        (
            f"claim: x\n{ARMS}\nmetric: step_seconds\ntune: {{optimizer.lr: [1e-3, 1e-2]}}",
            "metric: step_seconds is a cost, and settings are chosen by a metric of validation",
        ),
        (
            f"claim: x\n{ARMS}\nmetric: test/written_cer\ntune: {{optimizer.lr: [1e-3, 1e-2]}}",
            "metric: test/written_cer is measured at the end of a run",
        ),
        (
            f"claim: x\n{ARMS}\nseeds: 0",
            f"seeds: expected up to 10,000 seeds: a number, such as 5, {FORMS}, not 0",
        ),
        (
            f"claim: x\n{ARMS}\nseeds: true",
            f"{FORMS}, not true",
        ),
        (
            f"claim: x\n{ARMS}\nseeds: 1.5",
            f"{FORMS}, not 1.5",
        ),
        (f"claim: x\n{ARMS}\nseeds: []", f"{FORMS}, not []"),
        (f"claim: x\n{ARMS}\nseeds: [0, 1, 1]", "seeds: 1 is listed twice"),
        (f"claim: x\n{ARMS}\nseeds: {{from: -1, count: 5}}", "seeds.from: expected a seed, 0 to 1,000,000,000, not -1"),
        (f"claim: x\n{ARMS}\nseeds: {{from: 9, count: 5, most: 9}}", "seeds.most: has no effect with seeds.count"),
        (f"claim: x\n{ARMS}\nseeds: {{count: 5}}\nbudget: {{cells: 9}}", "budget: has no effect with a fixed number"),
        (
            f"claim: x\n{ARMS}\nseeds: [-1]",
            f"{FORMS}, not [-1]",
        ),
        (
            f"claim: x\n{ARMS}\nseeds: 1000000000",
            f"{FORMS}, not 1000000000",
        ),
        (
            f"claim: x\n{ARMS}\ntune: [1e-3]",
            "tune: expected {key: [values]}, such as {optimizer.lr: [1e-3, 3e-3]}, not [0.001]",
        ),
        (
            f"claim: x\n{ARMS}\ntune: {{optimizer.lr: 1e-3}}",
            "tune.optimizer.lr: expected a list of values, 1 to 1,000, not 0.001",
        ),
        (f"claim: x\n{ARMS}\ntune: {{optimizer.lr: [1e-3, 0.001]}}", "tune.optimizer.lr: 0.001 is listed twice"),
        (f"claim: x\n{ARMS}\ntune: {{seed: [1, 2]}}", "tune.seed: seed cannot be set here"),
        (f"claim: x\n{ARMS}\ntune: {{block: [pre_norm]}}", "no arm may set block; remove it from a, b"),
        (f"claim: x\n{ARMS}\ntune_seeds: 1", "tune_seeds: has no effect without tune"),
        (
            f"claim: x\n{ARMS}\nseeds: 3\ntune: {{optimizer.lr: [1]}}\ntune_seeds: 4",
            "tune_seeds: 4 is more than the 3 seeds",
        ),
        (
            f"claim: x\n{ARMS}\ntune: {{optimizer.lr: [1]}}\ntune_seeds: no",
            'tune_seeds: expected a number of seeds, 1 or more, or null for all, not "no"',
        ),
        (
            f"claim: x\n{ARMS}\nmatch: parameters",
            'match: "parameters" is not one of params, flops, active, state; did you mean params?',
        ),
        ("claim: x\nmatch: params\narms: {a: [model.dim=8], b: []}", "no arm may set model.dim; remove it from a"),
        (f"claim: x\n{ARMS}\nmatch: params\ntune: {{model.dim: [8, 16]}}", "so tune cannot contain model.dim"),
        (f"claim: x\n{ARMS}\nmargin: 0", "margin: expected a number above 0 in the metric's unit, such as 0.01, not 0"),
        (f"claim: x\n{ARMS}\nmargin: 1 %", 'such as 0.01, not "1 %"'),
        (f"claim: x\n{ARMS}\nmargin: .inf", "such as 0.01, not Infinity"),
        (f"claim: x\n{ARMS}\nmargin: true", "such as 0.01, not true"),
        (f"claim: x\n{ARMS}\nmetric: accuracy", "such as test/accuracy or test/loss, or a cost: parameters, "),
        (f"claim: x\n{ARMS}\nmetric: val/loss\ntune: {{optimizer.lr: [1]}}", "val/loss chooses the settings"),
        (f"claim: x\n{ARMS}\nexpect: a", 'expect: "a" is not a comparison; write "a > b"'),
        (f"claim: x\n{ARMS}\nexpect: a > c", "expect: unknown arm 'c'"),
        (f"claim: x\n{ARMS}\nexpect: a > b and", "expect: unknown arm 'b and'"),
        (f"claim: x\n{ARMS}\nexpect: [a]", 'expect: expected an expectation; write "a > b"'),
        (
            f"claim: x\n{ARMS}\nsearch: 5",
            "search: expected a mapping of trials, space and more, such as {trials: 20, space: {",
        ),
        (
            f"claim: x\n{ARMS}\nsearch: {{trials: 5, sampler: tpee, space: {{a.b: [1]}}}}",
            'search.sampler: "tpee" is not one of random, tpe; did you mean tpe?',
        ),
        (
            f"claim: x\n{ARMS}\nsearch: {{trials: 0, space: {{a.b: [1]}}}}",
            "search.trials: expected a number of trials for each arm, 1 to 10,000, not 0",
        ),
        (f"claim: x\n{ARMS}\nsearch: {{trials: 1}}", "search.space: missing; write {KEY: [CHOICES]}"),
        (
            f"claim: x\n{ARMS}\nseeds: 2\nsearch: {{trials: 1, seeds: 3, space: {{a.b: [1]}}}}",
            "search.seeds: expected on how many of the 2 seeds a setting is tried, not 3",
        ),
        (
            f"claim: x\n{ARMS}\ntune_seeds: 2\nsearch: {{trials: 1, space: {{a.b: [1]}}}}",
            "tune_seeds: has no effect on a search; write search: {seeds: 2}",
        ),
        (
            f"claim: x\n{ARMS}\nsearch: {{trials: 1, only: {{c: {{a.c: [1]}}}}, space: {{a.b: [1]}}}}",
            "search.only: unknown arm 'c' (arms: a, b)",
        ),
        (
            f"claim: x\n{ARMS}\nsearch: {{trials: 1, only: {{a: {{a.b: [1]}}}}, space: {{a.b: [1]}}}}",
            "search.only.a.a.b: search.space has it for every arm",
        ),
        (
            f"claim: x\n{ARMS}\nsearch: {{trials: 1, only: {{a: {{block: [1]}}}}, space: {{a.b: [1]}}}}",
            "search.only.a.block: the arm sets it; remove one of them",
        ),
        (
            f"claim: x\n{ARMS}\nsearch: {{trials: 1, only: [a], space: {{a.b: [1]}}}}",
            'search.only: expected a space for single arms, {ARM: {KEY: [VALUES]}}, not ["a"]',
        ),
        (f"claim: x\n{ARMS}\nsearch: {{trials: 1, space: {{a.b: {{low: 2, high: 1}}}}}}", "low 2 must be below high 1"),
        (
            f"claim: x\n{ARMS}\nsearch: {{trials: 1, space: {{a.b: {{low: 0, high: 1, log: true}}}}}}",
            "log needs low above 0",
        ),
        (
            f"claim: x\n{ARMS}\nsearch: {{trials: 1, space: {{a.b: {{low: 0, high: 2, hgh: 1}}}}}}",
            "search.space.a.b.hgh: unknown key; did you mean high?",
        ),
        (
            f"claim: x\n{ARMS}\nsearch: {{trials: 1, space: {{a.b: {{low: 0.5, high: 2, int: true}}}}}}",
            "search.space.a.b.low: expected an integer, not 0.5",
        ),
        (
            f"claim: x\n{ARMS}\nsearch: {{trials: 1, space: {{a.b: {{low: .nan, high: 2}}}}}}",
            "search.space.a.b.low: expected a number, the lowest value, not NaN",
        ),
        (
            f"claim: x\n{ARMS}\nsearch: {{trials: 1, prunner: median, space: {{a.b: [1]}}}}",
            "search.prunner: unknown key; did you mean pruner?",
        ),
        (
            f"claim: x\n{ARMS}\ntune: {{o.lr: [1]}}\nsearch: {{trials: 1, space: {{a.b: [1]}}}}",
            "both choose settings; remove one",
        ),
        ("claim: x\ngrid: {block: []}", "grid.block: expected a list of values, not []"),
        ("claim: x\ngrid: {block: [pre_norm, pre_norm]}", 'grid.block: "pre_norm" is listed twice'),
        ("claim: x\ngrid: {seed: [1, 2]}", "grid.seed: seed cannot be set here"),
        ("claim: x\ngrid: {a: {x: [model.dim=1]}, b: {y: [model.dim=2]}}", "grid: a and b both set model.dim"),
        ("claim: x\nzip: {block: [pre_norm, post_norm], model.dim: [8]}", "block has 2, model.dim has 1"),
        ("claim: x\none_at_a_time: {block: [pre_norm]}", "the first value is the reference, so give two or more"),
        ("claim: x\nleave_one_out: {full: [block=pre_norm]}", "'full' is the arm with all parts"),
        ("claim: x\nleave_one_out: {a: []}", "leave_one_out.a: has no overrides, so nothing can be left out"),
        (
            f"claim: x\ngrid: {{{', '.join(f'a{i}.x: [1, 2, 3, 4, 5, 6, 7, 8, 9]' for i in range(9))}}}",
            "at most 10,000",
        ),
    ],
)
def test_what_is_wrong_is_said(text, message):
    issues = problems(text)
    assert any(message in problem for problem in issues), issues
    assert len(issues) == 1, issues


def test_all_problems_at_once():
    issues = problems(
        """
        claims: x
        base: [seed=1, block]
        baseline: c
        arms: {a: [x], b: 3}
        seeds: no
        match: width
        expect: a > d
        """
    )
    for text in (
        "claims",
        "claim:",
        "base: seed",
        "base: 'block'",
        "baseline",
        "arms.a",
        "arms.b",
        "seeds",
        "match",
        "d",
    ):
        assert any(text in problem for problem in issues), (text, issues)


def test_the_file_s_name_names_a_folder():
    assert any("it names the sweep's folder" in p for p in problems(f"claim: x\n{ARMS}", name="../x"))


def test_seeds_of_the_command_line_begin_where_those_of_the_file_do(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(f"claim: x\n{ARMS}\nseeds: {{from: 1000, count: 2}}\n")
    assert read(file).seeds == (1000, 1001)
    assert read(file, seeds=3).seeds == (1000, 1001, 1002)
    looks = read(file, seeds=4, until_decided=True)
    assert (looks.seeds, looks.until) == ((1000, 1001, 1002, 1003), {"first": 3, "most": 4, "by": "boundary"})
    file.write_text(f"claim: x\n{ARMS}\nseeds: {{from: 7, first: 2, most: 3, until: decided}}\n")
    assert read(file).seeds == (7, 8, 9)
    assert read(file, seeds=4).seeds == (7, 8, 9, 10)


@pytest.mark.parametrize("first", ["'3'", "null", "[2]"])
def test_seeds_of_the_command_line_hide_no_mistake_of_the_file(first: str, tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(f"claim: x\n{ARMS}\nseeds: {{first: {first}, until: decided}}\n")
    with pytest.raises(BadQuestionError, match=r"seeds.first: expected a number of seeds, 2 to"):
        read(file, seeds=5)


def test_every_mistake_inside_a_mapping_is_said_with_its_path() -> None:
    search = "{trials: 0, sampler: tpee, space: {a.b: {low: 1, hgh: 2}, seed: [1], c.d: [], e.f: [1, 1]}}"
    assert problems(f"claim: x\n{ARMS}\nsearch: {search}\nseeds: {{first: 1, untli: decided}}") == [
        "seeds.first: expected a number of seeds, 2 to 200, not 1",
        "seeds.until: missing; write decided, as in seeds: {first: 3, most: 20, until: decided}",
        "seeds.untli: unknown key; did you mean until? (keys: from, count, first, most, until, by)",
        "search.trials: expected a number of trials for each arm, 1 to 10,000, not 0",
        'search.sampler: "tpee" is not one of random, tpe; did you mean tpe?',
        "search.space.a.b.high: missing; write a number, the highest value",
        "search.space.a.b.hgh: unknown key; did you mean high? (keys: low, high, log, int, step)",
        "search.space.seed: seed cannot be set here; the sweep's `seeds:` sets it",
        "search.space.c.d: expected a list of choices, at most 10,000, or a range, {low: 1e-4, high: 1e-2, log: true}, "
        "not []",
        "search.space.e.f: 1 is listed twice",
    ]


def test_a_plan_records_by_which_rule_it_is_decided() -> None:
    for key, rule in (("", "boundary"), (", by: e-values", "e-values")):
        text = f"claim: x\n{ARMS}\nseeds: {{first: 3, most: 20, until: decided{key}}}"
        assert parse(sweep_yaml.parse(text), name="file").until == {"first": 3, "most": 20, "by": rule}
    [problem] = problems(f"claim: x\n{ARMS}\nseeds: {{until: decided, by: bayes}}")
    assert problem == 'seeds.by: "bayes" is not one of boundary, e-values'
