"""How the signs of the decision table are recognised: in log, kernel, exit code, stacks, GPUs.

Each function here makes or is the `found` of a row: what it names goes into the row's sentences.
"""

import re
from collections.abc import Callable

from gpurun.engine.watch.signs import plain
from gpurun.engine.watch.stacks import Place, Stack
from gpurun.engine.watch.verdict import Found, Named
from gpurun.engine.watch.watcher import How
from gpurun.engine.watch.xid import ANOTHER_BOX, sxid_says, xid_of

Sign = Callable[[Found], Named | None]
FULL_GB = 0.02
_ERROR = re.compile(
    r"^(?:\[\w+\]:? ?)?(?P<error>[A-Za-z_][\w.]{0,80}(?:Error|Exception|Interrupt|Exit))"
    r"(?:: (?P<text>.*))?$",
    re.M,
)
_WATCHDOG = re.compile(
    r"\[Rank (?P<rank>\d+)\].{0,80}Watchdog caught collective operation timeout: "
    r"WorkNCCL\(SeqNum=(?P<seq>\d+), OpType=(?P<op>\w+)"
)
_KERNEL_MEMORY = re.compile(r"[Oo]ut of memory: Killed process|oom-kill:|cgroup out of memory")


# What a rank says whose neighbour has gone, and torchrun of a rank that has.
PEER = r"Connection (?:closed|reset|refused).{0,20}by (?:remote )?peer|Broken pipe|Socket Timeout"
_FOLLOWS = re.compile(rf"{PEER}|ChildFailedError|gloo/transport|DistBackendError|DistNetworkError")


def any_of(*signs: Sign) -> Sign:
    """The first of these signs that is there."""

    def found(f: Found) -> Named | None:
        return next((named for sign in signs if (named := sign(f)) is not None), None)

    return found


def in_log(pattern: str) -> Sign:
    """The pattern is in the log; its named groups are named."""
    compiled = re.compile(pattern)

    def found(f: Found) -> Named | None:
        matched = compiled.search(f.log)
        return (
            None if matched is None else {k: plain(v or "") for k, v in matched.groupdict().items()}
        )

    return found


def ended(how: How) -> Sign:
    return lambda f: {} if f.how == how else None


def exited(*codes: int) -> Sign:
    return lambda f: {"code": str(f.exit_code)} if f.exit_code in codes else None


def any_exit(f: Found) -> Named | None:
    return {"code": str(f.exit_code)} if f.how == "exit" else None


def xid(f: Found) -> Named | None:
    """The first error that explains an end, one of the GPU itself before one of a program."""
    seen = [x for line in f.kernel.splitlines() if (x := xid_of(line)) and x.meaning.blames]
    seen.sort(key=lambda x: x.meaning.cure != ANOTHER_BOX)
    return {"xid": str(seen[0]), "what": seen[0].meaning.cure} if seen else None


def sxid(f: Found) -> Named | None:
    said = [says for line in f.kernel.splitlines() if (says := sxid_says(line))]
    return {"sxid": plain(said[0])} if said else None


def no_answer_of_gpus(f: Found) -> Named | None:
    """`nvidia-smi` hangs or says that a GPU is lost."""
    said = f.gpus.trouble if f.gpus else ""
    lost = r"Unable to determine the device handle|No devices were found|has not answered for"
    matched = re.search(f"{lost}|couldn't communicate with the NVIDIA driver", said)
    return {"said": plain(said)} if matched else None


def out_of_memory(f: Found) -> Named | None:
    return {} if f.oom_kills > 0 or _KERNEL_MEMORY.search(f.kernel) else None


def disk_is_full(f: Found) -> Named | None:
    return {} if f.disk_free_gb is not None and f.disk_free_gb < FULL_GB else None


def loss_is_broken(f: Found) -> Named | None:
    return {} if f.broken_loss and f.how == "hang" else None


def watchdog(f: Found) -> Named | None:
    """NCCL's own watchdog: the first rank to give up, and the collective it was in."""
    matched = _WATCHDOG.search(f.log)
    return matched.groupdict() if matched else None


def waits_for_loader(how: How) -> Sign:
    """Some rank stands in its data loader; the others wait for it."""

    def found(f: Found) -> Named | None:
        at = [s for s in f.stacks if s.place is Place.LOADER]
        return {"who": at[0].who, "at": plain(at[0].at)} if f.how == how and at else None

    return found


def one_in_backward(f: Found) -> Named | None:
    """Some ranks stand in backward while others wait for them in a collective."""
    at = _standing(f, Place.BACKWARD)
    waiting = _standing(f, Place.COLLECTIVE)
    if f.how != "hang" or not at or (len(f.stacks) > 1 and not waiting):
        return None
    return {"who": " and ".join(s.who for s in at[:4]), "at": plain(at[0].at)}


def one_is_missing(f: Found) -> Named | None:
    """Some ranks wait in a collective that others never came to."""
    waiting = _standing(f, Place.COLLECTIVE)
    others = [s for s in f.stacks if s.place is not Place.COLLECTIVE]
    if f.how != "hang" or not waiting or not others:
        return None
    return {"who": others[0].who, "at": plain(others[0].at), "waits": plain(waiting[0].at)}


def all_in_collective(f: Found) -> Named | None:
    waiting = _standing(f, Place.COLLECTIVE)
    if f.how != "hang" or not waiting:
        return None
    places = dict.fromkeys(plain(s.at) for s in waiting)
    return {"at": " / ".join(list(places)[:3])}


def gpus_spin(f: Found) -> Named | None:
    """Fully busy at low power: so a GPU waits in a collective."""
    if f.how != "hang" or f.gpus is None or not f.gpus.spin:
        return None
    watts = sum(gpu.power_w or 0 for gpu in f.gpus.gpus)
    limit = sum(gpu.limit_w or 0 for gpu in f.gpus.gpus)
    return {"watts": f"{watts:.0f}", "limit": f"{limit:.0f}"}


def stands(how: How) -> Sign:
    """Somewhere else; the first rank says where."""

    def found(f: Found) -> Named | None:
        if f.how != how or not f.stacks:
            return None
        return {"who": f.stacks[0].who, "at": plain(f.stacks[0].at)}

    return found


def raised(f: Found) -> Named | None:
    """The last exception that does not follow from that of another rank."""
    seen = [m for m in _ERROR.finditer(f.log) if not _FOLLOWS.search(m.group())]
    if f.how != "exit" or not seen:
        return None
    text = f": {plain(seen[-1]['text'])}" if seen[-1]["text"] else ""
    return {"error": plain(seen[-1]["error"]) + text}


def always(_f: Found) -> Named:
    return {}


def _standing(f: Found, place: Place) -> list[Stack]:
    return [stack for stack in f.stacks if stack.place is place]
