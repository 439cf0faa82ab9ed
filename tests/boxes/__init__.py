"""Boxes: real machines with sshd, to be rented, broken and destroyed by tests.

    with box(H100X4) as rented:
        rented.ssh("nvidia-smi -L")
        rented.gpus.set(util_percent=98, power_w=640)
        rented.cut()

A box has its own network (a /30 of 10.77.0.0/18), processes, disk, clocks and sshd; its GPUs are
tables that `nvidia-smi` reads.  Root is needed, and cgroup v2, as Debian 12 has them.
"""

from tests.boxes.box import Box as Box
from tests.boxes.box import box as box
from tests.boxes.claims import sweep as sweep
from tests.boxes.fleet import Failure as Failure
from tests.boxes.fleet import Fleet as Fleet
from tests.boxes.fleet import Process as Process
from tests.boxes.keys import make_key as make_key
from tests.boxes.keys import public_line as public_line
from tests.boxes.keys import ssh_agent as ssh_agent
from tests.boxes.proxy import Proxy as Proxy
from tests.boxes.shape import Shape as Shape
