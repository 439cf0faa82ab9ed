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
    entries = written.values.get("per_provider")
    others = [name for name in entries if name != provider] if isinstance(entries, dict) else []
    chosen = _checked(written, provider, over, caps, path)
    for other in others:  # a mistake in a part not used today is a mistake all the same
        _checked(written, other, Layer({}), None, path)
    return chosen


def find(ref: str, search: Sequence[Path] | None = None) -> Path:
    """The file that a path or the name of a bundled recipe stands for."""
    folders = [data_dir() / "recipes"] if search is None else list(search)
    if not ref.strip() or "\0" in ref:
        raise UsageError("the recipe's name is empty: `gpurun recipes` lists the bundled recipes")
    path = Path(ref)
    is_name = path.name == ref and path.suffix not in SUFFIXES and ref not in (".", "..")
    if not is_name:
        return path
    for folder in folders:
        for suffix in SUFFIXES:
            if (bundled_file := folder / f"{ref}{suffix}").is_file():
                return bundled_file
    if path.is_file():
        return path
    known = [name for name, _, _ in bundled(folders)]
    close = difflib.get_close_matches(ref, known, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]}?" if close else "`gpurun recipes` lists the bundled recipes"
    what = "is a directory" if path.is_dir() else "is neither a file nor a bundled recipe"
    raise UsageError(f"{shown(ref)} {what}: {hint}")


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
    try:
        return str(path.absolute().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _checked(
    written: Layer, provider: str | None, over: Layer, caps: Caps | None, path: Path
) -> Recipe:
    layer = merged(written, overlay(written, provider)) if provider else written
    layer = merged(capped(layer, caps) if caps else layer, over)
    values = layer.values
    if provider:
        kept = values.get("per_provider")
        values = {**values, "per_provider": {} if isinstance(kept, dict) else kept}
    try:
        recipe = Recipe.model_validate(values)
    except ValidationError as error:
        raise explained(error, layer, Recipe) from None
    return _with_folders(recipe, layer, path.absolute().parent)


def _with_folders(recipe: Recipe, layer: Layer, base: Path) -> Recipe:
    """Make `ship.from` absolute, and refuse folders that hold a person's whole life."""
    ship = []
    for i, entry in enumerate(recipe.ship):
        if entry.from_ is None:
            ship.append(entry)
            continue
        folder = base / Path(entry.from_).expanduser()
        place = layer.place(("ship", i, "from"))
        if problem := _unshippable(folder):
            raise UsageError(f"{place.where}: {place.key} is {shown(entry.from_)}{problem}")
        ship.append(entry.model_copy(update={"from_": str(folder.resolve())}))
    return recipe.model_copy(update={"ship": ship})


def _unshippable(folder: Path) -> str:
    try:
        real = folder.resolve()
        homes = [Path.home().resolve(), Path(pwd.getpwuid(os.getuid()).pw_dir).resolve()]
        if not real.is_dir():
            return f", no folder ({real}): name a folder, relative to the recipe's file"
    except (OSError, RuntimeError, KeyError) as error:
        return f", which cannot be read ({error}): name a folder"
    if any(real == home or real in home.parents for home in homes):
        return f", the home directory or above it ({real}): name the folder of the code alone"
    return ""


def _description(file: Path) -> str:
    with file.open(encoding="utf-8") as lines:
        return next((line.strip("# \n") for line in lines if line.startswith("# ")), "")


def _named(layer: Layer, path: Path) -> Layer:
    if "name" in layer.values:
        return layer
    return Layer({"name": path.stem, **layer.values}, layer.places)
