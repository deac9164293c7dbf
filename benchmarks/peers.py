"""A training step of ours against those of other libraries: equal shapes, data, optimizer and precision.

    python benchmarks/peers.py [--rounds 20] [--threads 2] [--rows gpt-fp32 gpt-bf16 llama-fp32 ...]

A step is forward, loss, backward, clipping and AdamW, on random data. The sides of a row alternate step by step in one
process, and their order is turned after every round. Share of peak: the FLOPs of the step's matrix products (those of
ours, three times forward) against a product of two 2,048 x 2,048 matrices in the same precision, timed in the same
rounds. Saved: what the forward pass keeps for the backward pass. The answer is a Markdown table on standard output.
Needs transformers, timm and x-transformers.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Build = Callable[[], tuple[Any, Callable[[Any, Any], Any]]]  # a model, and its loss of (inputs, targets)

GPT = {"dim": 384, "depth": 6, "heads": 6, "context": 256, "vocabulary": 512, "batch": 8}
VIT = {"dim": 192, "depth": 6, "heads": 3, "image": 32, "patch": 4, "classes": 10, "batch": 64}


@dataclass(frozen=True)
class Comparison:
    """A comparison: the sides by name, and whether they run under bf16 autocast."""

    sides: dict[str, Build]
    data: Callable[[], tuple[Any, Any]]
    items: int  # tokens or images of a step
    unit: str
    bf16: bool = False


def composed(*overrides: str) -> tuple[Any, Callable[[Any, Any], Any]]:
    """Our model of a config, with its objective."""
    from blockyard.config import build
    from blockyard.config.compose import compose

    result = compose([*overrides, "trainer=cpu", "logger=none"])
    # The images are random numbers, so that the files of a data set are not needed.
    issues = [issue for issue in result.issues if issue.key != "data"]
    assert not issues, issues
    components = build.Components(result.config)
    model, objective = components.model(0), components.objective
    return model, lambda inputs, target: objective.loss(model(inputs), target)


def next_token(model: Any, logits: Callable[[Any], Any] = lambda out: out) -> tuple[Any, Callable[[Any, Any], Any]]:
    """A peer that maps token ids to logits."""
    from torch.nn import functional as F

    return model, lambda inputs, target: F.cross_entropy(logits(model(inputs)).flatten(0, 1).float(), target.flatten())


def our_language_model(preset: str) -> Build:
    """A preset of ours at the shape of GPT."""
    shape = [f"model.{name}={GPT[name]}" for name in ("dim", "depth", "heads")]
    text = ["data=code", "tokenizer=bpe", f"tokenizer.vocab_size={GPT['vocabulary']}", f"data.context={GPT['context']}"]
    return lambda: composed(f"preset={preset}", *text, *shape)


def gpt2_of_transformers() -> tuple[Any, Callable[[Any, Any], Any]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=GPT["vocabulary"],
        n_positions=GPT["context"],
        n_embd=GPT["dim"],
        n_layer=GPT["depth"],
        n_head=GPT["heads"],
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        activation_function="gelu_pytorch_tanh",  # its default is the same function in several calls
        use_cache=False,
    )
    return next_token(GPT2LMHeadModel(config), lambda out: out.logits)


def llama_of_transformers() -> tuple[Any, Callable[[Any, Any], Any]]:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=GPT["vocabulary"],
        hidden_size=GPT["dim"],
        intermediate_size=round(2.667 * GPT["dim"]),
        num_hidden_layers=GPT["depth"],
        num_attention_heads=GPT["heads"],
        max_position_embeddings=GPT["context"],
        use_cache=False,
    )
    return next_token(LlamaForCausalLM(config), lambda out: out.logits)


def gpt_of_x_transformers() -> tuple[Any, Callable[[Any, Any], Any]]:
    from x_transformers import Decoder, TransformerWrapper

    layers = Decoder(
        dim=GPT["dim"],
        depth=GPT["depth"],
        heads=GPT["heads"],
        attn_dim_head=GPT["dim"] // GPT["heads"],
        attn_flash=True,
    )
    return next_token(
        TransformerWrapper(
            num_tokens=GPT["vocabulary"], max_seq_len=GPT["context"], attn_layers=layers, tie_embedding=True
        )
    )


def plain_gpt() -> tuple[Any, Callable[[Any, Any], Any]]:
    """The shortest GPT-2 that trains: what one writes from the paper, with torch's fused attention."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    dim, heads = GPT["dim"], GPT["heads"]

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.between = nn.LayerNorm(dim), nn.LayerNorm(dim)
            self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
            self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = (
                part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in self.qkv(self.before(x)).split(dim, dim=-1)
            )
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # (B, H, N, K)
            x = x + self.out(y.transpose(1, 2).flatten(2))
            return x + self.down(F.gelu(self.up(self.between(x)), approximate="tanh"))

    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token, self.position = nn.Embedding(GPT["vocabulary"], dim), nn.Embedding(GPT["context"], dim)
            self.layers, self.norm = nn.Sequential(*(Layer() for _ in range(GPT["depth"]))), nn.LayerNorm(dim)

        def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
            x = self.token(token_ids) + self.position.weight[: token_ids.shape[1]]
            return F.linear(self.norm(self.layers(x)), self.token.weight)

    return next_token(Plain())


