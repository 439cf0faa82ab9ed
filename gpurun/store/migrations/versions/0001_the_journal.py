"""The journal as of 0.1.0.

The tables are written out, not derived from today's classes: a step must do the same for ever.
"""

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TABLES = (
    """
    CREATE TABLE events (
        id INTEGER NOT NULL,
        at FLOAT NOT NULL,
        run_id VARCHAR NOT NULL,
        label VARCHAR NOT NULL,
        who VARCHAR NOT NULL,
        what VARCHAR NOT NULL,
        detail VARCHAR NOT NULL,
        PRIMARY KEY (id)
    )
    """,
    """
    CREATE INDEX ix_events_run_id ON events (run_id)
    """,
    """
    CREATE TABLE guards (
        label VARCHAR NOT NULL,
        name VARCHAR NOT NULL,
        state VARCHAR NOT NULL,
        ends_bill BOOLEAN NOT NULL,
        seq_wanted INTEGER NOT NULL,
        seq_read INTEGER NOT NULL,
        ends_at_read FLOAT,
        read_back_at FLOAT,
        ref VARCHAR NOT NULL,
        PRIMARY KEY (label, name)
    )
    """,
    """
    CREATE TABLE instances (
        label VARCHAR NOT NULL,
        run_id VARCHAR NOT NULL,
        provider VARCHAR NOT NULL,
        account_id VARCHAR NOT NULL,
        offer_id VARCHAR NOT NULL,
        usd_per_hour TEXT NOT NULL,
        ceiling_at FLOAT NOT NULL,
        state VARCHAR NOT NULL,
        ending VARCHAR,
        gpu VARCHAR,
        gpu_count INTEGER NOT NULL,
        sent_at FLOAT,
        instance_id VARCHAR,
        id_from VARCHAR,
        first_seen_at FLOAT,
        created_at FLOAT,
        delete_acked_at FLOAT,
        gone_at FLOAT,
        evidence_json VARCHAR NOT NULL,
        PRIMARY KEY (label)
    )
    """,
    """
    CREATE INDEX ix_instances_run_id ON instances (run_id)
    """,
    """
    CREATE INDEX ix_instances_state ON instances (state)
    """,
    """
    CREATE TABLE keeper_accounts (
        provider VARCHAR NOT NULL,
        account_id VARCHAR NOT NULL,
        listed_at FLOAT,
        auth_ok BOOLEAN NOT NULL,
        detail VARCHAR NOT NULL,
        orphans_json VARCHAR NOT NULL,
        PRIMARY KEY (provider, account_id)
    )
    """,
    """
    CREATE TABLE keepers (
        id INTEGER NOT NULL,
        pid INTEGER NOT NULL,
        version VARCHAR NOT NULL,
        beat INTEGER NOT NULL,
        beat_at FLOAT NOT NULL,
        PRIMARY KEY (id)
    )
    """,
    """
    CREATE TABLE ledger (
        id INTEGER NOT NULL,
        run_id VARCHAR NOT NULL,
        label VARCHAR NOT NULL,
        at FLOAT NOT NULL,
        kind VARCHAR NOT NULL,
        phase VARCHAR NOT NULL,
        usd TEXT NOT NULL,
        since FLOAT,
        PRIMARY KEY (id)
    )
    """,
    """
    CREATE INDEX ix_ledger_run_id ON ledger (run_id)
    """,
    """
    CREATE TABLE owner (
        id INTEGER NOT NULL,
        owner_id VARCHAR NOT NULL,
        machine VARCHAR NOT NULL,
        state_dir_id VARCHAR NOT NULL,
        trouble VARCHAR NOT NULL,
        PRIMARY KEY (id)
    )
    """,
    """
    CREATE TABLE phases (
        id INTEGER NOT NULL,
        run_id VARCHAR NOT NULL,
        label VARCHAR NOT NULL,
        phase VARCHAR NOT NULL,
        digest VARCHAR NOT NULL,
        began_at FLOAT NOT NULL,
        ended_at FLOAT,
        result VARCHAR NOT NULL,
        detail VARCHAR NOT NULL,
        PRIMARY KEY (id)
    )
    """,
    """
    CREATE INDEX ix_phases_run_id ON phases (run_id)
    """,
    """
    CREATE TABLE runs (
        id VARCHAR NOT NULL,
        recipe_name VARCHAR NOT NULL,
        recipe_json VARCHAR NOT NULL,
        recipe_dir VARCHAR NOT NULL,
        provider VARCHAR NOT NULL,
        runs_dir VARCHAR NOT NULL,
        options_json VARCHAR NOT NULL,
        state VARCHAR NOT NULL,
        phase VARCHAR NOT NULL,
        ending VARCHAR,
        reason VARCHAR NOT NULL,
        exit_code INTEGER,
        error VARCHAR NOT NULL,
        driver_epoch INTEGER NOT NULL,
        driver_pid INTEGER,
        bundle_sha256 VARCHAR NOT NULL,
        progress_json VARCHAR NOT NULL,
        collected_json VARCHAR NOT NULL,
        created_at FLOAT NOT NULL,
        finished_at FLOAT,
        collected_at FLOAT,
        PRIMARY KEY (id)
    )
    """,
    """
    CREATE INDEX ix_runs_state ON runs (state)
    """,
    """
    CREATE TABLE timers (
        label VARCHAR NOT NULL,
        seq INTEGER NOT NULL,
        kind VARCHAR NOT NULL,
        fires_at FLOAT NOT NULL,
        ends_at FLOAT NOT NULL,
        boot_id VARCHAR NOT NULL,
        fires_boot_s FLOAT NOT NULL,
        ends_boot_s FLOAT NOT NULL,
        state VARCHAR NOT NULL,
        acked_at FLOAT,
        fired_at FLOAT,
        fired_by VARCHAR,
        PRIMARY KEY (label, seq)
    )
    """,
    """
    CREATE INDEX ix_timers_state ON timers (state)
    """,
)

# Two triggers, so that no code path and no hand can rewrite money.
APPEND_ONLY = (
    """
    CREATE TRIGGER ledger_is_never_changed BEFORE UPDATE ON ledger
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END
    """,
    """
    CREATE TRIGGER ledger_is_never_cut BEFORE DELETE ON ledger
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END
    """,
)


def upgrade() -> None:
    for statement in (*TABLES, *APPEND_ONLY):
        op.execute(statement)
