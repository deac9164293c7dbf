"""Does everything work, and how fast, on a machine with a GPU? One command of a few minutes.

    python benchmarks/gpu_check.py [--out gpu.md]      on a GPU
    python benchmarks/gpu_check.py --only cells        the checks whose name has "cells"
    python benchmarks/gpu_check.py --dry               the same path, tiny, on a CPU

It checks attention kernels (flash chosen in bf16, each path against the eager reference in float64), and by
`gpu_rows.py` masks, decoding, CUDA graphs and cells that share a GPU. In bf16 with compiled blocks it trains
`vit_digits`, decoders of GPT-2 small's shape and of a Llama's with 350 M parameters, and ViT-B/16 on images of 224
pixels, and GPT-2's with FSDP on one device. It writes a Markdown table: tokens per second, share of the GPU's peak.
Each line of the checks goes to stderr as soon as it is known, with the traceback of a check that failed.

Needs torch >= 2.11 and pytorch-lightning, torchmetrics, pydantic, pyyaml, rich, numpy, scikit-learn
(for the digits). Neither hydra nor wandb is imported: configs are read from conf/ as plain YAML.
Without an installation, set PYTHONPATH=src. Exit code 1 if a check fails.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml

from blockyard.config.choices.catalog import conf_dir
from blockyard.config.compose import complete
from blockyard.contracts import Batch, DataModule, DataSpec, Seq, Splits, TextTokenizer, Tokenizer

VOCABULARY = 50_304  # GPT-2's, rounded up to a multiple of 64


class RandomText(DataModule):
    """Symbols drawn at random: what they say does not matter for speed.

    Options:
        context: tokens in a row
        batch_size: rows in a step
        vocabulary: symbols
    """

    def __init__(self, *, context: int = 1024, batch_size: int = 32, vocabulary: int = VOCABULARY) -> None:
        self.context, self.batch_size, self.eval_batch_size = context, batch_size, batch_size
        self.vocabulary = vocabulary

    @property
    def spec(self) -> DataSpec:
        return DataSpec("text", (self.context,))

    def load(self, tokenizer: Tokenizer) -> Splits:
        generator = torch.Generator().manual_seed(0)
        rows = torch.randint(self.vocabulary, (4 * self.batch_size, self.context + 1), generator=generator)
        return Splits(Rows(rows), Rows(rows[: self.batch_size]), Rows(rows[: self.batch_size]))

    def fingerprint(self) -> str:
        return "random"


class RandomImages(DataModule):
    """Images drawn at random.

    Options:
        size: pixels of a side
        batch_size: images in a step
        classes: of the labels
    """

    def __init__(self, *, size: int = 224, batch_size: int = 64, classes: int = 1000) -> None:
        self.size, self.batch_size, self.eval_batch_size, self.classes = size, batch_size, batch_size, classes

    @property
    def spec(self) -> DataSpec:
        return DataSpec("image", (3, self.size, self.size), classes=self.classes)

    def load(self, tokenizer: Tokenizer) -> Splits:
        generator = torch.Generator().manual_seed(0)
        images = torch.rand(2 * self.batch_size, 3, self.size, self.size, generator=generator)
        labels = torch.randint(self.classes, (len(images),), generator=generator)
        few = Images(images[: self.batch_size], labels[: self.batch_size])
        return Splits(Images(images, labels), few, few)

    def fingerprint(self) -> str:
        return "random"


class Images:
    """Images and labels in memory."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, order: torch.Tensor, key: int | None) -> Batch:
        return Batch(self.images[order], self.labels[order])


