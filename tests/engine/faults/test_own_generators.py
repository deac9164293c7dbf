"""A logger that seeds leaves the random state of the run as it is; its own numbers repeat."""

from __future__ import annotations

import pickle
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from pytorch_lightning import seed_everything

from blockyard.engine.faults.own_generators import own_generators
from tests.battery.own_loggers import seed_all
from tests.support.engine_runs import assert_same_bits
from tests.support.logged_training import logged


def _draws() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def _seeded(seed: int) -> list[float]:
    with own_generators():
        seed_everything(seed, verbose=False)
        seed_all(seed)
        torch.cuda.manual_seed_all(seed)
        torch.random.set_rng_state(torch.Generator().get_state())
        np.random.set_state(np.random.RandomState(seed).get_state())
        random.setstate(random.Random(seed).getstate())
        return [random.random(), random.gauss(0, 1), float(np.random.normal()), *np.random.permutation(5)]


def test_seeds_of_a_logger_are_its_own() -> None:
    with own_generators():
        pass  # from here on the functions are replaced
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    expected = random.Random(1).random(), np.random.RandomState(1).rand(), torch.rand((), generator=_generator(1))
    with ThreadPoolExecutor(1) as pool:
        first, second = pool.submit(_seeded, 5).result(), pool.submit(_seeded, 5).result()
    assert first == second
    assert first[0] == random.Random(5).random()
    assert _draws() == tuple(map(float, expected))


def test_a_thread_has_the_generators_of_the_run_again_after_the_logger() -> None:
    _seeded(5)
    seed_all(7)
    expected = random.Random(7)
    expected.random()
    assert random.random() == expected.random()


def test_the_functions_can_still_be_pickled() -> None:
    with own_generators():
        pass
    for each in (random.random, np.random.rand, torch.manual_seed):
        assert pickle.loads(pickle.dumps(each)) is each


@pytest.mark.full
def test_a_run_whose_logger_seeds_has_the_bits_of_one_without_a_logger(tmp_path: Path) -> None:
    dropout = "token_mixer.dropout=0.3"
    own = ("logger._target_=tests.battery.own_loggers.Own", "allow=[tests]", "logger.at=log", "logger.how=seed")
    with_logger, without = logged(tmp_path / "own", dropout, *own), logged(tmp_path / "none", dropout)
    assert with_logger.code == without.code == 0, with_logger.printed
    assert_same_bits(with_logger.folder, without.folder)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
