"""Whose journal this is, and whether it may still be trusted to buy (protocol W5-W7)."""

import hashlib
import os
import platform
import secrets
from pathlib import Path

from gpurun.errors import UsageError
from gpurun.store.database import Database
from gpurun.store.tables import OwnerRow

ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"  # base32, safe in every provider's label


def random_id(length: int) -> str:
    return "".join(secrets.choice(ALPHABET) for _ in range(length))


def machine_hash() -> str:
    """Identifies this machine and user; a journal made elsewhere ends nothing by itself."""
    known = Path("/etc/machine-id")
    name = known.read_text().strip() if known.exists() else ""
    return hashlib.sha256(f"{name or platform.node()}:{os.getuid()}".encode()).hexdigest()[:16]


class Owner:
    def __init__(self, database: Database) -> None:
        self._database = database

    def ensure(self) -> tuple[str, str]:
        """The owner id and machine of this journal, written once."""
        with self._database.read() as session:
            if (known := session.get(OwnerRow, 1)) is not None:
                return known.owner_id, known.machine
        with self._database.write() as session:
            row = session.get(OwnerRow, 1)
            if row is None:
                row = OwnerRow(
                    owner_id=random_id(6), machine=machine_hash(), state_dir_id=self._state_dir_id()
                )
                session.add(row)
            return row.owner_id, row.machine

    def require_this_machine(self, undone: str) -> None:
        """UsageError for a journal that another machine has made: its own processes are there."""
        if self.ensure()[1] != machine_hash():
            raise UsageError(f"{undone}: {self.trouble()}.")

    def trouble(self) -> str:
        """Why nothing may be bought with this journal; empty when all is well."""
        with self._database.read() as session:
            row = session.get(OwnerRow, 1)
            if row is None:
                return ""
            if row.machine != machine_hash():
                return (
                    "this journal was made on another machine or by another user: nothing is "
                    "bought or ended by itself here. Run `gpurun keeper adopt` if it moved for good"
                )
            return row.trouble

    def distrust(self, why: str) -> None:
        with self._database.write() as session:
            row = session.get(OwnerRow, 1)
            if row is not None and not row.trouble:
                row.trouble = why
                session.add(row)

    def adopt(self) -> str:
        """Take this journal over for this machine, under a new owner id."""
        with self._database.write() as session:
            row = session.get(OwnerRow, 1)
            if row is None:
                raise UsageError("there is no journal to adopt yet; `gpurun up` makes one")
            row.owner_id, row.machine, row.trouble = random_id(6), machine_hash(), ""
            row.state_dir_id = self._state_dir_id()
            session.add(row)
            return row.owner_id

    def _state_dir_id(self) -> str:
        info = self._database.path.parent.stat()
        return f"{info.st_dev}:{info.st_ino}"
