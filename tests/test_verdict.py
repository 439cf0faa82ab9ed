"""The decision table over the texts that real machines print."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from gpurun.engine.watch import stacks
from gpurun.engine.watch.gpus import Gpu, GpuSample
from gpurun.engine.watch.table import TABLE
from gpurun.engine.watch.verdict import Found, Verdict, decide
from gpurun.engine.watch.watcher import Failed
from gpurun.engine.watch.xid import XIDS, xid_of

DOCS = Path(__file__).parents[1] / "docs"
EXIT_1 = Found("exit", 1)
HANG = Found("hang")

CUDA_OOM = """\
[rank2]: Traceback (most recent call last):
[rank2]:   File "/workspace/train.py", line 88, in train_on
[rank2]:     loss.backward()
[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.44 GiB. GPU 2 has a total \
capacity of 79.11 GiB of which 1.32 GiB is free.
"""
WATCHDOG = """\
[rank0]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective \
operation timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, NumelIn=466119168, \
NumelOut=466119168, Timeout(ms)=600000) ran for 600060 milliseconds before timing out.
[rank0]:[E321 02:07:08 ProcessGroupNCCL.cpp:1664] Exception (either an error or timeout) detected \
by watchdog at work: 1580, last enqueued NCCL work: 1582, last completed NCCL work: 1579.
"""
NCCL_MEMORY = """\
torch.distributed.DistBackendError: NCCL error in: /pytorch/ProcessGroupNCCL.cpp:3356, unhandled \
cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.26.2
ncclUnhandledCudaError: Call to CUDA function failed.
Last error:
Cuda failure 2 'out of memory'
"""
CHILD_FAILED = """\
[rank1]: KeyError: 'puzzle_emb'
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
  exitcode  : 1 (pid: 4242)
