"""Learned codes as targets: the quantizer, the loss and the loss of disuse of transformers' wav2vec 2.0; collapse."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from blockyard.config.build import Components
from blockyard.config.check import check, reasons
from blockyard.config.compose import compose
from blockyard.contracts import Batch, Seq, auxiliary_loss
from blockyard.data.splits.order import take
from blockyard.head.contrast import Contrast, GumbelQuantizer, disuse
from blockyard.objective._contrast_metrics import distractors
from blockyard.objective.quantized_contrast import Candidates, QuantizedContrast
from blockyard.weight_init import initialise
from tests.support.every import every
from tests.support.helpers import context
from tests.support.tolerances import float32

B, N, D, E, G, V, WIDTH, K = 3, 9, 16, 16, 2, 5, 6, 4
OVERRIDES = (
    *("data=dial_tones", "data.samples=24", "data.eval_samples=8", "tokenizer=char", "source_tokenizer=log_mel"),
    *("objective=quantized_contrast", "objective.negatives=12", "objective.span=2", "objective.width=8"),
    *("head=contrast", "head.codes=12", "head.width=8", "model=encoder", "model.dim=16", "model.depth=1"),
    *("position=rope", "logger=none"),
)


def theirs(codes: int = V) -> Any:
    models = pytest.importorskip("transformers.models.wav2vec2.modeling_wav2vec2")
    from transformers import Wav2Vec2Config

    sizes = {"hidden_size": D, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    convolutions = {"conv_dim": (E,), "conv_kernel": (10,), "conv_stride": (10,), "num_feat_extract_layers": 1}
    books = {
        "num_codevectors_per_group": codes,
        "num_codevector_groups": G,
        "codevector_dim": WIDTH,
        "num_negatives": K,
    }
    rest = {"proj_codevector_dim": 7, "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}
    off = dict.fromkeys(
        ("hidden_dropout", "attention_dropout", "activation_dropout", "feat_quantizer_dropout", "layerdrop"), 0.0
    )
    config = Wav2Vec2Config(**sizes, **convolutions, **books, **rest, **off)
    torch.manual_seed(0)
    return models.Wav2Vec2ForPreTraining(config)


def ours(model: Any) -> Contrast:
    """A head with the weights of `model`."""
    head = Contrast(context(dim=D, outputs=7), groups=G, codes=model.quantizer.num_vars, width=WIDTH)
    quantizer = model.quantizer
    with torch.no_grad():
        for mine, other in ((head.predict, model.project_hid), (head.target, model.project_q)):
            mine.load_state_dict(other.state_dict())
        head.quantizer.logits.load_state_dict(quantizer.weight_proj.state_dict())
        head.quantizer.codebook.copy_(quantizer.codevectors.view_as(head.quantizer.codebook))
    return head


@pytest.mark.parametrize("training", [True, False])
def test_the_quantizer_is_that_of_transformers(training: bool) -> None:
    """In training with the same noise and the same gradient."""
    model = theirs()
    head, x = ours(model), torch.randn(B, N, E)
    mask = torch.rand(B, N) < 0.5
    quantizer, reference = head.quantizer.train(training), model.quantizer.train(training)
    reference.set_temperature(2.0) if hasattr(reference, "set_temperature") else setattr(reference, "temperature", 2.0)
    results = []
    for module in (quantizer, reference):
        torch.manual_seed(3)
        inputs = x.clone().requires_grad_()
        vectors = module(inputs).vectors if module is quantizer else module(inputs, mask)[0]
        if training:
            vectors.square().sum().backward()
        results.append((vectors, inputs.grad))
    assert_close(results[0][0], results[1][0])
    if training:
        assert_close(results[0][1], results[1][1])


@pytest.mark.parametrize("counted", [True, False])
def test_codes_that_nobody_uses_have_a_finite_gradient(counted: bool) -> None:
    """Shares of exactly zero, as those of far smaller logits are, or as all are where no token counts."""
    logits = torch.tensor([[[[200.0, 0.0, 0.0]]]], requires_grad=True)
    value = disuse(logits.softmax(-1), None if counted else torch.zeros(1, 1, dtype=torch.bool))
    (gradient,) = torch.autograd.grad(value, logits)
    assert gradient.isfinite().all()
    assert value.item() == pytest.approx(2 / 3)


@pytest.mark.parametrize("training", [True, False])
def test_loss_and_disuse_are_those_of_transformers(training: bool) -> None:
    """The two terms of their pre-training loss, from the vectors that their blocks give.

    The second in training, which ours is for alone. There are so many codes that none occurs twice: what becomes of
    equal ones is by the formula, below, because theirs compares them by their projections, which differ by rounding.
    """
    model = theirs(codes=400).train(training)
    head = ours(model).train(training)
    sound = torch.randn(B, 10 * N)
    mask = torch.tensor([[1, 1, 1, 0, 0, 1, 1, 0, 0], [0, 1, 1, 1, 1, 1, 1, 0, 0], [0, 0, 0, 1, 1, 1, 1, 0, 0]]).bool()
    negatives = distractors(mask, torch.rand(B, N, K))
    flat = (negatives + N * torch.arange(B)[:, None, None]).flatten(0, 1).view(B, N, K)  # theirs count through a batch
    model.quantizer.temperature = 2.0

    def seeded(*_: object) -> None:
        torch.manual_seed(5)

    model.quantizer.register_forward_pre_hook(seeded)
    out = model(sound, mask_time_indices=mask, sampled_negative_indices=flat, output_hidden_states=True)
    with torch.no_grad():
        base = model.wav2vec2
        features = base.feature_projection(base.feature_extractor(sound).transpose(1, 2))[1]
    torch.manual_seed(5)
    index = torch.arange(N)
    seq = Seq(index, index[None, :, None].float(), embedded=features, hidden=mask)
    prediction = head(out.hidden_states[-1].detach(), seq)
    objective = QuantizedContrast(negatives=K, temperature=0.1, width=7, distinct=True)
    truth = torch.zeros(B, N, dtype=torch.int64).masked_fill(~mask, Batch.ignore)
    count = int(mask.sum())
    auxiliary = auxiliary_loss([head])
    if training:
        assert_close(auxiliary, 0.1 * out.diversity_loss / count)
    else:
        assert auxiliary is None
        assert len(prediction[..., 14:].flatten(0, 1).unique(dim=0)) == B * N
        assert_close(objective.loss(prediction, Candidates(truth, negatives)), out.contrastive_loss / count)


@pytest.mark.parametrize("distinct", [False, True])
def test_the_loss_is_that_of_the_formula(distinct: bool) -> None:
    """Equation 3 of the paper, by loops, with codes that occur several times."""
    hidden = torch.tensor([[1, 1, 1, 1, 0, 1, 1, 0, 0], [0, 1, 1, 1, 1, 1, 1, 0, 0]]).bool()
    ids = torch.randint(2, (2, N, G))
    codes = torch.randn(2, 2, 7)[ids[..., 0], ids[..., 1]]  # (2, N, F), a vector for each pair of ids
    c, negatives = torch.randn(2, N, 7), distractors(hidden, torch.rand(2, N, K))
    losses = []
    for row, token in hidden.nonzero().tolist():

        def similarity(other: int, row: int = row, token: int = token) -> float:
            return float(F.cosine_similarity(c[row, token], codes[row, other], dim=0)) / 0.2

        others = negatives[row, token].tolist()
        if distinct:
            others = [other for other in others if not torch.equal(ids[row, other], ids[row, token])]
        below = sum(math.exp(similarity(other)) for other in [token, *others])
        losses.append(math.log(below) - similarity(token))
    objective = QuantizedContrast(negatives=K, temperature=0.2, width=7, distinct=distinct)
    truth = torch.zeros(2, N, dtype=torch.int64).masked_fill(~hidden, Batch.ignore)
    prediction = torch.cat([c, codes, ids.float()], -1)
    assert_close(objective.loss(prediction, Candidates(truth, negatives)), torch.tensor(losses).mean())


def test_disuse_is_zero_for_even_use_and_one_less_a_share_for_a_single_code() -> None:
    even = torch.full((2, 3, G, V), 1 / V)
    assert_close(disuse(even, None), torch.tensor(0.0), **float32(terms=G * V))
    single = F.one_hot(torch.zeros(2, 3, G, dtype=torch.int64), V).float()
    assert_close(disuse(single, None), torch.tensor(1 - 1 / V))
    counts = torch.tensor([[True, False, False], [False, False, False]])
    assert_close(disuse(torch.cat([single[:1], even[:1]]), counts), torch.tensor(1 - 1 / V))  # of the hidden ones alone


def test_the_temperature_falls_with_each_training_pass_to_the_lowest() -> None:
    quantizer = GumbelQuantizer(context(dim=E), WIDTH, groups=G, codes=V, start=2.0, least=1.5, decay=0.9)
    initialise(quantizer, 0)
    temperatures = []
    for _ in range(4):
        temperatures.append(float(quantizer.temperature))
        quantizer.train()(torch.randn(1, 2, E))
        quantizer.eval()(torch.randn(1, 2, E))  # does not count
    assert temperatures == pytest.approx([2.0, 1.8, 1.62, 1.5])
    copy = GumbelQuantizer(context(dim=E), WIDTH, groups=G, codes=V, start=2.0, least=1.5, decay=0.9)
    copy.load_state_dict(quantizer.state_dict())
    assert int(copy.passes) == 4


def collapsed(codes: Tensor, vectors: Tensor, c: Tensor) -> dict[str, float]:
    """The metrics of an objective over one recording whose tokens are all hidden."""
    objective = QuantizedContrast(negatives=K, width=7, distinct=True)
    hidden = torch.ones(1, N, dtype=torch.bool)
    target = Candidates(torch.zeros(1, N, dtype=torch.int64), distractors(hidden, torch.rand(1, N, K)))
    prediction = torch.cat([c, vectors, codes[..., None].float()], -1)
    metrics = objective.metrics()
    for metric in metrics.values():
        metric.update(prediction, target)
    return {name: float(metric.compute()) for name, metric in metrics.items()}


def test_a_codebook_that_has_collapsed_has_no_information_although_its_loss_is_zero() -> None:
    one = torch.randn(7).expand(1, N, 7)
    metrics = collapsed(torch.zeros(1, N), one, torch.randn(1, N, 7))
    assert metrics == pytest.approx(
        {"loss": 0.0, "accuracy": 1 / (1 + K), "information": 0.0}, abs=float32(terms=1 + K)["atol"]
    )
    perfect = torch.randn(1, N, 7)
    metrics = collapsed(torch.arange(N)[None], perfect, perfect)
    assert metrics["accuracy"] == 1.0
    assert metrics["information"] == pytest.approx(math.log(1 + K) - metrics["loss"], abs=float32(terms=1 + K)["atol"])


@pytest.fixture(scope="module")
def plan() -> Any:
    composed = compose(list(OVERRIDES))
    assert reasons(composed) == []
    plan: Any = Components(composed.config)
    plan.splits = plan.load()
    return plan


def test_codes_are_of_what_stood_there_before_it_was_hidden(plan: Any) -> None:
    """The targets of a batch do not depend on what is hidden, the predictions do."""
    model = plan.model(0).eval()
    first, second = (plan.objective.ready(take(plan.splits.test, torch.arange(8), None), key) for key in (1, 2))
    assert not torch.equal(first.hidden, second.hidden)
    width = plan.objective.width
    outputs = [model(batch) for batch in (first, second)]
    real = first.target.truth.new_zeros(first.hidden.shape, dtype=torch.bool) | first.hidden | second.hidden
    targets = [out[..., width:][real] for out in outputs]
    assert_close(targets[0], targets[1])
    assert (outputs[0][..., :width] - outputs[1][..., :width]).abs().max() > 1e-3


def test_registers_in_front_are_left_out(plan: Any) -> None:
    """The facts of what was hidden are of the tokens behind them."""
    wider = Components(compose([*OVERRIDES, "model.prefix.registers=2"]).config)
    wider.load()
    batch = plan.objective.ready(take(plan.splits.test, torch.arange(8), None), 1)
    assert wider.model(0)(batch).shape == plan.model(0)(batch).shape


@pytest.mark.full
def test_steps_raise_the_information_and_reach_every_parameter(plan: Any) -> None:
    model, batch = plan.model(0).train(), plan.objective.ready(take(plan.splits.test, torch.arange(8), None))
    optimizer = torch.optim.Adam(model.parameters(), 0.003)
    torch.manual_seed(0)
    for step in range(150):
        loss = plan.objective.loss(model(batch), batch.target) + auxiliary_loss(model.modules())
        optimizer.zero_grad()
        loss.backward()
        if step == 0:
            assert every(each.grad is not None and each.grad.abs().sum() > 0 for each in model.parameters())
        optimizer.step()
    information = plan.objective.metrics()["information"]
    with torch.no_grad():
        information.update(model.eval()(batch), batch.target)
    assert float(information.compute()) > 0.1


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        ("head=token", "needs predictions and learned codes per token; head=token gives one prediction per token"),
        ("objective=masked_units", "needs one prediction per token; head=contrast gives predictions and learned codes"),
        ("head.groups=3", "head.width=8 is not a multiple of head.groups=3"),
        ("head.least=3.0", "head.least=3.0 is above head.temperature=2.0"),
        ("model=decoder", "needs a bidirectional model"),
        (
            "position=learned position.combine=concat position.width=4",
            "narrower than the model beside a concatenated position",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(overrides: str, problem: str) -> None:
    changed = [override.split("=")[0] for override in overrides.split()]
    dropped = ("head.codes", "head.width") if "head" in changed else ()
    dropped += ("objective.negatives", "objective.width") if "objective" in changed else ()
    kept = [each for each in OVERRIDES if each.split("=")[0] not in (*changed, *dropped)]
    issues = check(compose([*kept, *overrides.split()]))
    assert any(problem in str(issue) for issue in issues), [str(issue) for issue in issues]


def test_a_loss_of_disuse_over_all_tokens_would_be_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blockyard.head.contrast.disuse", lambda shares, counts: disuse(shares, None))
    with pytest.raises(AssertionError):
        test_loss_and_disuse_are_those_of_transformers(training=True)
