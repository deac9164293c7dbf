"""Images, tokenizers, run folders, studies and texts from a stranger: named, bounded, never run, never markup."""

from __future__ import annotations

import copy
import csv as csv_module
import io
import json
import os
import re
import resource
import shutil
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
import pytest
import yaml

from blockyard.config.build import Components
from blockyard.errors import UserError
from blockyard.report.comparison import compare
from blockyard.report.load.document import read_document
from blockyard.report.page.document import render
from blockyard.report.render.csv import csv
from blockyard.report.render.latex import latex
from blockyard.report.render.markdown import markdown
from blockyard.report.render.terminal import show
from blockyard.runs.folder import RunFolder
from blockyard.runs.load import load
from blockyard.runs.start import create_run
from blockyard.sweep.cell import trial_store
from tests.battery import hostile_files, hostile_words
from tests.battery.cases import battery, cases
from tests.battery.peak_memory import in_child
from tests.battery.watched import nothing_happens
from tests.report.report_runs import sweep
from tests.support.engine_runs import text_run
from tests.support.every import every
from tests.support.image_files import write_images
from tests.support.tiny import UNTRAINED, configured

pytestmark = [battery("hostile_input"), pytest.mark.timeout(120), pytest.mark.xdist_group("hostile_files")]

IMAGES = hostile_files.bad_images()
CHECKPOINTS = hostile_files.checkpoints()
MEMORY = 600  # MiB that reading one small file may take
PATH_NAMES = [
    name for name in hostile_words.PATHS if "/" not in name and name != "." and "\0" not in name and len(name) < 200
][3:]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of few images."""
    root = tmp_path_factory.mktemp("pictures")
    write_images(root, {"train": 10, "test": 2})
    return root


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A finished run of text with a fitted tokenizer."""
    return text_run(tmp_path_factory.mktemp("trained"), "tokenizer=char", "trainer.max_steps=2")


@pytest.fixture
def foreign(trained: RunFolder, tmp_path: Path) -> Path:
    """A copy of the run, as it comes from elsewhere."""
    shutil.copytree(trained.path, tmp_path / "outputs" / "x-0" / "s0")
    return tmp_path / "outputs" / "x-0" / "s0"


@pytest.mark.parametrize("name", cases([*IMAGES], short=4))
@pytest.mark.sampled(3)
def test_image(name: str, pictures: Path, tmp_path: Path) -> None:
    root = tmp_path / "images"
    shutil.copytree(pictures, root)
    bad = root / "train" / "ant" / "003.png"
    IMAGES[name](bad)
    config, _ = configured(*UNTRAINED, "data=image_folder", f"data.root={root}", "data.size=8")

    def load_images() -> str:
        components = Components(config)
        with nothing_happens(tmp_path), pytest.raises(UserError, match=re.escape(str(bad))) as refusal:
            components.data.load(components.tokenizer)
        return str(refusal.value)

    message, taken = in_child(load_images)
    assert "\n" not in message
    assert taken < MEMORY


@pytest.mark.parametrize("shape", cases([(1, 300_000), (300_000, 1), (2, 3_000_000), (4_000, 4_000)], short=2))
def test_thin_and_large_images_take_bounded_memory(shape: tuple[int, int], tmp_path: Path) -> None:
    from PIL import Image

    from blockyard.data.files.images import decode_image

    Image.new("L", shape, 7).save(tmp_path / "x.png")

    def decode() -> str:
        pixels = decode_image(tmp_path / "x.png", channels=3, size=32)
        assert bool((pixels == 7).all())
        return str(tuple(pixels.shape))

    shape_of, taken = in_child(decode)
    assert shape_of == "(3, 32, 32)"
    assert taken < MEMORY


@pytest.mark.full
def test_memory_is_measured_from_where_the_work_begins() -> None:
    """What this process has used before hides nothing of what the work takes."""
    assert len(b"x" * (600 * 2**20))
    assert 290 < in_child(lambda: str(len(b"x" * (300 * 2**20))))[1] < 400


