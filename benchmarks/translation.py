"""Writing the second of a pair of sentences: our recipe beside a Marian-shaped model of transformers.

    python benchmarks/translation.py PAIRS.tsv [source=1] [target=2] [seeds=1] [outputs=outputs]
        [experiment=translate_pairs] [OVERRIDE ...]

Ours is `blockyard train experiment=...` on the file, with further overrides as given, then `blockyard eval write=true
beam=4 length_penalty=0` of the test split. The other side is MarianMTModel, an encoder and a decoder after Vaswani et
al. 2017 with tied tables and sinusoidal positions, of nearly as many parameters as ours. It reads the same tokens of
the same training pairs in batches of as many pairs with similar lengths, and is trained with AdamW, label smoothing,
warm-up and a cosine for as much CPU time as our whole command took, evaluation included. Both write by beam
search of width 4 with the sums of log probabilities as scores. Prints a Markdown table: BLEU and chrF of the two, of
copying the source, and of the target of the nearest training source. Needs the `dev` extra.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from blockyard.atomic_files import read_json
from blockyard.cli import main as blockyard
from blockyard.data.files.pairs import Pair
from blockyard.data.splits.order import grouped_order
from blockyard.objective._text_scores import scores
from blockyard.runs.load import Loaded, load

BEAM, POWER, BATCH, GROUP, RATE, WARMUP, SMOOTHING, DEPTH, HEADS = 4, 0, 32, 8, 2e-3, 0.1, 0.1, 2, 4
IGNORE = -100
SEARCH = f"@beam{BEAM}_length{POWER}"


class Side:
    """Sentences as token ids of ours, with the ids that Marian wants: end, start and padding behind the vocabulary."""

    def __init__(self, loaded: Loaded) -> None:
        tokens = loaded.model.ctx.tokens
        assert tokens.vocabulary is not None
        assert tokens.start is not None
        assert tokens.end is not None
        self.tokenizer: Any = loaded.tokenizer
        self.start, self.end, self.padding = tokens.start, tokens.end, tokens.vocabulary
        self.vocabulary = tokens.vocabulary + 1

    def ids(self, text: str) -> list[int]:
        return [*self.tokenizer.encode(text), self.end]

    def padded(self, sequences: Sequence[Sequence[int]]) -> Tensor:
        longest = max(map(len, sequences))
        return torch.tensor([[*row, *[self.padding] * (longest - len(row))] for row in sequences])  # (B, N)


def marian(side: Side, width: int, length: int) -> Any:
    """A Marian-shaped model of that width."""
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=side.vocabulary,
        d_model=width,
        encoder_layers=DEPTH,
        decoder_layers=DEPTH,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        encoder_ffn_dim=4 * width,
        decoder_ffn_dim=4 * width,
        max_position_embeddings=length,
        dropout=0.0,
        activation_dropout=0.0,
        attention_dropout=0.0,
        scale_embedding=True,
        activation_function="swish",
        pad_token_id=side.padding,
        eos_token_id=side.end,
        bos_token_id=side.start,
        decoder_start_token_id=side.start,
        forced_eos_token_id=None,
    )
    return MarianMTModel(config)


def parameters(model: Any) -> int:
    """The trained numbers: sinusoidal positions are none."""
    return sum(p.numel() for name, p in model.named_parameters() if "embed_positions" not in name)


def as_large(side: Side, target: int, length: int) -> Any:
    """The Marian-shaped model with the number of parameters nearest to `target`."""
    widths = range(32, 513, 8)
    sizes = {width: parameters(marian(side, width, length)) for width in widths if width <= 160 or width % 32 == 0}
    return marian(side, min(sizes, key=lambda width: abs(sizes[width] - target)), length)


def train(model: Any, side: Side, pairs: Sequence[Pair], seconds: float, seed: int) -> int:
    """Train for so many seconds of CPU time; the schedule follows the time. Returns the steps."""
    encoded = [(side.ids(source), side.ids(target)) for source, target in pairs]
    lengths = torch.tensor([len(source) + len(target) for source, target in encoded])
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.01)
    began, steps, epoch = time.process_time(), 0, 0
    model.train()
    while True:
        for order in grouped_order(seed, epoch, lengths, BATCH, GROUP).split(BATCH):
            share = (time.process_time() - began) / seconds
            if share >= 1:
                return steps
            cosine = 0.5 * (1 + math.cos(math.pi * max(share - WARMUP, 0) / (1 - WARMUP)))
            optimizer.param_groups[0]["lr"] = RATE * min(share / WARMUP + 1e-3, 1.0) * cosine
            batch = [encoded[index] for index in order.tolist()]
            source, target = side.padded([pair[0] for pair in batch]), side.padded([pair[1] for pair in batch])
            shifted = torch.cat([torch.full_like(target[:, :1], side.start), target[:, :-1]], 1)
            mask = (source != side.padding).long()
            logits = model(input_ids=source, attention_mask=mask, decoder_input_ids=shifted).logits
            wanted = target.masked_fill(target == side.padding, IGNORE)
            loss = F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), label_smoothing=SMOOTHING)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            steps += 1
        epoch += 1


@torch.inference_mode()
def write(model: Any, side: Side, sources: Sequence[str], length: int) -> list[str]:
    """What the model writes for each source by beam search."""
    model.eval()
    order = sorted(range(len(sources)), key=lambda index: len(sources[index]))
    written = [""] * len(sources)
    for first in range(0, len(order), 64):
        indices = order[first : first + 64]
        source = side.padded([side.ids(sources[index]) for index in indices])
        mask = (source != side.padding).long()
        result = model.generate(
            input_ids=source, attention_mask=mask, num_beams=BEAM, max_new_tokens=length - 1, length_penalty=POWER
        )
        for index, row in zip(indices, result.tolist(), strict=True):
            ids = row[1:]
            ids = ids[: ids.index(side.end)] if side.end in ids else ids
            written[index] = side.tokenizer.decode([number for number in ids if number < side.start])
    return written


def ours(path: str, seed: int, outputs: str, experiment: str, overrides: Sequence[str]) -> tuple[float, Path]:
    """Train and write with blockyard; returns the CPU seconds of the training command and the run's folder."""
    name = f"translation_{Path(path).stem}"
    # A run that is done would not be trained again, and its peer would get no time.
    command = ["train", f"experiment={experiment}", f"data.path={path}", f"name={name}", f"seed={seed}", "force=true"]
    began = time.process_time()
    if blockyard([*command, "logger=none", f"outputs={outputs}", *overrides]):
        raise SystemExit("the training of ours did not end well")
    seconds = time.process_time() - began
    folder = max(Path(outputs).glob(f"{name}-*/s{seed}"), key=os.path.getmtime)
    if blockyard(["eval", f"run={folder}", "write=true", f"beam={BEAM}", f"length_penalty={POWER}"]):
        raise SystemExit("ours could not write")
    return seconds, folder


