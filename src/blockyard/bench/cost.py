"""FLOPs, time and memory of token mixers and attention kernels over the number of tokens.

The measurements become tables, sentences, a CSV file and a figure.
"""

from __future__ import annotations

import csv
import io
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from blockyard.atomic_files import write_text
from blockyard.config.build import Components
from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.contracts import Batch, Inputs
from blockyard.errors import UserError
from blockyard.inspect._canvas import canvas, plain_ticks, save
from blockyard.ops import kernel
from blockyard.ops.flops import counter
from blockyard.ops.kernel import Kernel, attention_kernel
from blockyard.terminal import table

if TYPE_CHECKING:
    from rich.table import Table


# A decoder of characters, unless the command line says otherwise.
BASE = {
    "data": "code",
    "tokenizer": "byte",
    "model": "decoder",
    "head": "token",
    "objective": "next_token",
    "position": "none",
    "model.dim": "64",
    "model.heads": "4",
    "model.depth": "2",
    "logger": "none",
}
SECONDS = 0.3  # of repetitions
LEAST = 3  # repetitions
MOST = 50
QUANTITIES = {"flops": "FLOPs", "milliseconds": "ms", "bytes": "peak memory, MiB"}
# Okabe and Ito's colours, which colour-blind readers can tell apart.
COLOURS = ("#000000", "#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")

Of = Literal["mixer", "step", "decode"]


@dataclass(frozen=True)
class Cost:
    """One measurement.

    kernel: of attention, "" for a mixer that does not attend
    bytes: the peak of memory that torch allocated beyond the weights; in decoding, with the bytes of the cache
    """

    token_mixer: str
    kernel: str
    tokens: int
    flops: int
    milliseconds: float
    bytes: int

    @property
    def name(self) -> str:
        """The mixer, with its kernel if it has one."""
        if self.kernel:
            return f"{self.token_mixer} ({self.kernel})"
        return self.token_mixer


def costs(
    mixers: Sequence[str],
    tokens: Sequence[int],
    *,
    of: Of = "mixer",
    kernels: Sequence[Kernel] = ("auto",),
    overrides: Sequence[str] = (),
    config_dirs: Sequence[str] = (),
    batch: int = 1,
    device: str = "cpu",
) -> Iterator[Cost]:
    """Yield the cost of each mixer, kernel and number of tokens.

    overrides: of the config, for all mixers; by default a decoder of characters with two blocks of 64 channels
    config_dirs: folders with choices of the user's own

    Raises UserError for a config that cannot work, and for a kernel that cannot serve.
    """
    # Every config is checked before the first measurement.
    configs = {mixer: _config(mixer, max(tokens), overrides, config_dirs) for mixer in mixers}
    for mixer in mixers:
        for name in kernels:
            for length in tokens:
                config = deepcopy(configs[mixer])
                config["data"]["context"] = length
                with attention_kernel(name):
                    measured = _measure(Components(config), mixer, name, length, of, batch, device)
                if measured.kernel or name == kernels[0]:
                    yield measured
                else:
                    break  # a mixer without attention is measured once


def _config(mixer: str, longest: int, overrides: Sequence[str], config_dirs: Sequence[str]) -> dict[str, Any]:
    """Return the complete config of a mixer. Raises UserError with every problem of it."""
    chosen = {override.partition("=")[0] for override in overrides}
    base = [f"{key}={value}" for key, value in BASE.items() if key not in chosen]
    composed = compose([*base, *overrides, f"token_mixer={mixer}", f"data.context={longest}"], config_dirs)
    issues = check(composed, training=False)
    if issues:
        raise UserError(f"token_mixer={mixer}: " + "; ".join(map(str, issues)))
    return composed.config


def _measure(components: Components, mixer: str, name: Kernel, length: int, of: Of, batch: int, device: str) -> Cost:
    try:
        measured = subject(components, of, batch, device)
        # This first run also warms up the kernels.
        attends = any(entry["kernel"] != "none" for entry in kernel.record(_Runs(measured)))
    except UserError:  # a ValueError too, whose message is complete
        raise
    except (ValueError, RuntimeError) as error:
        raise UserError(f"token_mixer={mixer} at {length} tokens: {error}") from error
    with counter() as flops:
        measured.run()
    return Cost(
        token_mixer=mixer,
        kernel=name if attends else "",
        tokens=length,
        flops=flops.get_total_flops() // batch,
        milliseconds=milliseconds(measured, device),
        bytes=measured.kept + peak(measured, device),
    )


