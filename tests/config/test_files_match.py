"""Files, YAMLs and docstrings match one to one: the disk is the registry."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from blockyard.atomic_files import stamp
from blockyard.config import tree
from blockyard.config.build import CONTRACTS, RUNTIME_CONTRACTS
from blockyard.config.choices import catalog
from blockyard.config.compose import compose
from blockyard.config.defaults import fill_defaults, plain_default
from blockyard.config.schema import REQUIRED, RESERVED, options
from blockyard.config.untrusted.targets import locate

CHOICES = [
    pytest.param(choice, id=f"{family}={choice.name}")
    for family in CONTRACTS
    for choice in catalog.choices(family).values()
]

# The choices of these families are data for one class: patterns of layers are no mechanisms of their own.
OF_ONE_CLASS = {"layers": "pattern"}

WITH_CLASSES = [*CONTRACTS, *RUNTIME_CONTRACTS]
YAMLS = [
    pytest.param(choice.path, id=f"{family}={choice.name}")
    for family in (*WITH_CLASSES, *catalog.OUTSIDE_RUN)
    for choice in catalog.choices(family).values()
]


@pytest.mark.parametrize("family", CONTRACTS)
def test_one_file_one_yaml(family):
    folder = catalog.PACKAGE / family
    files = {path.stem for path in folder.glob("*.py") if not path.stem.startswith("_")}
    assert files == ({OF_ONE_CLASS[family]} if family in OF_ONE_CLASS else set(catalog.choices(family)))


@pytest.mark.parametrize("choice", CHOICES)
def test_yaml_names_its_own_file(choice):
    own = OF_ONE_CLASS.get(choice.family, choice.name)
    assert choice.target.rsplit(".", 1)[0] == f"blockyard.{choice.family}.{own}"
    assert issubclass(locate(choice.target), CONTRACTS[choice.family])


@pytest.mark.parametrize("path", YAMLS)
def test_yaml_holds_what_differs_from_the_signature(path):
    """A default is written once, in the signature of the class."""
    for key, node in tree.nodes(catalog.content(path)):
        declared = options(locate(node["_target_"]))
        for name in node.keys() - set(RESERVED):
            value = node[name]
            # Kinds of layers are overrides here, and nodes once the config is composed.
            assert name == "kinds" or declared[name].problem(value) is None, f"{key}.{name}"
            assert value != plain_default(declared[name].default), f"{key}.{name} repeats the default"


@pytest.mark.parametrize("choice", CHOICES)
def test_options_are_read_from_the_source_as_from_the_class(choice):
    """Completion reads them without importing torch."""
    assert set(choice.options) == set(options(locate(choice.target)))


@pytest.mark.parametrize("family", WITH_CLASSES)
def test_a_config_has_every_option_in_the_order_of_its_signature(family):
    name = next(iter(catalog.choices(family)))
    config = {family: catalog.content(catalog.choices(family)[name].path)}
    fill_defaults(config)
    for key, node in tree.nodes(config[family], family):
        declared = options(locate(node["_target_"]))
        required = {name for name, option in declared.items() if option.default is REQUIRED}
        assert [name for name in node if name not in RESERVED] == [n for n in declared if n in node], key
        assert set(declared) - required <= set(node), key


def test_part_of_a_mapping_is_merged_with_its_default():
    composed = compose(["init=default", "init.lora.rank=4", "logger=none"])
    assert not composed.issues
    assert composed.config["init"]["lora"] == {"rank": 4, "alpha": 16.0, "layers": ["blocks"]}


def test_an_interpolation_may_name_an_option_that_no_yaml_holds():
    composed = compose(["schedule.warmup=${optimizer.weight_decay}", "optimizer.weight_decay=0.25", "logger=none"])
    assert not composed.issues
    assert composed.config["schedule"]["warmup"] == 0.25


@pytest.mark.parametrize("choice", CHOICES)
def test_docstring_documents_every_option(choice):
    assert choice.source, "the module's docstring names its Source:"
    assert all(option.help for option in options(locate(choice.target)).values())  # may be empty


def test_every_group_in_conf_is_a_family():
    folders = {path.name for path in catalog.conf_dir().iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == set(catalog.groups())


def test_docstrings_read_from_the_text_are_those_that_python_sees():
    seen = 0
    for family in catalog.groups():
        for choice in catalog.choices(family).values():
            if choice.target is not None and choice.target.startswith("blockyard."):
                locate(choice.target)
                text = Path(str(sys.modules[choice.target.rpartition(".")[0]].__file__)).read_text(encoding="utf-8")
                assert catalog.docstring(choice.target) == ast.get_docstring(ast.parse(text)), choice
                seen += 1
    assert seen > 200


@pytest.mark.parametrize(
    "text",
    [
        '3"One line."3\nimport os\n',
        '3"It says "so"."3\n\n3"No docstring."3\n',
        '3"It ends with a quote\\""3\n',
        '3"A tab:\\t."3\n',
        '3"Two"3 3"strings."3\n',
        '3"With a comment."3  # behind it\n',
        "'It stands in other quotes.'\n",
        '# A licence.\n3"Below it."3\n',
        'x = 3"no docstring"3\n',
        '3"Broken',
        "",
    ],
)
def test_a_docstring_of_any_form_is_that_which_python_sees(text: str, tmp_path: Path):
    text = text.replace('3"', '"""').replace('"3', '"""')
    path = tmp_path / "module.py"
    path.write_text(text, encoding="utf-8")
    try:
        seen = ast.get_docstring(ast.parse(text)) or ""
    except SyntaxError:
        seen = ""
    assert catalog._docstring(path, stamp(path)) == seen
