"""Command lines from a stranger: targets that no config may name, keys of Hydra, names of runs, and sweep files."""

from __future__ import annotations

from collections.abc import Iterator

from tests.battery.hostile_folders import CALL, CANARY, GLOBAL, HYDRA_KEYS, Folder

TARGETS = (
    "os.system",
    "posix.system",
    "os.execv",
    "os.popen",
    "subprocess.Popen",
    "subprocess.run",
    "builtins.eval",
    "builtins.exec",
    "builtins.getattr",
    "builtins.__import__",
    "builtins.open",
    "__main__.main",
    "__builtin__.eval",
    "importlib.import_module",
    "shutil.rmtree",
    "pathlib.Path",
    "pickle.loads",
    "runpy.run_path",
    "ctypes.CDLL",
    "code.InteractiveConsole",
    "pty.spawn",
    "urllib.request.urlopen",
    "http.server.HTTPServer",
    "logging.FileHandler",
    "logging.config.dictConfig",
    "setuptools._distutils.spawn.spawn",
    "evilpackage.Evil",
    "antigravity.fly",
    "hydra.utils.get_method",
    "hydra.utils.call",
    "hydra._internal.core_plugins.basic_launcher.BasicLauncher",
    "omegaconf.OmegaConf.load",
    "torch.load",
    "torch.hub.load",
    "torch.utils.cpp_extension.load",
    "torch.distributed.elastic.multiprocessing.subprocess_handler.SubprocessHandler",
    "torch.os.system",
    "transformers.pipeline",
    "timm.create_model",
    "pytorch_lightning.Trainer",
    "blockyard.atomic_files.write_json",
    "blockyard.cli.main",
    "torch.nn.Module.__init__.__globals__",
    "torch.nn.Module.__subclasses__",
    "blockyard..x",
    "torch",
    "",
    ".",
    "..",
    "../evilpackage.Evil",
    "/bin/sh",
    "torch.nn.Linear; import os",
    "torch.nn.Linear\\nos.system",
    "t\u043erch.nn.Linear",
    "evilpackage.Evil\u200b",
    "x" * 3000 + ".Y",
)
PACKAGE = {"evilpackage/__init__.py": f"import pathlib\npathlib.Path({CANARY!r}).touch()\nclass Evil: ...\n"}

# A file, and what a user types with it, for a target in each place of a config.
PLACES = {
    "norm": ({"norm/x.yaml": "_target_: {t}\n_partial_: true\n"}, "norm=x"),
    "data": ({"data/x.yaml": "_target_: {t}\n"}, "data=x"),
    "tokenizer of a preset": ({"preset/x.yaml": GLOBAL + "tokenizer: {{_target_: {t}}}\n"}, "preset=x"),
    "experiment": ({"experiment/x.yaml": GLOBAL + "model: {{_target_: {t}}}\n"}, "experiment=x"),
    "trainer": ({"experiment/x.yaml": GLOBAL + "trainer: {{_target_: {t}}}\n"}, "experiment=x"),
    "callback": ({"callbacks/x.yaml": "x: {{_target_: {t}, filename: " + CANARY + "}}\n"}, "callbacks=x"),
    "logger": ({"logger/x.yaml": "_target_: {t}\n"}, "logger=x"),
    "value": ({"experiment/x.yaml": GLOBAL + "token_mixer: {{dropout: {{_target_: {t}}}}}\n"}, "experiment=x"),
    "root": ({"experiment/x.yaml": GLOBAL + "seed: {{_target_: {t}}}\n"}, "experiment=x"),
    "list": ({"experiment/x.yaml": GLOBAL + "tags: [{{_target_: {t}}}]\n"}, "experiment=x"),
    "list of lists": ({"experiment/x.yaml": GLOBAL + "tags: [[{{_target_: {t}}}]]\n"}, "experiment=x"),
    "interpolated": ({"experiment/x.yaml": GLOBAL + "name: {t}\nnorm: {{_target_: '${{name}}'}}\n"}, "experiment=x"),
    "node interpolated": (
        {"experiment/x.yaml": GLOBAL + "x: {{_target_: {t}}}\ncallbacks: {{y: '${{x}}'}}\n"},
        "experiment=x",
    ),
    "nested choice": (
        {
            "token_mixer/evil.yaml": "_target_: {t}\n_partial_: true\n",
            "experiment/x.yaml": GLOBAL
            + "defaults:\n  - override /token_mixer: cycle\ntoken_mixer: {{pattern: [evil, attention]}}\n",
        },
        "experiment=x",
    ),
    "member": (
        {
            "experiment/x.yaml": GLOBAL + "defaults:\n  - override /token_mixer: cycle\n"
            "token_mixer: {{pattern: [y], members: {{y: {{_target_: {t}, _partial_: true}}}}}}\n"
        },
        "experiment=x",
    ),
    "allowed by itself": (
        {"experiment/x.yaml": GLOBAL + "allow: [os, evilpackage]\ncallbacks: {{y: {{_target_: {t}}}}}\n"},
        "experiment=x",
    ),
    "allowed by a tag": (
        {"experiment/x.yaml": GLOBAL + "tags: [evilpackage]\nallow: ${{tags}}\nnorm: {{_target_: {t}}}\n"},
        "experiment=x",
    ),
}


