"""The kinds of step, and what they depend on beside the recipe."""

import hashlib
from dataclasses import dataclass

from gpurun.hardware import Hardware
from gpurun.recipe import Recipe

KEEP = ".gpurun"  # our own files on the box, beside the run's
ENV_FILE = f"{KEEP}/env.sh"
PROBE_S = 30.0


@dataclass(frozen=True, slots=True)
class Command:
    """A command that must exit 0 within its time, run by `sh` with `set -e` and env.sh."""

    text: str
    timeout_s: float
    says: str = ""

    def __str__(self) -> str:
        return self.says or self.text.strip()


@dataclass(frozen=True, slots=True)
class Upload:
    """The cargo of this digest, in the box's root (`gpurun.ship.bring`)."""

    bundle_sha256: str

    def __str__(self) -> str:
        return f"upload the bundle {self.bundle_sha256[:12]}"


@dataclass(frozen=True, slots=True)
class ReuseWheel:
    """A wheel that an equal box has built goes to this one (`gpurun.wheels.reuse`)."""

    def __str__(self) -> str:
        return "upload the wheel of adam-atan2 that an equal box has built, if there is one"


@dataclass(frozen=True, slots=True)
class KeepWheel:
    """A wheel that this box has built is kept here for the next (`gpurun.wheels.keep`)."""

    def __str__(self) -> str:
        return "keep the wheel of adam-atan2, if it was built here"


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


Step = Command | Upload | ReuseWheel | KeepWheel | Files | Detached


@dataclass(frozen=True, slots=True)
class Facts:
    """What the steps depend on beside the recipe."""

    bundle_sha256: str
    label: str
    run_id: str
    torch_cpu_index: str  # "" = the default index only
    hardware: Hardware | None = None  # None: nothing is rented yet, as in a dry run


def once(text: str) -> str:
    """The same, done once per box: again only with another text, or after it has failed.

    `up --on RUN` so skips the setup that an earlier run has finished.
    """
    done = f"{KEEP}/done/{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    return (
        f"set -e\nif [ -f {done} ]; then echo 'done before on this box'; exit 0; fi\n"
        f"(\nset -e\n{text}\n)\n"
        f"mkdir -p {KEEP}/done; : > {done}"
    )


def limit_s(recipe: Recipe) -> float:
    """No step of the setup may outlast the setup's own timer."""
    return float(recipe.budget.setup_minutes) * 60
