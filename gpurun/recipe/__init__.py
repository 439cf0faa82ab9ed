"""Recipes: YAML in, one frozen and fully checked Recipe out."""

from gpurun.recipe.load import bundled, find, load, missing_secrets
from gpurun.recipe.merge import Caps
from gpurun.recipe.schema import (
    Budget,
    Data,
    Fetch,
    Need,
    Recipe,
    Requires,
    Secret,
    Setup,
    Ship,
    Train,
    Verify,
    Watch,
)
from gpurun.recipe.show import schema, show_yaml

__all__ = [
    "Budget",
    "Caps",
    "Data",
    "Fetch",
    "Need",
    "Recipe",
    "Requires",
    "Secret",
    "Setup",
    "Ship",
    "Train",
    "Verify",
    "Watch",
    "bundled",
    "find",
    "load",
    "missing_secrets",
    "schema",
    "show_yaml",
]
