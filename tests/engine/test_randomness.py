"""Random streams: reseeding depends on every part of the key, and a draw aside leaves no trace."""

from __future__ import annotations

import torch

from blockyard.engine.system import randomness


def test_reseeding_depends_on_every_word() -> None:
    cpu = torch.device("cpu")

    def draw(*keys: object) -> float:
        randomness.reseed(cpu, *keys)
        return float(torch.rand(()))

    base = draw(0, "train", 5, 0)
    assert draw(0, "train", 5, 0) == base
    assert base not in {draw(1, "train", 5, 0), draw(0, "other", 5, 0), draw(0, "train", 6, 0), draw(0, "train", 5, 1)}


def test_what_is_drawn_undisturbed_leaves_no_trace() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    with randomness.undisturbed():
        torch.rand(100)
    torch.testing.assert_close(torch.rand(4), expected, rtol=0, atol=0)
