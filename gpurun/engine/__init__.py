"""The engine: one run, from its offer to the proof that it is gone."""

from gpurun.engine.again import again
from gpurun.engine.control import (
    Killing,
    begin,
    extend,
    kill,
    kill_everything_in_blackbox,
    pull,
    resume,
)
from gpurun.engine.plan import Plan, plan
from gpurun.engine.survey import Finding, Orphan, doctor, doctor_of_box, kill_orphan, orphans
from gpurun.engine.visit import ssh_config, visit

__all__ = [
    "Finding",
    "Killing",
    "Orphan",
    "Plan",
    "again",
    "begin",
    "doctor",
    "doctor_of_box",
    "extend",
    "kill",
    "kill_everything_in_blackbox",
    "kill_orphan",
    "orphans",
    "plan",
    "pull",
    "resume",
    "ssh_config",
    "visit",
]
