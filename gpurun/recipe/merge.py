"""Layers of a recipe into one: mappings merge deeply, lists and scalars replace.

recipe < per_provider < the settings' caps (which only tighten) < --set.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal, get_origin

from gpurun.errors import UsageError
from gpurun.recipe.explain import keys_of, kind_inside, nearest
from gpurun.recipe.kinds import shown
from gpurun.recipe.read import KeyPath, Layer, Place, dotted, read_value
from gpurun.recipe.schema import Recipe

FIXED = ("name", "providers", "per_provider")  # what a provider cannot change


@dataclass(frozen=True, slots=True)
class Caps:
    """The most that the settings allow; None allows what the recipe says."""

    max_usd_per_hour: Decimal | None = None
    max_usd: Decimal | None = None


def merged(under: Layer, over: Layer) -> Layer:
    places = dict(under.places)
    values = _put_over(under.values, over.values, (), places)
    return Layer(values, {**places, **{path: over.places[path] for path in over.places if path}})


def overlay(recipe: Layer, provider: str) -> Layer:
    """What `per_provider` says for this provider, as a layer of its own."""
    at: KeyPath = ("per_provider", provider)
    entries = recipe.values.get("per_provider")
    values = entries.get(provider) if isinstance(entries, dict) else None
    if not isinstance(values, dict):
        return Layer({})
    for key in FIXED:
        if key in values:
            place = recipe.place((*at, key))
            raise UsageError(f"{place.where}: {place.key} cannot differ by provider: delete it")
    return Layer(
        values, {path[2:]: recipe.places[path] for path in recipe.places if path[:2] == at}
    )


def capped(recipe: Layer, caps: Caps) -> Layer:
    """Settings tighten a budget; they never loosen it."""
    budget = recipe.values.get("budget")
    tighter: dict[str, Any] = {}
    for key, cap in (("max_usd_per_hour", caps.max_usd_per_hour), ("max_usd", caps.max_usd)):
        asked = budget.get(key) if isinstance(budget, dict) else None
        if cap is not None and (number := _number(asked)) is not None and number > cap:
            tighter[key] = cap
    if not tighter:
        return recipe
    places: dict[KeyPath, Place] = {
        ("budget", key): Place("config.toml", f"budget.{key}") for key in tighter
    }
    return merged(recipe, Layer({"budget": tighter}, places))


def from_overrides(overrides: Sequence[str]) -> Layer:
    """`--set key=value`, later ones over earlier ones."""
    layer = Layer({})
    for override in overrides:
        layer = merged(layer, _override(override))
    return layer


def _override(text: str) -> Layer:
    where = f"--set {shown(text)}"
    dotted_key, equals, value_text = text.partition("=")
    path: KeyPath = tuple(dotted_key.strip().split("."))
    if not equals or not all(path):
        raise UsageError(f"{where}: write it as --set key=value, such as --set budget.max_usd=5")
    if path[0] == "per_provider":
        raise UsageError(f"{where}: per_provider cannot be set: --set budget.max_usd=5 does it")
    if _is_text(_kind(path, where)):
        value: Any = value_text  # a command line has no quotes to tell 2.10 from "2.10"
    else:
        value = read_value(value_text, where)
    place = Place(where, dotted(path))
    nested: dict[str, Any] = {str(path[-1]): value}
    for part in reversed(path[:-1]):
        nested = {str(part): nested}
    places: dict[KeyPath, Place] = {path[: i + 1]: Place(where, "") for i in range(len(path))}
    return Layer(nested, {**places, path: place})


def _put_over(
    under: dict[str, Any], over: dict[str, Any], at: KeyPath, places: dict[KeyPath, Place]
) -> dict[str, Any]:
    result = dict(under)
    for key, value in over.items():
        here = (*at, key)
        if isinstance(value, dict) and isinstance(under.get(key), dict):
            result[key] = _put_over(under[key], value, here, places)
            continue
        result[key] = value
        for path in [path for path in places if path[: len(here)] == here]:
            del places[path]
    return result


def _kind(path: KeyPath, where: str) -> Any:
    """The kind of value at this key; an unknown key names its nearest neighbour."""
    kind: Any = Recipe
    for depth, part in enumerate(path):
        inside = kind_inside(kind, part)
        if inside is None:
            at = shown(dotted(path[:depth]))
            if not (keys := keys_of(kind)):
                raise UsageError(f"{where}: {at} has no keys in it: set it as a whole")
            hint = nearest(str(part), keys, at)
            raise UsageError(f"{where}: {shown(dotted(path[: depth + 1]))} is not a key: {hint}")
        kind = inside
    return kind


def _is_text(kind: Any) -> bool:
    return kind is str or get_origin(kind) is Literal


def _number(value: object) -> Decimal | None:
    """What validation will accept as a number; the rest is left for it to refuse."""
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        return None
    number = Decimal(value)
    return number if number.is_finite() else None
