"""`recipes`: what can be run."""

import sys
from typing import Annotated

import typer

from gpurun.cli.talk import AsJson, print_json, tell

recipes = typer.Typer(
    help="The bundled recipes: list, show merged, JSON Schema.", rich_markup_mode=None
)


@recipes.callback(invoke_without_command=True)
def listed(context: typer.Context, as_json: AsJson = False) -> None:
    if context.invoked_subcommand is not None:
        return
    from gpurun.recipe import bundled
    from gpurun.show import Look, cut, table

    found = bundled()
    if as_json:
        documents = [{"name": n, "path": str(p), "description": d} for n, p, d in found]
        print_json({"recipes": documents})
        return
    for line in table(("RECIPE", "IS"), [(name, what) for name, _, what in found]):
        tell(cut(line, Look.of(sys.stdout)))


@recipes.command()
def show(
    name: Annotated[str, typer.Argument(help="Path or bundled name.")],
    provider: Annotated[str | None, typer.Option(help="As it holds for this provider.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print a recipe with everything merged, as it would be run."""
    from gpurun.recipe import load, show_yaml

    recipe = load(name, provider=provider)
    if as_json:
        print_json(recipe.to_dict())
    else:
        tell(show_yaml(recipe).rstrip())


@recipes.command()
def schema() -> None:
    """Print the JSON Schema of recipes, for editors."""
    from gpurun.recipe import schema as made

    print_json(made())
