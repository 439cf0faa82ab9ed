"""What machines that are not here would be told."""

import re
import subprocess
import sys
import textwrap

import pytest
import torch

from remote.arch import DTYPES
from remote.machine import (
    Machine,
    choose_device,
    choose_dtype,
    look,
    require_kernels,
    words,
)
from remote.optim.adam_atan2 import why_not_the_extension
from remote.overrides import ConfigError

H100 = Machine(8, 64.0, "/usr/bin/nvcc", (9, 0), "NVIDIA H100 80GB HBM3", 79.1, ("sm_80", "sm_90"))
T4 = Machine(1, 64.0, None, (7, 5), "Tesla T4", 14.6, ("sm_75", "sm_80", "sm_90"))
B200 = Machine(1, 0.0625, None, (10, 0), "NVIDIA B200", 178.0, ("sm_80", "sm_90", "compute_90"))
CPU = Machine(0, None, None)


def test_this_machine_can_be_read() -> None:
    here = look(torch.device("cpu"))
    assert here.gpus == torch.cuda.device_count()
    assert here.capability is None
    assert not here.has_bfloat16


@pytest.mark.parametrize(
    ("wanted", "gpus", "rank", "ranks", "expected"),
    [
        ("auto", 0, 3, 4, "cpu"),
        ("auto", 4, 3, 4, "cuda:3"),
        ("cuda", 1, 0, 1, "cuda:0"),
        ("cpu", 4, 0, 8, "cpu"),
    ],
)
def test_each_process_gets_a_device(
    wanted: str, gpus: int, rank: int, ranks: int, expected: str
) -> None:
    chosen = choose_device(wanted, gpus=gpus, local_rank=rank, local_ranks=ranks)
    assert chosen == torch.device(expected)


@pytest.mark.parametrize(
    ("wanted", "gpus", "message"),
    [
        ("auto", 2, "4 processes, but 2 GPU\\(s\\): torchrun --nproc-per-node 2"),
        ("cuda", 0, "torch sees no GPU"),
        ("tpu", 0, "expected auto, cpu or cuda"),
    ],
)
def test_a_process_without_a_device_is_told_what_to_type(
    wanted: str, gpus: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        choose_device(wanted, gpus=gpus, local_rank=0, local_ranks=4)


@pytest.mark.parametrize(
    ("machine", "expected"),
    [(H100, torch.bfloat16), (B200, torch.bfloat16), (T4, torch.float32), (CPU, torch.float32)],
)
def test_bfloat16_is_taken_where_it_exists(machine: Machine, expected: torch.dtype) -> None:
    assert choose_dtype("auto", machine) == expected


def test_bfloat16_is_refused_where_it_does_not_exist() -> None:
    with pytest.raises(ConfigError, match=r"but Tesla T4 \(compute capability 7.5\) has none"):
        choose_dtype("bfloat16", T4)
    for name in set(DTYPES) - {"auto"}:
        assert choose_dtype(name, H100) == choose_dtype(name, CPU) == getattr(torch, name)


def test_a_torch_without_code_for_the_gpu_is_noticed_before_training() -> None:
    for machine in (H100, T4, B200, CPU):
        require_kernels(machine)
    for archs in (("sm_50", "sm_90"), ("sm_80", "sm_86"), ("sm_100",)):
        with pytest.raises(ConfigError, match="pip install --force-reinstall torch"):
            require_kernels(Machine(1, None, None, (7, 5), "Tesla T4", 14.6, archs))
    require_kernels(Machine(1, None, None, (8, 9), "NVIDIA L40S", 44.0, ("sm_80",)))


def test_an_old_gpu_and_a_small_shm_get_a_word() -> None:
    assert words(H100, ranks=8) == words(CPU, ranks=4) == []
    assert "SDPA's other kernels, float32 and the optimiser in PyTorch" in words(T4, ranks=1)[0]
    assert words(B200, ranks=1) == []  # nothing is shared
    assert "/dev/shm has 64 MiB" in words(B200, ranks=2)[0]
    assert "--shm-size=8g" in words(B200, ranks=2)[0]


@pytest.mark.parametrize(
    ("capability", "reason"),
    [
        (None, "needs a GPU"),
        ((7, 5), r"no code for compute capability \(7, 5\)"),
        ((10, 0), "no code for compute capability"),
        ((9, 0), "built without nvcc"),
    ],
)
def test_the_cuda_optimiser_is_only_taken_where_it_can_run(
    capability: tuple[int, int] | None, reason: str
) -> None:
    assert re.search(reason, why_not_the_extension(capability, {}) or "")


def test_what_the_set_up_has_settled_is_kept_and_nothing_is_imported() -> None:
    settled = {"GPURUN_OPTIMISER": "torch"}
    assert why_not_the_extension((9, 0), settled) == "GPURUN_OPTIMISER=torch"
    assert "adam_atan2" not in sys.modules


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc can be told")
def test_memory_that_a_tensor_leaves_is_there_for_the_next_ones() -> None:
    """In a process of its own, for it cannot be undone; a few find the gap too small by bytes."""
    fetched, kept = pages_of_tensors(""), pages_of_tensors("keep_freed_memory()")
    assert kept < fetched / 4


def pages_of_tensors(first: str) -> int:
    """How many the system fetched for forty of 64 MiB, one after the other."""
    code = f"""
        from resource import RUSAGE_SELF, getrusage
        import torch
        from remote.machine import keep_freed_memory
        {first}
        before = getrusage(RUSAGE_SELF).ru_minflt
        for _ in range(40):
            torch.empty(2**24).fill_(1)
        print(getrusage(RUSAGE_SELF).ru_minflt - before)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    return int(done.stdout)
