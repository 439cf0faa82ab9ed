"""The recipe: every key, its kind, its default and its meaning.

These frozen models are what the core works with.  The descriptions are the one source of the JSON
Schema that editors read; docs/recipes.md is tested against them.
"""

import json
import re
from decimal import Decimal
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from gpurun.errors import UsageError
from gpurun.recipe.kinds import (
    Count,
    Env,
    Glob,
    InsidePath,
    Minutes,
    MinutesOrNone,
    Money,
    Name,
    Pattern,
    ProviderName,
    Text,
    Variable,
    refuse,
    shown,
)


def key(description: str, default: Any = ..., alias: str | None = None) -> Any:
    """One key of the recipe; without a default it is required."""
    if isinstance(default, type):  # a whole part, all of whose keys have defaults
        return Field(default_factory=default, alias=alias, description=description)
    return Field(default, alias=alias, description=description)


IMAGE = "pytorch/pytorch:2.5.1-cuda12.4-cudnn9-devel"


class Part(BaseModel):
    """A mapping of the recipe: frozen, no unknown keys, nothing converted silently."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class Need(Part):
    """What the recipe asks of a machine."""

    gpu: Text = key("GPU model as providers name it (H100), or `none` for no GPU.")
    gpu_count: Count = key("GPUs on the one box.", 1)
    disk_gb: Count = key("Disk in GB (10^9 bytes); billed by most providers.", 100)
    image: Text = key("Container image of the box.", IMAGE)
    spot: bool = key("Rent what can be outbid, at a bid; else only what cannot be.", False)
    vram_gb: Count | None = key("Least memory of each GPU in GB.", None)
    nvlink: bool = key("Refuse a box whose GPUs are not joined by NVLink.", False)
    shm_gb: Count | None = key("Least /dev/shm in GB, beside what is computed.", None)
    download_mbit_s: Count | None = key("Least download rate measured, in Mbit/s.", None)

    @property
    def wants_gpu(self) -> bool:
        return self.gpu != "none"


class Budget(Part):
    """What a run may cost and how long its parts may take."""

    max_usd_per_hour: Money = key("Most the box may cost in USD per hour, all-in.")
    max_usd: Money = key("Most the whole run may cost in USD, its ending included.")
    setup_minutes: Minutes = key(
        "Minutes from the rent until the dataset is verified.", Decimal(40)
    )
    run_minutes: Minutes = key("Minutes of training once the dataset is verified.")
    grace_minutes: Minutes = key(
        "Minutes from SIGTERM to the box's end, for collecting.", Decimal(5)
    )
    idle_minutes: Minutes = key(
        "Minutes without work on the box after which it is ended.", Decimal(10)
    )
    late_collect_minutes: MinutesOrNone | None = key(
        "Minutes for collecting when all slept past the end; left out: the setting.", None
    )
    keep_on_failure_minutes: MinutesOrNone = key(
        "Minutes a failed box is kept for a look, inside its timer.", Decimal(0)
    )


class Setup(Part):
    """What is installed on the box."""

    apt: list[Text] = key("Debian packages.", [])
    pip: list[Text] = key("Python requirements, as pip reads them.", [])
    torch: Text | None = key("torch version as text; left out: the image's.", None)
    device: Literal["cuda", "cpu"] = key(
        "What torch must see; training on the CPU must be said.", "cuda"
    )
    adam_atan2: Literal["auto", "cuda", "torch"] = key(
        "Optimiser: its CUDA extension, pure torch, or the first that works.", "auto"
    )


class Ship(Part):
    """User code that goes to the box: a folder, or a git repository at one commit."""

    from_: Text | None = key("Folder, relative to the recipe's file.", None, alias="from")
    git: Text | None = key("URL of a git repository, instead of `from`.", None)
    commit: Text | None = key("Full SHA of the commit to ship from `git`.", None)
    to: InsidePath = key("Folder on the box, relative to the run's own.")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.from_ is None) == (self.git is None):
            refuse("needs either `from` (a folder) or `git` (a URL): give one of them")
        if self.git is None and self.commit is not None:
            refuse("has a `commit` without `git`: delete one or add the other")
        if self.git is not None and not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", self.pinned):
            refuse("needs `commit`, the full SHA of 40 hexadecimal digits, beside `git`")
        if self.git and not re.match(r"(https|ssh|file)://|[\w.-]+@[\w.-]+:", self.git):
            refuse("has a git URL that is not https, ssh or user@host:path: mend it")
        if self.git and re.match(r"https://[^/]*@|[a-z]+://[^/]*:[^/]*@", self.git):
            refuse("has a git URL that holds a key: let git's own credential helper give it")
        if self.to.split("/")[0] in ("remote", "."):
            refuse(f"goes to {shown(self.to)}, where gpurun's own code lies: give another `to`")
        return self

    @property
    def pinned(self) -> str:
        return self.commit or ""


class Secret(Part):
    """A value taken from the environment or the settings, never from the recipe."""

    name: Variable = key("Environment variable that holds it.")
    optional: bool = key("Go on without it.", False)


class Fetch(Part):
    """A file downloaded by the box."""

    from_: Text = key("https:// address of the file.", alias="from")
    to: InsidePath = key("Where it lies on the box.")
    sha256: Text | None = key("Digest that it must have.", None)

    @model_validator(mode="after")
    def _plausible(self) -> Self:
        if not re.match(r"https?://[^\s/]+", self.from_):
            refuse(f"fetches from {shown(self.from_)}: give an https:// address")
        if self.sha256 and not re.fullmatch(r"[0-9a-f]{64}", self.sha256):
            refuse("has a `sha256` that is not 64 hexadecimal digits: copy it whole")
        return self


class Verify(Part):
    """What must hold before training is launched."""

    files: dict[Glob, Count] = key(
        "Glob in `data.path` -> number of files that must match, exactly.", {}
    )
    run: Text | None = key("Command that must exit 0.", None)


class Data(Part):
    """The dataset: built or fetched, then verified."""

    build: Text | None = key("Command that builds it on the box.", None)
    fetch: list[Fetch] = key("Files to download, instead of `build`.", [])
    path: InsidePath = key("Folder where it lies on the box.", "data")
    verify: Verify = key("What must hold before training.", Verify)

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.build and self.fetch:
            refuse("has both `build` and `fetch`: keep one of them")
        return self


class Loader(Part):
    """The data loader of a rank whose workers are processes: /dev/shm holds its batches."""

    workers: Count = key("Worker processes of each rank (`num_workers`).")
    prefetch: Count = key("Batches that each worker has ready (`prefetch_factor`).", 2)
    batch_mb: Count = key("Size of one batch of one rank in MB (10^6 bytes), rounded up.")


class Train(Part):
    """The training command."""

    run: Text = key("Command, launched detached on the box.")
    loader: Loader | None = key("Its data loader, from which /dev/shm is computed.", None)
    expect: list[Glob] = key("Globs of which each must match a file at the end.", [])


class Watch(Part):
    """How progress is read, and when to stop early."""

    metrics: Glob | None = key("Glob of the metrics.jsonl that training writes.", None)
    pattern: Pattern | None = key(
        "Regular expression over the log, its named groups are metrics.", None
    )
    stop_when: Text | None = key(
        "`METRIC OP NUMBER`, OP one of > >= < <= ==: stop when it holds.", None
    )
    hang_minutes: Minutes = key(
        "Minutes without a sign of progress after which the run is ended.", Decimal(10)
    )

    @model_validator(mode="after")
    def _stops(self) -> Self:
        rule = r"[^\s<>=]+\s*(>=|<=|==|>|<)\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?"
        if self.stop_when and not re.fullmatch(rule, self.stop_when.strip()):
            refuse(f"has `stop_when: {shown(self.stop_when)}`: write it as `ARC/pass@1 > 0.05`")
        return self


class Requires(Part):
    """The ladder: a long run is refused without a proven short one."""

    recipe: Name = key("Recipe that must have succeeded.")
    within_days: Count = key("Days that its success counts.", 7)


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _named(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


Providers = Annotated[
    list[ProviderName], BeforeValidator(_listed, json_schema_input_type=list[ProviderName] | str)
]
AnySecret = Annotated[Secret, BeforeValidator(_named, json_schema_input_type=Secret | str)]


class Recipe(Part):
    """One piece of work for one rented box, from the rent to the proof that it is gone."""

    name: Name = key("Name of the recipe; left out: the file's name.")
    need: Need = key("What is asked of a machine.")
    providers: Providers = key(
        "Where to look; `any`: all with credentials. `--provider` overrides.", ["any"]
    )
    budget: Budget = key("What it may cost and how long it may take.")
    setup: Setup = key("What is installed on the box.", Setup)
    ship: list[Ship] = key("User code that goes to the box.", [])
    max_ship_mb: Count = key("Most that `ship` may weigh, in MB (10^6 bytes).", 500)
    env: Env = key("Environment of every command; never a secret.", {})
    secrets: list[AnySecret] = key(
        "Secrets by name; a bare name is required, `optional: true` is not.", []
    )
    data: Data | None = key("The dataset.", None)
    check: Text | None = key("Command that must exit 0 before training.", None)
    train: Train | None = key("The training; left out: an interactive box.", None)
    watch: Watch = key("How progress is read, and when to stop early.", Watch)
    collect: list[Glob] = key("Files and folders fetched from the box.", ["checkpoints", "logs"])
    collect_to: Text | None = key(
        "Also pushed from the box: an rclone remote or user@host:path.", None
    )
    requires: Requires | None = key("A short run that must have succeeded.", None)
    per_provider: dict[ProviderName, dict[str, Any]] = key(
        "Provider -> keys that replace those above when it is chosen.", {}
    )

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if not self.need.wants_gpu and self.setup.device == "cuda":
            refuse("has `need.gpu: none` but `setup.device` is cuda: add `setup.device: cpu`")
        if self.setup.device == "cpu" and self.setup.adam_atan2 == "cuda":
            refuse("has `setup.adam_atan2: cuda` but `setup.device` is cpu: it needs a GPU")
        if self.collect_to and (":" not in self.collect_to or self.collect_to.startswith("-")):
            refuse(
                f"has `collect_to: {shown(self.collect_to)}`: give remote:path or user@host:path"
            )
        return self

    @property
    def gpus(self) -> int:
        """GPURUN_GPUS, the processes that torchrun starts: 1 where there is no GPU."""
        return self.need.gpu_count if self.need.wants_gpu else 1

    def to_dict(self) -> dict[str, Any]:
        """For the journal: JSON types only, money and minutes as text."""
        return self.model_dump(mode="json", by_alias=True)

    @classmethod
    def from_dict(cls, kept: dict[str, Any]) -> Self:
        try:
            return cls.model_validate_json(json.dumps(kept))
        except ValidationError as error:
            keys = ", ".join(".".join(map(str, detail["loc"])) for detail in error.errors())
            raise UsageError(
                f"the recipe in the journal was written by another version of gpurun ({keys}): "
                "go on with that version"
            ) from None
