"""The engine: one run, from its offer to the proof that it is gone."""

from gpurun.engine.control import begin, extend, kill, kill_everything_in_blackbox, pull, resume
from gpurun.engine.plan import Plan, plan

__all__ = [
    "Plan",
    "begin",
    "extend",
    "kill",
    "kill_everything_in_blackbox",
    "plan",
    "pull",
    "resume",
]
