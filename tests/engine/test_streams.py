"""Streams: parts as the library's, shares of processes and workers, and runs that resume to the bit."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
import torch

from blockyard.config.build import Components
from blockyard.contracts import Batch, StreamItem, StreamPosition
from blockyard.data.dataset import OwnDataset
from blockyard.data.mixture import Mixture
from blockyard.data.splits.streams import StreamSplit
from blockyard.engine.growth import Growth, Ramp
from blockyard.engine.loader import Layout, training_loader
from blockyard.engine.plain_trainer_data import TrainerData
from blockyard.engine.run import train
from blockyard.engine.stream_loader import Positions, StreamBatches, StreamLoader, check_stream, stream_remarks
from blockyard.errors import UserError
from blockyard.objective.classify import Classify
from blockyard.runs.resume import reopen
from blockyard.tokenizer.byte import Byte
from tests.battery import ranks
from tests.support import engine_runs, own_data
from tests.support.engine_runs import rows, run
from tests.support.fork import forked
from tests.support.tiny import DECODER, ON_CPU, ONE_BATCH, ONE_LAYER, configured, steps

STEPS = 8
BATCH = 8


class Numbers(StreamSplit):
    """Part p yields p, p + parts, p + 2 parts, ..."""

    def read(self, part: int, seed: int, position: StreamPosition | None) -> Iterator[StreamItem]:
        count = 0 if position is None else position["count"]
        while True:
            value = part + self.parts * count
            count += 1
            yield StreamItem(value, {"count": count})

    def collate(self, items: Any, numbers: Any) -> Batch:
        return Batch(torch.tensor(items, dtype=torch.float32)[:, None], torch.zeros(len(items), dtype=torch.int64))


def loader(
    split: StreamSplit,
    *,
    start: int = 0,
    positions: Positions | None = None,
    workers: int = 0,
    rank: int = 0,
    world: int = 1,
    micro_batches: int = 1,
    weighted: bool = False,
) -> StreamLoader:
    layout = Layout(1, 40, BATCH, micro_batches, rank, world)
    dataset = StreamBatches(split, layout, Classify(), weighted=weighted)
    dataset.seek(positions or {}, start)
    made = training_loader(
        dataset, start=start, stop=STEPS, workers=workers, pin=False, timeout=60, loader_class=StreamLoader
    )
    assert isinstance(made, StreamLoader)
    return made


def values(batches: Any, micro_batches: int = 1) -> list[list[float]]:
    """Return the samples of each step, sorted: micro-batches and processes divide a step among them."""
    each = [batch.inputs[:, 0].tolist() for batch in batches]
    return [sorted(chain(*each[at : at + micro_batches])) for at in range(0, len(each), micro_batches)]


@pytest.mark.parametrize(("nodes", "node_workers", "workers"), [(1, 1, 0), (4, 1, 2), (2, 2, 0), (2, 2, 2), (1, 2, 3)])
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_a_step_has_the_same_samples_with_any_workers_and_micro_batches(
    nodes: int, node_workers: int, workers: int
) -> None:
    split = Numbers(40, nodes, node_workers)
    expected = []
    taken = [0] * split.parts
    for step in range(STEPS):
        samples = []
        for node in range(nodes):
            part = node * node_workers + step % node_workers
            samples += [part + split.parts * count for count in range(taken[part], taken[part] + BATCH // nodes)]
            taken[part] += BATCH // nodes
        expected.append(sorted(samples))
    assert values(loader(split, workers=workers)) == expected
    assert values(loader(split, workers=workers, micro_batches=2), micro_batches=2) == expected


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("nodes", "world"), [(2, 2), (4, 2), (1, 2), (2, 4)])
def test_processes_read_disjoint_shares_and_as_many_batches(nodes: int, world: int, weighted: bool) -> None:
    split = Numbers(40, nodes, 1)
    whole = values(loader(split))
    shares = [values(loader(split, rank=rank, world=world, weighted=weighted)) for rank in range(world)]
    assert {len(share) for share in shares} == {STEPS}
    for step, divided in zip(whole, zip(*shares, strict=True), strict=True):
        assert {len(share) for share in divided} == {BATCH // world}
        assert sorted(chain(*divided)) == step
    # Nothing is read twice where the nodes divide among the processes.
    read = [set(loader(split, rank=rank, world=world).dataset.parts) for rank in range(world)]
    assert (sum(map(len, read)) == nodes) == (nodes % world == 0)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop", [1, 3, 4])
def test_the_position_is_of_what_was_trained_on_not_of_what_was_read_ahead(workers: int, stop: int) -> None:
    split = Numbers(40, 2, 2)
    whole = values(loader(split))
    first = loader(split, workers=workers)
    # One batch more than was trained on, as Lightning takes it; workers read up to four steps more.
    assert values(islice(iter(first), stop + 1)) == whole[: stop + 1]
    rest = loader(split, start=stop, positions=first.positions(stop), workers=2 - workers)
    assert values(rest) == whole[stop:]
    first.close()


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 4)])
def test_a_run_goes_on_with_other_processes(before: int, after: int) -> None:
    split = Numbers(40, 4, 2)
    whole = values(loader(split))
    positions: Positions = {}
    for rank in range(before):
        stopped = loader(split, rank=rank, world=before)
        assert len(list(islice(iter(stopped), 5))) == 5
        positions |= stopped.positions(5)
    shares = [values(loader(split, start=5, positions=positions, rank=rank, world=after)) for rank in range(after)]
    assert [sorted(chain(*divided)) for divided in zip(*shares, strict=True)] == whole[5:]


def test_what_does_not_suit_a_stream_is_refused_or_said() -> None:
    with pytest.raises(UserError, match=r"data\.nodes=3: data\.batch_size=8 samples do not divide among them"):
        check_stream(Numbers(40, 3, 1), Layout(1, 40, BATCH))
    with pytest.raises(UserError, match=r"trainer\.overfit=2 repeats batches"):
        check_stream(Numbers(40, 1, 1), Layout(1, 40, BATCH, overfit=2))
    grown = Layout(1, 40, BATCH, growth=Growth(Ramp(2, BATCH, 4), Ramp(1, 1, 0)))
    with pytest.raises(UserError, match=r"data\.nodes=4: the 2 samples of the first steps do not divide among them"):
        check_stream(Numbers(40, 4, 1), grown)
    assert not stream_remarks(loader(Numbers(40, 2, 2), world=2).dataset, 2)
    remarks = stream_remarks(loader(Numbers(40, 1, 1), world=2).dataset, 2)
    assert "each of 2 processes reads the whole stream" in remarks[0]
    assert "each of 2 loader workers reads all" in remarks[1]
    with pytest.raises(UserError, match=r"data\.nodes=2 .* has an index and needs no parts"):
        OwnDataset(train=own_data.Squares, nodes=2).load(Byte())


@pytest.mark.parametrize("workers", [0, 2])
def test_an_iterable_dataset_of_a_user_goes_on_where_it_was(workers: int) -> None:
    """It has 12 samples, so that a step and a half is an epoch, and parts of it end inside a step."""
    options: dict[str, Any] = {"validation": own_data.Stream, "test": own_data.Stream, "train_size": 12}
    split = OwnDataset(train=own_data.Stream, nodes=2, **options).load(Byte()).train
    assert isinstance(split, StreamSplit)

    def numbers(batches: Any) -> list[list[float]]:
        return [batch.inputs[:, 0, 0, 0].tolist() for batch in batches]

    whole = numbers(loader(split))
    assert whole[:3] == [[0, 1, 2, 3, 4, 5, 6, 7], [8, 9, 10, 11, 0, 1, 2, 3], [4, 5, 6, 7, 8, 9, 10, 11]]
    stopped = loader(split, workers=workers)
    assert numbers(islice(iter(stopped), 5)) == whole[:5]
    assert numbers(loader(split, start=5, positions=stopped.positions(5), workers=workers)) == whole[5:]
    stopped.close()


# -- files, read by the library --------------------------------------------------------------------


def write(folder: Path, files: int = 4, rows: int = 6) -> Path:
    folder.mkdir(exist_ok=True)
    for name, count in (("train", files), ("val", 1), ("test", 1)):
        for file in range(count):
            lines = [json.dumps({"text": f"<{name} {file}.{row} " + "ab" * row + ">", "n": row}) for row in range(rows)]
            (folder / f"{name}-{file}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def as_parquet(folder: Path) -> None:
    """Write the files as Parquet, in groups of two rows."""
    import pyarrow as pa
    from pyarrow import parquet

    for file in folder.glob("*.jsonl"):
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        parquet.write_table(pa.Table.from_pylist(rows), file.with_suffix(".parquet"), row_group_size=2)
        file.unlink()


def streamed(folder: Path, **options: Any) -> Any:
    from blockyard.data.hf_stream import HuggingFaceStream

    settings = {"path": str(folder), "context": 10, "train_size": 40, "shuffle_buffer": 0} | options
    return HuggingFaceStream(**settings)


def test_parts_are_those_of_the_library(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    from datasets.distributed import split_dataset_by_node

    folder = write(tmp_path / "files")
    files = sorted(str(file) for file in folder.glob("train-*"))
    library = datasets.load_dataset("json", data_files={"train": files}, split="train", streaming=True)
    for nodes, node_workers in ((1, 1), (2, 2), (3, 1)):
        train = streamed(folder, nodes=nodes, node_workers=node_workers).load(Byte()).train
        for part in range(train.parts):
            expected = [row["text"] for row in split_dataset_by_node(library, part, train.parts)]
            count = len(expected)
            texts = [text for text, _ in islice(train.texts(part, 0, None), 2 * count)]
            assert texts == 2 * expected
            window = [item.sample.tokens for item in islice(train.read(part, 0, None), 5)]
            joined = torch.tensor(Byte().encode("".join(expected)))
            torch.testing.assert_close(torch.tensor([each.tolist() for each in window]), joined.unfold(0, 11, 10)[:5])


# Nodes that divide the files or the rows; no blocks, some and one; a file of one chunk and of two.
@pytest.mark.parametrize(
    ("nodes", "buffer", "parquet"),
    [(1, 0, True), (2, 0, False), (3, 0, True), (1, 4, False), (2, 4, True), (3, 100, False)],
)
def test_every_position_goes_on_with_the_same_sequences(tmp_path: Path, parquet: bool, nodes: int, buffer: int) -> None:
    pytest.importorskip("datasets")
    folder = write(tmp_path / "files", rows=3)
    if parquet:
        as_parquet(folder)
    train = streamed(folder, nodes=nodes, shuffle_buffer=buffer).load(Byte()).train
    count = 40 // nodes  # an epoch and a half
    items = list(islice(train.read(nodes - 1, 5, None), count))
    for number in range(0, count, 3):
        position = json.loads(json.dumps(items[number].position))
        # The position after a resume may be another one of the library's, and is resumed from as well.
        for item, expected in zip(_resumed_often(train, nodes - 1, position), items[number + 1 :], strict=False):
            assert item.sample.tokens.tolist() == expected.sample.tokens.tolist()
    epochs = [item.position["text"] and item.position["text"]["epoch"] for item in items]
    assert epochs[-1] >= 1


def _resumed_often(train: Any, part: int, position: StreamPosition) -> Iterator[StreamItem]:
    """Yield some samples, with a resume after each third one."""
    for _ in range(5):
        for item in islice(train.read(part, 5, position), 3):
            yield item
        position = item.position


def test_a_shuffled_epoch_has_every_text_once_in_another_order(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    train = streamed(write(tmp_path / "files"), shuffle_buffer=5).load(Byte()).train
    texts = [text for text, _ in islice(train.texts(0, 1, None), 48)]
    others = [text for text, _ in islice(train.texts(0, 2, None), 24)]
    first, second = texts[:24], texts[24:]
    assert len(set(first)) == 24
    assert sorted(first) == sorted(second) == sorted(others)
    assert first != second
    assert first != others


def test_texts_are_kept_apart(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    data = streamed(write(tmp_path / "files"), packed=True)
    splits = data.load(Byte())
    batch = splits.train.batch(torch.arange(4), None)
    assert batch.segment is not None
    text = "".join(chr(token) for token in batch.inputs[1].tolist())
    assert [text[at] for at in range(11) if batch.segment[1, at] > batch.segment[1, at - 1] and at] == ["<"]
    validation = splits.validation.batch(torch.arange(len(splits.validation)), None)
    assert validation.inputs.shape[1] == 11
    assert data.spec.packed


def read_last_part(data: Any) -> None:
    train = data.load(Byte()).train
    next(train.read(train.parts - 1, 0, None))


def test_bad_files_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    from blockyard.tokenizer.char import Char

    folder = write(tmp_path / "files")
    for options, message in (
        ({"text": "body"}, r"train-0\.jsonl has no column body; set data\.text to one of text, n"),
        ({"text": "n"}, r"column n has a int, '0'; texts are read"),
        ({"train_size": None}, r"data\.train_size is not set, and a stream has no length"),
        ({"path": str(folder / "train-*")}, r"no file is there for validation and test"),
        ({"path": str(tmp_path / "none")}, r"no files at .*none"),
        ({"context": 5000}, r"the validation files have \d+ tokens, and these need 5001"),
        ({"nodes": 8, "node_workers": 8}, r"part 63 of 64 has no text"),
    ):
        with pytest.raises(UserError, match=message):
            read_last_part(streamed(folder, **options))
    with pytest.raises(UserError, match="Char learns its vocabulary from all training texts"):
        streamed(folder).load(Char())
    (folder / "more.jsonl").write_text("{}\n", encoding="utf-8")
    assert "does not say its split" in streamed(folder).missing()
    (folder / "more.jsonl").rename(folder / "train-9.txt")
    assert "files left out" not in (streamed(folder).missing() or "")
    (folder / "train-0.jsonl").write_text("no json\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"train-0\.jsonl cannot be streamed"):
        streamed(folder).load(Byte())


def test_the_fingerprint_is_of_the_files(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    prints = []
    for name, count in (("a", 6), ("b", 6), ("c", 5)):
        data = streamed(write(tmp_path / name, rows=count))
        data.load(Byte())
        prints.append(data.fingerprint())
    assert prints[0] == prints[1] != prints[2]


# -- runs ------------------------------------------------------------------------------------------

OWN = (
    *(*ON_CPU, *ONE_LAYER, *steps(12, 8), *ONE_BATCH, "trainer.log_every=1", "data=dataset", "data.train_size=40"),
    *(f"data.{name}._target_=tests.support.own_data.Stream" for name in ("train", "validation", "test")),
    *("data.batch_size=8", "data.nodes=2", "tokenizer=patch", "tokenizer.size=4", "allow=[tests]"),
)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stopped_run_of_files_has_the_bits_of_one_that_was_not(tmp_path: Path, workers: int) -> None:
    pytest.importorskip("datasets")
    overrides = (
        *(*ON_CPU, *ONE_LAYER, *DECODER, *steps(12, 8), *ONE_BATCH, "trainer.log_every=1", "trainer.accumulate=2"),
        *("data=hf_stream", f"data.path={write(tmp_path / 'files')}", "data.context=8", "data.train_size=40"),
        *("data.batch_size=8", "data.nodes=2", "data.shuffle_buffer=5", "tokenizer=byte", "position=learned"),
    )
    whole = run(tmp_path / "whole", base=overrides)
    with_workers = (*overrides, f"trainer.num_workers={workers}")

    def stopped() -> int:
        engine_runs.signal_after(5, signal.SIGTERM)
        with engine_runs.folder(tmp_path / "stopped", base=with_workers) as run_folder:
            return train(run_folder)

    assert forked(stopped) == 143
    resumed = run(tmp_path / "stopped", base=with_workers)
    assert resumed.facts()["data"]["fingerprint"] == whole.facts()["data"]["fingerprint"]
    engine_runs.assert_same_bits(resumed, whole)


def test_two_processes_follow_one_and_go_on_as_one(tmp_path: Path) -> None:
    one = run(tmp_path / "one", base=OWN)
    base = (*(override for override in OWN if not override.startswith("trainer=")), "trainer.timeout=60")
    first = ranks.two(tmp_path / "two", "ddp", "trainer.accelerator=cpu", "trainer.devices=2", base=base)

    def stopped() -> int:
        engine_runs.signal_after(5, signal.SIGTERM)
        return first()

    assert forked(stopped) == 143
    two = ranks.only_run(tmp_path / "two")
    assert two.identity == one.identity
    with reopen(two.path, ["trainer.devices=1", "trainer.strategy=auto", "allow=[tests]"]) as run_folder:
        assert train(run_folder, resume=True) == 0
    for left, right in zip(rows(two), rows(one), strict=True):
        assert left == pytest.approx(right, rel=1e-4)


def test_what_takes_samples_by_their_index_refuses_a_stream(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    members = {name: streamed(write(tmp_path / name)) for name in ("a", "b")}
    with pytest.raises(UserError, match=r"data\.parts: a is a stream, and a mixture takes samples by their index"):
        Mixture(parts={"a": "hf_stream", "b": "hf_stream"}, members=members).load(Byte())
    config, _ = configured(*ON_CPU, *ONE_LAYER, "data=digits")
    components = Components(config)
    with pytest.raises(UserError, match=r"a plain Trainer reads batches by their number"):
        TrainerData(components, members["a"].load(Byte())).train_dataloader()
