"""Runs, their phases, their events; and the fence that stops a driver that lost its run."""

import json
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy
from sqlmodel import Session, col, select

from gpurun.clock import Clock
from gpurun.errors import GpurunError, UsageError
from gpurun.model import Ending, Run, RunState
from gpurun.store.database import Database
from gpurun.store.rows import columns, run_from, run_of
from gpurun.store.tables import EventRow, InstanceRow, PhaseRow, RunRow


class Fenced(GpurunError):
    """This driver no longer owns the run, or the run is ending: stop, call nothing."""


def fence(session: Session, run_id: str, epoch: int, label: str | None = None) -> RunRow:
    """The run's row, if this epoch may still act on it (protocol 3)."""
    run = session.get(RunRow, run_id)
    attempt = session.get(InstanceRow, label) if label else None
    if run is None or run.driver_epoch != epoch or run.ending is not None:
        raise Fenced(f"run {run_id} is ending, or has another driver")
    if attempt is not None and attempt.ending is not None:
        raise Fenced(f"{label} is ending")
    return run


class Runs:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def add(self, run: Run) -> None:
        with self._database.write() as session:
            session.add(
                RunRow(
                    id=run.id,
                    recipe_name=run.recipe_name,
                    recipe_json=run.recipe_json,
                    recipe_dir=run.recipe_dir,
                    provider=run.provider,
                    runs_dir=run.runs_dir,
                    options_json=run.options_json,
                    bundle_sha256=run.bundle_sha256,
                    created_at=run.created_at,
                )
            )

    def get(self, run_id: str) -> Run:
        with self._database.read() as session:
            row = session.get(RunRow, run_id)
            if row is None:
                raise UsageError(f"no run {run_id}; `gpurun status --all` lists them")
            return run_of(row)

    def unfinished(self) -> list[Run]:
        """Runs that something must still be done for, the oldest first."""
        query = (
            sqlalchemy.select(*columns(Run, RunRow))
            .where(col(RunRow.state).in_([RunState.ACTIVE, RunState.STILL_BILLING]))
            .order_by(col(RunRow.created_at))
        )
        with self._database.read() as session:
            return [run_from(row) for row in session.connection().execute(query).all()]

    def take(self, run_id: str) -> int:
        """A new epoch: whoever drove this run before is fenced out from here on."""
        with self._database.write() as session:
            row = _row(session, run_id)
            row.driver_epoch += 1
            row.driver_pid = os.getpid()
            session.add(row)
            self._event(session, run_id, "driver", f"epoch {row.driver_epoch}")
            return row.driver_epoch

    def driver_pid(self, run_id: str) -> int | None:
        with self._database.read() as session:
            return _row(session, run_id).driver_pid

    def begin_phase(self, run_id: str, label: str, phase: str, digest: str, epoch: int) -> int:
        with self._database.write() as session:
            run = fence(session, run_id, epoch, label)
            run.phase = phase
            row = PhaseRow(
                run_id=run_id, label=label, phase=phase, digest=digest, began_at=self._clock.now()
            )
            session.add_all([run, row])
            session.flush()
            assert row.id is not None
            return row.id

    def end_phase(self, phase_id: int, result: str, detail: str = "") -> None:
        with self._database.write() as session:
            row = session.get(PhaseRow, phase_id)
            if row is not None:
                row.ended_at, row.result, row.detail = self._clock.now(), result, detail
                session.add(row)

    def began(self, run_id: str, phase: str) -> bool:
        """Whether this phase was ever begun, whatever the run shows now."""
        query = select(PhaseRow.id).where(PhaseRow.run_id == run_id, PhaseRow.phase == phase)
        with self._database.read() as session:
            return session.exec(query).first() is not None

    def phases_done(self, label: str, digest: str) -> set[str]:
        """Phases proven done on this box with this bundle: a takeover does not repeat them."""
        query = select(PhaseRow.phase).where(
            PhaseRow.label == label, PhaseRow.digest == digest, PhaseRow.result == "ok"
        )
        with self._database.read() as session:
            return set(session.exec(query))

    def said_by(self, label: str, phase: str) -> str:
        """What this phase, done well on this box, has said of itself."""
        query = (
            select(PhaseRow.detail)
            .where(PhaseRow.label == label, PhaseRow.phase == phase, PhaseRow.result == "ok")
            .order_by(col(PhaseRow.id).desc())
        )
        with self._database.read() as session:
            return session.exec(query).first() or ""

    def show_phase(self, run_id: str, phase: str) -> None:
        with self._database.write() as session:
            row = _row(session, run_id)
            row.phase = phase
            session.add(row)

    def again(
        self,
        run_id: str,
        *,
        before: str,
        recipe_json: str,
        recipe_dir: str,
        bundle_sha256: str,
        options_json: str,
    ) -> None:
        """Another recipe on the same live box, whose options were `before`.

        UsageError when the run is ending, or another command was faster.
        """
        with self._database.write() as session:
            row = _row(session, run_id)
            if row.ending is not None:
                raise UsageError(f"run {run_id} is ending: it takes no other recipe")
            if row.options_json != before:
                raise UsageError(
                    f"another command has just given run {run_id} a recipe; "
                    f"`gpurun status {run_id}` shows it"
                )
            row.recipe_json, row.recipe_dir = recipe_json, recipe_dir
            row.bundle_sha256, row.options_json = bundle_sha256, options_json
            row.progress_json, row.phase = "{}", "accept"
            session.add(row)
            self._event(session, run_id, "again", options_json)

    def progress(self, run_id: str, train: Mapping[str, Any]) -> None:
        with self._database.write() as session:
            row = _row(session, run_id)
            row.progress_json = json.dumps(train)
            session.add(row)

    def progress_of(self, run_id: str) -> dict[str, Any]:
        """What was last kept of its training; empty before that."""
        with self._database.read() as session:
            kept = json.loads(_row(session, run_id).progress_json)
            return kept if isinstance(kept, dict) else {}

    def collected(self, run_id: str, artifacts: Sequence[Mapping[str, Any]]) -> None:
        with self._database.write() as session:
            row = _row(session, run_id)
            row.collected_json = json.dumps(list(artifacts))
            row.collected_at = self._clock.now()
            session.add(row)

    def failing(self, run_id: str, error: str, exit_code: int) -> None:
        """Why a run fails, kept until its box is proven gone."""
        with self._database.write() as session:
            row = _row(session, run_id)
            if row.ending == Ending.FAILED and row.exit_code is None:
                row.error, row.exit_code = f"{error}\n{row.error}".strip(), exit_code
                session.add(row)

    def add_error(self, run_id: str, error: str) -> None:
        """Something that went wrong on the way to the end, beside why it ends."""
        with self._database.write() as session:
            row = _row(session, run_id)
            if error not in row.error:
                row.error = f"{row.error}\n{error}".strip()
                session.add(row)

    def finish(self, run_id: str, state: RunState, exit_code: int, error: str = "") -> None:
        """The end of a run; a run once finished stays as it is."""
        with self._database.write() as session:
            row = _row(session, run_id)
            if row.state not in (RunState.ACTIVE, RunState.STILL_BILLING):
                return
            row.state = state.value
            if state is not RunState.STILL_BILLING:  # what it comes to in the end is kept apart
                row.exit_code, row.error = exit_code, error or row.error
                row.finished_at = self._clock.now()
            session.add(row)
            self._event(session, run_id, "finish", f"{state.value}, exit {exit_code}. {error}")

    def goes_on(self, run_id: str) -> None:
        """What still billed of it is gone, and the run was not to end."""
        with self._database.write() as session:
            row = _row(session, run_id)
            if row.state == RunState.STILL_BILLING and row.ending is None:
                row.state = RunState.ACTIVE.value
                session.add(row)

    def event(self, run_id: str, what: str, detail: str = "", label: str = "") -> None:
        with self._database.write() as session:
            self._event(session, run_id, what, detail, label)

    def last_event_at(self) -> datetime | None:
        with self._database.read() as session:
            query = select(EventRow.at).order_by(col(EventRow.id).desc()).limit(1)
            return session.exec(query).first()

    def _event(
        self, session: Session, run_id: str, what: str, detail: str = "", label: str = ""
    ) -> None:
        who = f"pid {os.getpid()}"
        session.add(
            EventRow(
                at=self._clock.now(), run_id=run_id, label=label, who=who, what=what, detail=detail
            )
        )


def _row(session: Session, run_id: str) -> RunRow:
    row = session.get(RunRow, run_id)
    if row is None:
        raise UsageError(f"no run {run_id}; `gpurun status --all` lists them")
    return row
