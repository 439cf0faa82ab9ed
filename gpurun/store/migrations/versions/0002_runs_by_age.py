"""Runs by age: `status` shows the newest without sorting thousands."""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("CREATE INDEX ix_runs_created_at ON runs (created_at)")