@contextmanager
def bounded_memory() -> Iterator[None]:
    """Let this process reserve 8 GiB more at most: what asks for more fails here, and not on the whole machine."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**33, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def refused(run: Path, root: Path) -> str:
    """The message of a run that cannot be rebuilt; nothing happens."""
    with bounded_memory(), nothing_happens(root), pytest.raises(UserError) as refusal:
        load(str(run), outputs=root / "outputs")
    return str(refusal.value)


@pytest.mark.parametrize("text", cases(hostile_files.TOKENIZERS, short=3, names=lambda text: text[:40]))
def test_tokenizer(text: str, foreign: Path, tmp_path: Path) -> None:
    (foreign / "tokenizer.json").write_text(text)
    message = refused(foreign, tmp_path)
    assert "tokenizer.json" in message or "best.ckpt" in message, message
    assert len(message) < 2_000


@pytest.mark.parametrize("kind", cases([*hostile_files.special_files()], short=1))
def test_special_file_for_a_tokenizer(kind: str, foreign: Path, tmp_path: Path) -> None:
    hostile_files.special_files()[kind](foreign / "tokenizer.json")
    assert "tokenizer.json" in refused(foreign, tmp_path)


@pytest.mark.parametrize("change", cases(hostile_files.CONFIGS, short=3, names=lambda change: repr(change)[:70]))
def test_config_of_a_run(
    change: tuple[str, Any], foreign: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path, text in hostile_words.PACKAGE.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    config = yaml.safe_load((foreign / "config.yaml").read_text())
    *path, key = change[0].split(".")
    node = config
    for part in path:
        node = node[part]
    node[key] = change[1]
    (foreign / "config.yaml").write_text(yaml.safe_dump(config))
    message = refused(foreign, tmp_path)
    assert str(foreign) in message
    assert "Traceback" not in message


@pytest.mark.parametrize("text", cases(hostile_files.WHOLE_CONFIGS, short=1, names=lambda text: repr(text[:40])))
def test_whole_config_of_a_run(text: str, foreign: Path, tmp_path: Path) -> None:
    (foreign / "config.yaml").write_text(text)
    assert str(foreign) in refused(foreign, tmp_path)


@pytest.mark.parametrize("name", cases([*CHECKPOINTS], short=2))
def test_checkpoint(name: str, foreign: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = foreign / "checkpoints" / "best.ckpt"
    path.unlink()  # it may be one file with last.ckpt
    path.write_bytes(b"")
    CHECKPOINTS[name](path)
    message, taken = in_child(lambda: refused(foreign, tmp_path))
    assert "best.ckpt" in message
    assert taken < MEMORY


@pytest.mark.parametrize("name", cases([*PATH_NAMES, "a%20b", "{x}", "{}", "%s", "a#b"], short=2, names=repr))
def test_study_in_a_folder_of_any_name(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    folder.mkdir()
    study = trial_store.open_study(folder, "arm", {"pruner": None}, "max")
    study.add_trial(optuna.trial.create_trial(value=1.0))
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (folder / trial_store.FILE).stat().st_size > 0
    assert len(trial_store.open_study(folder, "arm", {"pruner": None}, "max").trials) == 1


@pytest.mark.parametrize(
    "address",
    cases(
        [
            *(
                "",
                "x",
                "sqlite://",
                "sqlite:///",
                "sqlite:////etc/passwd",
                "sqlite:///../x.db",
                "sqlite+x:///search.db",
            ),
            *("postgresql://127.0.0.1/search.db", "mysql://127.0.0.1:1/search.db", "os.system:///search.db"),
            *("sqlite:////dev/zero", "file:///search.db", "sqlite:///:memory:", "sqlite:///file:x?mode=memory"),
        ],
        short=1,
        names=repr,
    ),
)
def test_address_of_another_database(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with nothing_happens(tmp_path), pytest.raises(UserError, match=r"is not the search\.db"):
        trial_store.storage(address)


@pytest.mark.parametrize(
    "name", cases([*hostile_files.TEXTS, *hostile_words.PATHS], short=3, names=lambda n: repr(n)[:50])
)
def test_name_of_a_run_stays_below_outputs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config, choices = configured(*UNTRAINED)
    config = copy.deepcopy(config) | {"name": name, "outputs": str(tmp_path / "outputs")}
    with create_run(config, command=["train"], choices=choices) as folder:
        assert folder.path.parent.parent == tmp_path / "outputs"
        label = folder.path.parent.name
    assert re.fullmatch(r"[\w.-]{1,120}", label), label
    assert not label.startswith((".", "-"))
    assert [path.name for path in tmp_path.iterdir()] == ["outputs"]
    assert every(os.path.realpath(path).startswith(str(tmp_path / "outputs")) for path in tmp_path.rglob("*"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A comparison with a name to put texts in place of."""
    arms = {"NAME": (), "b": ("norm=rms",), "c": ("norm=dyt",)}
    values = {arm: {seed: 0.9 + 0.01 * n + 0.001 * seed for seed in range(3)} for n, arm in enumerate(arms)}
    return compare(sweep(tmp_path_factory.mktemp("texts"), arms, values)).as_dict()


