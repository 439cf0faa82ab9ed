"""Whole runs at the emulated clouds."""

import pytest

# Their assertions are shown in full, as those of test files are.
for _module in ("buying", "training", "ending", "scene"):
    pytest.register_assert_rewrite(f"{__name__}.{_module}")
