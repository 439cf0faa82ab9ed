"""A recipe as others read it: the merged YAML for people, the JSON Schema for editors."""

import io
from copy import deepcopy
from decimal import Decimal
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.representer import RoundTripRepresenter
from ruamel.yaml.scalarstring import DoubleQuotedScalarString, LiteralScalarString

from gpurun.recipe.merge import FIXED
from gpurun.recipe.read import plain_value
from gpurun.recipe.schema import Recipe


def show_yaml(recipe: Recipe) -> str:
    """The merged recipe in block style; reading it again gives the same recipe."""
    yaml = YAML()
    yaml.Representer = _Representer
    yaml.default_flow_style = False
    yaml.width = 10_000  # a command on one line can be copied
    yaml.indent(mapping=2, sequence=4, offset=2)
    out = io.StringIO()
    yaml.dump(_written(recipe.model_dump(by_alias=True, exclude_none=True)), out)
    return out.getvalue()


def schema() -> dict[str, Any]:
    """JSON Schema of a recipe file, with a description of every key."""
    made = Recipe.model_json_schema(by_alias=True)
    made = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **made,
        "title": "gpurun recipe",
        "required": [key for key in made["required"] if key != "name"],
    }
    parts = made["$defs"]
    for part in parts.values():
        for key in part.get("properties", {}).values():
            if key.get("type") == "number" and "default" in key:
                key["default"] = int(key["default"])  # pydantic writes Decimal as text
    loose = {f"{name}_part": _loosened(part) for name, part in parts.items()}
    entry = _loosened({key: made[key] for key in ("type", "properties", "additionalProperties")})
    entry["properties"] = {k: v for k, v in entry["properties"].items() if k not in FIXED}
    made["$defs"] = {**parts, **loose, "for_a_provider": entry}
    made["properties"]["per_provider"]["additionalProperties"] = {"$ref": "#/$defs/for_a_provider"}
    return made


class _Representer(RoundTripRepresenter):
    """Money keeps its digits."""

    def decimal(self, number: Decimal) -> ScalarNode:
        text = format(number, "f")
        kind = "float" if "." in text else "int"
        node: ScalarNode = self.represent_scalar(f"tag:yaml.org,2002:{kind}", text)
        return node


_Representer.add_representer(Decimal, _Representer.decimal)


def _written(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _written(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_written(item) for item in value]
    if isinstance(value, str) and "\n" in value:
        return LiteralScalarString(value)
    if isinstance(value, str) and plain_value(value) != value:
        return DoubleQuotedScalarString(value)
    return value


def _loosened(part: dict[str, Any]) -> dict[str, Any]:
    """The same keys, none of them required, nor their own."""
    loose = deepcopy(part)
    loose.pop("required", None)
    todo: list[Any] = [loose]
    while todo:
        item = todo.pop()
        if isinstance(item, dict):
            if str(item.get("$ref", "")).startswith("#/$defs/"):
                item["$ref"] += "_part"
            todo.extend(item.values())
        elif isinstance(item, list):
            todo.extend(item)
    return loose
