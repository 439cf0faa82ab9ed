"""The phases in their order."""

import shlex
from collections.abc import Callable, Iterator, Mapping

from gpurun.hardware import PATH_BEHIND
from gpurun.hardware.fit import fitting
from gpurun.hardware.read import capabilities
from gpurun.phases import data as fetching
from gpurun.phases.optimiser import OPTIMISER_FILE
from gpurun.phases.setup import setup
from gpurun.phases.steps import (
    ENV_FILE,
    KEEP,
    PROBE_S,
    Command,
    Detached,
    Facts,
    Files,
    Step,
    Upload,
    limit_s,
)
from gpurun.recipe import Recipe


def ship(recipe: Recipe, facts: Facts) -> Iterator[Step]:
    """The bundle of this digest is on the box, with the environment of every later command."""
    yield Upload(facts.bundle_sha256)
    archs = _for_gpus(recipe, facts).get("TORCH_CUDA_ARCH_LIST")
    yield Command(
        _write(ENV_FILE, environment(recipe, facts))
        + _write(f"{KEEP}/collect.txt", recipe.collect),
        PROBE_S,
        f"write the environment of the commands{f' (TORCH_CUDA_ARCH_LIST={archs})' * bool(archs)}",
    )


def data(recipe: Recipe, facts: Facts) -> Iterator[Step]:
    """The dataset is built or fetched."""
    if recipe.data is None:
        return
    for fetch in recipe.data.fetch:
        text = fetching.fetch_text(fetch.from_, fetch.to, fetch.sha256)
        yield Command(text, limit_s(recipe), f"fetch {fetch.to}")
    if recipe.data.build:
        yield Command(recipe.data.build, limit_s(recipe))


def verify(recipe: Recipe, facts: Facts) -> Iterator[Step]:
    """Counts and the recipe's own checks pass, or the run stops here."""
    if recipe.data is not None:
        for pattern, count in sorted(recipe.data.verify.files.items()):
            yield Files(recipe.data.path, pattern, count)
        if recipe.data.verify.run:
            yield Command(recipe.data.verify.run, limit_s(recipe))
    if recipe.check:
        yield Command(recipe.check, limit_s(recipe))


def train(recipe: Recipe, facts: Facts) -> Iterator[Step]:
    """Launched detached; leaves a log and, atomically, an exit code."""
    if recipe.train is not None:
        yield Detached("train", recipe.train.run)


# Phases without steps of their own are performed by the engine: rent, boot, accept, arm, collect,
# destroy.
PHASES: Mapping[str, Callable[[Recipe, Facts], Iterator[Step]]] = {
    "ship": ship,
    "setup": setup,
    "data": data,
    "verify": verify,
    "train": train,
}

ORDER = (
    "rent",
    "boot",
    "accept",
    "ship",
    "setup",
    "data",
    "verify",
    "arm",
    "train",
    "collect",
    "destroy",
)


def environment(recipe: Recipe, facts: Facts) -> list[str]:
    """The lines of env.sh; secrets are never among them."""
    own = {
        "GPURUN_RUN": facts.run_id,
        "GPURUN_LABEL": facts.label,
        "GPURUN_GPUS": str(recipe.gpus),
        "GPURUN_BUNDLE": facts.bundle_sha256,
    }
    wanted = {**_for_gpus(recipe, facts), **recipe.env, **own}
    return [
        f'export PATH="$PWD/venv/bin:$HOME/.local/bin:$PATH:{PATH_BEHIND}"',
        *(f"export {name}={shlex.quote(value)}" for name, value in wanted.items()),
        f"[ ! -f {OPTIMISER_FILE} ] || read -r GPURUN_OPTIMISER _ < {OPTIMISER_FILE}",
        "export GPURUN_OPTIMISER",
    ]


def _for_gpus(recipe: Recipe, facts: Facts) -> dict[str, str]:
    """What extensions are compiled for, as measured; and which GPUs, if not all of them fit."""
    if facts.hardware is None:
        return {}
    fit = fitting(facts.hardware, recipe)
    found = {}
    if archs := capabilities(fit):
        found["TORCH_CUDA_ARCH_LIST"] = ";".join(archs)
    if 0 < len(fit) < len(facts.hardware.gpus):
        found["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        found["CUDA_VISIBLE_DEVICES"] = ",".join(str(gpu.index) for gpu in fit)
    return found


def _write(path: str, lines: list[str]) -> str:
    body = " ".join(shlex.quote(line) for line in lines) or "''"
    return f"mkdir -p {KEEP}; printf '%s\\n' {body} > {path}.tmp; mv {path}.tmp {path}\n"
