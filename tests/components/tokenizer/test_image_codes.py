"""Codes of patches: found by k-means or learned, saved, cached, and what is lost."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from blockyard.contracts import DataSpec, auxiliary_loss
from blockyard.data.digits import Digits
from blockyard.objective.next_token import NextToken
from blockyard.tokenizer._image_tokens import ImageTokens
from blockyard.tokenizer._vq import PatchAutoencoder, Quantizer, kmeans, nearest
from blockyard.tokenizer.patch_codes import PatchCodes
from blockyard.tokenizer.vq import VQ
from blockyard.weight_init import initialise

MAKERS: dict[str, Callable[..., ImageTokens]] = {
    "patch_codes": lambda **options: PatchCodes(size=2, codes=8, **options),
    "vq": lambda **options: VQ(size=2, codes=8, width=32, latent=4, decay=0.9, **{"steps": 300, **options}),
}
COLORS = DataSpec("image", (3, 4, 6), target="class", classes=2, levels=256)


@pytest.fixture(scope="module", autouse=True)
def _cache_of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What one test has fitted another one reads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BLOCKYARD_CACHE", str(tmp_path_factory.mktemp("codes")))
        yield


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty one."""
    monkeypatch.setenv("BLOCKYARD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def images() -> Tensor:
    """Patches of one color each, with a little noise."""
    drawn = torch.Generator().manual_seed(0)
    colors = torch.randint(236, (40, 3, 2, 3), generator=drawn).repeat_interleave(2, 2).repeat_interleave(2, 3)
    return (colors + torch.randint(20, colors.shape, generator=drawn)).byte()


def fitted(name: str, images: Tensor, **options: object) -> ImageTokens:
    tokenizer = MAKERS[name](**options)
    tokenizer.spec(COLORS)
    tokenizer.fit(images)
    return tokenizer


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def test_kmeans_ends_where_scikit_learn_does_from_the_same_start() -> None:
    points = torch.randn(300, 3, generator=generator(), dtype=torch.float64)
    centres = kmeans(points, 7, generator(), rounds=200)
    theirs = KMeans(7, init=centres.numpy(), n_init=1, tol=0).fit(points.numpy())
    assert_close(centres, torch.from_numpy(theirs.cluster_centers_))  # a fixed point of theirs
    assert np.array_equal(nearest(points, centres).numpy(), theirs.labels_)
    one = (points - points.mean(0)).square().sum()
    within = (points - centres[nearest(points, centres)]).square().sum()
    assert within < 0.45 * one
    best = KMeans(7, n_init=10, random_state=0).fit(points.numpy()).inertia_
    assert within < 1.1 * best


def test_fewer_points_than_centres() -> None:
    points = torch.tensor([[0.0], [1.0], [1.0]])
    centres = kmeans(points, 5, generator())
    assert centres.shape == (5, 1)
    assert_close(centres[nearest(points, centres)], points)


@pytest.mark.parametrize("name", MAKERS)
def test_every_patch_is_its_nearest_code(name: str, images: Tensor) -> None:
    tokenizer = fitted(name, images)
    token_ids = tokenizer.encode(images)
    assert token_ids.shape == (40, 6)
    assert len(token_ids.unique()) > 4
    decoded = tokenizer.decode(token_ids)
    assert decoded.shape == images.shape
    assert decoded.dtype == torch.uint8
    error = (decoded.float() - images.float()).square().mean()
    assert error < 0.5 * images.float().var()
    if name == "patch_codes":
        centres = torch.tensor(tokenizer.state()["codes"])
        for row in range(2):
            for column in range(3):
                patch = images[7, :, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2].float() / 255
                assert (centres - patch.flatten()).square().sum(1).argmin() == token_ids[7, 3 * row + column]
                code = (centres[token_ids[7, 3 * row + column]].view(3, 2, 2) * 255).round()
                assert_close(decoded[7, :, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2].float(), code)


@pytest.mark.parametrize("order", ["column", *(pytest.param(o, marks=pytest.mark.full) for o in ("snake", "random"))])
@pytest.mark.parametrize("name", MAKERS)
def test_the_order_changes_no_code(name: str, order: str, images: Tensor) -> None:
    plain, other = fitted(name, images), fitted(name, images, order=order)
    assert torch.equal(other.encode(images), plain.encode(images)[:, other.cells])
    assert torch.equal(other.decode(other.encode(images)), plain.decode(plain.encode(images)))


@pytest.mark.parametrize("name", MAKERS)
def test_what_is_learned_is_saved_and_cached(
    name: str, images: Tensor, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {"steps": 30} if name == "vq" else {}
    tokenizer = fitted(name, images, **few)
    expected = tokenizer.encode(images)
    again = MAKERS[name]()
    again.load_state(json.loads(json.dumps(tokenizer.state())))
    again.spec(COLORS)
    assert torch.equal(again.encode(images), expected)
    assert torch.equal(again.decode(expected), tokenizer.decode(expected))
    (file,) = (cache / name).glob("*.json")
    monkeypatch.setattr(type(tokenizer), "_learn", lambda *_: pytest.fail("the cache was not read"))
    assert torch.equal(fitted(name, images, **few).encode(images), expected)
    monkeypatch.undo()
    monkeypatch.setenv("BLOCKYARD_CACHE", str(cache))
    file.write_text('{"codes": [[1')
    assert torch.equal(fitted(name, images, **few).encode(images), expected)
    fitted(name, images[:20], **few)
    assert len(list((cache / name).glob("*.json"))) == 2


@pytest.mark.parametrize("name", MAKERS)
def test_a_damaged_state_is_refused(name: str, images: Tensor) -> None:
    state = fitted(name, images).state()
    wrong = [{"codes": 3}, {**state, next(iter(state)): None}, {"codes": [[0.5] * 12] * 7}]
    if name == "patch_codes":
        wrong.append({"codes": [[float("nan")] * 12] * 8})
    for each in wrong:
        with pytest.raises(ValueError, match="not the saved state"):
            MAKERS[name]().load_state(each)
    unfitted = MAKERS[name]()
    unfitted.spec(COLORS)
    with pytest.raises(ValueError, match="is not fitted to data"):
        unfitted.encode(images)


@pytest.mark.parametrize("name", MAKERS)
def test_shapes_that_do_not_fit_are_refused(name: str) -> None:
    for shape, expected in [((1, 9, 8), "does not divide"), ((1, 224, 224), "= 12,544 tokens")]:
        with pytest.raises(ValueError, match=expected):
            MAKERS[name]().spec(DataSpec("image", shape, levels=256))


def test_metrics_of_codes_say_what_is_lost() -> None:
    tokenizer = PatchCodes(size=4, codes=16, condition="class")
    test = Digits().load(tokenizer).test
    metrics = NextToken().metrics(test)
    for metric in metrics.values():
        metric.update(torch.zeros(1, 4, 16), torch.zeros(1, 4, dtype=torch.long))
    assert list(metrics) == ["loss", "bits_per_code", "reconstruction_mse"]
    pixels = test.images.batch(torch.arange(len(test)), None).inputs  # type: ignore[attr-defined]
    lost = (tokenizer.decode(tokenizer.encode(pixels)).double() - pixels).square().mean() / 16**2
    assert float(metrics["reconstruction_mse"].compute()) == pytest.approx(float(lost))
    finer = Digits().load(PatchCodes(size=4, codes=64)).test
    assert finer.reconstruction_mse < 0.9 * float(lost)  # type: ignore[attr-defined]


def by_loops(state: tuple[Tensor, Tensor], codes: Tensor, vectors: Tensor, decay: float) -> tuple[Tensor, Tensor]:
    """Sizes and sums after a batch, van den Oord et al. 2017, equations 6 to 8."""
    sizes, sums = state[0].clone(), state[1].clone()
    for code in range(len(codes)):
        own = [v for v in vectors if int((codes - v).square().sum(1).argmin()) == code]
        sizes[code] = decay * sizes[code] + (1 - decay) * len(own)
        total = torch.stack(own).sum(0) if own else torch.zeros_like(sums[0])
        sums[code] = decay * sums[code] + (1 - decay) * total
    return sizes, sums


def quantizer() -> tuple[Quantizer, Tensor]:
    vectors = torch.randn(60, 3, generator=generator())
    codebook = Quantizer(5, 3, commitment=0.25, decay=0.9)
    codebook.start(vectors, generator())
    return codebook.train(), vectors


def check_codebook(codebook: Quantizer, vectors: Tensor) -> None:
    for batch in vectors.split(20):
        before = codebook.codes.clone()
        sizes, sums = by_loops((codebook.sizes, codebook.sums), before, batch, 0.9)
        codebook(batch)
        assert_close(codebook.sizes, sizes)
        assert_close(codebook.codes, sums / sizes[:, None])


def test_the_codebook_follows_the_published_averages() -> None:
    check_codebook(*quantizer())


def test_a_codebook_that_forgets_its_sizes_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Quantizer.follow

    def planted(self: Quantizer, vectors: Tensor, owner: Tensor, drawn: object) -> None:
        real(self, vectors, owner, None)
        self.codes.copy_(self.sums / self.sizes.mean())

    monkeypatch.setattr(Quantizer, "follow", planted)
    with pytest.raises(AssertionError):
        check_codebook(*quantizer())


def test_gradients_pass_straight_through_and_vectors_are_drawn_to_their_codes() -> None:
    codebook, vectors = quantizer()
    inputs = vectors.clone().requires_grad_()
    codes = codebook.codes[nearest(vectors, codebook.codes)]
    weight = torch.randn(60, 3, generator=generator())
    out = codebook(inputs)
    assert_close(out, codes)
    (out * weight).sum().backward()
    assert_close(inputs.grad, weight)
    inputs.grad = None
    loss = auxiliary_loss([codebook])
    assert loss is not None
    assert_close(loss, 0.25 * F.mse_loss(vectors, codes))
    loss.backward()
    assert_close(inputs.grad, 0.25 * 2 * (vectors - codes) / vectors.numel())
    assert auxiliary_loss([codebook]) is None
    codebook.eval()(vectors)
    assert auxiliary_loss([codebook]) is None


def test_codes_that_nothing_is_near_are_used_again() -> None:
    codebook, vectors = quantizer()
    codebook.codes[3] = 100.0
    codebook.sizes[3] = 0.5
    codebook.sums[3] = 50.0
    codebook(vectors, generator())
    assert (vectors == codebook.codes[3]).all(1).any()


def test_the_autoencoder_keeps_the_places_of_pixels() -> None:
    network = initialise(PatchAutoencoder(1, 2, width=16, latent=4), 0)
    images = torch.rand(1, 1, 6, 8, generator=generator())
    vectors = network.encode(images)
    assert vectors.shape == (1, 3, 4, 4)
    changed = images.clone()
    changed[0, 0, 0, 0] += 1  # reaches one pixel further, so one patch
    assert ((network.encode(changed) - vectors).abs().sum(-1)[0] > 0).nonzero().tolist() == [[0, 0]]
    moved = vectors.clone()
    moved[0, 1, 2] += 1
    touched = ((network.decode(moved) - network.decode(vectors)).abs()[0, 0] > 0).nonzero()
    assert touched.amin(0).tolist() == [1, 3]
    assert touched.amax(0).tolist() == [4, 6]


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.full] * (n == "vq")) for n in MAKERS])
@pytest.mark.usefixtures("cache")
def test_codes_follow_the_fit_seed_or_where_it_is_null_the_run(name: str, images: Tensor) -> None:
    def codes(fit_seed: int | None, run_seed: int) -> dict[str, object]:
        tokenizer = MAKERS[name](fit_seed=fit_seed)
        tokenizer.spec(COLORS)
        tokenizer.run_seed = run_seed
        tokenizer.fit(images)
        return tokenizer.state()

    assert codes(0, run_seed=1) == codes(0, run_seed=2)  # a run's seed alone changes no codes
    assert codes(None, run_seed=3) == codes(3, run_seed=0)
    assert codes(None, run_seed=3) != codes(None, run_seed=4)