def targets() -> Iterator[Folder]:
    """Folders with a target that no config may name, in each place of a config."""
    for target in TARGETS:
        quoted = '"' + target + '"'
        for place, (files, choice) in PLACES.items():
            written = {path: text.format(t=quoted) for path, text in files.items()}
            yield Folder(f"{target[:60]!r} as {place}", written, choice)


HYDRA_TEXTS = (
    *(f"hydra.{key}={value}" for key, value in HYDRA_KEYS.items()),
    "hydra.callbacks.x._target_=os.system",
    f"hydra.callbacks={{x:{CALL}}}",
    "hydra.launcher._target_=os.system",
    "hydra.launcher._target_=hydra._internal.core_plugins.basic_launcher.BasicLauncher",
    "hydra.sweeper._target_=os.system",
    "hydra.sweeper.params={seed:'1,2'}",
    "hydra.sweeper.max_batch_size=1",
    "hydra/launcher=basic",
    "hydra/launcher=submitit_slurm",
    "hydra/sweeper=optuna",
    "hydra/sweeper=basic",
    "hydra/job_logging=stdout",
    "hydra/job_logging=none",
    "hydra/hydra_logging=disabled",
    "hydra/callbacks=x",
    "hydra/config=x",
    "hydra/env=default",
    "hydra={callbacks:{}}",
    "hydra.searchpath.0=file:///tmp",
    "hydra.searchpath@x=[file:///tmp]",
    "hydra.runtime.choices.norm=rms",
    "hydra.overrides.task=[seed=1]",
    "hydra.job.env_copy=[HOME]",
    "hydra.job.config.override_dirname.kv_sep=/",
    "norm@hydra.callbacks=rms",
    "norm@_global_.hydra.callbacks=rms",
    "experiment@hydra=vit_digits",
    "norm@norm:hydra.callbacks=rms",
    "hydra@norm=x",
    "hydra/../norm=rms",
)


def hydra_overrides() -> Iterator[tuple[str, ...]]:
    """Command lines that set keys of Hydra itself."""
    commands = (("check",), ("train",), ("train", "-m"), ("train", "-m", "seed=0,1"), ("train", "--cfg", "hydra"))
    for number, text in enumerate(HYDRA_TEXTS):
        for prefix in ("", "+", "++", "~"):
            yield (*commands[number % len(commands)], f"{prefix}{text}")
            number += 1


SEARCHPATHS = (
    "hydra.searchpath=[pkg://hydra.conf]",
    "hydra.searchpath=[pkg://evilpackage]",
    "hydra.searchpath=[structured://]",
    "hydra.searchpath=[file:///no/such]",
    "hydra.searchpath=[userfolder:///tmp]",
    "hydra.searchpath=[http://127.0.0.1/x]",
    "hydra.searchpath=['']",
    "hydra.searchpath=[]x",
    "hydra.searchpath=",
    "hydra.searchpath=3",
    "hydra.searchpath=[3]",
    "hydra.searchpath={a:b}",
    "hydra.searchpath=[[conf]]",
    "hydra.searchpath=a,b",
    "hydra.searchpath=[a,b",
    "hydra.searchpath=['a\\'b']",
    "hydra.searchpath=[${oc.env:HOME}/nowhere]",
    "hydra.searchpath=[~nobody_of_this_name]",
    f"hydra.searchpath=[{'x' * 5000}]",
    "+hydra.searchpath=[conf]",
    "++hydra.searchpath=[conf]",
    "~hydra.searchpath",
)
MULTIRUNS = (
    "seed=range(5,5)",
    "seed=range(0,10,0)",
    "seed=range(0,1,0.0)",
    "seed=range(1000000000000)",
    "seed=shuffle(range(1000000000000))",
    "seed=range(0,1e300,0.001)",
    "seed=interval(0,1)",
    "seed=glob(*)",
    "norm=glob(no_such_*)",
    "norm=glob([*],exclude=[*])",
    "norm=interval(0,1)",
    "norm=range(3)",
    "norm=rms,nonsense",
    "seed=choice()",
    "model.no_such=1,2",
    "~seed=1,2",
    "+norm=rms,layer",
    "hydra.launcher=a,b",
    "resume=last",
    "--cfg=job seed=1,2",
    "--info=all seed=1,2",
    "seed=range(0,200) model.dim=range(1,200) model.depth=range(1,200)",
    "match=1,2",
)
PATHS = (
    "/etc",
    "/etc/passwd",
    "../../../../etc",
    "..",
    "/dev/zero",
    "/dev/stdin",
    "/proc/self/environ",
    "a/../../../b",
    "~root/.ssh",
    "~nobody_of_this_name",
    "$HOME",
    "`touch EXECUTED`",
    "$(touch EXECUTED)",
    "; touch EXECUTED",
    "| touch EXECUTED",
    "&& touch EXECUTED",
    "--help=x",
    "-rf",
    "*",
    "?",
    "[a-z]*",
    "**/*",
    "{a,b}",
    "%s%n",
    "{0.__class__}",
    "\u202egnp.exe",
    "\u0000",
    "a\u0000b",
    "\x1b[2J",
    "\r\n",
    "\t",
    "x" * 300,
    "x" * 5000,
    "x/" * 2000,
    "\U0001f4a9",
    "\udcff",
    "con",
    "file:///etc/passwd",
    "http://127.0.0.1:1/x",
    "s3://bucket/key",
    "s0",
    ".",
    "/",
    "//",
    "'\"",
)
FOLDERS = ("/etc", "../../../../etc", "..", ".", "/", "//")  # that exist, with no choices in them


