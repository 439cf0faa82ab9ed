"""Alembic's entry: runs the steps on the connection it is handed, in that one transaction."""

from alembic import context

context.configure(connection=context.config.attributes["connection"], transactional_ddl=True)
context.run_migrations()
