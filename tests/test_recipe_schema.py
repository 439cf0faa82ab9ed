"""The JSON Schema of a recipe, and the page that explains its keys."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from gpurun.recipe import Recipe, bundled, schema
from gpurun.recipe.explain import keys_of

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "recipes.md").read_text()
SECTIONS = ("need", "budget", "setup", "ship", "secrets", "data", "train", "watch", "requires")


def resolved(part: dict[str, Any], whole: dict[str, Any]) -> dict[str, Any]:
    return dict(whole["$defs"][part["$ref"].removeprefix("#/$defs/")])


def test_every_key_of_the_schema_has_a_description() -> None:
    whole = schema()
    parts = [whole, *whole["$defs"].values()]
    for key, value in [pair for part in parts for pair in part["properties"].items()]:
        assert "description" in value or "description" in resolved(value, whole), key


def test_the_schema_is_json_and_calls_for_need_and_budget() -> None:
    whole = json.loads(json.dumps(schema()))
    assert sorted(whole["required"]) == ["budget", "need"]
    assert whole["additionalProperties"] is False


def test_a_provider_s_part_may_hold_any_key_and_requires_none() -> None:
    whole = schema()
    entry = whole["$defs"]["for_a_provider"]
    assert "required" not in entry
    assert set(entry["properties"]) == set(Recipe.model_fields) - {
        "name",
        "providers",
        "per_provider",
    }
    budget = resolved(entry["properties"]["budget"], whole)
    assert "max_usd" in budget["properties"]
    assert "required" not in budget


def test_defaults_and_limits_in_the_schema_are_numbers() -> None:
    whole = schema()
    minutes = whole["$defs"]["Budget"]["properties"]["setup_minutes"]
    assert (minutes["default"], minutes["exclusiveMinimum"]) == (40, 0)
    assert whole["$defs"]["Need"]["properties"]["gpu_count"]["minimum"] == 1


@pytest.mark.parametrize("section", SECTIONS)
def test_every_key_is_in_the_page(section: str) -> None:
    rows = re.search(rf"### `{section}`\n(.*?)(\n##|\Z)", PAGE, re.S)
    assert rows
    keys = keys_of(dict_of(section))
    assert keys
    assert [key for key in keys if f"| `{key}` |" not in rows[1]] == []


def test_every_top_level_key_is_in_the_page() -> None:
    rows = re.search(r"### The recipe\n(.*?)\n###", PAGE, re.S)
    assert rows
    assert re.findall(r"^\| `(\w+)` \|", rows[1], re.M) == list(Recipe.model_fields)


def test_every_bundled_recipe_has_its_row_in_the_page() -> None:
    rows = re.search(r"## Bundled recipes\n(.*?)\n##", PAGE, re.S)
    assert rows
    assert re.findall(r"^\| `([\w-]+)` \|", rows[1], re.M) == [name for name, _, _ in bundled()]


@pytest.mark.parametrize("path", [path for _, path, _ in bundled()])
def test_a_bundled_recipe_is_in_block_style(path: Path) -> None:
    assert not re.search(r"^[^#\n\"]*:\s*[{\[][^}\]]", path.read_text(), re.M)
    assert YAML(typ="safe").load(path)["name"] == path.stem


def dict_of(section: str) -> Any:
    kind = keys_of(Recipe)[section]
    return kind if keys_of(kind) else kind.__args__[0]
