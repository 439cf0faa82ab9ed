"""What the commands of a box say of its GPUs, to the letter."""

import dataclasses
from collections.abc import Iterator

import pytest

from tests.boxes import Box, Failure, Fleet, Process, Shape, box, shape
from tests.boxes.fleet import H100_SXM, MISMATCH, NO_DRIVER

pytestmark = pytest.mark.box
FIELDS = (
    "index,name,uuid,pci.bus_id,memory.total,memory.used,utilization.gpu,power.draw,"
    "driver_version,compute_cap,temperature.gpu"
)


@pytest.fixture(scope="module")
def module_box() -> Iterator[Box]:
    with box(dataclasses.replace(shape.H100X4, nvcc="12.4", dmesg="anyone")) as made:
        yield made


@pytest.fixture
def rented(module_box: Box) -> Iterator[Box]:
    yield module_box
    module_box.gpus.recover()
    module_box.gpus.processes()
    module_box.gpus.set(util_percent=0, power_w=69.53, used_mib=0, temperature_c=28)


def smi(made: Box, arguments: str) -> list[str]:
    """The lines of a command that succeeds."""
    done = made.run(["sh", "-c", f"nvidia-smi {arguments}"])
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_the_list_has_a_line_for_each_gpu(rented: Box) -> None:
    lines = smi(rented, "-L")
    uuids = [card.uuid for card in rented.gpus.cards]
    assert lines == [f"GPU {i}: NVIDIA H100 80GB HBM3 (UUID: {u})" for i, u in enumerate(uuids)]
    assert len(set(uuids)) == 4
    assert len(uuids[0]) == len("GPU-c7a0294c-c2c2-5476-438c-fb468eaa223b")


def test_a_query_answers_what_was_asked_with_names_and_units(rented: Box) -> None:
    rented.gpus.set(1, util_percent=98, power_w=640.5, used_mib=70_000, temperature_c=66)
    header, first, second, *_ = smi(rented, f"--query-gpu={FIELDS} --format=csv")
    assert header == (
        "index, name, uuid, pci.bus_id, memory.total [MiB], memory.used [MiB],"
        " utilization.gpu [%], power.draw [W], driver_version, compute_cap, temperature.gpu"
    )
    uuid = rented.gpus.cards[0].uuid
    assert first == (
        f"0, NVIDIA H100 80GB HBM3, {uuid}, 00000000:18:00.0, 81559 MiB, 0 MiB, 0 %, 69.53 W,"
        " 570.124.06, 9.0, 28"
    )
    assert second.endswith("70000 MiB, 98 %, 640.50 W, 570.124.06, 9.0, 66")


def test_a_query_without_header_and_units_for_one_gpu(rented: Box) -> None:
    asked = "--query-gpu=index,memory.total,power.draw,fan.speed -i 2"
    assert smi(rented, f"{asked} --format=csv,noheader,nounits") == ["2, 81559, 69.53, [N/A]"]


def test_a_header_has_the_canonical_name_of_a_field(rented: Box) -> None:
    header, *_ = smi(rented, "--query-gpu=gpu_name,clocks.sm --format=csv")
    assert header == "name, clocks.current.sm [MHz]"


def test_an_unknown_field_is_refused(rented: Box) -> None:
    done = rented.run(["nvidia-smi", "--query-gpu=index,bogus", "--format=csv"])
    assert done.stdout == 'Field "bogus" is not a valid field to query.\n\n'
    assert done.returncode == 2


def test_processes_are_listed_while_they_are_there(rented: Box) -> None:
    asked = "--query-compute-apps=pid,name,used_memory,gpu_uuid --format=csv"
    assert smi(rented, asked) == ["pid, process_name, used_gpu_memory [MiB], gpu_uuid"]
    assert any("No running processes found" in line for line in smi(rented, ""))
    rented.gpus.processes(Process(4711, "python3", 69_000, gpu=3))
    assert smi(rented, asked)[1:] == [f"4711, python3, 69000 MiB, {rented.gpus.cards[3].uuid}"]
    summary = "\n".join(smi(rented, ""))
    assert (
        "|    3   N/A  N/A            4711      C   python3"
        "                               69000MiB |" in summary
    )


def test_the_summary_is_a_table_of_equal_lines_with_the_cuda_version(rented: Box) -> None:
    rented.gpus.set(0, util_percent=100, power_w=629, used_mib=19_818, temperature_c=59)
    date, *table = smi(rented, "")
    assert date.endswith("       ")
    assert {len(line) for line in table} == {91, 89}
    assert [line for line in table if len(line) == 89] == [" " * 89]
    assert (
        "| NVIDIA-SMI 570.124.06             Driver Version: 570.124.06  "
        "   CUDA Version: 12.8     |" in table
    )
    assert (
        "|   0  NVIDIA H100 80GB HBM3          On  |   00000000:18:00.0 Off |"
        "                    0 |" in table
    )
    assert (
        "| N/A   59C    P0            629W /  700W |   19818MiB /  81559MiB |"
        "    100%      Default |" in table
    )


def test_the_topology_is_underlined_and_tab_separated(rented: Box) -> None:
    header, first, *_ = smi(rented, "topo -m")
    assert header == (
        "\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m"
    )
    assert first == "GPU0\t X \tNV18\tNV18\tNV18\t0-51\t0\t\tN/A"


