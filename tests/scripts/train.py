"""A training of somebody else's: it knows nothing of gpurun."""

import csv
import json
import math
import random
import signal
import sys
import time
from pathlib import Path

STEPS, RATE = 40, 0.5
stop = False


def ask_to_stop(*_):
    global stop
    stop = True


signal.signal(signal.SIGTERM, ask_to_stop)
with Path("data/numbers.csv").open() as file:
    rows = [(float(x), float(y), int(label)) for x, y, label in csv.reader(file)]
random.seed(1)
a = b = c = 0.0
Path("checkpoints").mkdir(exist_ok=True)
for step in range(1, STEPS + 1):
    loss = da = db = dc = 0.0
    for x, y, label in rows:
        p = 1 / (1 + math.exp(-(a * x + b * y + c)))
        loss -= math.log(max(1e-12, p if label else 1 - p)) / len(rows)
        da, db, dc = da + (p - label) * x, db + (p - label) * y, dc + (p - label)
    a, b, c = (w - RATE * d / len(rows) for w, d in ((a, da), (b, db), (c, dc)))
    print(f"step {step}/{STEPS} loss {loss:.4f}", flush=True)
    if step % 10 == 0 or stop:
        Path(f"checkpoints/model_{step}.json").write_text(json.dumps([a, b, c]))
    if stop:
        sys.exit(0)
    time.sleep(0.05)
