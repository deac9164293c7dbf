"""Answers to words of other tools that stand for no option or choice of another name here.

Spelling cannot help them: `ckpt_path` is near `data.path`. Each table maps a text to a sentence that says what
does here what they want. An option with another name elsewhere is in `known_keys.OPTIONS`, such a choice in its YAML.
"""

from __future__ import annotations

RUN_OF_WEIGHTS = "`blockyard train resume=RUN` continues a run, and init.from=RUN starts from the weights of one"
FOLDERS = "outputs=FOLDER takes the runs; data.root=FOLDER or data.path=FILE holds the data, as the choice of data says"
TESTED = "`blockyard train` tests at its end, and `blockyard eval run=RUN` evaluates a run"
FAST = "debug=fast takes five steps and looks at each split"
LOGGER = "a logger of Lightning's is logger._target_=CLASS with allow=[PACKAGE]"
NAMED = "name=NAME names the run"
WANDB = "logger=wandb logger.project=NAME logger.mode=offline"
SWEPT = "`blockyard sweep FILE` runs a search, described by `search:` in the file"
SHARDED = "trainer=fsdp shards the model over its processes"
KEPT = "a run keeps its best and its last checkpoint, and callbacks.checkpoint.every=N further ones"

# Key of an override, or its beginning up to a dot -> sentence
KEYS = {
    # lightning-hydra-template
    "ckpt_path": RUN_OF_WEIGHTS,
    "paths": FOLDERS,
    "extras": "`blockyard train --cfg job` prints the config, and tags=[NAME] tags the run",
    "hparams_search": SWEPT,
    "optimized_metric": "`metric:` of a sweep file names what a search optimises",
    "task_name": NAMED,
    "train": TESTED,
    "test": TESTED,
    "model.optimizer": "the optimizer is a family of its own, beside the model: optimizer=NAME optimizer.lr=1e-3",
    "model.scheduler": "the schedule is a family of its own, beside the model: schedule=NAME schedule.warmup=0.1",
    "model.net": "the network follows from the families: model.dim=64 model.depth=4 block=NAME token_mixer=NAME",
    "model.compile": "trainer.compile=true",
    "wandb": WANDB,
    "logger.offline": "logger.mode=offline",
    "logger.save_dir": "outputs=FOLDER takes the runs, and each run the files of its logger",
    "callbacks.model_checkpoint": KEPT,
    # Lightning
    "seed_everything": "seed=N",
    "resume_from_checkpoint": RUN_OF_WEIGHTS,
    "default_root_dir": FOLDERS,
    "trainer.default_root_dir": FOLDERS,
    "trainer.fast_dev_run": FAST,
    "trainer.callbacks": "callbacks=NAME chooses a set, and callbacks.NAME._target_=CLASS adds one of your own",
    "trainer.logger": "logger=NAME",
    "trainer.enable_checkpointing": KEPT,
    "trainer.num_sanity_val_steps": "no run validates before its first step; debug=fast looks at each split",
    # HF Trainer
    "output_dir": FOLDERS,
    "save_dir": FOLDERS,
    "log_dir": FOLDERS,
    "run_name": NAMED,
    "report_to": "logger=wandb, tensorboard, mlflow or trackio",
    "model_name_or_path": "preset=NAME builds a known model, and init.from=hf:NAME starts from its weights",
    "evaluation_strategy": "trainer.eval_every=STEPS",
    "eval_strategy": "trainer.eval_every=STEPS",
    "save_strategy": KEPT,
    "save_steps": KEPT,
    "save_total_limit": KEPT,
    "load_best_model_at_end": "`blockyard eval run=RUN which=best` evaluates the best weights, which a run keeps",
    "push_to_hub": "`blockyard export run=RUN to=FOLDER format=hf push=USER/NAME`",
    "deepspeed": SHARDED,
    "fsdp": SHARDED,
    # nanoGPT
    "init_from": RUN_OF_WEIGHTS,
    "out_dir": FOLDERS,
    "decay_lr": "schedule=constant keeps the learning rate",
    "wandb_log": WANDB,
    "wandb_project": WANDB,
    "wandb_run_name": NAMED,
    # plain scripts
    "ckpt": RUN_OF_WEIGHTS,
    "checkpoint": RUN_OF_WEIGHTS,
    "checkpoint_path": RUN_OF_WEIGHTS,
    "device": "trainer.accelerator=cpu or gpu; the default takes a GPU where there is one",
}

# `family=name` -> sentence
CHOICES = {
    "debug=default": FAST,
    "debug=fdr": FAST,
    "logger=csv": "every run writes metrics.csv; logger=none writes nothing else",
    "logger=many_loggers": "logger=[tensorboard,wandb] takes several",
    "logger=comet": LOGGER,
    "logger=aim": LOGGER,
    "logger=neptune": LOGGER,
    "trainer=mps": "runs train on CPUs and on CUDA GPUs: trainer=cpu, trainer=gpu",
    "trainer=tpu": "runs train on CPUs and on CUDA GPUs: trainer=cpu, trainer=gpu",
    "trainer=deepspeed": SHARDED,
    "trainer=ddp_sim": "trainer=ddp trainer.accelerator=cpu trainer.devices=2",
    "token_mixer=nope": "attention without positions is position=none",
    "data=wikitext": "a data set of the hub that was saved on the disk is data=hf data.path=FOLDER, and running text "
    "is data=text_file data.path=FILE",
    "experiment=example": "`blockyard list experiment` lists them",
}

# First word of a command line -> sentence
COMMANDS = {
    "fit": "`blockyard train`",
    "run": "`blockyard train`",
    "finetune": "`blockyard train init.from=RUN`",
    "test": "`blockyard eval run=last`",
    "validate": "`blockyard eval run=last split=validation`",
    "resume": "`blockyard train resume=last`",
    "ui": "`blockyard board`",
    "dashboard": "`blockyard board`",
    "tensorboard": "`blockyard board`; with logger=tensorboard, `tensorboard --logdir outputs` shows the runs too",
    "search": "`blockyard sweep FILE`, with `search:` in the file",
    "login": "`wandb login` logs in to W&B; blockyard itself has no account",
    "version": "`blockyard --version`",
    "ls": "`blockyard runs`",
}

# `command flag` -> sentence
FLAGS = {
    "sweep --n-jobs": "--workers N",
    "sweep --jobs": "--workers N",
    "sweep -j": "--workers N",
    "sweep -m": "the sweep's file lists its arms; `blockyard train -m` runs combinations of values",
    "sweep --multirun": "the sweep's file lists its arms; `blockyard train -m` runs combinations of values",
    "train -cn": "there is one root config; choose experiment=NAME",
}

# `command key` -> sentence
OPTIONS = {
    "eval ckpt_path": "run=RUN names the run, and which=best or last its checkpoint",
    "predict ckpt_path": "run=RUN names the run, and which=best or last its checkpoint",
}


# Family -> where torch keeps its classes, which a choice of the family takes by their names
OF_TORCH = {"optimizer": "torch.optim.", "schedule": "torch.optim.lr_scheduler."}


def of_torch(family: str, target: str) -> tuple[str, str]:
    """Return the choice that takes a class of torch, and the name of the class."""
    choices = {"optimizer": "torch_optim", "schedule": "torch_scheduler"}
    return f"{family}={choices[family]}", target.removeprefix(OF_TORCH[family])


def key_answer(key: str) -> str | None:
    """Return the sentence for a key of an override, `paths.data_dir`; None for a key that no table has."""
    while key:
        if key in KEYS:
            return KEYS[key]
        key = key.rpartition(".")[0]
    return None
