"""`python -m benchmarks.first_step`: from a host that answers to the smoke recipe's first step.

The packages are on the host already, as on an image made for training; the dataset is not.  How the
time splits is read from the journal.
"""

import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from gpurun.clock import SystemClock
from tests.boxes import box, shape
from tests.hosts import Hosts
from tests.ssh.packages import packages, use_packages

MOST_S = 60.0
PHASES = ("rent", "boot", "accept", "ship", "setup", "data", "verify", "arm")


def main() -> int:
    clock = SystemClock()
    wanted = replace(shape.H100X4, network="internet", share=packages())
    with box(wanted) as machine, tempfile.TemporaryDirectory() as folder:
        use_packages(machine)
        home = Hosts(Path(folder), machine)
        try:
            began_s = clock.boot_s()
            run = home.begin(Path("smoke"))
            home.until(lambda: bool((home.document(run)["train"] or {}).get("step")), 300)
            whole_s = clock.boot_s() - began_s
            home.run("kill", run, "--yes")
            report = json.loads(home.run("report", run, "--json").stdout)
        finally:
            home.close()
    spent = {phase["name"]: phase["seconds"] for phase in report["phases"]}
    for phase in PHASES:
        print(f"{phase:<10} {spent.get(phase, 0):6.1f} s")
    trained_s = whole_s - sum(spent.get(phase, 0) for phase in PHASES)
    print(f"{'launch':<10} {trained_s:6.1f} s until a step was seen")
    print(f"{'whole':<10} {whole_s:6.1f} s, at most {MOST_S:.0f} s")
    return int(whole_s > MOST_S)


if __name__ == "__main__":
    sys.exit(main())
