"""What one driver works with: a run, its recipe, its provider, the journal and the clock."""

import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpurun.blackbox import BlackBox
from gpurun.clock import Clock
from gpurun.keeper.clouds import Clouds
from gpurun.model import Attempt, Budget, Run, Timer
from gpurun.places import Places
from gpurun.provider import Provisioner
from gpurun.recipe import Recipe
from gpurun.settings import Settings
from gpurun.store import Journal, StoreError
from gpurun.timers import entry_of


@dataclass(frozen=True, slots=True)
class Context:
    """Opened once per process; the journal's schema is current."""

    places: Places
    settings: Settings
    clock: Clock
    journal: Journal
    blackbox: BlackBox
    run: Run
    recipe: Recipe
    clouds: Callable[[str], Provisioner]
    epoch: int

    @property
    def cloud(self) -> Provisioner:
        """The run's provider, with the key that is the newest now."""
        return self.clouds(self.run.provider)

    def bound(self) -> "Context":
        """The same with the provider as it is now: its key does not change under one purchase."""
        cloud = self.cloud
        return replace(self, clouds=lambda _name: cloud)

    @property
    def budget(self) -> Budget:
        return budget_of(self.recipe)

    @property
    def artifacts_dir(self) -> Path:
        return Path(self.run.runs_dir) / self.run.id

    @property
    def options(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run.options_json)
        return found

    @property
    def stays(self) -> bool:
        """Whether the box outlives its trainings: its own recipe had none."""
        return bool(self.options.get("stays"))

    @property
    def accept_one_guard(self) -> bool:
        """Whether a box that only the keeper can end was agreed to, for this run or for all."""
        return self.settings.accept_one_guard or bool(self.options.get("accept_one_guard"))

    @property
    def task(self) -> int:
        """How many recipes were begun on this box by `up --on`."""
        return int(self.options.get("task", 0))

    @property
    def work_digest(self) -> str:
        """What phases are done for: this code, this task."""
        return f"{self.run.bundle_sha256}{f'.{self.task}' if self.task else ''}"

    def task_result(self) -> dict[str, Any]:
        """`exit_code` and `reason` of the task in hand; empty while it goes on."""
        found = self.journal.runs.progress_of(self.run.id).get("task_result")
        return found if isinstance(found, dict) else {}

    def secrets(self) -> dict[str, str]:
        """Where the recipe's secrets are looked up: settings, and above them the environment."""
        kept = {name: value.get_secret_value() for name, value in self.settings.secrets.items()}
        return kept | dict(os.environ)

    def attempt(self) -> Attempt | None:
        """The newest attempt of the run."""
        attempts = self.journal.attempts.of_run(self.run.id)
        return attempts[-1] if attempts else None

    def fact(self, write: Callable[[], object]) -> None:
        """Write what has happened, if it can be written: nothing that ends a box waits for it."""
        try:
            write()
        except (StoreError, OSError) as error:
            if self.places.free_reserve(str(error)):
                with suppress(StoreError, OSError):
                    write()

    def trace(self, attempt: Attempt, timer: Timer, state: str) -> None:
        """The black-box line of a label: written after the commit, before the call it covers."""
        self.blackbox.append(entry_of(attempt, timer, state))


def open_context(
    run_id: str,
    places: Places,
    settings: Settings,
    clock: Clock,
    epoch: int | None = None,
    clouds: Callable[[str], Provisioner] | None = None,
) -> Context:
    journal = Journal(places.database, clock)
    run = journal.runs.get(run_id)
    clouds = clouds or Clouds(places, settings, clock)
    clouds(run.provider)  # without a key for it nothing can be done
    return Context(
        places=places,
        settings=settings,
        clock=clock,
        journal=journal,
        blackbox=BlackBox(places.blackbox, *journal.owner.ensure()),
        run=run,
        recipe=Recipe.from_dict(json.loads(run.recipe_json)),
        clouds=clouds,
        epoch=run.driver_epoch if epoch is None else epoch,
    )


def budget_of(recipe: Recipe) -> Budget:
    """The recipe's budget in seconds and dollars."""
    part = recipe.budget
    return Budget(
        max_usd_per_hour=part.max_usd_per_hour,
        max_usd=part.max_usd,
        setup_s=float(part.setup_minutes) * 60,
        run_s=float(part.run_minutes) * 60,
        grace_s=float(part.grace_minutes) * 60,
        idle_s=float(part.idle_minutes) * 60,
    )