class Rows:
    """Rows of symbols in memory."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, order: torch.Tensor, key: int | None) -> Batch:
        return Batch(self.rows[order])


class Symbols(TextTokenizer):
    """Symbols as they are.

    Options:
        vocabulary: how many there are
    """

    def __init__(self, *, vocabulary: int = VOCABULARY) -> None:
        self.vocabulary = vocabulary

    def spec(self, data: DataSpec) -> Any:
        from blockyard.tokenizer._lookup import text_tokens

        return text_tokens(data, self.vocabulary)

    def embedder(self, ctx: Any) -> Any:
        from blockyard.tokenizer._lookup import TokenEmbedder

        return TokenEmbedder(ctx)

    def fit(self, texts: Any) -> None:
        pass

    def encode(self, text: str) -> list[int]:
        return [ord(letter) % self.vocabulary for letter in text]

    def decode(self, symbols: list[int]) -> str:
        return "".join(map(chr, symbols))


def config(outputs: Path, choices: dict[str, str], values: dict[str, Any]) -> dict[str, Any]:
    """A complete config from conf/, with a choice per family and dotted values."""
    families = {
        next(iter(entry)): next(iter(entry.values()))
        for entry in yaml.safe_load((conf_dir() / "config.yaml").read_text())["defaults"]
        if isinstance(entry, dict)
    }
    made: dict[str, Any] = {"seed": 0, "outputs": str(outputs), "allow": ["gpu_check"], "tags": [], "force": True}
    for family, choice in (families | choices).items():
        if family in ("experiment", "debug") or choice is None:
            continue
        made[family] = yaml.safe_load((conf_dir() / family / f"{choice}.yaml").read_text()) or {}
    for key, value in values.items():
        node = made
        *path, last = key.split(".")
        for part in path:
            node = node.setdefault(part, {})
        node[last] = value
    complete(made)
    return made


def vit_digits(outputs: Path, dry: bool) -> dict[str, Any]:
    values = {
        "name": "vit_digits",
        "data.shift": 1,
        "tokenizer.size": 2,
        "optimizer.lr": 2e-3,
        "trainer.max_steps": 6 if dry else 800,
        "trainer.max_epochs": None,
        "trainer.log_every": 2 if dry else 50,
        "trainer.precision": "bf16-mixed",
        "trainer.require_flash": True,
        **({"model.dim": 16, "model.depth": 1, "model.heads": 2} if dry else {}),
    }
    return train(config(outputs, {"trainer": "cpu" if dry else "gpu", "logger": "none"}, values), dry)


STEPS = {"trainer.max_epochs": None, "trainer.limit_val": 1, "trainer.limit_test": 1}


def llama(outputs: Path, dry: bool) -> dict[str, Any]:
    """A decoder of 24 blocks and width 1,024 with rotary positions, RMS norm and SwiGLU: 350 M parameters."""
    data = {"context": 32, "batch_size": 4, "vocabulary": 256}
    data = data if dry else {"context": 1024, "batch_size": 16, "vocabulary": 32_000}
    values = STEPS | {
        "name": "llama",
        "data": {"_target_": "gpu_check.RandomText", **data},
        "tokenizer": {"_target_": "gpu_check.Symbols", "vocabulary": data["vocabulary"]},
        "channel_mixer.expansion": 2.667,
        "model.dim": 32 if dry else 1024,
        "model.depth": 2 if dry else 24,
        "model.heads": 2 if dry else 16,
        "trainer.max_steps": 4 if dry else 60,
        "trainer.eval_every": 4 if dry else 60,
        "trainer.precision": "bf16-mixed",
        "trainer.require_flash": True,
    }
    choices = {"trainer": "cpu" if dry else "gpu", "model": "decoder", "head": "token", "objective": "next_token"}
    more = {"position": "rope", "norm": "rms", "channel_mixer": "glu", "logger": "none"}
    return train(config(outputs, {**choices, **more}, values), dry)


def vit_b16(outputs: Path, dry: bool) -> dict[str, Any]:
    """A ViT-B/16: 12 blocks of width 768 over patches of 16 pixels, with a class token."""
    size = {"size": 32, "batch_size": 4, "classes": 10} if dry else {"size": 224, "batch_size": 128, "classes": 1000}
    values = STEPS | {
        "name": "vit_b16",
        "data": {"_target_": "gpu_check.RandomImages", **size},
        "tokenizer.size": 16,
        "model.prefix": {"class_token": True},
        "model.dim": 32 if dry else 768,
        "model.depth": 2 if dry else 12,
        "model.heads": 2 if dry else 12,
        "trainer.max_steps": 4 if dry else 60,
        "trainer.eval_every": 4 if dry else 60,
        "trainer.precision": "bf16-mixed",
        "trainer.require_flash": True,
    }
    choices = {"trainer": "cpu" if dry else "gpu", "head": "class_token", "position": "learned", "logger": "none"}
    return train(config(outputs, choices, values), dry)


def gpt2_small(outputs: Path, dry: bool, strategy: str = "auto") -> dict[str, Any]:
    small = {"context": 32, "batch_size": 4, "vocabulary": 256}
    full = {"context": 1024, "batch_size": 32, "vocabulary": VOCABULARY}
    data = small if dry else full
    values = {
        "name": f"gpt2_small_{strategy}",
        "trainer.strategy": strategy,
        "data": {"_target_": "gpu_check.RandomText", **data},
        "tokenizer": {"_target_": "gpu_check.Symbols", "vocabulary": data["vocabulary"]},
        "model.dim": 32 if dry else 768,
        "model.depth": 2 if dry else 12,
        "model.heads": 2 if dry else 12,
        "head.tied": True,
        "trainer.max_steps": 6 if dry else 100,
        "trainer.max_epochs": None,
        "trainer.eval_every": 6 if dry else 100,
        "trainer.log_every": 2 if dry else 10,
        "trainer.precision": "bf16-mixed",
        "trainer.require_flash": True,
        "trainer.limit_val": 1,
        "trainer.limit_test": 1,
    }
    choices = {"trainer": "cpu" if dry else "gpu", "model": "decoder", "head": "token", "objective": "next_token"}
    return train(config(outputs, {**choices, "position": "learned", "logger": "none"}, values), dry)


def train(made: dict[str, Any], dry: bool) -> dict[str, Any]:
    """The summary of a run; compiled unless dry."""
    from blockyard.engine.run import train as fit
    from blockyard.runs.start import create_run

    made["trainer"]["compile"] = not dry
    with create_run(made, command=["gpu_check"]) as folder:
        code = fit(folder)
        if code:
            raise RuntimeError(f"{made['name']} ended with exit code {code}: {folder.status}")
    return folder.summary()


# name, heads of keys, causal, tokens, what each token may see beside that
CASES: list[tuple[str, int, bool, int, dict[str, Any]]] = [
    ("plain", 4, False, 197, {}),
    ("causal", 4, True, 256, {}),
    ("grouped", 2, True, 256, {}),
    ("windowed", 4, True, 256, {"window": 48}),
    ("windowed both ways", 2, False, 197, {"window": 48}),
    ("strict", 4, True, 256, {"strict": True}),
    ("values of 32", 4, True, 256, {}),
]


def parity(device: torch.device) -> dict[str, float]:
    """The relative error of `attend` in bf16 against the eager reference in float64, per case; on a GPU the larger one
    of what it takes by itself, and of FlexAttention.
    """
    from blockyard.ops.attend import attend
    from blockyard.ops.kernel import attention_kernel
    from blockyard.ops.mask import Visibility
    from blockyard.ops.reference import eager

    found = {}
    for name, keys, causal, length, rule in CASES:
        generator = torch.Generator().manual_seed(0)
        q = torch.randn(2, 4, length, 64, generator=generator)
        k, v = (torch.randn(2, keys, length, 64, generator=generator) for _ in "kv")
        q, k, v = (t.to(device, torch.bfloat16) for t in (q, k, v[..., : 32 if name == "values of 32" else 64]))
        index = torch.arange(length, device=device)
        seq = Seq(index=index, coords=index[None, :, None].float())
        exact = eager(q.double(), k.double(), v.double(), seq, seq, Visibility(causal, **rule))
        errors = []
        for kernel in ("auto", "flex") if device.type == "cuda" else ("auto",):
            with attention_kernel(kernel):
                ours = attend(q, k, v, seq, seq, Visibility(causal, **rule)).double()
            errors.append(float((ours - exact).norm() / exact.norm()))
        found[name] = max(errors)
    return found


def kernels(device: torch.device) -> dict[str, str]:
    """The kernel torch chooses in bf16, by what is asked of attention."""
    from blockyard.config import build
    from blockyard.ops.kernel import record

    found = {}
    for name, choices in (
        ("encoder", {"position": "learned"}),
        ("encoder, rope", {"position": "rope"}),
        ("encoder, alibi", {"position": "alibi"}),
    ):
        made = config(Path(), choices, {"model.dim": 128, "model.heads": 2, "model.depth": 1, "tokenizer.size": 2})
        plan = build.Components(made)
        model = plan.model(0).to(device)
        images = torch.rand(2, *plan.data.spec.shape, device=device)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            found[name] = record(model, images)[0]["kernel"]
    return found


class Checks:
    """Checks by name, and the lines of the table.

    only: part of the names of those that are run; the others give None and no line
    """

    def __init__(self, only: str) -> None:
        self.only = only
        self.rows: list[str] = []

    def __call__(self, name: str, call: Callable[[], Any], passes: Callable[[Any], bool]) -> Any:
        """Run one check and add its line to the table. Returns the result of `call` if it passes, otherwise None."""
        if self.only not in name:
            return None
        start = time.perf_counter()
        try:
            result = call()
            passed = passes(result)
            summary = "trained" if isinstance(result, dict) and "metrics" in result else result
        except Exception as error:  # the other checks still run
            traceback.print_exc()
            first = (str(error).splitlines() or [""])[0]
            result, passed, summary = None, False, f"{type(error).__name__}: {first}"
        if isinstance(summary, dict):
            summary = ", ".join(f"{key} {_short(value)}" for key, value in summary.items())
        row = f"| {name} | {'ok' if passed else '**failed**'} | {summary} | {time.perf_counter() - start:.1f} |"
        sys.stderr.write(row + "\n")
        self.rows.append(row)
        return result if passed else None


def speed_row(name: str, summary: dict[str, Any] | None) -> str:
    if summary is None:
        return f"| {name} | | | | | |"
    flops = summary["flops_per_sample"]["training"] * summary["samples_per_second"]
    share = "unknown peak" if summary["mfu"] is None else f"{summary['mfu']:.1%}"
    memory = summary["peak_memory"]["bytes"] / 2**30
    return (
        f"| {name} | {summary['step_seconds'] * 1e3:.1f} | {summary['samples_per_second']:,.0f} "
        f"| {summary['tokens_per_second']:,.0f} | {flops / 1e12:.2f} TFLOP/s, {share} | {memory:.1f} |"
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry", action="store_true", help="the same path, tiny, on the CPU")
    parser.add_argument("--only", default="", metavar="PART", help="run the checks whose name has this part")
    parser.add_argument("--out", type=Path, help="also write the table here")
    given = parser.parse_args(arguments)
    if not given.dry and not torch.cuda.is_available():
        sys.stderr.write("gpu_check: there is no GPU here; --dry runs the same path on the CPU\n")
        return 2
    import gpu_rows  # it imports this module

    device = torch.device("cpu" if given.dry else "cuda")
    name = "CPU (dry)" if given.dry else torch.cuda.get_device_name()
    check = Checks(given.only)
    with tempfile.TemporaryDirectory() as outputs:
        folder, fast = Path(outputs), ("flash", "cudnn")
        check("kernels in bf16", lambda: kernels(device), lambda f: all(f[k] in fast for k in list(f)[:2]))
        check("error against float64", lambda: parity(device), lambda f: max(f.values()) < 1e-2)
        runs = {}
        runs["vit_digits"] = check(
            "vit_digits",
            lambda: vit_digits(folder, given.dry),
            lambda s: given.dry or s["metrics"]["test/accuracy"] > 0.95,
        )
        check("FlexAttention: time to that of a mask", lambda: gpu_rows.lengths(device, given.dry), bool)
        check("decoding", lambda: gpu_rows.decoding(device, given.dry), lambda f: f["equal"] == 1)
        check("a step as a CUDA graph", lambda: gpu_rows.graphs(device, given.dry), are_exact)
        check("cells that share it", lambda: gpu_rows.cells(folder, given.dry), lambda f: f["equal"] == 1)
        gpt = check("GPT-2 small's shape", lambda: gpt2_small(folder, given.dry), bool)
        runs["GPT-2 small's shape"] = gpt
        for what, run in (("Llama, 350 M", llama), ("ViT-B/16 at 224", vit_b16)):
            runs[what] = check(what, partial(run, folder, given.dry), bool)
        runs["GPT-2 small's shape with FSDP"] = check(
            "GPT-2 small's shape with FSDP",
            lambda: gpt2_small(folder, given.dry, "fsdp"),
            lambda s: same_loss(s, gpt or gpt2_small(folder, given.dry)),
        )
        check("masks: time to plain flash, error", lambda: flat(gpu_rows.masks(device, given.dry)), are_exact)
    if not check.rows:
        sys.stderr.write(f"gpu_check: no check has {given.only!r} in its name\n")
        return 2
    versions = f"{name}, torch {torch.__version__}, Python {sys.version.split()[0]}"
    lines = [versions, "", "| check | result | values | s |", "|---|---|---|---|", *check.rows, ""]
    lines += [
        "| run | ms a step | samples/s | tokens/s | matmuls, share of peak | peak GiB |",
        "|---|---|---|---|---|---|",
    ]
    lines += [speed_row(what, summary) for what, summary in runs.items() if given.only in what]
    text = "\n".join(lines) + "\n"
    sys.stdout.write(text)
    if given.out:
        given.out.write_text(text, encoding="utf-8")
    return 0 if all("| ok |" in row for row in check.rows) else 1


def same_loss(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether the test losses of two runs differ by less than a hundredth."""
    return abs(one["metrics"]["test/loss"] / other["metrics"]["test/loss"] - 1) < 1e-2


def flat(rows: dict[str, dict[str, float]]) -> dict[str, float]:
    """{row: {name: value}} as {"row name": value}."""
    return {f"{row} {name}": value for row, values in rows.items() for name, value in values.items()}


def are_exact(values: dict[str, float]) -> bool:
    """Whether every error is that of bf16 at most."""
    return all(value < 1e-2 for name, value in values.items() if name.endswith("error"))


def _short(value: Any) -> str:
    return f"{value:.2g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    # The run's config names this file as the package `gpu_check`.
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    sys.exit(main())
