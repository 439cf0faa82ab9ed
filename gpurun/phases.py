"""The phases of a run: what is done on the box, as data.

The engine performs the steps, `up --dry-run` prints them, the tests compare them.  No step here
touches a box, the journal or the clock.
"""

import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from gpurun.recipe import Recipe

KEEP = ".gpurun"  # our own files on the box, beside the run's
STEP_LOCK = f"{KEEP}/step.lock"
ENV_FILE = f"{KEEP}/env.sh"
PROBE_S = 30.0


@dataclass(frozen=True, slots=True)
class Command:
    """A command that must exit 0 within its time."""

    text: str
    timeout_s: float
    says: str = ""

    def __str__(self) -> str:
        return self.says or self.text.strip()


@dataclass(frozen=True, slots=True)
class Upload:
    """The cargo of this digest, unpacked into the box's root."""

    bundle_sha256: str

    def __str__(self) -> str:
        return f"upload the bundle {self.bundle_sha256[:12]}"


@dataclass(frozen=True, slots=True)
class Files:
    """Exactly `count` files must match `pattern` under `path`."""

    path: str
    pattern: str
    count: int

    def __str__(self) -> str:
        return f"{self.path}/{self.pattern} matches {self.count} files"


@dataclass(frozen=True, slots=True)
class Detached:
    """A command launched once per box, which nothing of ours has to outlive."""

    name: str
    text: str

    def __str__(self) -> str:
        return f"launch, detached: {self.text.strip()}"


Step = Command | Upload | Files | Detached


@dataclass(frozen=True, slots=True)
class Facts:
    """What the steps depend on beside the recipe."""

    bundle_sha256: str
    label: str
    run_id: str
    torch_cpu_index: str  # "" = the default index only


def ship(recipe: Recipe, facts: Facts) -> Iterator[Step]:
    """The bundle of this digest is on the box, with the environment of every later command."""
    yield Upload(facts.bundle_sha256)
    yield Command(
        _write(ENV_FILE, environment(recipe, facts))
        + _write(f"{KEEP}/collect.txt", recipe.collect),
        PROBE_S,
        "write the environment of the commands",
    )


def setup(recipe: Recipe, facts: Facts) -> Iterator[Step]:
    """Pinned dependencies, and a torch that really works."""
    limit_s = _minutes(recipe.budget.setup_minutes)
    if recipe.setup.apt:
        yield Command(_apt(recipe.setup.apt), limit_s, f"apt: {' '.join(recipe.setup.apt)}")
    if not (recipe.setup.pip or recipe.setup.torch):
        return
    yield Command(
        '[ -x venv/bin/python ] || "${GPURUN_PYTHON:-python3}" -m venv venv',
        limit_s,
        "make a virtual environment",
    )
    if recipe.setup.pip:
        wanted = shlex.join(recipe.setup.pip)
        yield Command(f"venv/bin/python -m pip install {wanted}", limit_s, f"pip: {wanted}")
    if recipe.setup.torch:
        yield Command(
            _torch(recipe.setup.torch, recipe.setup.device, facts.torch_cpu_index),
            limit_s,
            f"torch {recipe.setup.torch} for {recipe.setup.device}",
        )


def data(recipe: Recipe, facts: Facts) -> Iterator[Step]:
    """The dataset is built or fetched."""
    if recipe.data is None:
        return
    limit_s = _minutes(recipe.budget.setup_minutes)
    for fetch in recipe.data.fetch:
        yield Command(_fetch(fetch.from_, fetch.to, fetch.sha256), limit_s, f"fetch {fetch.to}")
    if recipe.data.build:
        yield Command(recipe.data.build, limit_s)


def verify(recipe: Recipe, facts: Facts) -> Iterator[Step]:
    """Counts and the recipe's own checks pass, or the run stops here."""
    limit_s = _minutes(recipe.budget.setup_minutes)
    if recipe.data is not None:
        for pattern, count in sorted(recipe.data.verify.files.items()):
            yield Files(recipe.data.path, pattern, count)
        if recipe.data.verify.run:
            yield Command(recipe.data.verify.run, limit_s)
    if recipe.check:
        yield Command(recipe.check, limit_s)


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
    lines = [f"export {name}={shlex.quote(value)}" for name, value in {**recipe.env, **own}.items()]
    return ['export PATH="$PWD/venv/bin:$HOME/.local/bin:$PATH"', *lines]


def locked(text: str) -> str:
    """One step at a time on a box: a takeover waits for what a dead driver left running."""
    return (
        f"mkdir -p {KEEP}; exec 9>>{STEP_LOCK}; if command -v flock >/dev/null; then flock 9; fi\n"
        f"[ ! -f {ENV_FILE} ] || . ./{ENV_FILE}\n"
        # Were it the last command, dash would run it in place and close the lock with it.
        f"(\nset -e\n{text}\n) 9>&-\nexit $?"
    )


def _write(path: str, lines: list[str]) -> str:
    body = " ".join(shlex.quote(line) for line in lines) or "''"
    return f"mkdir -p {KEEP}; printf '%s\\n' {body} > {path}.tmp; mv {path}.tmp {path}\n"


def _apt(packages: list[str]) -> str:
    wanted = shlex.join(packages)
    return (
        f'if dpkg -s {wanted} >/dev/null 2>&1; then exit 0; fi; sudo=""\n'
        '[ "$(id -u)" = 0 ] || sudo="sudo -n"\n'
        "$sudo apt-get update -q\n"
        f"DEBIAN_FRONTEND=noninteractive $sudo apt-get install -qy --no-install-recommends {wanted}"
    )


def _torch(version: str, device: str, cpu_index: str) -> str:
    """Use the torch that is here or that the base interpreter has; else install the one pinned.

    A virtual environment made from another one does not see its packages, hence the .pth file.
    """
    install = f"venv/bin/python -m pip install torch=={shlex.quote(version)}"
    if device == "cpu" and cpu_index:
        install = (
            f"{install} --index-url {shlex.quote(cpu_index)} --retries 0 --timeout 15 || {install}"
        )
    probe = "import torch; print('torch', torch.__version__, torch.__file__)"
    if device == "cuda":
        probe += (
            "; assert torch.cuda.is_available(), 'torch sees no GPU'; torch.ones(8).cuda().sum()"
        )
    return (
        'host="$("${GPURUN_PYTHON:-python3}" -c \'import importlib.util as u, pathlib as p; '
        's = u.find_spec("torch"); print(p.Path(s.origin).parent.parent if s else "")\')"\n'
        "if venv/bin/python -c 'import torch' 2>/dev/null; then :\n"
        'elif [ -n "$host" ]; then\n'
        "  site=$(venv/bin/python -c 'import sysconfig; print(sysconfig.get_path(\"purelib\"))')\n"
        '  echo "$host" > "$site/gpurun-host-torch.pth"\n'
        f"else {install}; fi\n"
        f"venv/bin/python -c {shlex.quote(probe)}"
    )


def _fetch(source: str, target: str, sha256: str | None) -> str:
    quoted, part = shlex.quote(target), shlex.quote(target + ".part")
    digest = f'echo "{sha256}  {target}.part" | sha256sum -c -\n' if sha256 else ""
    return (
        f"[ ! -f {quoted} ] || exit 0\nmkdir -p $(dirname {quoted})\n"
        "python3 - <<'END'\nimport urllib.request\n"
        f"urllib.request.urlretrieve({source!r}, {target + '.part'!r})\nEND\n"
        f"{digest}mv {part} {quoted}"
    )


def _minutes(minutes: object) -> float:
    return float(str(minutes)) * 60
