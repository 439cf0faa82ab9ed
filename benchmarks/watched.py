"""`python -m benchmarks.watched`: what one keeper costs that watches many trainings over SSH.

The trainings are real processes on real sshd boxes, each with its fuse; no driver lives.  The
floor, a keeper of the same settings with nothing to watch, is measured in the same run.
"""

import json
import os
import sys
import tempfile
from argparse import ArgumentParser
from contextlib import ExitStack
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

from benchmarks.keeper import cpu_s, rss_mb, wait
from gpurun import keeper
from gpurun.clock import SystemClock, after
from gpurun.engine import detached
from gpurun.engine.context import open_context
from gpurun.engine.guarding import last_words
from gpurun.guards import fuse_of
from gpurun.model import Need, Order
from gpurun.reach import shell_of
from gpurun.recipe import load
from gpurun.settings import load as load_settings
from gpurun.store import Journal
from gpurun.store.ledger import Caps
from gpurun.store.owner import random_id
from gpurun.timers import timer_for
from gpurun.wiring import provisioner
from tests.boxes import Box, box
from tests.hosts import Hosts, entry
from tests.stories import Story

CLOCK = SystemClock()
NEED = Need(None, 0, 1)
TRAIN = """\
mkdir -p out; step=0
while :; do
  step=$((step + 1)); echo "step $step/999999"
  echo "{\\"step\\": $step, \\"total_steps\\": 999999, \\"loss\\": 1.5}" >> out/metrics.jsonl
  sleep 5
done
"""


def main() -> int:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--boxes", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=120)
    options = parser.parse_args()
    with ExitStack() as stack:
        home = Hosts(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        stack.callback(home.close)
        os.environ.update(home.env)
        rows = [("a keeper that watches none", *_measure(home, options.seconds / 4))]
        home.kill_keeper()
        machines = [stack.enter_context(box()) for _ in range(options.boxes)]
        home.list_hosts([entry(machine) for machine in machines])
        for machine in machines:
            _begin(home, machine)
        rows.append((f"one that watches {options.boxes}", *_measure(home, options.seconds)))
        seen = sum(bool(run["train"]) for run in _runs(home))
    for what, share, resident_mb in rows:
        print(f"{what:<28} {100 * share:6.2f} % of a core   {resident_mb:5.0f} MB")
    print(f"{'limits':<28} {10:6.2f} % of a core   {150:5.0f} MB")
    print(f"trainings seen to step: {seen} of {options.boxes}")
    _, share, resident_mb = rows[-1]
    return int(share > 0.10 or resident_mb > 150 or seen < options.boxes)


def _measure(home: Hosts, seconds: float) -> tuple[float, float]:
    """Share of a core and MB of the keeper, once it has connected to every box."""
    pid = keeper.start(home.places)
    assert pid is not None
    wait(max(10.0, seconds / 2))
    before_s, began_s = cpu_s(pid), CLOCK.boot_s()
    wait(seconds)
    return (cpu_s(pid) - before_s) / (CLOCK.boot_s() - began_s), rss_mb(pid)


def _begin(home: Hosts, machine: Box) -> None:
    """A run as its driver leaves it: training launched, timer in force, fuse armed."""
    name = f"ssh:{machine.user}@{machine.host}:{machine.port}"
    settings = load_settings()
    cloud = provisioner(name, settings, CLOCK)
    home.places.ensure()
    journal = Journal(home.places.database, CLOCK)
    journal.database.migrate()
    owner_id, _ = journal.owner.ensure()
    run_id = random_id(8)
    label = f"gpurun-{owner_id}-{run_id}-bench1"
    recipe = load(str(home.recipe(train=TRAIN)), provider="ssh")
    story = Story(journal, CLOCK, run_id, provider=name)
    work, document = home.work, json.dumps(recipe.to_dict())
    places = {"recipe_dir": str(work), "runs_dir": str(work / "runs")}
    journal.runs.add(replace(story.run(), recipe_json=document, **places))
    epoch = journal.runs.take(run_id)
    fires_at = after(CLOCK.now(), 7200)
    timer = timer_for(label, 1, "run", fires_at, after(fires_at, 60), CLOCK)
    attempt = replace(
        story.attempt(), label=label, account_id=cloud.account(), gpu=None, gpu_count=0
    )
    guards = [("keeper", True), ("fuse", True)]
    journal.attempts.intend(attempt, timer, guards, Decimal(1), Caps(run_usd=Decimal(10)), epoch)
    journal.attempts.sending(label, epoch)
    [offer] = cloud.offers(NEED)
    order = Order(offer, NEED, label, timer.fires_at, timer.ends_at, Decimal(10))
    journal.attempts.made(label, cloud.create(order).instance_id, "answer")
    journal.attempts.seen(label, CLOCK.now(), None)
    journal.runs.begin_phase(run_id, label, "train", "ab12", epoch)
    home.places.run_dir(run_id).mkdir(parents=True, exist_ok=True)
    ctx = open_context(run_id, home.places, settings, CLOCK, epoch)
    shell = shell_of(cloud, label, home.places)
    assert shell.run(detached.launch_text("train", TRAIN), timeout_s=30).ok
    fuse = fuse_of(cloud, ctx.journal.attempts.get(label), journal, CLOCK, shell)
    assert fuse is not None
    fuse.arm(timer, last_words())
    journal.close()
    ctx.journal.close()


def _runs(home: Hosts) -> list[dict[str, object]]:
    document = json.loads(home.run("status", "--all", "--json").stdout)
    runs: list[dict[str, object]] = document["runs"]
    return runs


if __name__ == "__main__":
    sys.exit(main())
