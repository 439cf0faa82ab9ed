"""What `nvidia-smi` prints: its list, summary, long query, topology, and the tables of its queries.

The layouts are those of releases 550 to 590 on H100, H200, A100 and L40S machines.
"""

from collections.abc import Sequence

from tests.boxes.fleet import Card, Fleet, Process

RESERVED_MIB = 479
XID_TEXTS = {
    13: "Graphics Exception: ESR 0x404490=0x80000001",
    31: "MMU Fault: ENGINE GRAPHICS GPC0 GPCCLIENT_T1_0 faulted @ 0x7f5c_00000000."
    " Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ",
    48: "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer.",
    63: "Row Remapper: New row marked for remapping, reset gpu to activate.",
    64: "Row Remapper: Failed to remap row.",
    74: "NVLink: fatal error detected on link 3(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)",
    79: "GPU has fallen off the bus.",
    94: "Contained: SM (0x1). RST: No, D-RST: No",
    95: "Uncontained: SM (0x1). RST: Yes, D-RST: No",
    119: "Timeout after 6s of waiting for RPC response from GPU0 GSP!"
    " Expected function 76 (GSP_RM_CONTROL).",
}
LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
"""  # noqa: E501
HEAD = """\
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|"""
PROCESSES_HEAD = """\
| Processes:                                                                              |
|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |
|        ID   ID                                                               Usage      |
|=========================================================================================|"""
RULE = f"+{'-' * 41}+{'-' * 24}+{'-' * 22}+"
WIDE = f"+{'-' * 89}+"


def texts(cards: Sequence[Card], fleet: Fleet, processes: Sequence[Process]) -> dict[str, str]:
    """Every text that the command may have to print, by the name of its file."""
    return {
        "list": "".join(f"GPU {c.index}: {c.model.name} (UUID: {c.uuid})\n" for c in cards),
        "version": version(fleet),
        "summary": summary(cards, fleet, processes),
        "query": query(cards, fleet, processes),
        "topo": topology(cards, fleet),
        "gpus": gpu_table(cards, fleet),
        "processes": process_table(cards, processes),
    }


def version(fleet: Fleet) -> str:
    short = ".".join(fleet.driver.split(".")[:2])
    return (
        f"NVIDIA-SMI version  : {fleet.driver}\nNVML version        : {short}\n"
        f"DRIVER version      : {fleet.driver}\nCUDA Version        : {fleet.cuda}\n"
    )


def topology(cards: Sequence[Card], fleet: Fleet) -> str:
    """The matrix of `topo -m`: its header is underlined even in a pipe."""
    names = [f"GPU{card.index}" for card in cards]
    header = "\t".join([*names, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])
    lines = [f"\t\x1b[4m{header}\x1b[0m"]
    for row in names:
        links = [" X " if row == column else fleet.link for column in names]
        lines.append("\t".join([row, *links, "0-51", "0", "", "N/A"]))
    return "\n".join(lines) + "\n" + LEGEND


def gpu_table(cards: Sequence[Card], fleet: Fleet) -> str:
    """Tab-separated: names as asked for, units, names as printed, then a line for each GPU.

    The first three columns are what `-i` may choose by.
    """
    columns: list[tuple[str, str, str, list[str]]] = []

    def add(name: str, unit: str, values: list[str], *others: str) -> None:
        columns.extend((asked, unit, name, values) for asked in (name, *others))

    add("index", "-", [str(c.index) for c in cards])
    add("uuid", "-", [c.uuid for c in cards], "gpu_uuid")
    add("pci.bus_id", "-", [c.bus for c in cards], "gpu_bus_id")
    add("timestamp", "-", ["@now" for _ in cards])
    add("name", "-", [c.model.name for c in cards], "gpu_name")
    add("count", "-", [str(len(cards)) for _ in cards])
    add("driver_version", "-", [fleet.driver for _ in cards])
    add("serial", "-", [f"165012404{c.index:04}" for c in cards], "gpu_serial")
    add("compute_cap", "-", [c.model.compute_cap for c in cards])
    add("pstate", "-", ["P0" for _ in cards])
    add("persistence_mode", "-", ["Enabled" for _ in cards])
    add("compute_mode", "-", ["Default" for _ in cards])
    add("mig.mode.current", "-", [mig(c) for c in cards])
    add("fan.speed", "%", ["[N/A]" for _ in cards])
    add("temperature.gpu", "-", [str(c.reading.temperature_c) for c in cards])
    add("memory.total", "MiB", [str(c.model.memory_mib) for c in cards])
    add("memory.reserved", "MiB", [str(RESERVED_MIB) for _ in cards])
    add("memory.used", "MiB", [str(c.reading.used_mib) for c in cards])
    add("memory.free", "MiB", [str(free_mib(c)) for c in cards])
    add("utilization.gpu", "%", [str(c.reading.util_percent) for c in cards])
    add("utilization.memory", "%", [str(c.reading.util_percent // 3) for c in cards])
    add("power.draw", "W", [f"{c.reading.power_w:.2f}" for c in cards])
    add("power.limit", "W", [f"{c.model.limit_w:.2f}" for c in cards])
    add("enforced.power.limit", "W", [f"{c.model.limit_w:.2f}" for c in cards])
    for clock in ("graphics", "sm"):
        short = {"graphics": "clocks.gr", "sm": "clocks.sm"}[clock]
        add(f"clocks.current.{clock}", "MHz", [str(clock_mhz(c)) for c in cards], short)
        add(f"clocks.max.{clock}", "MHz", ["1980" for _ in cards])
    add("ecc.mode.current", "-", ["Enabled" for _ in cards])
    for kind in ("corrected", "uncorrected"):
        add(f"ecc.errors.{kind}.volatile.total", "-", ["0" for _ in cards])
    return _table(columns)


def process_table(cards: Sequence[Card], processes: Sequence[Process]) -> str:
    """As `gpu_table`, a line for each process on a GPU."""
    by_index = {card.index: card for card in cards}
    here = [(by_index[p.gpu], p) for p in processes if p.gpu in by_index]
    return _table(
        [
            ("gpu_index", "-", "gpu_index", [str(card.index) for card, _ in here]),
            ("gpu_uuid", "-", "gpu_uuid", [card.uuid for card, _ in here]),
            ("gpu_bus_id", "-", "gpu_bus_id", [card.bus for card, _ in here]),
            ("timestamp", "-", "timestamp", ["@now" for _ in here]),
            ("gpu_name", "-", "gpu_name", [card.model.name for card, _ in here]),
            ("pid", "-", "pid", [str(p.pid) for _, p in here]),
            *(
                (asked, "-", "process_name", [p.name for _, p in here])
                for asked in ("process_name", "name")
            ),
            *(
                (asked, "MiB", "used_gpu_memory", [str(p.used_mib) for _, p in here])
                for asked in ("used_gpu_memory", "used_memory")
            ),
        ]
    )


def summary(cards: Sequence[Card], fleet: Fleet, processes: Sequence[Process]) -> str:
    """The table of `nvidia-smi` without arguments, below its date."""
    first = RULE if int(fleet.driver.split(".")[0]) >= 580 else f"|{RULE[1:]}"
    lines = [
        WIDE,
        f"| NVIDIA-SMI {fleet.driver:<22} Driver Version: {fleet.driver:<14}"
        f" CUDA Version: {fleet.cuda:<8} |",
        first,
        HEAD,
    ]
    for card in cards:
        now = card.reading
        watts = f"{now.power_w:>14.0f}W / {card.model.limit_w:>4}W"
        memory = f"{now.used_mib:>8}MiB / {card.model.memory_mib:>6}MiB"
        lines += [
            f"| {card.index:>3}  {card.model.name:<26}     On  |   {card.bus} Off |{0:>21} |",
            f"| N/A {now.temperature_c:>4}C    P0 {watts} |"
            f"{memory} |{now.util_percent:>7}%      Default |",
            f"|{' ' * 41}|{' ' * 24}|{mig(card):>21} |",
            RULE,
        ]
    lines += [" " * 89 if first != RULE else "", WIDE, PROCESSES_HEAD]
    for one in processes:
        lines.append(
            f"|  {one.gpu:>3}   N/A  N/A {one.pid:>15}      C   {one.name:<33}"
            f"{one.used_mib:>10}MiB |"
        )
    if not processes:
        lines.append(f"|  No running processes found{' ' * 61}|")
    return "\n".join([*lines, WIDE, ""])


def query(cards: Sequence[Card], fleet: Fleet, processes: Sequence[Process]) -> str:
    """The sections of `nvidia-smi -q` that somebody reads after a failure, below its timestamp."""
    lines = [
        _line(0, "Driver Version", fleet.driver),
        _line(0, "CUDA Version", fleet.cuda),
        "",
        _line(0, "Attached GPUs", str(len(cards))),
    ]
    for card in cards:
        lines += [f"GPU {card.bus}", *_card(card, [p for p in processes if p.gpu == card.index])]
        lines.append("")
    return "\n".join(lines) + "\n"


def free_mib(card: Card) -> int:
    return card.model.memory_mib - RESERVED_MIB - card.reading.used_mib


def clock_mhz(card: Card) -> int:
    return 1980 if card.reading.util_percent else 345


def mig(card: Card) -> str:
    return "N/A" if "L40S" in card.model.name else "Disabled"


def _card(card: Card, processes: Sequence[Process]) -> list[str]:
    now = card.reading
    lines = [
        _line(1, "Product Name", card.model.name),
        _line(1, "Product Brand", "NVIDIA"),
        _line(1, "Persistence Mode", "Enabled"),
        _line(1, "GPU UUID", card.uuid),
        _line(1, "Minor Number", str(card.index)),
        "    PCI",
        _line(2, "Bus Id", card.bus),
        "    Clocks Event Reasons",
        _line(2, "Idle", "Not Active" if now.util_percent else "Active"),
        _line(2, "SW Power Cap", "Not Active"),
        _line(2, "HW Slowdown", "Not Active"),
        "    FB Memory Usage",
        _line(2, "Total", f"{card.model.memory_mib} MiB"),
        _line(2, "Reserved", f"{RESERVED_MIB} MiB"),
        _line(2, "Used", f"{now.used_mib} MiB"),
        _line(2, "Free", f"{free_mib(card)} MiB"),
        "    Utilization",
        _line(2, "GPU", f"{now.util_percent} %"),
        _line(2, "Memory", f"{now.util_percent // 3} %"),
        "    ECC Errors",
        "        Volatile",
        _line(3, "SRAM Correctable", "0"),
        _line(3, "DRAM Correctable", "0"),
        _line(3, "DRAM Uncorrectable", "0"),
        "    Remapped Rows",
        _line(2, "Correctable Error", "0"),
        _line(2, "Uncorrectable Error", "0"),
        _line(2, "Pending", "No"),
        _line(2, "Remapping Failure Occurred", "No"),
        "    Temperature",
        _line(2, "GPU Current Temp", f"{now.temperature_c} C"),
        "    GPU Power Readings",
        _line(2, "Average Power Draw", f"{now.power_w:.2f} W"),
        _line(2, "Current Power Limit", f"{card.model.limit_w:.2f} W"),
        "    Clocks",
        _line(2, "SM", f"{clock_mhz(card)} MHz"),
    ]
    if not processes:
        return [*lines, _line(1, "Processes", "None")]
    lines.append("    Processes")
    for one in processes:
        lines += [
            f"        {'Process ID':<34}: {one.pid}",
            f"            {'Type':<30}: C",
            f"            {'Name':<30}: {one.name}",
            f"            {'Used GPU Memory':<30}: {one.used_mib} MiB",
        ]
    return lines


def _line(depth: int, name: str, value: str) -> str:
    return f"{'    ' * depth + name:<55}: {value}"


def _table(columns: Sequence[tuple[str, str, str, list[str]]]) -> str:
    names = [[asked, unit, name, *values] for asked, unit, name, values in columns]
    return "".join("\t".join(line) + "\n" for line in zip(*names, strict=True))