def main(arguments: Sequence[str]) -> int:
    """Print the table, a row for each side: means over the seeds, with the standard deviation."""
    path, *rest = arguments
    options = {"source": "1", "target": "2", "seeds": "1", "outputs": "outputs", "experiment": "translate_pairs"}
    options |= dict(option.split("=", 1) for option in rest if option.partition("=")[0] in options)
    overrides = [option for option in rest if option.partition("=")[0] not in options]
    overrides += [f"data.{side}={options[side]}" for side in ("source", "target")]
    rows: dict[str, list[tuple[float, float]]] = {}
    sizes: dict[str, str] = {}
    for seed in range(int(options["seeds"])):
        seconds, folder = ours(path, seed, options["outputs"], options["experiment"], overrides)
        summary = read_json(folder / "summary.json")
        metrics = summary["metrics"]
        rows.setdefault("ours", []).append(
            (metrics[f"test/written_bleu{SEARCH}"], metrics[f"test/written_chrf{SEARCH}"])
        )
        for name, values in summary["baselines"].items():
            if "written_bleu" in values:
                rows[name] = [(values["written_bleu"], values["written_chrf"])]
        loaded = load(folder)
        splits = loaded.components.load()
        side, length = Side(loaded), loaded.data.source_context + 1  # type: ignore[attr-defined]
        torch.manual_seed(seed)
        model = as_large(side, summary["parameters"]["total"], length)
        steps = train(model, side, splits.train.pairs, seconds, seed)  # type: ignore[attr-defined]
        pairs = splits.test.pairs  # type: ignore[attr-defined]
        values = scores(write(model, side, [source for source, _ in pairs], length), [target for _, target in pairs])
        rows.setdefault("Marian-shaped", []).append((values["bleu"], values["chrf"]))
        sizes["ours"] = f"{summary['parameters']['total']:,} parameters, {summary['steps']:,} steps"
        sizes["Marian-shaped"] = f"{parameters(model):,} parameters, {steps:,} steps, {seconds:.0f} s of CPU time each"
    sys.stdout.write("| | BLEU | chrF | |\n|---|---|---|---|\n")
    for name, values_of in rows.items():
        cells = [spread([value[index] for value in values_of]) for index in range(2)]
        sys.stdout.write(f"| {name} | {' | '.join(cells)} | {sizes.get(name, '')} |\n")
    return 0


def spread(values: Sequence[float]) -> str:
    """Mean and standard deviation."""
    mean = f"{statistics.mean(values):.3f}"
    return f"{mean} ± {statistics.stdev(values):.3f}" if len(values) > 1 else mean


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