"""
OWN_WATCHDOG = """\
pretrain: nothing has happened for 901 s since: evaluation at step 7. Every thread is shown below; \
the process ends, load_checkpoint=latest goes on from the last checkpoint.
"""
NO_CUDA_HOME = (
    "OSError: CUDA_HOME environment variable is not set. Please set it to your CUDA install root."
)
WORKER_BUS = (
    "RuntimeError: DataLoader worker (pid 4321) is killed by signal: Bus error. It is possible "
    "that dataloader's workers are out of shared memory. Please try to raise your shared memory "
    "limit."
)


@pytest.mark.parametrize(
    ("cause", "log"),
    [
        ("gpu-memory", CUDA_OOM),
        ("gpu-memory", CUDA_OOM + WATCHDOG),  # the others only wait for the one that died
        ("gpu-memory", NCCL_MEMORY),
        ("gpu-memory", "out of memory: 192 rows on NVIDIA H100 with 79.1 GiB, of which 5.1 GiB"),
        ("nccl-timeout", WATCHDOG),
        ("watchdog", OWN_WATCHDOG + "[rank1]: RuntimeError: Connection closed by peer"),
        ("nccl-error", NCCL_MEMORY.replace("Cuda failure 2 'out of memory'", "")),
        ("shared-memory", WORKER_BUS),
        ("shared-memory", "Bus error (core dumped)"),
        ("shared-memory", "  Signal 7 (SIGBUS) received by PID 77"),
        ("shared-memory", "OSError: [Errno 28] No space left on device: '/dev/shm/torch_12_3'"),
        ("disk-full", "OSError: [Errno 28] No space left on device: 'checkpoints/step_5.tmp'"),
        (
            "wrong-arch",
            "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        ),
        (
            "wrong-arch",
            "NVIDIA B200 with CUDA capability sm_100 is not compatible with the current PyTorch "
            "installation.",
        ),
        (
            "old-driver",
            "RuntimeError: The NVIDIA driver on your system is too old (found version 11040).",
        ),
        ("no-gpu", "RuntimeError: No CUDA GPUs are available"),
        ("no-gpu", "RuntimeError: Found no NVIDIA driver on your system."),
        ("no-backend", "ModuleNotFoundError: No module named 'adam_atan2_backend'"),
        ("no-backend", NO_CUDA_HOME),
        ("no-backend", "/bin/sh: 1: nvcc: not found"),
        ("no-module", "ModuleNotFoundError: No module named 'einops.layers'"),
        ("gpu-assert", "RuntimeError: CUDA error: device-side assert triggered"),
        ("gpu-access", "CUDA error: an illegal memory access was encountered"),
        ("nan", "Loss is nan, stopping training"),
        ("nan", "RuntimeError: Function 'MulBackward0' returned nan values in its 0th output."),
        ("port-in-use", "[Errno 98] Address already in use. errno: 98 - EADDRINUSE"),
        ("not-permitted", "PermissionError: [Errno 13] Permission denied: '/workspace/data'"),
        ("peer-lost", "[/pytorch/gloo/transport/tcp/pair.cc:534] Connection closed by peer"),
        ("killed", "  exitcode  : -9 (pid: 4242)"),
        ("crash", "!!! Segmentation fault"),
        ("exception", CHILD_FAILED),
        ("exception", "RuntimeError: Inplace update to inference tensor outside InferenceMode"),
        ("unknown", "bye"),
        ("unknown", ""),
    ],
)
def test_the_log_of_a_failed_training_tells_why(cause: str, log: str) -> None:
    verdict = decide(replace(EXIT_1, log=f"step 1/10 loss 0.5 grad inf\n{log}\n"), TABLE)
    assert verdict.cause == cause, verdict


@pytest.mark.parametrize(
    ("words", "log"),
    [
        ("Rank 0 waited in vain for the others in ALLREDUCE number 1580", WATCHDOG),
        ("there is no adam_atan2_backend.", "No module named 'adam_atan2_backend'"),
        ("there is no CUDA_HOME.", NO_CUDA_HOME),
        ("einops.layers", "ModuleNotFoundError: No module named 'einops.layers'"),
        ("KeyError: 'puzzle_emb'", CHILD_FAILED),
        ("since: evaluation at step 7.", OWN_WATCHDOG),
        ("/workspace/data", "PermissionError: [Errno 13] Permission denied: '/workspace/data'"),
    ],
)
def test_a_verdict_names_what_it_has_found(words: str, log: str) -> None:
    assert words in decide(replace(EXIT_1, log=log), TABLE).says


@pytest.mark.parametrize(
    ("cause", "code"),
    [
        ("shared-memory", 135),
        ("killed", 137),
        ("killed", 143),
        ("crash", 139),
        ("crash", 134),
        ("not-found", 127),
        ("nothing-made", 0),
        ("unknown", 3),
    ],
)
def test_an_exit_code_tells_what_no_log_does(cause: str, code: int) -> None:
    assert decide(Found("exit", code), TABLE).cause == cause


def kernel(*messages: str) -> Found:
    lines = [f"[12345.6789{n:02}] {message}" for n, message in enumerate(messages)]
    return replace(EXIT_1, kernel="\n".join(lines), log=WATCHDOG)


XID_79 = (
    "NVRM: Xid (PCI:0000:44:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
)
XID_48 = (
    "NVRM: Xid (PCI:0000:01:00): 48, pid='<unknown>', name=<unknown>, An uncorrectable double bit "
    "error (DBE) has been detected on GPU in the framebuffer."
)


@pytest.mark.parametrize(
    ("cause", "words", "found"),
    [
        ("xid", "Xid 79 of the GPU at 0000:44:00: the GPU has fallen off the bus", kernel(XID_79)),
        ("xid", "Xid 48", kernel(XID_48)),
        ("xid", "Xid 31", kernel("NVRM: Xid (PCI:0000:01:00): 31, Ch 00000008, MMU Fault")),
        # What a driver without the code says, in three lines.
        (
            "xid",
            "Xid 79: the GPU has fallen off the bus",
            kernel(
                "NVRM: The NVIDIA GPU 0000:b3:00.0",
                "NVRM: (PCI ID: 10de:26b5) installed in this system has",
                "NVRM: fallen off the bus and is not responding to commands.",
            ),
        ),
        # A GPU that is bad outranks the programs that failed on it.
        ("xid", "Xid 74", kernel("NVRM: Xid (PCI:0000:01:00): 13, x", XID_48.replace("48", "74"))),
        # What follows from any end explains none.
        ("nccl-timeout", "", kernel("NVRM: Xid (PCI:0000:01:00): 45, pid=7, name=python, Ch 8")),
        (
            "nvswitch",
            "SXid 11001 of an NVSwitch: Fatal, ingress invalid command",
            kernel(
                "nvidia-nvswitch0: SXid (PCI:0000:00:00.0): 11001, Fatal, ingress invalid command"
            ),
        ),
        (
            "host-memory",
            "ran out of memory",
            kernel("Out of memory: Killed process 4242 (python), UID 0, total-vm:98304000kB"),
        ),
        (
            "host-memory",
            "ran out of memory",
            kernel("Memory cgroup out of memory: Killed process 1 (pt_main_thread)"),
        ),
        ("host-memory", "ran out of memory", replace(Found("vanished"), oom_kills=1)),
        ("disk-full", "disk", replace(EXIT_1, disk_free_gb=0.0)),
        ("reboot", "anew", Found("rebooted")),
        ("killed", "killed it", Found("vanished")),
    ],
)
def test_the_machine_tells_more_than_the_log(cause: str, words: str, found: Found) -> None:
    verdict = decide(found, TABLE)
    assert (verdict.cause, words in verdict.says) == (cause, True), verdict


@pytest.mark.parametrize("code", XIDS)
def test_every_known_xid_is_read_with_its_meaning(code: int) -> None:
    found = xid_of(f"[1.0] NVRM: Xid (PCI:0000:44:00.0): {code}, something")
    assert found is not None
    assert (found.code, found.meaning.says) == (code, XIDS[code].says)


def sample(util: float, power_w: float, count: int = 4) -> GpuSample:
    return GpuSample(3.0, (Gpu(util, power_w, 700.0, 61_000.0),) * count)


@pytest.mark.parametrize(
    "said",
    [
        "Unable to determine the device handle for GPU0000:08:00.0: Unknown Error",
        "Unable to determine the device handle for GPU1: 0000:34:00.0: Unknown Error",
        "No devices were found",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure "
        "that the latest NVIDIA driver is installed and running.",
        "nvidia-smi has not answered for 75 s.",
    ],
)
def test_a_gpu_that_is_lost_is_told_by_nvidia_smi(said: str) -> None:
    verdict = decide(replace(HANG, gpus=GpuSample(1e9, (), said)), TABLE)
    assert verdict.cause == "gpu-lost"
    assert said[:40] in verdict.says


IN_ALL_REDUCE = """\
Thread 0x00007f54be7fc6c0 [pt_data_pin] (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait

Current thread 0x00007f81b15bbb80 (most recent call first):
  File "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3252 \
in all_reduce
  File "/venv/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "/workspace/app/train.py", line 11 in train_step
  File "/workspace/app/train.py", line 19 in <module>
"""
IN_BACKWARD = """\
Current thread 0x00007f6db3849b80 (most recent call first):
  File "/venv/lib/python3.11/site-packages/torch/autograd/graph.py", line 823 in \
_engine_run_backward
  File "/venv/lib/python3.11/site-packages/torch/_tensor.py", line 648 in backward
  File "/workspace/app/train.py", line 15 in train_step
"""
IN_LOADER = """\
Process 13026: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 13026 (idle): "MainThread"
    Connection._poll (multiprocessing/connection.py:424)
    Queue.get (multiprocessing/queues.py:113)
    _MultiProcessingDataLoaderIter._try_get_data (torch/utils/data/dataloader.py:1251)
    _MultiProcessingDataLoaderIter._next_data (torch/utils/data/dataloader.py:1462)
    epoch (app/train.py:31)
Thread 13028 (idle): "QueueFeederThread"
    Thread.run (threading.py:982)
"""
IN_PREFETCH = """\
Current thread 0x00007f6db3849b80 (most recent call first):
  File "/usr/lib/python3.11/queue.py", line 171 in get
  File "/workspace/remote/dataset/prefetch.py", line 43 in prefetched
  File "/workspace/remote/pretrain.py", line 120 in _train_iteration
"""
ELSEWHERE = """\
Current thread 0x00007f6db3849b80 (most recent call first):
  File "/workspace/app/train.py", line 7 in write_report
"""


def hanging(*by_rank: str, how: str = "hang", gpus: GpuSample | None = None) -> Found:
    text = "".join(
        f"== process {100 + rank} rank {rank}: python train.py\n-- stack by faulthandler\n{stack}"
        "-- kernel\nState:\tS (sleeping)\n"
        for rank, stack in enumerate(by_rank)
    )
    end = Failed("idle" if how == "idle" else "hang", "")
    return Found(end.how, stacks=tuple(stacks.ranks(stacks.read(text))), gpus=gpus)


@pytest.mark.parametrize(
    ("cause", "words", "found"),
    [
        ("hang-loader", "rank 1 stands in its data loader", hanging(IN_ALL_REDUCE, IN_LOADER)),
        ("hang-loader", "at epoch (app/train.py:31)", hanging(IN_LOADER)),
        (
            "hang-loader",
            "_train_iteration (/workspace/remote/pretrain.py:120)",
            hanging(IN_PREFETCH),
        ),
        ("hang-backward", "backward of rank 1", hanging(IN_ALL_REDUCE, IN_BACKWARD)),
        ("hang-backward", "backward of rank 0", hanging(IN_BACKWARD)),
        (
            "hang-missing-rank",
            "wait for rank 2 in a collective (train_step (/workspace/app/train.py:11)); "
            "it stands at write_report (/workspace/app/train.py:7)",
            hanging(IN_ALL_REDUCE, IN_ALL_REDUCE, ELSEWHERE),
        ),
        ("hang-collective", "All ranks wait", hanging(IN_ALL_REDUCE, IN_ALL_REDUCE)),
        # All in backward: what DDP's hooks wait for there is a collective.
        (
            "hang-collective",
            "fully busy at 560 of 2800 W",
            hanging(IN_BACKWARD, IN_BACKWARD, gpus=sample(100, 140)),
        ),
        ("hang-collective", "fully busy at 560", hanging(gpus=sample(100, 140))),
        ("hang", "rank 0 at write_report", hanging(ELSEWHERE, gpus=sample(0, 70))),
        ("hang", "no stack could be taken", hanging(gpus=sample(0, 70))),
        ("idle-loader", "rank 0 stands in its data", hanging(IN_LOADER, how="idle")),
        ("idle", "rank 0 stands at write_report", hanging(ELSEWHERE, how="idle")),
        ("idle", "nothing to do", hanging(how="idle")),
        ("nan", "NaN", replace(HANG, broken_loss=True, gpus=sample(100, 650))),
    ],
)
def test_what_stands_still_is_told_by_stacks_and_power(
    cause: str, words: str, found: Found
) -> None:
    verdict = decide(found, TABLE)
    assert (verdict.cause, words in verdict.says) == (cause, True), verdict


def test_a_box_cannot_write_to_the_terminal_through_a_verdict() -> None:
    log = "ValueError: \x1b]0;owned\x07\x1b[31m {0} {secret} " + "x" * 5000
    verdict = decide(replace(EXIT_1, log=log), TABLE)
    assert verdict.cause == "exception"
    assert verdict.says.isprintable() and len(verdict.says) < 500


def test_the_written_table_is_the_one_that_decides() -> None:
    text = (DOCS / "evidence.md").read_text()
    written = re.findall(r"^\| `([\w-]+)` \| (.+) \| (.+) \|$", text, re.M)
    assert written == [(row.cause, row.sign, _cure(row.cure)) for row in TABLE]


def test_the_written_xids_are_those_that_are_known() -> None:
    text = (DOCS / "evidence.md").read_text()
    written = re.findall(r"^\| (\d+) \| (.+) \| (yes|no) \|$", text, re.M)
    known = [(str(c), m.says, "yes" if m.blames else "no") for c, m in sorted(XIDS.items())]
    assert written == known


def test_every_row_of_the_table_says_what_helps() -> None:
    for row in TABLE:
        assert row.says.endswith((".", "}")) and row.cure.endswith((".", "`", "}")), row


def _cure(text: str) -> str:
    return text.replace("{what}", "see below")


def test_the_last_row_is_always_there() -> None:
    assert decide(Found("exit", 99), TABLE) == Verdict("unknown", TABLE[-1].says, TABLE[-1].cure)
