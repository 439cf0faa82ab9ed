"""docs/training.md has every setting with its default, and no other."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from remote import overrides
from remote.arch import ARCHES
from remote.config import PretrainConfig
from remote.evidence import HUNG

TEXT = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
# Derived from others when they are settled; the page says from what.
DERIVED = ("checkpoint_path", "project_name", "run_name", "arch.puzzle_emb_ndim", "arch.name")


def rows(*, of_models: bool) -> dict[str, list[str]]:
    """The cells behind each key of the settings' tables."""
    settings = TEXT.split("## Settings")[1].split("\n## ")[0].split("### Models")
    lines = re.findall(r"^\| `([\w.]+)` \|(.*)\|$", settings[int(of_models)], re.M)
    return {key: [cell.strip(" `") for cell in cells.split("|")] for key, cells in lines}


def configs() -> Iterator[tuple[str, PretrainConfig]]:
    for name, arch in ARCHES.items():
        yield name, PretrainConfig(arch=arch(), arch_name=name)


OF_RUNS, OF_MODELS = rows(of_models=False), rows(of_models=True)


def test_every_setting_is_in_the_page_and_no_other() -> None:
    known = {key for _, config in configs() for key in overrides.keys(config)} - {"arch_name"}
    assert OF_RUNS.keys() | OF_MODELS.keys() == known


@pytest.mark.parametrize(("name", "config"), list(configs()))
def test_the_defaults_are_those_of_the_page(name: str, config: PretrainConfig) -> None:
    for key, cells in OF_RUNS.items():
        if key not in DERIVED:
            assert overrides.parse_value(cells[0]) == getattr(config, key), key
    settable = overrides.keys(config)
    for key, cells in OF_MODELS.items():
        said = cells[list(ARCHES).index(name)]
        if key not in settable:
            assert said == "", key
        elif key not in DERIVED and said != "same":
            owner = config.arch.loss if key.startswith("arch.loss.") else config.arch
            assert overrides.parse_value(said) == getattr(owner, key.rsplit(".")[-1]), key


def test_the_status_of_a_hang_is_the_programs() -> None:
    assert re.search(rf"^\| {HUNG} \| pretrain, evaluate \|", TEXT, re.M)
