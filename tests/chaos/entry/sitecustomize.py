"""Python imports this before anything else, when this folder is first on its path."""

import gc

from tests.chaos import inside

gc.set_threshold(50_000)  # most of a schedule's CPU is processes that start; that is a quarter less
inside.install()