def our_vision_model(preset: str, *overrides: str) -> Build:
    """A preset of ours on images of CIFAR-10's shape."""
    shape = [f"model.dim={VIT['dim']}", f"model.depth={VIT['depth']}", f"model.heads={VIT['heads']}"]
    image = ["data=cifar10", f"tokenizer.size={VIT['patch']}"]
    return lambda: composed(f"preset={preset}", *image, *shape, *overrides)


def timm_model(name: str, **settings: Any) -> Build:
    """A model of timm at the shape of VIT."""

    def build() -> tuple[Any, Callable[[Any, Any], Any]]:
        import timm
        from torch.nn import functional as F

        model = timm.models.vision_transformer.VisionTransformer if name == "vit" else timm.models.mlp_mixer.MlpMixer
        built = model(img_size=VIT["image"], patch_size=VIT["patch"], num_classes=VIT["classes"], **settings)
        return built, lambda inputs, target: F.cross_entropy(built(inputs), target)

    return build


def token_batch() -> tuple[Any, Any]:
    import torch

    shape = (GPT["batch"], GPT["context"])
    return torch.randint(GPT["vocabulary"], shape), torch.randint(GPT["vocabulary"], shape)


def image_batch() -> tuple[Any, Any]:
    import torch

    return torch.randn(VIT["batch"], 3, VIT["image"], VIT["image"]), torch.randint(VIT["classes"], (VIT["batch"],))


def comparisons() -> dict[str, Comparison]:
    gpt: dict[str, Build] = {
        "blockyard": our_language_model("gpt2"),
        "transformers GPT-2": gpt2_of_transformers,
        "x-transformers": gpt_of_x_transformers,
        "plain loop": plain_gpt,
    }
    llama: dict[str, Build] = {"blockyard": our_language_model("llama"), "transformers Llama": llama_of_transformers}
    vit: dict[str, Build] = {
        "blockyard": our_vision_model("vit"),
        "timm": timm_model("vit", embed_dim=VIT["dim"], depth=VIT["depth"], num_heads=VIT["heads"]),
    }
    mixer: dict[str, Build] = {
        "blockyard": our_vision_model("mixer"),
        "timm": timm_model("mixer", embed_dim=VIT["dim"], num_blocks=VIT["depth"]),
    }
    tokens, images = GPT["batch"] * GPT["context"], VIT["batch"]
    return {
        "gpt-fp32": Comparison(gpt, token_batch, tokens, "tokens"),
        "gpt-bf16": Comparison(gpt, token_batch, tokens, "tokens", bf16=True),
        "llama-fp32": Comparison(llama, token_batch, tokens, "tokens"),
        "llama-bf16": Comparison(llama, token_batch, tokens, "tokens", bf16=True),
        "vit-fp32": Comparison(vit, image_batch, images, "images"),
        "vit-bf16": Comparison(vit, image_batch, images, "images", bf16=True),
        "mixer-fp32": Comparison(mixer, image_batch, images, "images"),
    }


