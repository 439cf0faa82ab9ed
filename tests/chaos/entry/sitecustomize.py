"""Python imports this before anything else, when this folder is first on its path."""

from tests.chaos import inside

inside.install()
