"""Files of molecules: read as written, split, codes of what training lacks, and what is refused."""

from __future__ import annotations

import gzip
import json
import math
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from blockyard.cli import main
from blockyard.contracts import Batch, Splits
from blockyard.data.files import molecules
from blockyard.data.files.graph import Graph
from blockyard.data.files.molecules import Widths, parse
from blockyard.data.molecules import Molecules
from blockyard.data.splits.graphs import graph_key
from blockyard.errors import UserError
from blockyard.tokenizer.char import Char
from blockyard.tokenizer.nodes import Nodes
from tests.support.molecule_files import PARTS, molecule, write_molecules
from tests.support.tolerances import FLOAT32_STEPS


def read(path: Path, **options: Any) -> Splits:
    return Molecules(path=str(path), **options).load(Nodes())


def write(path: Path, *records: Any) -> Path:
    """A file with these records after 12 sound ones, from line 13 on; texts are written as they are."""
    draws = np.random.default_rng(0)
    lines = [molecule(draws, number) for number in range(12)]
    path.write_text("".join(f"{r if isinstance(r, str) else json.dumps(r)}\n" for r in [*lines, *records]))
    return path


def test_molecules_are_read_as_written(tmp_path: Path) -> None:
    path = write_molecules(tmp_path / "x.graphs.jsonl")
    zipped = tmp_path / "x.graphs.jsonl.gz"
    zipped.write_bytes(gzip.compress(path.read_bytes()))
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for file in (path, zipped):
        tokenizer = Nodes()
        splits = Molecules(path=str(file)).load(tokenizer)
        state = tokenizer.state()
        for split, name in zip(splits, ("train", "val", "test"), strict=True):
            mine = [record for record in records if record["split"] == name]
            batch = split.batch(torch.arange(len(split)), None)
            assert len(split) == len(mine)
            assert_close(
                (batch.target.double() * split.std + split.mean)[:, 0],
                torch.tensor([record["y"][0] for record in mine]).double(),
                **FLOAT32_STEPS,
            )
            for number, record in enumerate(mine):
                count = len(record["atoms"])
                assert batch.lengths[number] == count
                for node, atom in enumerate(record["atoms"]):
                    codes = batch.inputs[number, node, :2].tolist()
                    assert codes == [state["nodes"][c].index(value) + 1 for c, value in enumerate(atom)]
                for i, j, *kind in record["bonds"]:
                    code = state["edges"].index(kind) + 2
                    assert batch.pairs[number, i, j, :2].tolist() == batch.pairs[number, j, i, :2].tolist() == [1, code]


def test_values_that_training_lacks_are_unseen(tmp_path: Path) -> None:
    strange = {"atoms": [[99, 0], [6, 0]], "bonds": [[0, 1, 3, 0]], "y": [1.0], "split": "test"}
    test = read(write(tmp_path / "x.jsonl", strange)).test
    batch = test.batch(torch.tensor([len(test) - 1]), None)
    assert batch.inputs[0, 0].tolist()[0] == 0
    assert batch.inputs[0, 1].tolist()[0] > 0
    assert batch.pairs[0, 0, 1, :2].tolist() == [1, 1]


def test_a_saved_tokenizer_gives_the_same_codes(tmp_path: Path) -> None:
    path, first, second = write_molecules(tmp_path / "x.jsonl"), Nodes(), Nodes()
    data = Molecules(path=str(path))
    train = data.load(first).train
    second.load_state(json.loads(json.dumps(first.state())))
    again = data.load(second).train
    assert torch.equal(train.nodes, again.nodes)
    assert torch.equal(train.pairs, again.pairs)
    assert first.spec(data.spec) == second.spec(data.spec)
    with pytest.raises(ValueError, match="not the saved state of tokenizer=nodes"):
        second.load_state({"nodes": [["a"]], "edges": []})


def test_gaps_among_several_targets(tmp_path: Path) -> None:
    samples = [{"atoms": [[6]], "bonds": [], "y": [n, None if n % 3 else 2 * n], "split": s}
            for n, s in enumerate(["train"] * 9 + ["val"] * 3 + ["test"] * 3)]  # fmt: skip
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join(map(json.dumps, samples)))
    train = read(path).train
    assert train.target.isnan().tolist() == [[False, n % 3 != 0] for n in range(9)]
    assert_close(train.mean, torch.tensor([4.0, 6.0]).double())