class _Runs(torch.nn.Module):
    """A subject as a module that runs it."""

    def __init__(self, measured: Subject) -> None:
        super().__init__()
        self.inner = measured.model  # a child, so that its attention layers are found
        self._run = measured.run

    def forward(self) -> None:
        self._run()


def milliseconds(measured: Subject, device: str) -> float:
    """Return the median time of a run."""
    times: list[float] = []
    # Calls to a GPU return before their kernels have run, so both ends of the clock wait for it.
    while len(times) < LEAST or (sum(times) < SECONDS and len(times) < MOST):
        _wait(device)
        start = time.perf_counter()
        measured.run()
        _wait(device)
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


def peak(measured: Subject, device: str) -> int:
    """Return the peak of bytes that torch allocates during a run, beyond the bytes before it.

    On a CPU by the events of torch's allocator: exact, and independent of memory that the process has kept.
    """
    if device != "cpu":
        _wait(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        measured.run()
        return int(torch.cuda.max_memory_allocated(device) - before)
    with torch.autograd.profiler.profile(use_kineto=True, profile_memory=True) as profile:
        measured.run()
    events = [event for event in profile.kineto_results.events() if event.name() == "[memory]"]
    held = 0
    most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize(device)


@dataclass(frozen=True)
class Subject:
    """A mixer alone, a training step, or the decoding of one token.

    run: runs it once; kept: bytes that it keeps between two calls, the cache of a decoder
    """

    model: nn.Module
    run: Callable[[], Any]
    kept: int = 0


def subject(components: Components, of: Of, batch: int, device: str) -> Subject:
    """Return the subject that `of` names, of a new model. Raises ValueError for a model without a token mixer."""
    model: Any = components.model(0).to(device)
    if not model.mixers or model.mixers[0].empty:
        raise ValueError("the model has no token mixer to measure")
    length = model.ctx.tokens.max_len
    vocabulary = model.ctx.tokens.vocabulary
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(vocabulary, (batch, length + 1), generator=generator).to(device)
    if of == "mixer":
        return _mixer(model.train(), tokens[:, :length])
    if of == "step":
        return _step(model.train(), components, tokens)
    return _decode(model.eval(), tokens[:, :length])


def _mixer(model: Any, tokens: Tensor) -> Subject:
    """Return the forward and backward pass of the first block's mixer, with its masks."""
    with torch.no_grad():
        x, seq = model.embed_tokens(Inputs(tokens))  # (B, N, D)
    mixer = model.mixers[0]
    grad = torch.ones_like(x)

    def run() -> None:
        leaf = x.detach().requires_grad_()
        facts = replace(seq, memo={})  # masks are made anew in each run, as in a training step
        mixer.prepare(leaf, facts)
        mixer(leaf, facts).backward(grad)
        mixer.zero_grad(set_to_none=True)

    return Subject(mixer, run)


def _step(model: Any, components: Components, tokens: Tensor) -> Subject:
    """Return the forward and backward pass of the model with its loss."""
    batch = components.objective.ready(Batch(tokens))
    if batch.inputs.shape[1] > model.ctx.tokens.max_len:  # an objective that does not shift the tokens by one
        batch = components.objective.ready(Batch(tokens[:, :-1]))

    def run() -> None:
        components.objective.loss(model(batch), batch.target).backward()
        model.zero_grad(set_to_none=True)

    return Subject(model, run)


def _decode(model: Any, tokens: Tensor) -> Subject:
    """Return the pass of the last token after all others: from the cache, or without one of the whole sequence."""
    try:
        cache = model.init_cache(len(tokens))
    except ValueError:  # a mixer without a cache
        return Subject(model, torch.inference_mode()(lambda: model(tokens)))
    with torch.inference_mode():
        model(tokens[:, :-2], cache=cache)
        model(tokens[:, -2:-1], cache=cache)  # storage that is doubled is not a step's cost

    @torch.inference_mode()
    def run() -> None:
        model(tokens[:, -1:], cache=cache.snapshot())

    return Subject(model, run, cache.bytes)


def series(costs: Sequence[Cost], quantity: str) -> dict[str, dict[int, float]]:
    """Return a quantity by name of the choice and number of tokens."""
    result: dict[str, dict[int, float]] = {}
    for cost in costs:
        result.setdefault(cost.name, {})[cost.tokens] = float(getattr(cost, quantity))
    return result


def tables(costs: Sequence[Cost]) -> list[Table]:
    """Return a table of each quantity, with the exponent of the number of tokens in the last column."""
    lengths = sorted({cost.tokens for cost in costs})
    result = []
    for quantity, title in QUANTITIES.items():
        rows = table(title, "tokens", *map(str, lengths), "exponent")
        for name, values in series(costs, quantity).items():
            cells = []
            for length in lengths:
                cells.append(_format(quantity, values[length]) if length in values else "-")
            power = exponent(values)
            cells.append("-" if power is None else f"{power:.2f}")
            rows.add_row(name, *cells)
        result.append(rows)
    return result


def crossings(costs: Sequence[Cost]) -> list[str]:
    """Return a sentence for each choice that becomes cheaper than the first one, in time and in memory."""
    sentences = []
    for quantity, comparative in (("milliseconds", "faster"), ("bytes", "smaller")):
        (first, values), *others = series(costs, quantity).items()
        for name, other in others:
            start = crossing(values, other)
            if start is None:
                sentences.append(f"{name} is not {comparative} than {first} at {max(values):,} tokens")
            elif start == 0:
                sentences.append(f"{name} is {comparative} than {first} at all of these lengths")
            else:
                sentences.append(f"{name} is {comparative} than {first} from about {start:,.0f} tokens on")
    return sentences


def write_csv(costs: Sequence[Cost], folder: Path) -> Path:
    """Write cost.csv: a line for each measurement."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(asdict(costs[0])), lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(cost) for cost in costs)
    write_text(folder / "cost.csv", text.getvalue())
    return folder / "cost.csv"


def draw(costs: Sequence[Cost], title: str, folder: Path) -> Path:
    """Draw cost.png: each quantity over the number of tokens, both on logarithmic axes."""
    with canvas(1, len(QUANTITIES), (3.6, 3.0), title) as (figure, axes):
        for panel, (quantity, label) in zip(axes[0], QUANTITIES.items(), strict=True):
            panel.set_xscale("log", base=2)
            panel.set_yscale("log")
            plain_ticks(panel.xaxis)
            plain_ticks(panel.yaxis)
            for number, (name, values) in enumerate(series(costs, quantity).items()):
                points = sorted((n, value) for n, value in values.items() if value > 0)
                if quantity == "bytes":
                    points = [(n, value / 2**20) for n, value in points]
                colour = COLOURS[number % len(COLOURS)]
                panel.plot(*zip(*points, strict=True), color=colour, marker="o", markersize=3, linewidth=1, label=name)
            panel.set_xlabel("tokens")
            panel.set_title(label)
        axes[0][0].legend(fontsize=7, frameon=False)
        return save(figure, folder, "cost")


def _format(quantity: str, value: float) -> str:
    if quantity == "flops":
        return f"{value:.2e}"
    if quantity == "milliseconds":
        return f"{value:.2f}"
    return f"{value / 2**20:.2f}"


def exponent(costs: Mapping[int, float]) -> float | None:
    """Return the exponent p of cost = a n^p, by least squares on the logarithms over the longer half of the lengths.

    The longer half, because short sequences pay for parts that do not grow; at least three lengths count. None for
    fewer lengths, or a cost of zero.
    """
    lengths = sorted(costs)[-max(3, (len(costs) + 1) // 2) :]
    if len(lengths) < 3 or any(costs[n] <= 0 for n in lengths):
        return None
    slope, _ = statistics.linear_regression([math.log(n) for n in lengths], [math.log(costs[n]) for n in lengths])
    return slope


def crossing(first: Mapping[int, float], second: Mapping[int, float]) -> float | None:
    """Return the number of tokens from which `second` costs less than `first`, up to the longest; None if it does not.

    Between two lengths the costs are taken as straight lines in logarithms. 0 if it costs less at all lengths.
    """
    lengths = sorted(set(first) & set(second))
    gaps = [math.log(second[n]) - math.log(first[n]) for n in lengths]
    if not gaps or gaps[-1] >= 0:
        return None
    above = max((number for number, gap in enumerate(gaps) if gap >= 0), default=None)
    if above is None:
        return 0.0
    share = gaps[above] / (gaps[above] - gaps[above + 1])
    start, stop = math.log(lengths[above]), math.log(lengths[above + 1])
    return math.exp(start + share * (stop - start))
