"""A recipe by path or name, merged and checked: everything wrong is found before money is spent."""

import difflib
import os
import pwd
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from gpurun.bundle import data_dir
from gpurun.errors import UsageError
from gpurun.recipe.explain import explained
from gpurun.recipe.kinds import shown
from gpurun.recipe.merge import Caps, capped, from_overrides, merged, overlay
from gpurun.recipe.read import Layer, read_file
from gpurun.recipe.schema import Recipe

SUFFIXES = (".yaml", ".yml")


def load(
    ref: str,
    *,
    provider: str | None = None,
    overrides: Sequence[str] = (),
    caps: Caps | None = None,
    search: Sequence[Path] | None = None,
) -> Recipe:
    """The recipe as it holds for this provider; UsageError names file, line and key."""
    path = find(ref, search)
    written = _named(read_file(path, shown_path(path)), path)
    over = from_overrides(overrides)
    base = path.absolute().parent
    alone = _checked(written, base)
    for other in alone.per_provider:  # a mistake in a part not used today is one all the same
        _checked(merged(written, overlay(written, other)), base)
    chosen = merged(written, overlay(written, provider)) if provider else written
    recipe = _checked(merged(capped(chosen, caps) if caps else chosen, over), base)
    return recipe.model_copy(update={"per_provider": {}}) if provider else recipe


def find(ref: str, search: Sequence[Path] | None = None) -> Path:
    """The file that a path or the name of a bundled recipe stands for."""
    folders = [data_dir() / "recipes"] if search is None else list(search)
    if not ref.strip() or "\0" in ref:
        raise UsageError("the recipe's name is empty: `gpurun recipes` lists the bundled recipes")
    path = Path(ref)
    is_name = path.name == ref and path.suffix not in SUFFIXES and ref not in (".", "..")
    if not is_name:
        return path
    known = {name: file for name, file, _ in bundled(folders)}
    if ref in known:
        return known[ref]
    if os.path.lexists(ref):
        return path
    close = difflib.get_close_matches(ref, known, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]}?" if close else "`gpurun recipes` lists the bundled recipes"
    raise UsageError(f"{shown(ref)} is neither a file nor a bundled recipe: {hint}")


def bundled(search: Sequence[Path] | None = None) -> list[tuple[str, Path, str]]:
    """Name, file and one-line description (the file's first comment) of every bundled recipe."""
    folders = [data_dir() / "recipes"] if search is None else search
    files = [file for folder in folders for file in sorted(folder.glob("*.yaml"))]
    return [(file.stem, file, _description(file)) for file in files]


def missing_secrets(recipe: Recipe, environ: Mapping[str, str]) -> list[str]:
    """Names of required secrets that have no value."""
    return [s.name for s in recipe.secrets if not s.optional and not environ.get(s.name)]


def shown_path(path: Path) -> str:
    """As short as it can be and still be found from here."""
    here = path.absolute()
    short = here.relative_to(Path.cwd()) if here.is_relative_to(Path.cwd()) else path
    return "".join(letter if letter.isprintable() else "?" for letter in str(short))


def _checked(layer: Layer, base: Path) -> Recipe:
    try:
        recipe = Recipe.model_validate(layer.values)
    except ValidationError as error:
        raise explained(error, layer, Recipe) from None
    return _with_folders(recipe, layer, base)


def _with_folders(recipe: Recipe, layer: Layer, base: Path) -> Recipe:
    """Make `ship.from` absolute, and refuse folders that hold a person's whole life."""
    ship = []
    for i, entry in enumerate(recipe.ship):
        if entry.from_ is None:
            ship.append(entry)
            continue
        try:
            folder = (base / Path(entry.from_).expanduser()).resolve()
            problem = _unshippable(folder)
        except (OSError, RuntimeError, KeyError) as error:
            problem = f", which cannot be read ({shown(error)}): name a folder"
        if problem:
            place = layer.place(("ship", i, "from"))
            raise UsageError(f"{place.where}: {place.key} is {shown(entry.from_)}{problem}")
        ship.append(entry.model_copy(update={"from_": str(folder)}))
    return recipe.model_copy(update={"ship": ship})


def _unshippable(folder: Path) -> str:
    if not folder.is_dir():
        return f", no folder ({folder}): name a folder, relative to the recipe's file"
    for home in (Path.home(), Path(pwd.getpwuid(os.getuid()).pw_dir)):
        if folder == home.resolve() or folder in home.resolve().parents:
            return f", the home directory or above it ({folder}): name the code's folder alone"
    return ""


def _description(file: Path) -> str:
    with file.open(encoding="utf-8") as lines:
        return next((line.strip("# \n") for line in lines if line.startswith("# ")), "")


def _named(layer: Layer, path: Path) -> Layer:
    if "name" in layer.values:
        return layer
    return Layer({"name": path.stem, **layer.values}, layer.places)
