"""Words of other tools work as they are, or are answered with what does here what they stand for."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from blockyard.cli import main
from blockyard.commands import COMMANDS
from blockyard.config import habits
from blockyard.config.choices import catalog
from blockyard.config.compose import compose
from blockyard.config.schema import Root, options

SENTENCES = {
    **habits.KEYS,
    **habits.CHOICES,
    **habits.COMMANDS,
    **habits.FLAGS,
    **habits.OPTIONS,
}

WORKS = ""

# Overrides that people type after `blockyard train` out of habit: what the answer has, or WORKS.
OVERRIDES = {
    # lightning-hydra-template
    "trainer=gpu": WORKS,
    "trainer=cpu": WORKS,
    "trainer=ddp": WORKS,
    "trainer=mps": "trainer=cpu, trainer=gpu",
    "trainer=ddp_sim": "trainer=ddp trainer.accelerator=cpu trainer.devices=2",
    "trainer=deepspeed": "trainer=fsdp",
    "logger=wandb": WORKS,
    "logger=mlflow": WORKS,
    "logger=csv": "every run writes metrics.csv",
    "logger=many_loggers": "logger=[tensorboard,wandb]",
    "logger=comet": "logger._target_=CLASS",
    "logger=aim": "logger._target_=CLASS",
    "logger=neptune": "logger._target_=CLASS",
    "logger=null": "(try logger=none)",
    "logger.wandb.project=p": "logger (Wandb) has no option 'wandb'",
    "callbacks=default": WORKS,
    "callbacks=none": "did you mean quiet?",
    "callbacks=null": "(try callbacks=quiet)",
    "callbacks.model_checkpoint.monitor=val/acc": "callbacks.checkpoint.every=N",
    "callbacks.early_stopping.patience=5": "(try callbacks=early_stopping)",
    "debug=limit": WORKS,
    "debug=overfit": WORKS,
    "debug=profiler": WORKS,
    "debug=default": "debug=fast",
    "debug=fdr": "debug=fast",
    "experiment=example": "`blockyard list experiment`",
    "hparams_search=mnist_optuna": "`search:`",
    "optimized_metric=val/acc": "`metric:`",
    "ckpt_path=outputs/x/last.ckpt": "resume=RUN",
    "task_name=foo": "name=NAME",
    "tags=[a]": WORKS,
    "+tags=[a]": WORKS,
    "paths=default": "outputs=FOLDER",
    "paths.data_dir=/data": "data.path=FILE",
    "paths.output_dir=x": "outputs=FOLDER",
    "extras.print_config=true": "--cfg job",
    "train=false": "`blockyard eval run=RUN`",
    "test=false": "`blockyard eval run=RUN`",
    "model.optimizer.lr=0.1": "optimizer.lr=1e-3",
    "model.net.lin1_size=64": "model.dim=64",
    "scheduler=cosine": "(try schedule=cosine)",
    "data.num_workers=2": "trainer.num_workers",
    # Lightning
    "data.batch_size=32": WORKS,
    "trainer.max_epochs=3 trainer.accelerator=gpu trainer.devices=4": WORKS,
    "trainer.strategy=ddp": WORKS,
    "trainer.precision=bf16-mixed": WORKS,
    "trainer.precision=16": WORKS,
    "trainer.deterministic=true": WORKS,
    "trainer.val_check_interval=100": "trainer.eval_every",
    "trainer.gradient_clip_val=1": "trainer.gradient_clip",
    "trainer.accumulate_grad_batches=2": "trainer.accumulate",
    "+trainer.limit_train_batches=5": "trainer.limit_train",
    "trainer.fast_dev_run=true": "debug=fast",
    "logger.offline=true": "logger.mode=offline",
    "optimizer._target_=torch.optim.SGD": WORKS,
    "schedule._target_=torch.optim.lr_scheduler.LinearLR": WORKS,
    # Hydra
    "seed=1,2,3": "(try -m seed=1,2,3)",
    "~logger": "(try logger=none)",
    "hydra.run.dir=x": "outputs=FOLDER",
    "hydra.job.chdir=true": "outputs=FOLDER",
    "hydra/launcher=joblib": "`blockyard sweep --help`",
    "hydra/sweeper=optuna": "`blockyard sweep --help`",
    "--config-name=x": "experiment=NAME",
    "--config-path=configs": "did you mean --config-dir?",
    "-cn foo": "experiment=NAME",
    "+foo=1": "a config has no keys and groups beside its families",
    "+mygroup=x": "a config has no keys and groups beside its families",
    "block=pre_norm, post_norm": "several values are written without spaces, key=A,B",
    # Hugging Face, W&B and scripts
    "trainer.compile=true": WORKS,
    "compile=true": "(try trainer.compile)",
    "attention=flash": "(try trainer.attention)",
    "lr_scheduler=cosine": "(try schedule=cosine)",
    "optimizer=adam": "did you mean adamw?",
    "optimizer=lion": "did you mean timm_optim?",
    "model=gpt2": "did you mean preset=gpt2?",
    "model=vit": "did you mean preset=vit?",
    "token_mixer=flash_attention": "token_mixer=attention trainer.attention=auto",
    "token_mixer=nope": "position=none",
    "data=wikitext": "data=hf data.path=FOLDER",
    "wandb.project=foo": "logger.project=NAME",
    "--resume": "resume=VALUE",
}

# Whole command lines: what the answer has.
LINES = {
    "fit": "`blockyard train`",
    "test": "`blockyard eval run=last`",
    "resume last": "`blockyard train resume=last`",
    "login": "`wandb login`",
    "version": "`blockyard --version`",
    "ui": "`blockyard board`",
    "tensorboard": "`blockyard board`",
    "eval ckpt_path=x run=last": "run=RUN",
    "sweep --n-jobs 4": "--workers N",
    "sweep quickstart -m": "`blockyard train -m`",
    "sweep quickstat": "unknown sweep 'quickstat'; did you mean quickstart?",
    "sweep nosuch/quickstat.yaml": "nosuch; did you mean quickstart?",
    "sweep nothere.yaml": "see `blockyard list sweeps`",
    "sweep vit_digits": "'vit_digits' is an experiment",
    "runs ls": "`blockyard runs` alone lists",
    "list rope": "rope: not a family but a choice; see `blockyard explain position=rope`",
}

# Whole command lines that work: the beginning of what they print.
WORKING_LINES = {
    "list models": "model\n",
    "list optimizers": "optimizer\n",
    "help": "blockyard composes",
    "help sweep": "blockyard sweep",
    "--version": "blockyard ",
    "train --info defaults": "",
}


def refusal(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what a command line that is refused prints."""
    assert main(shlex.split(command)) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("typed", OVERRIDES)
