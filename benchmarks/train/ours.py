"""Measures this project's trainer: python -m benchmarks.train.ours JOB FOUND"""

import itertools
import resource
import sys
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.train.job import Found, Job, measure, read, write
from remote.config import load_config
from remote.dataset.batches import Shard
from remote.evaluation import evaluate
from remote.evaluators import make
from remote.plan import iteration_of, make_plan
from remote.ranks import Ranks
from remote.recorded import recorder_for
from remote.training import Training

STEPS_BETWEEN_REPORTS = 10  # on a GPU, where a report waits for the device


def main(job: Job) -> Found:
    words = [f"{key}={value}" for key, value in job.settings.items()]
    shared = Path(job.shared)
    words += [f"data_paths=[{job.data}]", f"device={job.device}", f"checkpoint_path={shared}/ours"]
    config = load_config(words)
    config.settle_names("now")
    device = torch.device("cuda", 0) if job.device == "cuda" else torch.device("cpu")
    ranks = Ranks(0, 1, device)
    plan = make_plan(config, ranks)
    training = Training(
        config,
        plan.train,
        ranks,
        schedule_steps=plan.schedule_steps,
        recorder=recorder_for(config, ranks),
    )
    torch.save(training.model.state_dict(), shared / "weights.pt")
    iteration = iteration_of(config, plan.train, 1)
    batches = list(itertools.islice(iteration.batches(Shard()), job.warmup + job.steps))
    numbered = enumerate(batches)
    arrays = {f"{name}.{n}": array for n, batch in numbered for name, array in batch.items()}
    np.savez(shared / "batches.npz", **arrays)
    found = Found(optimiser=getattr(training, "optimizer_kind", ""))
    on_gpu = device.type == "cuda"

    def step(number: int) -> float | None:
        training.train_on(batches[number])
        if on_gpu and (number + 1) % STEPS_BETWEEN_REPORTS:
            return None
        return training.take_metrics()["lm_loss"]

    def wait() -> None:
        if on_gpu:
            torch.cuda.synchronize()

    measure(job, found, step, wait)
    if job.evaluates and plan.test is not None:
        evaluators = make(config.evaluators, config.test_paths)
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        evaluate(training, config, plan.test, evaluators, ranks, lambda: False)
        wait()
        found.evaluation_s = time.perf_counter() - began_s
        found.evaluation_cpu_s = time.process_time() - began_cpu_s
        found.evaluated_rows = len(plan.test.inputs)
    found.peak_gib = _peak_gib(on_gpu=on_gpu)
    return found


def _peak_gib(*, on_gpu: bool) -> float:
    if on_gpu:
        return torch.cuda.max_memory_reserved() / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


if __name__ == "__main__":
    write(Path(sys.argv[2]), main(read(sys.argv[1])))
