"""Figures of results: a forecast, sizes of images, sounds that a model writes, and attention to a source of sound."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure
from scipy.io import wavfile

from blockyard.contracts import DataSpec
from blockyard.evaluate.forecast import WindowForecast
from blockyard.evaluate.resolution import Resolutions, Size
from blockyard.evaluate.written import Written
from blockyard.inspect._canvas import HIGHLIGHT, INK
from blockyard.inspect.attention_weights import LayerAttention
from blockyard.inspect.figures import forecast, resolution, written
from blockyard.inspect.figures.sound_figure import pages_on_sound
from blockyard.inspect.panels import draw
from blockyard.inspect.samples import Sample
from blockyard.inspect.sound import Sound
from blockyard.tokenizer.audio_vq import AudioVQ

RUN = SimpleNamespace(name="a_run", summary=dict, facts=dict)


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that are written."""
    drawn: list[Figure] = []
    savefig = Figure.savefig

    def keep(figure: Figure, *arguments: Any, **options: Any) -> None:
        drawn.append(figure)
        savefig(figure, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", keep)
    return drawn


def window(channels: int, *, has_truth: bool) -> WindowForecast:
    """A forecast of 2 steps after a history of 9, with a band of 1 to both sides."""
    ahead = torch.zeros(2, channels)
    names = tuple(f"channel {number}" for number in range(channels))
    true = torch.full((2, channels), 0.5) if has_truth else None
    return WindowForecast(names, torch.ones(9, channels), ahead, ahead - 1, ahead + 1, true, 0.9, 5, 0.8)


@pytest.mark.parametrize("has_truth", [True, False])
def test_a_forecast_has_a_panel_for_each_channel(has_truth: bool, figures: list[Figure], tmp_path: Path) -> None:
    loaded: Any = SimpleNamespace(folder=RUN, weights="best.ckpt")
    paths = forecast.draw(loaded, window(9, has_truth=has_truth), "x.csv", tmp_path / "forecast-x.csv")
    assert [path.name for path in paths] == ["forecast-x.png", "forecast-x_2.png"]
    assert figures[0].get_suptitle() == "a_run, best.ckpt: x.csv"
    first, *_, last = [axes for figure in figures for axes in figure.axes]
    lines = {str(line.get_label()): line for line in first.lines if not str(line.get_label()).startswith("_")}
    assert set(lines) == ({"history", "forecast", "true"} if has_truth else {"history", "forecast"})
    assert list(lines["history"].get_xdata()) == [-5, -4, -3, -2, -1, 0]  # three times the horizon
    assert list(lines["forecast"].get_xdata()) == [1, 2]
    assert first.collections[0].get_label() == "band 90%"
    assert last.get_title() == "channel 8"
    assert last.get_xlabel() == "steps from the end of the history"


def test_refused_sizes_have_a_label_and_no_point(figures: list[Figure], tmp_path: Path) -> None:
    sizes = [Size(0.5, (4, 4), {"accuracy": 0.5}), Size(1, (8, 8), {"accuracy": 0.75}), Size(2, (16, 16), refused="no")]
    loaded: Any = SimpleNamespace(
        folder=RUN, weights="best.ckpt", objective=SimpleNamespace(best=lambda: ("accuracy",))
    )
    paths = resolution.draw(loaded, Resolutions("test", 10, sizes), "other sizes", tmp_path / "resolution-test.json")
    assert [path.name for path in paths] == ["resolution-test.png"]
    (axes,) = figures[0].axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["4 x 4", "8 x 8", "16 x 16\nrefused"]
    assert list(axes.get_xticks()) == [0.5, 1, 2]
    assert list(axes.lines[0].get_xdata()) == [0.5, 1]
    assert list(axes.lines[0].get_ydata()) == [0.5, 0.75]
    assert axes.get_ylabel() == "test/accuracy"


def test_each_written_sound_stands_beside_the_true_one(figures: list[Figure], tmp_path: Path) -> None:
    """Five are written, the first four are shown; a text that is heard wrong has another colour."""
    tokenizer = AudioVQ()
    tokenizer.rate = 8000
    spec = DataSpec("audio", (8000,), variable=True, rate=8000, source=DataSpec("text", (4,)))
    loaded: Any = SimpleNamespace(folder=RUN, weights="best.ckpt", tokenizer=tokenizer, data=SimpleNamespace(spec=spec))
    tone = (1000 * torch.sin(torch.arange(4000) / 5)).to(torch.int16)
    texts = [("12", "12", "12"), ("34", "34", "3"), ("5", "5", "5"), ("6", "6", "6"), ("7", "7", "7")]
    outputs = [(tone, tone[:2000]), (tone, tone[:0]), *[(tone, tone)] * 3]
    result = Written("test", None, {"cer": 0.125}, texts, outputs=outputs)
    figure, *sounds = written.draw(loaded, result, "the test split", tmp_path / "written-test.jsonl")
    assert figure.name == "spoken-test.png"
    assert [path.name for path in sounds] == [f"spoken-test-{number}.wav" for number in (1, 2, 3, 4)]
    assert [len(wavfile.read(path)[1]) for path in sounds] == [2000, 0, 4000, 4000]
    assert "the first of the test split, true and written; CER 0.125 of 5" in figures[0].get_suptitle()
    assert [axes.get_title(loc="left") for axes in figures[0].axes[:2]] == ["true: 12", "written, heard as: 12"]
    _, right, _, wrong = (axes._left_title.get_color() for axes in figures[0].axes[:4])  # type: ignore[attr-defined]
    assert (right, wrong) == (INK, HIGHLIGHT)
    assert {axes.get_xlim() for axes in figures[0].axes} == {(0.0, 0.5)}


def test_the_attention_of_each_word_lies_below_the_spectrogram(figures: list[Figure], tmp_path: Path) -> None:
    sound = Sound(torch.sin(torch.arange(4000) / 5), 8000, torch.linspace(0, 0.5, 6))
    layers = [
        LayerAttention(
            path=f"blocks.{number}.cross_mixer",
            heads=[0],
            weights=torch.eye(5)[None, :3],
            entropy=torch.zeros(1),
            share=torch.zeros(1),
            causal=False,
            cross=True,
            prefix=0,
            query_prefix=0,
            grid=(5,),
            queries=["a", "b", "c"],
            keys=list("01234"),
        )
        for number in range(7)
    ]
    sample: Any = Sample(SimpleNamespace(), 3, source_sound=sound)  # type: ignore[arg-type]
    paths = list(draw(pages_on_sound(layers, sample, None), tmp_path))
    assert [path.name for path in paths] == ["attention_heard.png", "attention_heard_2.png"]
    spectrum, *attention, bar = figures[0].axes
    assert (spectrum.get_ylabel(), bar.get_ylabel()) == ("hertz", "attention weight of a token")
    assert [axes.get_title() for axes in attention] == ["block 0 cross", "block 1 cross", "block 2 cross"]
    assert [label.get_text() for label in attention[0].get_yticklabels()] == ["a", "b", "c"]
    assert attention[-1].get_xlabel() == "seconds"
    assert {axes.get_xlim() for axes in (spectrum, *attention)} == {(0.0, 0.5)}