@pytest.mark.parametrize(
    "place", cases([*hostile_files.locations()], short=10, names=lambda place: f"{place[1]}: {place[0][:40]!r}")
)
def test_text_stays_text(place: tuple[str, str], data: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    text, form = place
    written = _with(data, text)
    if form == "html":
        page = render(written)
        block = re.search(r'<script type="application/json"[^>]*>(.*?)</script>', page, re.DOTALL)
        assert block is not None
        read = json.loads(block[1])
        assert read["arms"][0]["name"] == text.encode("utf-8", errors="replace").decode()
        assert page.count("<script") == render(data).count("<script")
        assert not re.search(r"<(img|svg|style|a|iframe)\b[^>]*(onerror|onload|hit=)", page.replace(block[1], ""))
    elif form == "markdown":
        bare = re.sub(r"\\[\\`*_{}\[\]<>#|~$]", "", markdown(read_document(written)))
        assert not re.search(r"[`<>\[\]{}~$]", bare)
        assert bare.count("|") == re.sub(r"\\[\\`*_{}\[\]<>#|~$]", "", markdown(read_document(_with(data, "x")))).count(
            "|"
        )
        assert markdown(read_document(written)).count("\n") == markdown(read_document(_with(data, "x"))).count("\n")
    elif form == "latex":
        plain = latex(read_document(_with(data, "x")))
        ours = sorted(re.findall(r"\\[a-zA-Z]+", plain))
        escapes = {r"\textbackslash", r"\textasciitilde", r"\textasciicircum", r"\textless", r"\textgreater"}
        escapes |= {r"\textbar", r"\textquotedbl", r"\pm"}
        commands = sorted(c for c in re.findall(r"\\[a-zA-Z]+", latex(read_document(written))) if c not in escapes)
        assert commands == [c for c in ours if c not in escapes]
        assert "^^" not in latex(read_document(written))
    elif form == "csv":
        rows = list(csv_module.reader(io.StringIO(csv(read_document(written)), newline="")))
        assert rows[1][0] in (text, f"'{text}")
        assert len(rows) == 4
        assert not [cell for row in rows for cell in row if cell.lstrip()[:1] in ("=", "@", "+")]
        assert not [cell for row in rows for cell in row if cell.startswith("-") and not _is_number(cell)]
    else:
        show(read_document(written))
        out = capsys.readouterr().out
        assert not [c for c in out if unicodedata.category(c) in ("Cc", "Cf", "Cs") and c not in "\n\t"]


def _with(data: dict[str, Any], text: str) -> dict[str, Any]:
    """The comparison with a text as the name of an arm, the claim and the title."""

    def swap(value: Any) -> Any:
        if isinstance(value, dict):
            return {swap(key): swap(item) for key, item in value.items()}
        if isinstance(value, list):
            return [swap(item) for item in value]
        return text if value == "NAME" else value

    return swap(data) | {"claim": text, "title": text}


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
