"""Watching a launched training: one look per tick, until it ends or must be ended.

loop.py        the driver's loop: `watch`
watcher.py     one training, a look at a time; its outcomes
said.py metrics.py progress.py pace.py    what it says of itself, and how far it is
gpus.py health.py signs.py xid.py what its box shows
judge.py evidence.py onbox.py     what is kept of a failure, before the box is ended
stacks.py findings.py table.py stalls.py verdict.py    why it failed
"""

from gpurun.engine.watch.judge import Judged, judge, tail
from gpurun.engine.watch.loop import Asked, look_once, watch, watcher_of
from gpurun.engine.watch.progress import Progress
from gpurun.engine.watch.watcher import Done, Failed, Outcome, Unreachable, Watcher

__all__ = [
    "Asked",
    "Done",
    "Failed",
    "Judged",
    "Outcome",
    "Progress",
    "Unreachable",
    "Watcher",
    "judge",
    "look_once",
    "tail",
    "watch",
    "watcher_of",
]
