"""The keeper's process: who becomes it, and what one costs that does not."""

import json
import subprocess
import sys

from gpurun.keeper.serve import LOCKED
from gpurun.locks import hold
from tests.homes import Home

HEAVY = {"alembic", "apscheduler", "httpx", "pydantic", "sqlalchemy", "sqlmodel"}
LOSES = """
import json, resource, sys
from gpurun.keeper.serve import serve
code = serve()
print(json.dumps({"code": code, "modules": sorted(sys.modules),
                  "cpu_s": resource.getrusage(resource.RUSAGE_SELF).ru_utime}))
"""


def test_a_second_keeper_ends_before_it_imports_anything_heavy(home: Home) -> None:
    with hold(home.places.keeper_lock):
        done = subprocess.run(
            [sys.executable, "-c", LOSES], env=home.env, capture_output=True, text=True, check=True
        )
    found = json.loads(done.stdout)
    print(f"{found['cpu_s']:.2f} CPU-s")
    assert found["code"] == LOCKED
    assert HEAVY.isdisjoint(found["modules"])


def test_its_parent_does_not_start_it_again(home: Home) -> None:
    with hold(home.places.keeper_lock):
        done = subprocess.run([sys.executable, "-m", "gpurun.keeper"], env=home.env, check=False)
    assert done.returncode == LOCKED