def test_an_override_works_or_is_answered(typed: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = f"train {typed} --cfg job"
    if OVERRIDES[typed] == WORKS:
        assert main(shlex.split(command)) == 0
    else:
        assert OVERRIDES[typed] in refusal(command, capsys)


@pytest.mark.parametrize("line", LINES)
def test_a_line_is_answered(
    line: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert LINES[line] in refusal(line, capsys)


@pytest.mark.parametrize("line", WORKING_LINES)
def test_a_line_works(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(line)) == 0
    assert capsys.readouterr().out.startswith(WORKING_LINES[line])


@pytest.mark.parametrize("rest", ["", ".any"])
def test_a_key_is_answered_and_so_is_what_lies_below_it(rest: str) -> None:
    issues = compose([f"{key}{rest}=x" for key in habits.KEYS]).issues
    for key, issue in zip(habits.KEYS, issues, strict=True):
        assert issue.key == f"{key}{rest}"
        assert habits.KEYS[key] in str(issue)


def test_a_choice_is_answered() -> None:
    issues = compose(list(habits.CHOICES)).issues
    for sentence, issue in zip(habits.CHOICES.values(), issues, strict=True):
        assert sentence in str(issue)


@pytest.mark.parametrize("command", habits.COMMANDS)
def test_a_command_is_answered(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command not in COMMANDS
    assert habits.COMMANDS[command] in refusal(command, capsys)


@pytest.mark.parametrize("flag", habits.FLAGS)
def test_a_flag_is_answered(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert habits.FLAGS[flag] in refusal(f"{flag} 4", capsys)


@pytest.mark.parametrize("option", habits.OPTIONS)
def test_an_option_of_a_command_is_answered(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert habits.OPTIONS[option] in refusal(f"{option}=x run=last", capsys)


OPTIONS_OF_COMMANDS = ("run", "resume", "which", "split", "to", "format", "push")


@pytest.mark.parametrize("word", SENTENCES)
def test_an_answer_names_commands_families_and_options_that_exist(word: str) -> None:
    sentence = SENTENCES[word]
    for command in re.findall(r"`blockyard (\w+)", sentence):
        assert command in COMMANDS
    for key in re.findall(r"([\w.]+)=", sentence):
        family = key.partition(".")[0]
        assert family in {*catalog.run_keys(), *options(Root), *OPTIONS_OF_COMMANDS}
    for family, name in re.findall(r"\b(\w+)=([a-z_]+)", sentence):
        if family in catalog.groups():
            assert name in catalog.choices(family)


def test_a_class_of_torch_is_taken_as_it_is() -> None:
    composed = compose(["optimizer._target_=torch.optim.RAdam", "schedule._target_=torch.optim.lr_scheduler.LinearLR"])
    assert composed.issues == []
    assert composed.config["optimizer"]["name"] == "RAdam"
    assert composed.config["schedule"]["name"] == "LinearLR"
    assert composed.choices["optimizer"] == "torch_optim"
    assert composed.choices["schedule"] == "torch_scheduler"
