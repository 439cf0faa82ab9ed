"""Wallets: `status` says what nothing but the end of the money could end."""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE keeper_accounts ADD COLUMN credit_usd TEXT")
    op.execute("ALTER TABLE keeper_accounts ADD COLUMN credit_at REAL")
