"""Files, YAMLs and docstrings match one to one: the disk is the registry."""

from __future__ import annotations

import pytest

from blockyard.config import catalog
from blockyard.config.build import CONTRACTS
from blockyard.config.schema import RESERVED, options
from blockyard.config.targets import locate

CHOICES = [
    pytest.param(choice, id=f"{family}={choice.name}")
    for family in CONTRACTS
    for choice in catalog.choices(family).values()
]


@pytest.mark.parametrize("family", CONTRACTS)
def test_one_file_one_yaml(family):
    folder = catalog.PACKAGE / family
    files = {path.stem for path in folder.glob("*.py") if not path.stem.startswith("_")}
    assert files == set(catalog.choices(family))


@pytest.mark.parametrize("choice", CHOICES)
def test_yaml_names_its_own_file(choice):
    assert choice.target.rsplit(".", 1)[0] == f"blockyard.{choice.family}.{choice.name}"
    assert issubclass(locate(choice.target), CONTRACTS[choice.family])


@pytest.mark.parametrize("choice", CHOICES)
def test_yaml_lists_every_option_with_its_default(choice):
    import yaml

    from blockyard.config.compose import _plain

    known = options(locate(choice.target))
    node = {k: v for k, v in yaml.safe_load(choice.path.read_text()).items() if k not in RESERVED}
    assert set(node) == set(known)
    for name, value in node.items():
        assert known[name].problem(value) is None
        assert value == _plain(known[name].default), name


@pytest.mark.parametrize("choice", CHOICES)
def test_docstring_documents_every_option(choice):
    assert choice.source, "the module's docstring names its Source:"
    assert all(option.help for option in options(locate(choice.target)).values())


def test_every_group_in_conf_is_a_family():
    folders = {path.name for path in catalog.conf_dir().iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == set(catalog.groups())
