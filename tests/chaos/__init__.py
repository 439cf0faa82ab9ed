"""Chaos: whole runs whose processes are killed, stopped and lied to, judged by the meter.

    python -m tests.chaos --seed 1 --schedules 50 --provider local
    python -m tests.chaos --sweep --provider local
    python -m tests.chaos --worlds --provider local
    python -m tests.chaos --mutations
    python -m tests.chaos --replay schedule.json

A schedule is a run and what befalls it: at which point of the journal which process dies.  Every
process of gpurun is the real one; only its entry is ours (entry/), which stops it at that point.
"""
