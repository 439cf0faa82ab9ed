"""`doctor RUN`: the box against what was ordered, and what somebody checks before a launch.

Dataset, GPUs, torch, PATH, W&B, timer and checkpoint folder are the list that people went through
by hand; one that is not yet due says WANT too.
"""

import re
import shlex
from collections.abc import Iterator

from gpurun.engine import accept, boxfiles
from gpurun.engine.context import Context
from gpurun.errors import PhaseFailed
from gpurun.hardware import Check, checks
from gpurun.hardware.read import plain
from gpurun.model import Attempt
from gpurun.phases import ENV_FILE, OPTIMISER_FILE
from gpurun.recipe import Recipe
from gpurun.shell import Shell
from gpurun.timers import ends_in_s

WANDB_KEY = "WANDB_API_KEY"
_TORCH = "import torch; print(torch.__version__, torch.version.cuda, torch.cuda.device_count())"


def of_box(ctx: Context, attempt: Attempt, shell: Shell) -> list[Check]:
    """Every check of one live box; a box that does not answer is one of them."""
    recipe = ctx.recipe
    try:
        seen = accept.look(shell, ctx.clock, _script(recipe))
    except PhaseFailed as error:
        return [Check("answers", str(error), False), _timer(ctx, attempt)]
    running = ctx.journal.runs.began(ctx.run.id, "train")
    answers = re.findall(r"^=box_(\w+) (.*)$", seen.output, re.M)
    said = {name: plain(value) for name, value in answers}
    return [
        Check("answers", seen.hardware.line()),
        *checks(seen.hardware, recipe, attempt, clock_off_s=seen.clock_off_s, running=running),
        *_dataset(recipe, shell),
        _torch(recipe, said),
        *_optimiser(said),
        _path(recipe, said),
        _wandb(ctx),
        _timer(ctx, attempt),
        _checkpoints(said),
    ]


def _script(recipe: Recipe) -> str:
    """Answers as `=box_NAME VALUE`, in the environment of the run's commands."""
    folder = shlex.quote(_folder(recipe))
    return f"""\
[ ! -f {ENV_FILE} ] || . ./{ENV_FILE}
say() {{ printf '=box_%s\\n' "$*"; }}
python=python3; [ ! -x venv/bin/python ] || python=venv/bin/python
limit=; ! command -v timeout >/dev/null || limit='timeout 40'
say torch "$($limit $python -c {shlex.quote(_TORCH)} 2>&1 | tail -n 1)"
for tool in torchrun wandb; do
  ! command -v $tool >/dev/null 2>&1 || say "has_$tool" yes
done
case ":$PATH:" in *":$HOME/.local/bin:"*) say local_bin yes ;; esac
if mkdir -p {folder}/.gpurun-probe && rmdir {folder}/.gpurun-probe; then say writable {folder}; fi
[ ! -f {OPTIMISER_FILE} ] || say optimiser "$(head -n 1 {OPTIMISER_FILE})"
"""


def _folder(recipe: Recipe) -> str:
    """Where checkpoints go: the first folder that is collected."""
    plain = [part for part in recipe.collect if not set(part) & set("*?[")]
    return plain[0] if plain and "." not in plain[0].rpartition("/")[2] else "."


def _dataset(recipe: Recipe, shell: Shell) -> Iterator[Check]:
    if recipe.data is None:
        yield Check("dataset", "the recipe asks for none")
        return
    path, wanted = recipe.data.path, recipe.data.verify.files
    try:
        for pattern, expected in sorted((wanted or {"**": 1}).items()):
            count = len(boxfiles.matching(shell, [f"{path}/{pattern}"]))
            ok = count == expected if wanted else count > 0
            of = f", {expected} expected" if wanted else ""
            yield Check("dataset", f"{path}/{pattern}: {count} files{of}", ok)
    except PhaseFailed as error:
        yield Check("dataset", str(error), False)


def _torch(recipe: Recipe, said: dict[str, str]) -> Check:
    answer = said.get("torch", "")
    found = re.fullmatch(r"(\S+) (\S+) (\d{1,4})", answer)
    if found is None:
        asked = recipe.setup.torch is not None
        says = f"it cannot be imported: {answer}" if asked else "none, and none is asked for"
        return Check("torch", says, not asked)
    version, cuda, gpus = found[1], found[2], int(found[3])
    says = f"{version}, CUDA {cuda}, sees {gpus} GPUs"
    wanted = recipe.gpus if recipe.setup.device == "cuda" else 0
    return Check(
        "torch", says if gpus >= wanted else f"{says}, {wanted} are needed", gpus >= wanted
    )


def _optimiser(said: dict[str, str]) -> Iterator[Check]:
    if answer := said.get("optimiser"):
        yield Check("optimiser", answer.partition(" ")[2] or answer)


def _path(recipe: Recipe, said: dict[str, str]) -> Check:
    has = [tool for tool in ("torchrun", "wandb") if f"has_{tool}" in said]
    needed = "torchrun" if recipe.train and "torchrun" in recipe.train.run else ""
    if "local_bin" not in said:
        return Check("PATH", "~/.local/bin is not on it: the environment is not written yet", False)
    if needed and needed not in has:
        return Check("PATH", f"train.run starts {needed}, which is not on it", False)
    return Check(
        "PATH", f"~/.local/bin is on it; found: {', '.join(has) or 'no torchrun, no wandb'}"
    )


def _wandb(ctx: Context) -> Check:
    """Logging in is the key in the environment of the launch; it never lies on the box."""
    wanted = [secret for secret in ctx.recipe.secrets if secret.name == WANDB_KEY]
    if not wanted:
        return Check("W&B", "the recipe does not ask for it")
    if WANDB_KEY in ctx.secrets():
        return Check("W&B", f"{WANDB_KEY} is set here and goes to the box at the launch")
    if wanted[0].optional:
        return Check("W&B", f"{WANDB_KEY} is not set here: it logs nothing there")
    return Check("W&B", f"{WANDB_KEY} is not set here, and the recipe needs it", False)


def _timer(ctx: Context, attempt: Attempt) -> Check:
    timer = ctx.journal.timers.of(attempt.label)
    if timer is None:
        return Check("timer", f"no timer is in force: `gpurun kill {ctx.run.id}` ends it", False)
    left_s = ends_in_s(timer, ctx.clock)
    says = f"{timer.kind} timer {timer.seq} ends the box in {left_s / 60:.0f} minutes"
    return Check("timer", says if left_s > 0 else f"{timer.kind} timer is past its end", left_s > 0)


def _checkpoints(said: dict[str, str]) -> Check:
    if folder := said.get("writable"):
        return Check("checkpoint folder", f"{folder} is writable")
    return Check(
        "checkpoint folder", "it cannot be written: is the disk full, or read-only?", False
    )
