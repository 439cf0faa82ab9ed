"""The arrows of the design, over the syntax trees: who may import whom, and when."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted(
    path
    for top in ("gpurun", "provisioners", "remote", "tests")
    for path in (ROOT / top).rglob("*.py")
    if "__pycache__" not in path.parts
)

PORTS = {"gpurun.provider", "gpurun.shell", "gpurun.model", "gpurun.errors", "gpurun.clock"}
GROUND = {  # what everything stands on, and what it may stand on itself
    "gpurun.model": set(),
    "gpurun.errors": set(),
    "gpurun.clock": set(),
    "gpurun.shell": set(),
    "gpurun.provider": {"gpurun.model", "gpurun.shell"},
    "gpurun.identity": {"gpurun.model"},
    "gpurun.proof": {"gpurun.model", "gpurun.identity"},
    "gpurun.budget": {"gpurun.model", "gpurun.errors", "gpurun.provider"},
}
QUICK = ("gpurun.cli", "gpurun.show", "gpurun.glance", "gpurun.places")
HEAVY = {"sqlmodel", "sqlalchemy", "alembic", "pydantic_settings", "httpx", "fabric", "paramiko"}
ON_THE_BOX = {"remote", "numpy", "torch", "adam_atan2", "adam_atan2_backend"}
ON_THE_BOX_IF_ASKED_FOR = {"wandb", "tqdm"}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in SOURCES}


def within(module: str, packages: set[str]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in packages)


def imported(path: Path, *, at_import_only: bool = False) -> set[str]:
    """The modules a file imports, `from package import module` told from a name in it."""
    found = set()
    for node in statements(ast.parse(path.read_text()), at_import_only):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            assert node.module is not None
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {name if name in MODULES else node.module for name in names}
    return found


def statements(tree: ast.AST, at_import_only: bool) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if at_import_only and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if at_import_only and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        yield node
        yield from statements(node, at_import_only)


def loaded_by(module: str) -> set[str]:
    """All that importing a module imports, the packages above each one included."""
    seen: set[str] = set()
    todo = [module]
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        todo += [name.rpartition(".")[0]] if "." in name else []
        if name in MODULES:
            todo += imported(MODULES[name], at_import_only=True)
    return seen


def files(top: str) -> list[pytest.param]:
    chosen = [path for path in SOURCES if path.is_relative_to(ROOT / top)]
    return [pytest.param(path, id=str(path.relative_to(ROOT))) for path in chosen]


@pytest.mark.parametrize("path", files("provisioners"))
def test_an_adapter_knows_the_ports_and_itself(path: Path) -> None:
    own = ".".join(module_name(path).split(".")[:2])  # provisioners.<name>
    ours = {name for name in imported(path) if within(name, {"gpurun", "provisioners", "remote"})}
    shared = {"provisioners.removal"}  # how a run's directory is taken away
    assert {name for name in ours if not within(name, PORTS | {own} | shared)} == set()


@pytest.mark.parametrize("path", files("gpurun"))
def test_the_core_knows_no_adapter_but_in_the_wiring(path: Path) -> None:
    adapters = {name for name in imported(path) if within(name, {"provisioners"})}
    assert not adapters or path == ROOT / "gpurun" / "wiring.py"


@pytest.mark.parametrize("path", files("gpurun"))
def test_the_core_never_imports_what_runs_on_the_box(path: Path) -> None:
    assert not {name for name in imported(path) if within(name, ON_THE_BOX)}


@pytest.mark.parametrize("path", files("remote"))
def test_the_cargo_stands_alone(path: Path) -> None:
    for at_import_only, more in ((True, set()), (False, ON_THE_BOX_IF_ASKED_FOR)):
        foreign = {
            name
            for name in imported(path, at_import_only=at_import_only)
            if name.split(".")[0] not in sys.stdlib_module_names | ON_THE_BOX | more
        }
        assert foreign == set()


@pytest.mark.parametrize("module", GROUND)
def test_the_ground_stands_on_little(module: str) -> None:
    ours = {name for name in imported(MODULES[module]) if within(name, {"gpurun"})}
    assert ours <= GROUND[module]


def test_the_journal_knows_nothing_of_those_who_keep_it() -> None:
    above = {"gpurun.engine", "gpurun.keeper", "gpurun.reaper", "gpurun.cli", "gpurun.wiring"}
    for name in MODULES:
        if within(name, {"gpurun.store"}):
            assert not {m for m in imported(MODULES[name]) if within(m, above)}, name


@pytest.mark.parametrize("module", [name for name in MODULES if within(name, set(QUICK))])
def test_what_must_be_quick_loads_nothing_heavy(module: str) -> None:
    assert {name for name in loaded_by(module) if within(name, HEAVY)} == set()


def test_the_wiring_loads_no_adapter_before_it_is_asked_for() -> None:
    assert not {name for name in loaded_by("gpurun.wiring") if within(name, {"provisioners"})}


@pytest.mark.parametrize("top", ["gpurun", "provisioners", "remote", "tests"])
def test_no_file_holds_two_ideas(top: str) -> None:
    most = 300 if top in ("gpurun", "provisioners") else 500
    lengths = {path: len(path.read_text().splitlines()) for path in SOURCES}
    ours = {path for path in lengths if path.is_relative_to(ROOT / top)}
    too_long = {str(path.relative_to(ROOT)): lengths[path] for path in ours if lengths[path] > most}
    assert too_long == {}
