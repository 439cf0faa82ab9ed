"""Measures upstream's trainer in a copy of its code: python upstream.py JOB FOUND, in that copy.

Its functions are used as they are; only what it needs from hydra, wandb and coolname to start is
stood in for.  It gets the batches and the initial weights of the other side, so losses compare, and
its loader costs it nothing.  adam-atan2 is used where its CUDA part works, else the same update in
PyTorch.
"""

import importlib
import resource
import sys
import time
import types
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import yaml
from job import Found, Job, measure, read, write


class AdamATan2(torch.optim.Optimizer):
    """The published update, one tensor after the other."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), weight_decay=1e-2):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            (beta1, beta2), lr = group["betas"], group["lr"]
            for p in (p for p in group["params"] if p.grad is not None):
                state = self.state[p]
                if not state:
                    state |= {"step": 0, "m": torch.zeros_like(p), "v": torch.zeros_like(p)}
                state["step"] += 1
                p.mul_(1 - lr * group["weight_decay"])
                state["m"].lerp_(p.grad, 1 - beta1)
                state["v"].lerp_(p.grad.square(), 1 - beta2)
                scale = (state["v"] / (1 - beta2 ** state["step"])).sqrt()
                p.add_(torch.atan2(state["m"], scale), alpha=-lr / (1 - beta1 ** state["step"]))


def main(job: Job) -> Found:
    sys.path.insert(0, str(Path.cwd()))
    optimiser = _stand_in()
    import pretrain

    dist.init_process_group(
        "gloo", init_method=f"file://{job.shared}/rendezvous", rank=0, world_size=1
    )
    config = pretrain.PretrainConfig(**_settings(job))
    torch.manual_seed(config.seed)
    common = {"global_batch_size": config.global_batch_size, "rank": 0, "world_size": 1}
    per_iteration = config.eval_interval or config.epochs
    _, metadata = pretrain.create_dataloader(
        config, "train", test_set_mode=False, epochs_per_iter=per_iteration, **common
    )
    state = pretrain.init_train_state(config, metadata, rank=0, world_size=1)
    weights = torch.load(Path(job.shared) / "weights.pt", weights_only=True)
    getattr(state.model, "_orig_mod", state.model).load_state_dict(weights)
    batches = _batches(Path(job.shared) / "batches.npz")
    average = None
    if config.ema:
        average = importlib.import_module("models.ema").EMAHelper(mu=config.ema_rate)
        average.register(state.model)
    found = Found(optimiser=optimiser)
    state.model.train()

    def step(number: int) -> float:
        metrics = pretrain.train_batch(
            config, state, batches[number], config.global_batch_size, rank=0, world_size=1
        )
        if average is not None:
            average.update(state.model)
        return float(metrics["train/lm_loss"])

    def wait() -> None:
        if job.device == "cuda":
            torch.cuda.synchronize()

    measure(job, found, step, wait)
    if job.evaluates:
        loader, eval_metadata = pretrain.create_dataloader(
            config, "test", test_set_mode=True, epochs_per_iter=1, **common
        )
        evaluators = pretrain.create_evaluators(config, eval_metadata)
        state.model.eval()
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        pretrain.evaluate(config, state, loader, eval_metadata, evaluators, 0, 1, None)
        wait()
        found.evaluation_s = time.perf_counter() - began_s
        found.evaluation_cpu_s = time.process_time() - began_cpu_s
        found.evaluated_rows = len(np.load(Path(job.data) / "test/all__inputs.npy", mmap_mode="r"))
    if job.device == "cuda":
        found.peak_gib = torch.cuda.max_memory_reserved() / 2**30
    else:
        found.peak_gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return found


def _stand_in() -> str:
    """For what is not measured; returns which optimiser there is."""
    for name in ("hydra", "wandb", "coolname", "omegaconf"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["hydra"].main = lambda **_: lambda function: function
    sys.modules["omegaconf"].DictConfig = dict
    try:
        importlib.import_module("adam_atan2_backend")
        return "AdamATan2, CUDA extension"
    except ImportError:
        sys.modules["adam_atan2"] = types.ModuleType("adam_atan2")
        sys.modules["adam_atan2"].AdamATan2 = AdamATan2
        return "AdamATan2, in PyTorch"


def _settings(job: Job) -> dict:
    """Its own yaml, then the job's settings."""
    settings = yaml.safe_load(Path("config/cfg_pretrain.yaml").read_text())
    del settings["defaults"], settings["hydra"]
    arch = yaml.safe_load(Path("config/arch/trm.yaml").read_text())
    settings |= {"arch": arch, "data_paths": [job.data], "checkpoint_path": f"{job.shared}/theirs"}
    for key, text in job.settings.items():
        owner, value = settings, yaml.safe_load(text)
        *path, last = key.split(".")
        for part in path:
            owner = owner[part]
        if key != "arch":
            owner[last] = float(value) if key in ("lr",) else value
    if arch["puzzle_emb_ndim"] == "${.hidden_size}":
        arch["puzzle_emb_ndim"] = arch["hidden_size"]
    return settings


def _batches(path: Path) -> list[dict[str, torch.Tensor]]:
    with np.load(path) as arrays:
        names = sorted({name.split(".")[0] for name in arrays.files})
        count = len(arrays.files) // len(names)
        return [{n: torch.from_numpy(arrays[f"{n}.{i}"]) for n in names} for i in range(count)]


if __name__ == "__main__":
    write(Path(sys.argv[2]), main(read(sys.argv[1])))