class Side:
    """A model with its optimizer: `step` trains once and returns the seconds."""

    def __init__(self, build: Build, data: tuple[Any, Any], *, bf16: bool) -> None:
        import torch

        torch.manual_seed(0)
        self.model, self.loss = build()
        self.model.train()
        self.data, self.bf16 = data, bf16
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    def forward(self) -> Any:
        import torch

        with torch.autocast("cpu", torch.bfloat16) if self.bf16 else contextlib.nullcontext():
            return self.loss(*self.data)

    def step(self) -> float:
        import torch

        started = time.perf_counter()
        self.forward().backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return time.perf_counter() - started

    def saved_bytes(self) -> int:
        """What the forward pass keeps for the backward pass besides the parameters, each storage once."""
        import torch

        own = {parameter.untyped_storage().data_ptr() for parameter in self.model.parameters()}
        kept: dict[int, int] = {}
        alive: list[Any] = []  # so that no address is used twice

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                kept[storage.data_ptr()] = storage.nbytes()
                alive.append(tensor)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            self.forward()
        return sum(kept.values())

    def flops(self) -> int:
        """Those of the matrix products of a step: forward once, backward twice."""
        from torch.utils.flop_counter import FlopCounterMode

        with FlopCounterMode(display=False) as counter:
            self.forward()
        return 3 * counter.get_total_flops()


def peak(*, bf16: bool) -> float:
    """FLOPs per second of one large matrix product."""
    import torch

    a, b = (torch.randn(2048, 2048, dtype=torch.bfloat16 if bf16 else torch.float32) for _ in range(2))
    started = time.perf_counter()
    a @ b
    return 2 * 2048**3 / (time.perf_counter() - started)


def compare(name: str, row: Comparison, rounds: int) -> list[str]:
    """The table rows of a comparison."""
    data = row.data()
    sides = {label: Side(build, data, bf16=row.bf16) for label, build in row.sides.items()}
    sizes = [side.parameters for side in sides.values()]
    assert max(sizes) < 1.03 * min(sizes), f"{name} compares models of {sizes} parameters"
    seconds: dict[str, list[float]] = {label: [] for label in sides}
    peaks = []
    for number in range(rounds + 2):
        order = list(sides) if number % 2 else list(sides)[::-1]
        for label in order:
            seconds[label].append(sides[label].step())
        peaks.append(peak(bf16=row.bf16))
    first, *_ = sides
    best, flops = max(peaks), sides[first].flops()
    lines = []
    for label, side in sides.items():
        times = seconds[label][2:]  # two rounds warm up
        ratios = [b / a for a, b in zip(seconds[first][2:], times, strict=True)]
        low, middle, high = statistics.quantiles(times, n=4)
        share = flops / min(times) / best
        cells = [name if label == first else "", label, f"{side.parameters / 1e6:.2f} M", f"{row.items / middle:,.0f}"]
        cells += [
            f"{row.items / high:,.0f} to {row.items / low:,.0f}",
            f"{statistics.median(ratios):.2f}",
            f"{share:.0%}",
        ]
        lines.append("| " + " | ".join([*cells, f"{side.saved_bytes() / 2**20:,.0f}"]) + " |")
    return lines


def main(arguments: list[str] | None = None) -> int:
    known = comparisons()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", nargs="+", choices=known, default=list(known))
    options = parser.parse_args(arguments)
    import torch

    logging.disable(logging.WARNING)
    torch.set_num_threads(options.threads)
    head = [
        "row",
        "side",
        "parameters",
        "items/s",
        "quartiles",
        "blockyard's speed to it",
        "share of peak",
        "saved, MiB",
    ]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for name in options.rows:
        lines += compare(name, known[name], options.rounds)
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