def command_lines() -> Iterator[tuple[str, ...]]:
    """Command lines that are refused as they are: search paths, multiruns, and paths where a run or a file belongs."""
    for number, text in enumerate(SEARCHPATHS):
        yield (*(("check",), ("train", "-m"), ("train", "--cfg", "job"))[number % 3], text)
    for text in MULTIRUNS:
        yield ("train", "-m", *text.split())
    commands = (
        "eval run={}", "inspect mixing run={}", "generate prompt=a run={}", "train resume={}", "sweep {}",
        "check --config-dir {}", "eval run={} outputs={}", "compare {}", "train --config-dir {}",
    )  # fmt: skip
    for number, path in enumerate(PATHS):
        for offset in (0, 3, 4):
            command = commands[(number + offset) % len(commands)]
            if not ("--config-dir" in command and path in FOLDERS):  # an empty one
                yield tuple(argument.replace("{}", path) for argument in command.split())


SWEEP_HEAD = "claim: x\nseeds: 2\nbase: [data=digits, debug=fast, logger=none, outputs=outputs]\n"
# The arms of a sweep file, or other keys of it.
SWEEPS = (
    *(
        f"arms: {{a: ['hydra.{key}=1'], b: []}}"
        for key in ("callbacks", "launcher", "sweeper", "run.dir", "searchpath")
    ),
    *(f"arms: {{a: ['{text}'], b: []}}" for text in ("hydra/launcher=basic", "norm@hydra.callbacks=rms", "~seed")),
    *(f"arms: {{a: ['norm._target_={target}'], b: []}}" for target in ("os.system", "evilpackage.Evil", "torch.load")),
    "arms: {a: ['allow=[evilpackage]', 'norm._target_=evilpackage.Evil'], b: []}",
    "arms: {a: ['outputs=/etc'], b: []}",
    "arms: {a: ['resume=last'], b: []}",
    "arms: {a: ['--config-dir=/etc'], b: []}",
    "arms: {a: ['seed=1'], b: []}",
    "arms: {a: ['force=true'], b: []}",
    "arms: {a: ['seed=1,2'], b: []}",
    "arms: {a: ['norm=glob(*)'], b: []}",
    "arms: {a: ['name=${oc.env:HOME}${'], b: []}",
    "arms: {../../x: [norm=rms], b: []}",
    "arms: {/etc/x: [norm=rms], b: []}",
    "arms: {'': [norm=rms], b: []}",
    "arms: {'a\\0b': [norm=rms], b: []}",
    "arms: {'$(touch EXECUTED)': [norm=nonsense], b: []}",
    f"arms: {{{'x' * 400}: [norm=rms], b: []}}",
    "arms: {a: !!python/object/apply:os.system ['touch EXECUTED'], b: []}",
    "arms: &a {a: *a, b: []}",
    "arms: {a: [norm=rms], a: []}",
    "arms: {a: 3, b: []}",
    "arms: {a: [{x: 1}], b: []}",
    "arms: [a, b]",
    "arms: " + "[" * 500,
    "arms: {a: [norm=rms], b: []}\nexpect: __import__('os').system('touch EXECUTED')",
    "arms: {a: [norm=rms], b: []}\nexpect: a > b and b",
    "arms: {a: [norm=rms], b: []}\nmetric: ../../x",
    "arms: {a: [norm=rms], b: []}\nmatch: exec",
    "arms: {a: [norm=rms], b: []}\nseeds: 100000000",
    "arms: {a: [norm=rms], b: []}\nseeds: [-1]",
    "arms: {a: [norm=rms], b: []}\nhydra: {callbacks: {}}",
    "arms: {a: [norm=rms], b: []}\nexecutor: {_target_: os.system}",
    "arms: {a: [norm=rms], b: []}\ntune: {hydra.run.dir: [a, b]}",
    "arms: {a: [norm=rms], b: []}\ntune: {norm._target_: [os.system]}",
    "arms: {a: [norm=rms], b: []}\nsearch: {trials: 2, space: {allow: [[os]]}}",
    "arms: {a: [norm=rms], b: []}\nsearch: {trials: 2, sampler: os.system, space: {optimizer.lr: {low: 1, high: 2}}}",
    "grid: {norm: [rms, nonsense]}",
    "grid: {hydra/launcher: [basic, x]}",
    "claim: y\narms: {a: [], b: []}",
)
