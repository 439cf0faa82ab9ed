"""The engine: one run, from its offer to the proof that it is gone."""

from gpurun.engine.again import again
from gpurun.engine.control import begin, extend, extension, pull, resume
from gpurun.engine.killing import Killing, kill
from gpurun.engine.orphans import Survey, end_orphan, orphans
from gpurun.engine.plan import Plan, plan, plan_among
from gpurun.engine.survey import Finding, doctor, doctor_of_box
from gpurun.engine.visit import ssh_config, visit

__all__ = [
    "Finding",
    "Killing",
    "Plan",
    "Survey",
    "again",
    "begin",
    "doctor",
    "doctor_of_box",
    "end_orphan",
    "extend",
    "extension",
    "kill",
    "orphans",
    "plan",
    "plan_among",
    "pull",
    "resume",
    "ssh_config",
    "visit",
]