def test_splits_are_named_drawn_or_in_a_table(tmp_path: Path) -> None:
    rows = [
        {"smiles": "C" * (n + 1), "atoms": [[n]], "bonds": [], "y": [n], "scaffold_split": "train"} for n in range(20)
    ]
    rows[1] |= {"atoms": [[6], [6]], "bonds": [[0, 1, 2]]}  # the first bond tells how many numbers a bond has
    rows[3]["scaffold_split"], rows[4]["scaffold_split"] = "valid", "test"
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    assert [len(split) for split in read(path, split="scaffold_split")] == [18, 1, 1]
    drawn = read(path, split=None)
    assert [len(split) for split in drawn] == [16, 2, 2]
    assert not torch.equal(drawn.test.target, read(path, split=None, split_seed=1).test.target)
    table = tmp_path / "x.csv"
    named = [*["train"] * 10, *["val"] * 5, *["test"] * 5]
    table.write_text("\n".join(["smiles,split", *(f"{'C' * (n + 1)},{name}" for n, name in enumerate(named))]))
    assert [len(split) for split in read(path, splits=str(table))] == [10, 5, 5]
    with pytest.raises(
        UserError, match=r"no line names a split \(it has no split\); use data.split=NAME, data.splits="
    ):
        read(path)
    table.write_text("smiles,split\nC,train\nC,test\n")
    with pytest.raises(UserError, match="line 3: 'C' is of split test here and train before"):
        read(path, splits=str(table))
    table.write_text("smiles,split\nC,train\n")
    with pytest.raises(UserError, match=r"19 lines cannot be used\n  line 2: smiles 'CC' is not in .*x.csv\n"):
        read(path, splits=str(table))
    with pytest.raises(ValueError, match="leave one out"):
        Molecules(split=None, splits="x.csv")


def renumbered(record: dict[str, Any], seed: int) -> dict[str, Any]:
    """The same graph, with its nodes and bonds in another order and another target."""
    order = np.random.default_rng(seed).permutation(len(record["atoms"])).tolist()
    bonds = [[order.index(j), order.index(i), *codes] for i, j, *codes in reversed(record["bonds"])]
    return {**record, "atoms": [record["atoms"][i] for i in order], "bonds": bonds, "y": [seed]}


def test_equal_graphs_have_one_key_and_others_do_not() -> None:
    """The key is that of a graph, not of its numbering; each code and each bond counts."""
    widths = Widths(2, 2, 1)
    draws = np.random.default_rng(1)
    for seed in range(20):
        record = molecule(draws)
        key = graph_key(parse(record, widths))
        assert key == graph_key(parse(renumbered(record, seed), widths))
        assert key != graph_key(parse({**record, "atoms": [[9, 9], *record["atoms"][1:]]}, widths))
        assert key != graph_key(
            parse({**record, "bonds": [[*record["bonds"][0][:2], 9, 9], *record["bonds"][1:]]}, widths)
        )
        assert key != graph_key(parse({**record, "bonds": record["bonds"][1:]}, widths))
    ring = [[i, i + 1] for i in range(5)] + [[0, 5]]
    fused = ring + [[i, i + 1] for i in range(5, 9)] + [[0, 9]]  # decalin
    joined = [[i, i + 1] for i in range(4)] + [[i, i + 1] for i in range(5, 9)] + [[0, 4], [5, 9], [0, 5]]
    keys = {graph_key(Graph(np.zeros((10, 1)), np.array(b), np.zeros((11, 0)), [0.0])) for b in (fused, joined)}
    assert len(keys) == 2


