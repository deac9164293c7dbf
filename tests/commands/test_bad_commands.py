"""Bad command lines: each gets its message, exit code 2, and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from blockyard.cli import main

# What is typed, and the words that its message must hold.
BAD = [
    # commands and flags
    ("frobnicate", ["unknown command 'frobnicate'"]),
    ("trian", ["did you mean train?"]),
    ("train --gpu", ["--gpu: unknown flag"]),
    ("check --config-dir", ["--config-dir: a value is missing"]),
    ("check --config-dir /does/not/exist", ["/does/not/exist is not a folder"]),
    ("train --cfg", ["--cfg: a value is missing"]),
    ("list positions", ["positions: unknown family; did you mean position?"]),
    ("explain", ["family=choice"]),
    ("explain position", ["position=", "choices:", "alibi", "`blockyard list position`"]),
    ("explain position=rop", ["did you mean rope?"]),
    ("explain token_mixer=hard", ["did you mean hard_attention?"]),
    (
        "check experiment=vit_digits token_mixer=windowed_attention",
        ["with 1 coordinate axes; they have 2"],
    ),
    ("check token_mixer=windowed", ["did you mean windowed_attention?"]),
    ("check trainer.extrapolate.x=3", ["trainer.extrapolate.x: 3 cannot be set"]),
    ("check model.dim=choice(64)", ["model.dim", "choice(64)", "a single run takes one"]),
    ("check \"model.dim.x='${'\"", ["model.dim.x", "cannot be set"]),
    ("check ++hydra.searchpath=[file:///tmp]", ["write it without +: hydra.searchpath="]),
    ("check tags={a:1}", ["tags: invalid value {'a': 1}: expected a list of text"]),
    ("check tokenizer=timm tokenizer.stage=99", ["tokenizer.stage=99", "resnet10t has 5 feature maps, 0 to 4"]),
    ("explain blocks=pre_norm", ["unknown family; did you mean block?"]),
    ("completion tcsh", ["bash, zsh, fish"]),
    ("eval", ["run=RUN"]),
    ("eval run=nothing_of_this_name", ["nothing_of_this_name"]),
    ("eval run=x split=tset", ["split=tset", "test, validation, train"]),
    ("eval run=x which=newest", ["which=newest", "best, last"]),
    ("eval run=x spilt=test", ["spilt=test", "did you mean split?"]),
    ("generate prompt=a", ["run=RUN"]),
    ("generate run=x", ["prompt=TEXT"]),
    ("generate run=x prompt=a max_tokens=0", ["max_tokens=0", "whole number >= 1"]),
    ("generate run=x prompt=a max_tokens=many", ["max_tokens=many", "whole number >= 1"]),
    ("generate run=x prompt=a temperature=-1", ["temperature=-1", "number >= 0"]),
    ("generate run=x prompt=a top_k=2.5", ["top_k=2.5", "whole number >= 0"]),
    ("generate run=x prompt=a cache=maybe", ["cache=maybe", "true or false"]),
    ("runs optimizer.lr<x", ["optimizer.lr<x", "compares with a number"]),
    ("runs --colums state", ["--colums", "did you mean --columns?"]),
    ("runs delete", ["runs delete needs a run"]),
    ("predict text", ["predict needs run=RUN"]),
    ("predict run=x", ["predict needs an input"]),
    ("predict run=x text out=p.txt", ["out=p.txt", "written as .csv"]),
    ("predict run=x text colunm=a", ["colunm=a", "did you mean column?"]),
    ("embed out=x.npz", ["embed needs run=RUN"]),
    ("embed run=x", ["embed needs out=FILE.npz"]),
    ("embed run=x out=x.csv", ["out=x.csv", ".npz or .parquet"]),
    ("embed run=x out=x.npz pool=max", ["pool=max", "mean, class, last, none"]),
    ("embed run=x out=x.npz layer=first", ["layer=first", "last, embedded, or the number of a block"]),
    ("embed run=x out=x.npz projection=pca", ["projection=pca has an effect with page=FILE.html only"]),
    ("embed run=x out=x.npz layr=1", ["layr=1", "did you mean layer?"]),
    ("forecast", ["run=RUN"]),
    ("forecast run=x level=2", ["level=2", "number > 0 and <= 1"]),
    ("forecast run=x fiel=a.csv", ["fiel=a.csv", "unknown option of forecast", "did you mean file?"]),
    ("inspect run=x", ["attention, circuits, equivariance, experts, masking, memory"]),
    ("inspect run=x atention", ["atention", "did you mean attention?"]),
    ("inspect attention", ["run=RUN"]),
    ("inspect run=x attention heads=a", ["heads=a", "such as 0,2 or 0-3"]),
    ("inspect run=x attention probes=3", ["probes=3", "an option of mixing, not of attention"]),
    ("inspect run=x circuits samples=1", ["samples=1", "not of circuits"]),
    (
        "inspect run=x circuits mixing sample=1",
        [
            "sample=1",
            "an option of attention, equivariance, experts, masking, mixing, norms and restore, not of circuits; run "
            "them",
        ],
    ),
    ("inspect run=x mixing of=stream", ["of=stream", "one of mixer, block"]),
    ("inspect run=x mixing prompt=a sample=1", ["sample=1", "has no effect together with prompt"]),
    ("inspect run=x circuits which=third", ["which=third", "best, last"]),
    ("inspect run=x circuits laiers=0", ["laiers=0", "did you mean layers?"]),
    ("generate run=x prompt=a topp=0.9", ["topp=0.9", "unknown option of generate", "did you mean top_p?"]),
    ("train resume=nothing_of_this_name", ["nothing_of_this_name"]),
    ("train resume=", ["resume= is empty"]),
    # choices
    ("check experiment=canvas_segment data=digits_views", ["data.size=24 is larger than the images", "8 x 8"]),
    ("check block=prenorm", ["block", "unknown block 'prenorm'; did you mean pre_norm?", "`blockyard list block`"]),
    ("check position=rotary", ["unknown position 'rotary'", "`blockyard list position`"]),
    ("check token_mixer=atention", ["did you mean attention?"]),
    ("check experiment=vit_digit", ["did you mean vit_digits?"]),
    ("check +block=pre_norm", ["block", "write it without +"]),
    ("check ++position=rope", ["position", "write it without +"]),
    ("check ~norm", ["norm", "cannot be deleted"]),
    ("check ~optimizer.lr", ["optimizer.lr", "cannot be deleted"]),
    ("check ~callbacks.gradient_nrm", ["callbacks.gradient_nrm", "unknown callback", "callbacks.gradient_norm"]),
    ("check block=pre_norm,post_norm", ["block", "several values", "-m block=pre_norm,post_norm"]),
    ("check data/digits=1", ["data/digits", "data=digits"]),
    ("check position/name=rope", ["position/name", "position=rope"]),
    # keys
    ("check modle.dim=32", ["'modle' is not a family; did you mean model?"]),
    ("check dim=32", ["dim: unknown config key (try model.dim)"]),
    ("check lr=0.1", ["optimizer.lr"]),
    ("check +typo=1", ["typo: unknown config key"]),
    ("check ++typo=1", ["typo: unknown config key"]),
    ("check model.widht=32", ["model.widht", "has no option", "depth"]),
    ("check model.dmi=32", ["model.dmi", "model.dim"]),
    ("check +model.dmi=32", ["model.dmi", "model.dim"]),
    ("check position.name=rope", ["position.name", "position=rope"]),
    ("check model.attention=gqa", ["model.attention", "has no option"]),
    ("check token_mixer.fourier=true", ["token_mixer=fourier"]),
    ("check position=none position.base=10", ["position.base", "it has none"]),
    ("check model.prefix.clas_token=true", ["model.prefix", "clas_token"]),
    ("check model.dim", ["model.dim", "no value given"]),
    ("check model.dim=", ["model.dim: invalid value"]),
    ("check 'name=a=b,c{'", ["name: cannot parse"]),
    ("check hydra.callbacks.x._target_=os.system", ["hydra.callbacks", "cannot be overridden"]),
    ("check hydra.job.chdir=true", ["hydra.job.chdir", "cannot be overridden"]),
    ("check model._args_=[1]", ["model._args_", "has no option"]),
    # values
    ("check model.dim=abc", ["model.dim", "'abc'", "int >= 1"]),
    ("check model.dim=0", ["model.dim", "0", "int >= 1"]),
    ("check model.dim=2.5", ["model.dim", "2.5", "int >= 1"]),
    ("check model.depth=true", ["model.depth", "True", "int >= 1"]),
    ("check model.heads=-4", ["model.heads", "-4", "int >= 1"]),
    ("check optimizer.lr=-1", ["optimizer.lr", "-1", "number > 0"]),
    ("check optimizer.lr=high", ["optimizer.lr", "'high'"]),
    ("check token_mixer.dropout=1.5", ["token_mixer.dropout", "1.5", "< 1"]),
    ("check seed=-1", ["seed", "-1", "int >= 0"]),
    ("check seed=abc", ["seed", "'abc'"]),
    ("check tags=fast", ["tags", "'fast'", "a list of text"]),
    ("check force=1", ["force", "true or false"]),
    ("check channel_mixer.activation=swish2", ["channel_mixer.activation", "one of", "gelu"]),
    ("check model.prefix=3", ["model.prefix"]),
    ("check trainer.max_steps=ten", ["trainer.max_steps", "'ten'"]),
    # targets
    ("check token_mixer._target_=os.system", ["os.system is not in an allowed package"]),
    ("check token_mixer._target_=torch.load", ["torch.load", "not a class"]),
    ("check token_mixer._target_=torch.nn.Linear", ["torch.nn.Linear is not a TokenMixer"]),
    ("check token_mixer._target_=blockyard.token_mixer.attention.Atention", ["cannot be imported", "Atention"]),
    ("check norm._target_=mypackage.Norm", ["allow=[mypackage]"]),
    ("check norm._partial_=false", ["norm._partial_"]),
    # combinations
    ("check tokenizer=char", ["tokenizer=char reads texts", "data=digits gives images", "tokenizer=patch"]),
    ("check token_mixer=fourier position=rope", ["position=rope", "queries_and_keys", "token_mixer=attention"]),
    ("check token_mixer=token_mlp position=alibi", ["position=alibi", "scores"]),
    ("check model=decoder head=class_token model.prefix.class_token=true", ["head=class_token", "sees nothing"]),
    ("check objective=next_token", ["objective=next_token"]),
    ("check head=class_token", ["model.prefix.class_token=true"]),
    ("check head=token", ["head=token gives one per token", "head=mean_pool"]),
    ("check block=parallel token_mixer=fourier", ["block=parallel", "block.fused=false"]),
    (
        "check experiment=gpt_code token_mixer=token_mlp position=none",
        ["=token_mlp cannot be causal; model=decoder requires it"],
    ),
    ("check experiment=gpt_code data.sample=line token_mixer=fourier", ["different lengths"]),
    # shapes and folders
    ("check model.heads=3", ["model.heads=3", "model.dim=64", "2, 4"]),
    ("check tokenizer.size=3", ["3", "8"]),
    ("check token_mixer.num_kv_heads=3", ["num_kv_heads=3", "4"]),
    ("check data=mnist data.root=/does/not/exist", ["/does/not/exist"]),
    ("check data=image_folder data.root=/does/not/exist", ["/does/not/exist"]),
    ("check experiment=gpt_shakespeare data.path=/does/not/exist.txt", ["/does/not/exist.txt"]),
    # flags without an effect
    ("train --resolve", ["--resolve and --package", "--cfg=job"]),
    ("train --package model", ["--resolve and --package", "--cfg=job"]),
    ("train --cfg job --info", ["one of --cfg and --info"]),
    ("sweep quickstart --one arm=rope seed=0 --dry-run", ["--one trains one cell", "--dry-run"]),
    ("sweep quickstart --one arm=rope seed=0 --seeds 3 executor=ray", ["--one", "--seeds", "executor=ray"]),
    # several at once
    (
        "check block=prenorm optimizer.lr=-1 model.dmi=3 head=class_token +typo=1",
        ["5 problems", "pre_norm", "number > 0", "model.dim", "class_token", "typo"],
    ),
]


def arguments_of(line: str) -> list[str]:
    import shlex

    return shlex.split(line)


@pytest.mark.parametrize(("line", "expected"), BAD, ids=[line for line, _ in BAD])
def test_bad_command_line(line, expected, capsys, monkeypatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    assert main(arguments_of(line)) == 2
    out, err = capsys.readouterr()
    for text in expected:
        assert text in err, err
    assert "Traceback" not in err
    assert out == ""
    assert list(tmp_path.iterdir()) == []


def test_there_are_enough():
    assert len(BAD) >= 60


def test_train_checks_first(capsys, monkeypatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "model.dim=abc", "block=prenorm"]) == 2
    err = capsys.readouterr().err
    assert "model.dim" in err
    assert "pre_norm" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("verb", ["eval", "inspect attention", "generate prompt=a"])
def test_a_checkpoint_that_a_message_names_can_be_asked_for(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    from blockyard.runs.load import WHICH

    for which in WHICH:
        assert main([*verb.split(), "run=nothing_of_this_name", f"which={which}"]) == 2
        assert "which=" not in capsys.readouterr().err
    assert main([*verb.split(), "run=nothing_of_this_name", "which=newest"]) == 2
    *others, last = WHICH
    assert f"expected {', '.join(others)} or {last}" in capsys.readouterr().err
