"""objective=masked_diffusion: the bound by its formula, rates and hidden tokens as functions of the key."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch.testing import assert_close

from blockyard.cli import main
from blockyard.contracts import Batch, DataSpec, TokenSpec
from blockyard.objective._metrics import BitsPerByte
from blockyard.objective.masked_diffusion import Diffused, MaskedDiffusion
from tests.support.engine_runs import run
from tests.support.tiny import TEXT

N, V = 40, 30


def objective(width: int = N, vocabulary: int = V) -> MaskedDiffusion:
    built = MaskedDiffusion()
    built.tokens(TokenSpec((width,), vocabulary=vocabulary))
    return built


def token_ids(size: int, width: int = N) -> torch.Tensor:
    return torch.randint(V, (size, width + 1), generator=torch.Generator().manual_seed(0))


def test_every_number_of_hidden_tokens_is_as_likely_and_each_token_is_hidden_alike() -> None:
    """The weight is N over the number of hidden tokens; shares lie evenly in (0, 1], at every key elsewhere."""
    built, raw = objective(), token_ids(4000)
    batch = built.prepare(Batch(raw, sample=torch.arange(4000)), 7)
    hidden = batch.inputs == V
    assert_close(batch.inputs[~hidden], raw[:, :N][~hidden])
    assert_close(batch.target.token_ids, raw[:, :N])
    counts = hidden.sum(1)
    assert_close(batch.target.weight, hidden * N / counts[:, None].float())
    # Evenly: of each number, 1 to 40, 100 of 4,000 sequences, within a few; random numbers would differ by 10.
    assert (counts.bincount(minlength=N + 1)[1:] - 100).abs().max() <= 4
    assert counts.min() >= 1
    # Every position is hidden equally often: a standard error of 0.008 over 4,000 sequences.
    assert_close(hidden.float().mean(0), torch.full((N,), (N + 1) / 2 / N), rtol=0, atol=0.03)
    assert bool((built.shares(torch.arange(4000), 8) != built.shares(torch.arange(4000), 7)).all())


def test_hiding_does_not_depend_on_the_batch() -> None:
    """Nor on how it is cut and padded; evaluation, without a key, is the same each time."""
    built, raw = objective(), token_ids(8)
    lengths = torch.tensor([N, 5, 20, N, 1, 9, 30, 2])
    whole = built.prepare(Batch(raw, lengths=lengths, sample=torch.arange(8)), 3)
    part = built.prepare(Batch(raw[4:6, :12], lengths=lengths[4:6], sample=torch.tensor([4, 5])), 3)
    assert_close(part.inputs, whole.inputs[4:6, :12])
    assert_close(part.target.weight, whole.target.weight[4:6, :12])
    padding = torch.arange(N) >= lengths[:, None]
    assert bool((whole.target.token_ids[padding] == Batch.ignore).all())
    assert bool((whole.target.weight[padding] == 0).all())
    assert built.count(whole) == int(lengths.sum())
    fixed = [built.prepare(Batch(raw, sample=torch.arange(8))).inputs for _ in range(2)]
    assert_close(*fixed)


def test_the_loss_is_the_equation() -> None:
    """Token by token in float64; whatever the logit of the mask token is."""
    built, raw = objective(), token_ids(6)
    batch = built.prepare(Batch(raw, lengths=torch.tensor([N, 7, 21, N, 3, 12]), sample=torch.arange(6)), 1)
    logits = torch.randn(6, N, V + 1, generator=torch.Generator().manual_seed(1))
    total, count = 0.0, 0
    for b, n in itertools.product(range(6), range(N)):
        token = int(batch.target.token_ids[b, n])
        if token == Batch.ignore:
            continue
        count += 1
        if batch.inputs[b, n] == V:
            scores = logits[b, n, :V].double()
            total += float(batch.target.weight[b, n]) * float(scores.logsumexp(0) - scores[token])
    value = built.loss(logits, batch.target)
    assert_close(value, torch.tensor(total / count), rtol=1e-5, atol=1e-5)  # 140 terms in float32
    certain = logits.clone()
    certain[..., V] = 50.0
    assert_close(built.loss(certain, batch.target), value)
    metric = built.metrics()["loss"]
    for part in (slice(0, 2), slice(2, 6)):
        metric.update(logits[part], Diffused(*(tensor[part] for tensor in batch.target)))
    assert float(metric.compute()) == pytest.approx(total / count, rel=1e-5)


def test_with_the_true_conditionals_the_bound_is_the_entropy() -> None:
    """Of a distribution over all sequences of three tokens of two kinds: with the exact distribution of each hidden
    token behind what is shown, the mean over tokens, sequences and rates is the entropy a token, and with others more.
    """
    probability = torch.rand(2, 2, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    probability /= probability.sum()
    entropy = -float((probability * probability.log()).sum()) / 3
    count = 60_000
    draws = torch.multinomial(probability.flatten(), count, True, generator=torch.Generator().manual_seed(1))
    sequences = torch.stack([draws // 4, draws // 2 % 2, draws % 2, torch.zeros_like(draws)], 1)
    built = objective(3, 2)
    batch = built.prepare(Batch(sequences, sample=torch.arange(count)), 5)
    table = torch.zeros(3, 3, 3, 3, 3, dtype=torch.float64)  # by what is shown (2 is hidden) and place, over V + 1
    for shown in itertools.product(range(3), repeat=3):
        index = tuple(slice(None) if s == 2 else slice(s, s + 1) for s in shown)
        for place in range(3):
            others = [axis for axis in range(3) if axis != place]
            marginal = probability[index].sum(others)
            table[(*shown, place)][: 2 if shown[place] == 2 else 1] = marginal.log() - marginal.sum().log()
    logits = table[batch.inputs[:, 0], batch.inputs[:, 1], batch.inputs[:, 2]]  # (B, 3, 3)
    bound = float(built.loss(logits, batch.target))
    assert bound == pytest.approx(entropy, rel=0.02)  # a standard error of 0.6 % over so many rates
    assert float(built.loss(logits * 0.3, batch.target)) > bound * 1.005


def test_a_run_reports_bits_per_byte(tmp_path: object) -> None:
    """And its loss falls below that of chance."""
    folder = run(
        tmp_path, *("model=encoder", "objective=masked_diffusion", "tokenizer=char", "trainer.max_steps=30"), base=TEXT
    )
    metrics = folder.summary()["metrics"]
    assert metrics["test/loss"] == pytest.approx(metrics["test/bits_per_byte"] * math.log(2), rel=0.05)
    assert folder.summary()["directions"]["test/bits_per_byte"] == "min"
    assert isinstance(
        MaskedDiffusion().metrics(type("S", (), {"bytes_per_token": 2.0})())["bits_per_byte"], BitsPerByte
    )


def test_other_models_and_data_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "experiment=gpt_code_small", "objective=masked_diffusion"]) == 2
    assert "model" in capsys.readouterr().err
    assert main(["check", "experiment=vit_digits", "objective=masked_diffusion"]) == 2
    assert "objective=masked_diffusion is for texts" in capsys.readouterr().err
    with pytest.raises(ValueError, match="needs token ids"):
        MaskedDiffusion().outputs(DataSpec("image", (1, 8, 8)), TokenSpec((2, 2)))