def test_equal_graphs_stay_in_one_drawn_split(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    draws = np.random.default_rng(0)
    records = [molecule(draws, number) for number in range(30)]
    path = written(tmp_path / "x.jsonl", [*records, *(renumbered(record, n) for n, record in enumerate(records))])
    for seed in range(5):
        parts = Molecules(path=str(path), split=None, split_seed=seed).read()
        assert [len(part) for part in parts] == [48, 6, 6]
        keys = [{graph_key(graph) for graph in part} for part in parts]
        assert len(set.union(*keys)) == sum(map(len, keys)) == 30
    assert "30 of 60 molecules repeat an earlier one; they stay in its split" in caplog.text
    assert "occur in" not in caplog.text

    alone = written(tmp_path / "alone.jsonl", records)  # without equal ones they are drawn as they always were
    test = Molecules(path=str(alone), split=None).read().test
    assert [round(graph.target[0], 1) for graph in test] == [10.2, 5.0, 8.1]
    with pytest.raises(UserError, match=r"no molecule of the validation split; use more molecules, or another share"):
        read(written(tmp_path / "few.jsonl", records[:3]), split=None)


def test_equal_graphs_in_several_named_splits_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    draws = np.random.default_rng(0)
    records = [molecule(draws, number) for number in range(20)]  # of which 10 are of train, 5 of val, 5 of test
    again = [{**renumbered(records[0], 1), "split": "test"}, {**renumbered(records[1], 2), "split": "val"}]
    read(written(tmp_path / "x.jsonl", [*records, *again, {**records[4], "y": [3]}]))
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == [
        "1 of 6 validation molecules occur in the training split too",
        "1 of 6 test molecules occur in the training split too",
    ]


SOUND = {"atoms": [[6, 0], [8, 0], [6, 1]], "bonds": [[0, 1, 1, 0], [1, 2, 1, 0]], "y": [1.0], "split": "train"}


BAD = [
    ("{", "not JSON"),
    ('{"atoms": [[6, 0]], "bonds": [], "y": [1.0], "y": [2.0]}', "the key 'y' is there twice"),
    ("[1]", r"\[1\] is not an object with atoms, bonds and y"),
    ({"atoms": [[6, 0]]}, "it has no bonds, y"),
    ({"atoms": []}, "it has no atom"),
    ({"atoms": [[6, 0], [8]]}, r"atoms: \[8\] has 1 numbers, the first has 2"),
    ({"atoms": [[6, 0], [8, 0.5], [6, 1]]}, r"atoms: \[8, 0.5\] is not a list of whole numbers"),
    ({"atoms": [[6, True], [8, 0], [6, 1]]}, "is not a list of whole numbers"),
    ({"bonds": [[0, 1, 1, 0], [1, 3, 1, 0]]}, r"bond \[1, 3\] joins an atom that is not there; atoms are 0 to 2"),
    ({"bonds": [[0, 1, 1, 0], [-1, 2, 1, 0]]}, r"bond \[-1, 2\] joins an atom that is not there"),
    ({"bonds": [[0, 1, 1, 0], [2, 2, 1, 0]]}, r"bond \[2, 2\] joins an atom with itself"),
    (
        {"bonds": [[0, 1, 1, 0], [1, 2, 1, 0], [1, 0, 2, 0]]},
        r"bond \[0, 1\] has the codes \[1, 0\] and \[2, 0\] in its two directions; bonds have no direction",
    ),
    (
        {"bonds": [[0, 1, 1, 0], [1, 2, 1, 0], [0, 1, 1, 0]]},
        r"bond \[0, 1\] is there 2 times; write it once, or once in each direction",
    ),
    ({"bonds": [[0, 1, 1, 0]]}, "its atoms are in 2 parts that no bond joins; data.disconnected=keep"),
    ({"atoms": [[6, 0]] * 20, "bonds": [[n, n + 1, 1, 0] for n in range(19)]}, "20 atoms, more than data.max_nodes=12"),
    ({"y": [None]}, "y has no value; leave the line out"),
    ({"y": ["high"]}, "y: 'high' is not a number"),
    ({"y": [1, 2]}, "y has 2 values, the first has 1"),
    ({"split": "fit"}, "split: 'fit'; allowed: train, val"),
]


@pytest.mark.parametrize(("change", "message"), BAD, ids=[message[:30] for _, message in BAD])
def test_a_bad_line_is_refused_by_its_number(tmp_path: Path, change: Any, message: str) -> None:
    path = write(tmp_path / "x.jsonl", SOUND, change if isinstance(change, str) else {**SOUND, **change})
    if isinstance(change, dict) and "atoms" in change and len(change) == 1 and len(change["atoms"]) == 1:
        path = write(tmp_path / "x.jsonl", SOUND, change)
    with pytest.raises(UserError, match=f"x.jsonl: 1 line cannot be used\n  line 14: .*{message}"):
        read(path, max_nodes=12)


def test_all_bad_lines_are_told_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "x.jsonl", "{", "[]")
    assert main(["train", "experiment=molecules", f"data.path={path}", f"outputs={tmp_path}", "logger=none"]) == 2
    message = capsys.readouterr().err
    assert "2 lines cannot be used" in message
    assert "line 13: not JSON" in message
    assert "line 14: [] is not an object" in message


