"""Upper bounds of options, objects in place of values, and memory: all is decided before anything is allocated."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Callable, Dict, Literal  # noqa: UP035 - as other libraries write them

import pytest
import torch
from torch import nn

from blockyard.config import machine
from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.config.schema import Option, options, slot
from blockyard.contracts import Issue
from tests.battery.bad_values import every_option
from tests.support.every import every

LIMITLESS = 10**39  # more than float32 holds


class Wrapping(nn.LayerNorm):
    """A norm with a module inside."""

    def __init__(self, ctx: Any, *, inner: nn.Module, dropout: nn.Dropout | None = None) -> None:
        super().__init__(ctx.dim, elementwise_affine=False)
        self.inner = inner


def issues(*overrides: str, **how: bool) -> list[Issue]:
    return check(compose([*overrides, "logger=none"]), **how)


def wrapped(inner: dict[str, Any], **more: Any) -> list[Issue]:
    composed = compose(["logger=none", "allow=[tests]"])
    composed.config["norm"] = {"_target_": f"{__name__}.Wrapping", "_partial_": True, "inner": inner, **more}
    return check(composed)


def by_choice() -> dict[str, list[Any]]:
    """Every option by the choices that it belongs to."""
    groups: dict[str, list[Any]] = {}
    for chosen in every_option():
        groups.setdefault(" ".join(chosen.overrides) or chosen.executor or "run", []).append(chosen)
    return groups


BY_CHOICE = by_choice()


@pytest.mark.parametrize("choice", BY_CHOICE)
def test_every_whole_number_has_an_upper_bound(choice: str) -> None:
    unbounded = [
        chosen.key
        for chosen in BY_CHOICE[choice]
        for number in (LIMITLESS, float("inf"))
        if chosen.option.annotation not in (dict[str, Any], Any)
        and chosen.option.problem(number, on_this_machine=False) is None
    ]
    assert unbounded == []


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("model.depth=1000000", "model.depth: invalid value 1000000: expected at most 1,024; every block is built"),
        ("trainer.num_workers=1000000000000000000000000000000", "expected at most 1,024; each is a process"),
        ("trainer.devices=4096", "expected at most 1,024; each is a process"),
        ("model.prefix={registers:5000000000}", "expected at most 1,000,000,000"),
        ("optimizer.lr=1e39", "infinite in float32"),
    ],
)
def test_the_reason_for_a_bound_is_told(override: str, says: str) -> None:
    (issue,) = issues(override)
    assert says in str(issue)


@pytest.mark.parametrize("value", [True, 1.0, 2, "1", None])
def test_a_choice_of_whole_numbers_takes_those_alone(value: object) -> None:
    """True equals 1, and would be another run of the same result."""
    option = Option("channels", Literal[1, 3], 3, "")
    assert option.problem(value) == "expected one of 1, 3"
    assert option.problem(1) is option.problem(3) is None


def test_workers_are_bound_by_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blockyard.config.schema.cpu_cores", lambda: 2)
    assert issues("trainer.num_workers=8") == []
    (issue,) = issues("trainer.num_workers=9")
    assert "expected at most 8 on this machine, 4 for each CPU core" in issue.text
    assert issues("trainer.num_workers=9", on_this_machine=False) == []
    assert issues("trainer.num_workers=9", training=False) == []


def test_a_model_that_does_not_fit_is_refused_with_the_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "memory", lambda: 2**20)
    (issue,) = issues("model.dim=128")
    assert issue.key == "model"
    # AdamW keeps two tensors beside the weights and their gradients.
    assert "parameters, most of them in channel_mixer, take 16 bytes each" in issue.text
    assert "and this machine has 0.0 GiB" in issue.text
    (issue,) = issues("model.dim=128", "optimizer=sgd", "optimizer.momentum=0", "optimizer.nesterov=false")
    assert "take 8 bytes each" in issue.text
    assert issues("model.dim=128", on_this_machine=False) == []


def test_a_trained_model_needs_its_weights_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "memory", lambda: 2 * 2**20)
    assert issues(training=False) == []
    assert issues() != []


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["data.batch_size=1048576", "model.dim=2048"], "data.batch_size"),
        (
            ["experiment=copy_memory", "data.samples=100000000", "data.length=4096"],
            "data.samples",
        ),
    ],
)
def test_batches_and_data_count_too(monkeypatch: pytest.MonkeyPatch, overrides: list[str], key: str) -> None:
    monkeypatch.setattr(machine, "memory", lambda: 64 * 2**30)
    (issue,) = issues(*overrides)
    assert issue.key == key
    assert "this machine has 64.0 GiB" in issue.text


def test_micro_batches_need_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "memory", lambda: 64 * 2**30)
    assert issues("data.batch_size=1048576", "model.dim=2048", "trainer.accumulate=65536") == []


@pytest.mark.parametrize("version", [1, 2])
def test_the_limit_of_a_container_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int) -> None:
    folder, name = ("memory", "memory.limit_in_bytes") if version == 1 else ("", "memory.max")
    (tmp_path / folder / "outer" / "inner").mkdir(parents=True)
    (tmp_path / folder / "outer" / name).write_text("12345\n")
    (tmp_path / folder / "outer" / "inner" / name).write_text(str(2**63) if version == 1 else "max\n")
    line = "4:memory:/outer/inner\n" if version == 1 else "0::/outer/inner\n"
    real = Path.read_text
    monkeypatch.setattr(
        Path, "read_text", lambda path, **how: line if str(path) == "/proc/self/cgroup" else real(path, **how)
    )
    monkeypatch.setattr(machine, "GROUPS", tmp_path)
    assert machine.memory() == 12345


def test_a_module_is_built_on_the_meta_device() -> None:
    """That of 400 GB too; with parameters that no rule initialises, which is the next problem."""
    large = {"_target_": "torch.nn.Embedding", "num_embeddings": 10**9, "embedding_dim": 10**5}
    assert every("memory" in str(issue) for issue in wrapped(large))
    assert wrapped({"_target_": "torch.nn.Identity"}) == []


def test_a_module_of_another_library_is_neither_imported_nor_built() -> None:
    before = set(sys.modules)
    for target in ("torchmetrics.text.BERTScore", "transformers.BertModel", "timm.models.resnet.ResNet"):
        (issue,) = wrapped({"_target_": target})
        assert f"{target} cannot be a Module here" in str(issue)
    assert not {name for name in set(sys.modules) - before if name.startswith(("transformers", "timm.models.resnet"))}


def test_an_object_must_be_of_the_class_that_an_option_wants() -> None:
    (issue,) = wrapped({"_target_": "torch.nn.Identity"}, dropout={"_target_": "torch.nn.Linear"})
    assert str(issue) == "norm.dropout._target_: torch.nn.Linear is not a Dropout"
    assert wrapped({"_target_": "torch.nn.Identity"}, dropout=None) == []
    (issue,) = wrapped(5)  # type: ignore[arg-type]
    assert str(issue) == "norm.inner: invalid value 5: expected a Module as a node: {_target_: ...}"
    composed = compose(["experiment=translate_dates", "logger=none"])
    composed.config["model"]["cross"] = {"_target_": "blockyard.norm.rms.RMS", "_partial_": True}
    (issue,) = check(composed)
    assert str(issue) == "model.cross._target_: blockyard.norm.rms.RMS is not a TokenMixer"


@pytest.mark.parametrize(
    "value",
    [
        "{_target_:torch.nn.Identity}",
        "[{_target_:torch.nn.Identity}]",
        "{a:{b:[{_target_:torch.nn.Identity}]}}",
        "{_target_:torch.nn.Linear,in_features:-1,out_features:1}",
    ],
)
@pytest.mark.parametrize("key", ["token_mixer.dropout", "trainer.extra", "data.batch_size", "seed", "tags"])
def test_an_object_is_no_value(key: str, value: str) -> None:
    (issue,) = issues(f"{key}={value}")
    assert issue.key == key


def test_options_that_take_objects_are_few() -> None:
    own = {"data.train", "data.validation", "data.test", "data.module"}  # classes of the user's
    slots = {chosen.key for chosen in every_option() if chosen.option.slot}
    of_layers = {"layers.kinds"}
    parts = {"token_mixer.members", "token_mixer.map", "channel_mixer.members", "model.cross", "data.members"}
    assert slots == {"objective.metrics"} | parts | own | of_layers
    assert slot(options(Wrapping)["inner"].annotation) is not None


def test_annotations_without_parameters_take_plain_values() -> None:
    """As the constructors of other libraries have them, such as that of Aim's Lightning logger."""
    bare = [Dict, Callable, Dict | None]  # noqa: UP006
    assert [slot(annotation) for annotation in bare] == [None, None, None]


def test_nothing_is_on_the_meta_device_after_a_check() -> None:
    assert issues() == []
    assert torch.zeros(1).device.type == "cpu"


def test_the_fields_of_an_option_are_those_that_can_be_set() -> None:
    """A class variable of a dataclass is no field of the option."""
    (issue,) = check(compose(["model.prefix={tokens: 1}"]))
    assert "registers" in str(issue)
    assert "__pydantic_config__" not in str(issue)