def test_the_long_query_is_evidence(rented: Box) -> None:
    rented.gpus.processes(Process(4711, "python3", 69_000, gpu=1))
    text = "\n".join(smi(rented, "-q"))
    assert "==============NVSMI LOG==============" in text
    assert text.count("    Product Name                                       : NVIDIA H100") == 4
    assert "        Process ID                        : 4711" in text
    columns = {line.index(" : ") for line in text.splitlines() if line.startswith(("T", "D", "A"))}
    assert columns == {54}


def test_a_lost_gpu_silences_an_older_release(rented: Box) -> None:
    rented.gpus.lose(1)
    for arguments in ("", "-L", "--query-gpu=index --format=csv", "topo -m"):
        done = rented.run(["sh", "-c", f"nvidia-smi {arguments}"])
        assert done.stdout == (
            "Unable to determine the device handle for GPU0000:2A:00.0: Unknown Error\n"
        )
        assert done.returncode == 255
    rented.gpus.recover()
    assert len(smi(rented, "-L")) == 4


def test_a_lost_gpu_is_missing_from_a_newer_release(rented: Box) -> None:
    rented.gpus.lose(1, newer=True)
    done = rented.run(["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"])
    assert done.stdout == "0\n2\n3\n"
    assert done.stderr == (
        "Unable to determine the device handle for GPU1: 0000:2A:00.0: Unknown Error\n"
    )
    assert done.returncode == 0


@pytest.mark.parametrize(("failure", "code"), [(NO_DRIVER, 9), (MISMATCH, 18)])
def test_a_broken_driver_is_told_by_text_and_exit_code(
    rented: Box, failure: Failure, code: int
) -> None:
    rented.gpus.fail(failure)
    done = rented.run(["nvidia-smi"])
    assert (done.stdout, done.returncode) == (f"{failure.text}\n", code)


def test_the_kernel_reports_an_xid(rented: Box) -> None:
    rented.gpus.xid(79, 1)
    last = rented.ssh("dmesg").stdout.splitlines()[-1]
    assert last.partition("] ")[2] == (
        "NVRM: Xid (PCI:0000:2A:00): 79, pid='<unknown>', name=<unknown>,"
        " GPU has fallen off the bus."
    )


def test_nvcc_names_its_release_and_is_not_on_the_path(rented: Box) -> None:
    assert rented.ssh("command -v nvcc").stdout == ""
    version = rented.ssh("/usr/local/cuda/bin/nvcc --version").stdout
    assert "Cuda compilation tools, release 12.4, V12.4.131" in version


def test_kernel_messages_are_for_whom_the_shape_says() -> None:
    with box(shape.UBUNTU_VM) as made:
        refused = made.ssh("dmesg")
        assert refused.stderr == "dmesg: read kernel buffer failed: Operation not permitted\n"
        assert "NVRM: loading" in made.ssh("sudo dmesg").stdout
    with box() as made:
        assert made.ssh("dmesg").returncode == 1


def test_a_reboot_clears_the_kernel_messages_and_keeps_the_gpus() -> None:
    with box(dataclasses.replace(shape.H100X4, dmesg="root")) as made:
        made.gpus.xid(31)
        assert "Xid" in made.sh("dmesg")
        made.reboot()
        assert "Xid" not in made.sh("dmesg")
        assert len(smi(made, "-L")) == 4


def test_a_box_without_gpus_has_no_such_command() -> None:
    with box() as made:
        assert made.ssh("nvidia-smi").returncode == 127


@pytest.mark.parametrize(
    ("rented_shape", "names", "links"),
    [
        (shape.H100X4_PCIE, ["NVIDIA H100 PCIe, 81559, 9.0"] * 4, {"NODE"}),
        (shape.A100X4, ["NVIDIA A100-SXM4-80GB, 81920, 8.0"] * 4, {"NV12"}),
        (shape.A100X4_40GB, ["NVIDIA A100-SXM4-40GB, 40960, 8.0"] * 4, {"NV12"}),
        (shape.H200X8, ["NVIDIA H200, 143771, 9.0"] * 8, {"NV18"}),
        (shape.L40SX1, ["NVIDIA L40S, 46068, 8.9"], set()),
        (
            shape.MIXED,
            ["NVIDIA H100 80GB HBM3, 81559, 9.0"] * 2 + ["NVIDIA A100-SXM4-80GB, 81920, 8.0"] * 2,
            {"SYS"},
        ),
    ],
    ids=["4xH100 PCIe", "4xA100", "4xA100 40 GB", "8xH200", "L40S", "mixed"],
)
def test_the_shapes_have_the_gpus_they_are_named_for(
    rented_shape: Shape, names: list[str], links: set[str]
) -> None:
    with box(rented_shape) as made:
        asked = "--query-gpu=name,memory.total,compute_cap --format=csv,noheader,nounits"
        assert smi(made, asked) == names
        rows = [line.split("\t")[1 : 1 + len(names)] for line in smi(made, "topo -m")]
        assert {link for row in rows[1 : 1 + len(names)] for link in row} - {" X "} == links


def test_a_newer_driver_draws_its_summary_as_it_does() -> None:
    newer = Fleet((H100_SXM,), driver="580.95.05", cuda="13.0")
    with box(Shape(gpus=newer)) as made:
        assert smi(made, "")[3].startswith("+---")
