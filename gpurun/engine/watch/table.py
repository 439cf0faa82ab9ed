"""The decision table: signs, most telling first, with what they mean and what helps.

docs/evidence.md shows these rows to people, and is tested against them.  An error that follows from
another one comes after it: when one rank dies for want of memory, the others report a collective.
"""

from gpurun.engine.watch import findings as f
from gpurun.engine.watch.stalls import LATE_CURE, STALLS
from gpurun.engine.watch.verdict import Row

SHM = (
    r"[Bb]us error|\(SIGBUS\) received|out of shared memory"
    r"|unable to (?:write to file|open shared memory object|resize file) </torch_"
    r"|No space left on device.{0,200}(?:/dev/shm|torch_\d)"
    r"|(?:/dev/shm|torch_\d).{0,200}No space left on device"
)
GPU_MEMORY = (
    r"CUDA out of memory|CUDA error: out of memory|Cuda failure \d+ 'out of memory'"
    r"|out of memory: \d+ rows on"  # our own trainer, which names the rows that fit
)
BACKEND = (
    r"No module named '(?P<what>adam_atan2_backend)'"
    r"|(?P<what2>CUDA_HOME) environment variable is not set"
    r"|(?P<what3>nvcc)(?:: not found|: command not found|' failed|: No such file)"
)
OLD_DRIVER = (
    r"NVIDIA driver on your system is too old|CUDA driver version is insufficient"
    r"|forward compatibility was attempted on non supported HW"
)
NO_GPU = r"Found no NVIDIA driver|No CUDA GPUs are available|no CUDA-capable device is detected"
NAN = r"(?i)\bloss\b\W{0,5}(?:is|=|:)?\s*(?:nan|inf)\b|returned nan values"
TABLE: tuple[Row, ...] = (
    Row(
        "reboot",
        "the box has another boot id",
        f.ended("rebooted"),
        "The box was started anew: its processes ended with it.",
        "`gpurun up` the recipe again; it goes on from its last checkpoint if it can load one.",
    ),
    Row(
        "xid",
        "the kernel reports an Xid that explains an end",
        f.xid,
        "{xid}.",
        "{what}",
    ),
    Row(
        "nvswitch",
        "the kernel reports an SXid",
        f.sxid,
        "{sxid}: the link between the GPUs failed.",
        "The machine is bad: resume on another box.",
    ),
    Row(
        "gpu-lost",
        "`nvidia-smi` hangs, loses a GPU or its driver",
        f.no_answer_of_gpus,
        "A GPU does not answer any more: {said}",
        "The machine is bad: resume on another box.",
    ),
    Row(
        "host-memory",
        "the kernel has killed a process for want of memory",
        f.out_of_memory,
        "The machine ran out of memory, and the kernel killed a process.",
        "Load less at a time or use fewer loader workers, or rent a box with more memory.",
    ),
    Row(
        "gpu-memory",
        "the log says `CUDA out of memory`",
        f.in_log(GPU_MEMORY),
        "A GPU ran out of memory.",
        "Use a smaller batch per GPU or more GPUs; against fragments, set "
        "PYTORCH_CUDA_ALLOC_CONF: expandable_segments:True under `env`.",
    ),
    Row(
        "shared-memory",
        "the log says `Bus error`, or that shared memory is full, or exit 135",
        f.any_of(f.in_log(SHM), f.exited(135)),
        "/dev/shm is too small for what the data loader hands over.",
        "Use fewer loader workers or a smaller prefetch, or a box with more /dev/shm: Docker gives "
        "64 MB, Kubernetes takes an emptyDir with medium: Memory.",
    ),
    Row(
        "disk-full",
        "the log says `No space left on device`, or the disk is full",
        f.any_of(f.in_log(r"No space left on device|Disk quota exceeded"), f.disk_is_full),
        "The disk of the box is full.",
        "Raise need.disk_gb, or keep fewer checkpoints.",
    ),
    Row(
        "wrong-arch",
        "the log says `no kernel image is available`",
        f.in_log(
            r"no kernel image is available for execution|(?P<sm>sm_\d+) is not compatible with the"
            r" current PyTorch|Unsupported gpu architecture"
        ),
        "A CUDA extension or torch itself was built for another GPU than this one.",
        "Build the extension on this box, with TORCH_CUDA_ARCH_LIST of this GPU, or use a newer "
        "torch.",
    ),
    Row(
        "old-driver",
        "the log says that the driver is too old",
        f.in_log(OLD_DRIVER),
        "The driver of this box is older than the CUDA of this torch needs.",
        "Rent a box with a newer driver, or use a torch of an older CUDA.",
    ),
    Row(
        "no-gpu",
        "the log says that there is no GPU or no driver",
        f.in_log(NO_GPU),
        "The training sees no GPU.",
        "Look at `gpurun doctor RUN`; a box that has lost its GPUs is bad: use another one.",
    ),
    Row(
        "no-backend",
        "the log misses `adam_atan2_backend`, CUDA_HOME or nvcc",
        f.in_log(BACKEND),
        "A CUDA extension is missing, or could not be built: there is no {what}{what2}{what3}.",
        "Use an image with nvcc (-devel), or set setup.adam_atan2: torch.",
    ),
    Row(
        "gpu-assert",
        "the log says `device-side assert triggered`",
        f.in_log(r"device-side assert triggered"),
        "A check inside a GPU kernel failed: nearly always an index out of range.",
        'Compare ids and labels with the sizes of the tables; CUDA_LAUNCH_BLOCKING: "1" under '
        "`env` shows where.",
    ),
    Row(
        "gpu-access",
        "the log says `illegal memory access`",
        f.in_log(r"illegal memory access was encountered|unspecified launch failure"),
        "A GPU kernel reached for memory that is not its own.",
        'CUDA_LAUNCH_BLOCKING: "1" under `env` shows where.',
    ),
    Row(
        "nan",
        "no finite loss since hang_minutes, or the log says that the loss is NaN",
        f.any_of(f.loss_is_broken, f.in_log(NAN)),
        "The loss is NaN or infinite, and does not come back from it.",
        "Resume from a checkpoint before it with a lower learning rate, or in float32.",
    ),
    Row(
        "nccl-timeout",
        "the log says `Watchdog caught collective operation timeout`",
        f.watchdog,
        "Rank {rank} waited in vain for the others in {op} number {seq}.",
        "One rank was slow, elsewhere or gone: find the first error in the log, or evidence of "
        "another rank. " + LATE_CURE,
    ),
    Row(
        "nccl-error",
        "the log says `NCCL error`",
        f.in_log(r"NCCL error in|ncclUnhandledCudaError|ncclSystemError|ncclInternalError"),
        "NCCL, which moves data between the GPUs, failed.",
        "Set NCCL_DEBUG: INFO under `env` and look at its last error; if it names a GPU or link, "
        "use another box.",
    ),
    Row(
        "watchdog",
        "the log says that our trainer's own watchdog has ended it",
        f.in_log(r"nothing has happened for \d+ s since: (?P<doing>[^\n]{1,200}?)\. Every thread"),
        "The training ended itself, for nothing had happened since: {doing}.",
        "Its stacks are in `gpurun logs RUN`; if that takes so long by design, raise its "
        "hang_minutes.",
    ),
    Row(
        "port-in-use",
        "the log says `Address already in use`",
        f.in_log(r"EADDRINUSE|[Aa]ddress already in use"),
        "The port on which the ranks meet is taken.",
        "Launch with `torchrun --standalone`, which takes a free one.",
    ),
    Row(
        "no-module",
        "the log says `No module named`",
        f.in_log(r"ModuleNotFoundError: No module named '(?P<module>[\w.]{1,100})'"),
        "The Python package {module} is not on the box.",
        "Add it to setup.pip, or ship it.",
    ),
    Row(
        "not-permitted",
        "the log says `Permission denied` of a path",
        f.in_log(r"PermissionError: \[Errno 13\] Permission denied: '(?P<path>[^'\n]{1,200})'"),
        "The user of the box may not write {path}.",
        "Use a path inside of the run's own folder, or make it under setup with sudo.",
    ),
    *STALLS,
    Row(
        "killed",
        "gone without an exit code, exit 137 or 143, or a rank that got SIGKILL",
        f.any_of(
            f.ended("vanished"),
            f.exited(137, 143),
            f.in_log(r"\(SIGKILL\) received|exitcode +: -9\b"),
        ),
        "Something outside of the training killed it: not gpurun, and no sign of a lack of memory.",
        "See who else works on this box; a provider may stop a box that was outbid.",
    ),
    Row(
        "crash",
        "exit 139 or 134, or a segmentation fault in the log",
        f.any_of(f.exited(139, 134), f.in_log(r"\(SIG(?:SEGV|ABRT)\) received|Segmentation fault")),
        "Native code of the training crashed.",
        "Suspect CUDA extensions built for another torch: build them anew.",
    ),
    Row(
        "not-found",
        "exit 127",
        f.exited(127),
        "A command of train.run does not exist on the box.",
        "Install it under setup, or give its whole path.",
    ),
    Row(
        "nothing-made",
        "exit 0, but train.expect is not matched",
        f.exited(0),
        "It ended well, but made nothing that train.expect names.",
        "See in its log what it wrote and where; or mend train.expect.",
    ),
    Row(
        "exception",
        "the log ends in a Python exception",
        f.raised,
        "The training raised {error}",
        "Its traceback is in `gpurun logs RUN`.",
    ),
    Row(
        "peer-lost",
        "the log says that the connection to another rank is lost",
        f.in_log(f.PEER),
        "A rank lost another one, which ended first.",
        "Look for the first error of all ranks in the log.",
    ),
    Row(
        "unknown",
        "none of these",
        f.always,
        "Nothing that was found explains it.",
        "Read the last lines of `gpurun logs RUN`.",
    ),
)