def test_of_many_bad_lines_the_first_are_told(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", *(["{"] * 1200))
    with pytest.raises(UserError) as caught:
        read(path)
    lines = str(caught.value).splitlines()
    assert lines[0].endswith("1,200 lines cannot be used")
    assert [line.strip() for line in lines[-2:]] == [f"line 22: {lines[1].partition(': ')[2]}", "and 1,190 more"]
    assert len(lines) == 12


def test_an_edge_in_both_directions_is_one_edge(tmp_path: Path) -> None:
    """As the edge_index of PyTorch Geometric has it, in any order."""
    draws = np.random.default_rng(0)
    once = [molecule(draws, number) for number in range(20)]
    both = [{**record, "bonds": [*record["bonds"], *((j, i, *c) for i, j, *c in record["bonds"])]} for record in once]
    one, other = (read(written(tmp_path / "x.jsonl", records)) for records in (once, both))
    for split, same in zip(one, other, strict=True):
        assert torch.equal(split.nodes, same.nodes)  # degrees among them
        assert torch.equal(split.pairs, same.pairs)


def test_a_label_that_no_line_has_is_one_message(tmp_path: Path) -> None:
    """The values of a list have no names, which the message says once, whatever the number of lines."""
    path = written(tmp_path / "x.jsonl", [{**SOUND, "y": [1.0, 9.15], "split": part} for part in PARTS * 20])
    expected = (
        f"{path}: no line has active; the first has atoms, bonds, y, split. Its y is a list of 2 values without names: "
        'write one under its name, such as "active": 1.0, or set neither data.label nor data.values, which predicts '
        "all of them as real values"
    )
    for options in ({"label": "active"}, {"label": ("active",)}, {"values": ("active",)}):
        with pytest.raises(UserError) as caught:
            read(path, **options)
        assert str(caught.value) == expected
    with pytest.raises(UserError, match=r"no line has active; the first has atoms, bonds, y, split$"):
        read(written(tmp_path / "one.jsonl", [{**SOUND, "y": 1.0}] * 3), label="active")


def test_parts_that_no_bond_joins_may_be_kept(tmp_path: Path) -> None:
    salt = {**SOUND, "bonds": [[0, 1, 1, 0]], "split": "test"}
    test = read(write(tmp_path / "x.jsonl", salt), disconnected="keep").test
    assert test.pairs[-1, 0, 2].tolist() == [255, 0, 0, 0, 0, 0]


def test_a_target_must_vary(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join(json.dumps({**SOUND, "split": part}) for part in ("train", "train", "val", "test")))
    with pytest.raises(ValueError, match="target 1 has one value or none in the training split"):
        read(path)


def test_other_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_molecules(tmp_path / "x.jsonl")
    with pytest.raises(ValueError, match="graphs need a tokenizer of graphs, not Char"):
        Molecules(path=str(path)).load(Char())
    assert "set data.path=FILE" in str(Molecules(path=str(tmp_path / "no.jsonl")).missing())
    assert "set data.splits=FILE" in str(Molecules(path=str(path), splits=str(tmp_path / "no.csv")).missing())
    with pytest.raises(ValueError, match=r"data.values and data.label both say what is predicted"):
        Molecules(path=str(path), values=("a",), label="b")
    with pytest.raises(ValueError, match=r"names a label twice"):
        Molecules(path=str(path), label=("b", "b"))
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(UserError, match="has no molecule; a line for each"):
        read(tmp_path / "empty.jsonl")
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(path.read_bytes())[:-9])
    with pytest.raises(UserError, match=r"x.jsonl.gz cannot be read"):
        read(tmp_path / "x.jsonl.gz")
    (tmp_path / "x.csv").write_text("smiles,y\nC,1\n")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install 'blockyard[molecules]'" in str(Molecules(path=str(tmp_path / "x.csv")).missing())


LABELLED = [
    {**SOUND, "y": None, "logp": 0.5 * n, "kind": "acid" if n % 3 else "base", "toxic": n % 2, "active": n % 4 == 0}
    | {"split": ("train", "train", "val", "test")[n % 4]}
    for n in range(12)
]


def written(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_class_is_read_from_a_key(tmp_path: Path) -> None:
    path = written(tmp_path / "x.jsonl", LABELLED)
    data = Molecules(path=str(path), label="kind")
    assert (data.spec.target, data.spec.classes, data.spec.class_names) == ("class", 2, ("acid", "base"))
    splits = data.load(Nodes())
    assert [part.target.tolist() for part in splits] == [
        [int(LABELLED[n]["kind"] == "base") for n in range(12) if n % 4 in kept] for kept in ((0, 1), (2,), (3,))
    ]
    written(path, [*LABELLED, {**LABELLED[0], "kind": None}])
    with pytest.raises(UserError, match="1 line cannot be used\n  line 13: it has no kind"):
        Molecules(path=str(path), label="kind").load(Nodes())


def test_a_class_that_training_lacks_is_refused(tmp_path: Path) -> None:
    molecules = [{**row, "kind": "salt"} if n == 3 else row for n, row in enumerate(LABELLED)]
    with pytest.raises(UserError, match="no training sample has the class salt"):
        Molecules(path=str(written(tmp_path / "x.jsonl", molecules)), label="kind").load(Nodes())


def test_fewer_molecules_keep_the_share_of_each_class(tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    lines = [
        {**molecule(draws, n), "kind": "ab"[n % 10 == 9], "split": ("train", "val", "test")[n // 80]}
        for n in range(100)
    ]
    lines += [{**lines[n], "split": "test"} for n in (0, 9)]
    path = str(written(tmp_path / "x.jsonl", lines))
    for size in (10, 20, 40):
        data = Molecules(path=path, label="kind", train_size=size)
        assert data.load(Nodes()).train.target.bincount().tolist() == [9 * size // 10, size // 10]


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    plain = write(tmp_path / "x.jsonl").read_text()
    (tmp_path / "x.jsonl").write_text("\ufeff" + plain)
    assert len(read(tmp_path / "x.jsonl").train)


def test_several_labels_and_chosen_values_are_read_from_keys(tmp_path: Path) -> None:
    """Labels stay 0 and 1, and one that is not known is NaN; values are standardized by the training split."""
    lines = [{**line, "toxic": None if n == 4 else line["toxic"]} for n, line in enumerate(LABELLED)]
    path = written(tmp_path / "x.jsonl", lines)
    data = Molecules(path=str(path), label=("toxic", "active"))
    assert (data.spec.target, data.spec.classes, data.spec.class_names) == ("labels", 2, ("toxic", "active"))
    train = data.load(Nodes()).train
    expected = [[math.nan if n == 4 else n % 2, float(n % 4 == 0)] for n in range(12) if n % 4 < 2]
    torch.testing.assert_close(train.target, torch.tensor(expected), equal_nan=True)
    values = Molecules(path=str(path), values=("logp",))
    assert values.spec.values == (1,)
    train = values.load(Nodes()).train
    logp = torch.tensor([0.5 * n for n in range(12) if n % 4 < 2])
    torch.testing.assert_close(train.target[:, 0], (logp - logp.mean()) / logp.std(correction=0))
    written(path, [*LABELLED, {**LABELLED[0], "toxic": 2}])
    with pytest.raises(UserError, match="line 13: toxic: 2 is neither 0 nor 1"):
        Molecules(path=str(path), label=("toxic", "active")).load(Nodes())


ESOL = ("molecules/esol_delaney.graphs.jsonl.gz", "molecules/esol_delaney.csv")


@pytest.mark.full
@pytest.mark.shared_data
def test_esol_as_it_is_shipped(shared_data: Path) -> None:
    path, table = (str(shared_data / name) for name in ESOL)
    train, validation, test = Molecules(path=path, splits=table).load(Nodes())
    assert [len(train), len(validation), len(test)] == [872, 121, 124]
    error = float((test.target.double() * test.std).square().mean().sqrt())
    assert abs(error - 1.918) < 1e-3
    assert [len(part) for part in read(Path(path), splits=table, split="scaffold_split")] == [893, 111, 113]


@pytest.mark.shared_data
def test_rdkit_gives_the_graphs_of_the_file(shared_data: Path) -> None:
    """The table of SMILES and the lines of JSON are the same molecules."""
    pytest.importorskip("rdkit")
    path, table = (str(shared_data / name) for name in ESOL)
    read_lines = Molecules(path=path, splits=table).load(Nodes())
    read_table = Molecules(path=table).load(Nodes())
    for ours, theirs in zip(read_table, read_lines, strict=True):
        assert torch.equal(ours.target, theirs.target)
        order = torch.arange(min(100, len(ours)))
        for graph, other in zip(_pairs_of(ours.batch(order, None)), _pairs_of(theirs.batch(order, None)), strict=True):
            assert graph == other


def _pairs_of(batch: Batch) -> Iterator[list[list[int]]]:
    """What each graph's pairs of nodes are, with the codes of both, in an order that no numbering changes."""
    for nodes, pairs, count in zip(batch.inputs, batch.pairs, batch.lengths.tolist(), strict=True):
        one = nodes[:count, None].expand(-1, count, -1)
        both = torch.cat([one, one.transpose(0, 1), pairs[:count, :count].long()], -1)  # (N, N, 2 C + 2 + P)
        yield sorted(both.flatten(0, 1).tolist())


@pytest.fixture
def chains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads a SMILES as a chain of carbon atoms, without rdkit."""

    def chain(smiles: str, target: list[float]) -> Graph:
        atoms = np.array([[6, 1, 0, 3, 0, 0]] * len(smiles))
        ends = np.array([[n, n + 1] for n in range(len(smiles) - 1)], dtype=np.int64).reshape(-1, 2)
        return Graph(atoms, ends, np.ones_like(ends), target)

    library = SimpleNamespace(rdBase=SimpleNamespace(BlockLogs=nullcontext))
    monkeypatch.setitem(sys.modules, "rdkit", library)  # type: ignore[arg-type]
    monkeypatch.setattr(molecules, "unavailable", lambda: None)
    monkeypatch.setattr(molecules, "_graph", chain)


@pytest.mark.usefixtures("chains")
def test_classes_of_a_table_are_texts_as_those_of_other_tables(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kinds = ("01", "1", "NA", "None", "null", "na")
    lines = [f"{'C' * (n % 7 + 1)},{kinds[n % 6]},{('train', 'train', 'val', 'test')[n // 6 % 4]}" for n in range(48)]
    path = tmp_path / "x.csv"
    path.write_text("\n".join(["smiles,kind,split", *lines]))
    data = Molecules(path=str(path), label="kind")
    assert data.spec.class_names == tuple(sorted(kinds))
    train = data.load(Nodes()).train
    assert train.batch(torch.arange(24), None).target.bincount().tolist() == [4] * 6
    assert "has classes that look alike: 'NA' (8) and 'na' (8); write them alike" in caplog.text
    assert "it has the class NA, None, null, na" in caplog.text
    path.write_text("smiles,kind\n" + "".join(f"C,{kind}\n" for kind in ("1", "1.0", "0")))
    assert Molecules(path=str(path), label="kind").class_names == ("0", "1")


@pytest.mark.usefixtures("chains")
def test_targets_of_a_table_are_its_columns_of_numbers(tmp_path: Path) -> None:
    """A value may be missing as other tools write it; columns of two names are refused."""
    rows = [f"C{'C' * n},{n},{'NA' if n % 4 else n / 2},text,{'train' if n < 8 else 'val'}" for n in range(10)]
    path = tmp_path / "x.csv"
    path.write_text("\n".join(["smiles,a,b,c,split", *rows, "CC,1,,x,test"]))
    data = Molecules(path=str(path))
    assert data.spec.values == (2,)
    train = data.load(Nodes()).train
    assert train.target.isnan().tolist() == [[False, n % 4 != 0] for n in range(8)]
    path.write_text("smiles,a,a\nC,1,2\n")
    with pytest.raises(UserError, match="has several columns of the name 'a'; rename all but one"):
        Molecules(path=str(path)).load(Nodes())
    path.write_text("name, smiles\nC,1\n")
    with pytest.raises(UserError, match="has no column 'smiles'; it has 'name', ' smiles'"):
        Molecules(path=str(path)).load(Nodes())


def test_bad_smiles_are_told_by_line(tmp_path: Path) -> None:
    pytest.importorskip("rdkit")
    path = tmp_path / "x.csv"
    path.write_text("smiles,y,split\nCCO,1,train\n\nC1CC,2,train\nCC.O,3,train\nCC,,train\n,4,val\nCCC,5,test\n")
    with pytest.raises(UserError) as caught:
        Molecules(path=str(path)).load(Nodes())
    message = str(caught.value).splitlines()
    assert message[0].endswith("4 lines cannot be used")
    assert [line.split(":")[0].strip() for line in message[1:]] == ["line 4", "line 5", "line 6", "line 7"]
