"""Runs that have proven something: which code worked on which GPU, and where."""

from dataclasses import dataclass
from datetime import datetime

from sqlmodel import col, select

from gpurun.model import RunState
from gpurun.store.database import Database
from gpurun.store.tables import InstanceRow, RunRow


@dataclass(frozen=True, slots=True)
class Proof:
    """A run that is done, with exit 0."""

    run_id: str
    finished_at: datetime


class Proven:
    def __init__(self, database: Database) -> None:
        self._database = database

    def by(
        self, recipe: str, bundle_sha256: str, gpu: str | None, provider: str, since: datetime
    ) -> Proof | None:
        """The newest of this recipe and code; what counts is the box that it ended on."""
        query = (
            select(RunRow)
            .where(RunRow.recipe_name == recipe, RunRow.bundle_sha256 == bundle_sha256)
            .where(RunRow.state == RunState.DONE.value, RunRow.exit_code == 0)
            .where(col(RunRow.finished_at) >= since)
            .order_by(col(RunRow.finished_at).desc())
        )
        with self._database.read() as session:
            for run in session.exec(query):
                boxes = select(InstanceRow).where(InstanceRow.run_id == run.id)
                last = session.exec(boxes.order_by(col(InstanceRow.sent_at).desc())).first()
                if last is None or run.finished_at is None:
                    continue
                if last.gpu == gpu and last.provider.partition(":")[0] == provider:
                    return Proof(run.id, run.finished_at)
        return None
