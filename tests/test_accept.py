"""Boxes that are not what was bought: read by the real script, one sentence for each misfit."""

import dataclasses
import functools
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpurun.clock import SystemClock
from gpurun.engine import accept
from gpurun.errors import PhaseFailed
from gpurun.hardware import Hardware, checks, is_the, misfits, read, shm_needed_gb
from gpurun.hardware.cuda import build_for, cuda_of_driver, torch_misfit
from gpurun.model import Attempt, AttemptState
from gpurun.recipe import load
from gpurun.shell import Result
from gpurun.shell.local import LocalShell
from tests.boxes.fleet import (
    A100_40GB,
    A100_80GB,
    H100_PCIE,
    H100_SXM,
    H200,
    L40S,
    MISMATCH,
    NO_DEVICES,
    NO_DRIVER,
    NO_GPUS,
    Failure,
    Fleet,
    Model,
    Process,
)
from tests.gpubox import GpuBox, recipe

FOUR_H100 = Fleet((H100_SXM,) * 4)
SMOKE = load("smoke")


@pytest.fixture
def boxes(tmp_path: Path) -> "Boxes":
    return Boxes(tmp_path)


class Boxes:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._made = 0

    def make(self, fleet: Fleet) -> GpuBox:
        self._made += 1
        return GpuBox(self.folder / f"box{self._made}", fleet)

    def seen(self, fleet: Fleet) -> Hardware:
        return accept.look(self.make(fleet).shell, SystemClock()).hardware

    def wrong(self, fleet: Fleet, text: str = "", **need: object) -> str:
        return "; ".join(misfits(self.seen(fleet), recipe(self.folder, text, **need)))


# What fits.


def test_the_box_that_was_ordered_fits_and_is_described_in_one_line(boxes: Boxes) -> None:
    hardware = boxes.seen(FOUR_H100)
    assert misfits(hardware, recipe(boxes.folder, nvlink=True, vram_gb=80)) == []
    assert hardware.line().startswith("4x NVIDIA H100 80GB HBM3 (driver 570.124.06, CUDA 12.8), ")
    assert hardware.nvlink is True
    assert hardware.capabilities == ("9.0",)
    assert hardware.python.startswith("3.")
    assert hardware.cpus >= 1 and hardware.memory_gb > 0 and hardware.boot_id


def test_a_recipe_without_gpu_takes_a_box_without_driver(boxes: Boxes) -> None:
    text = "setup: {device: cpu}\n"
    assert boxes.wrong(NO_GPUS, text, gpu="none") == ""


def test_capabilities_of_a_mixed_box_are_all_told(boxes: Boxes) -> None:
    mixed = Fleet((H100_SXM, A100_80GB, L40S), link="SYS")
    assert boxes.seen(mixed).capabilities == ("8.0", "8.9", "9.0")


@pytest.mark.parametrize(
    ("wish", "model", "fits"),
    [
        ("H100", H100_SXM, True),
        ("H100", H100_PCIE, True),
        ("H100 SXM", H100_SXM, True),
        ("H100_80GB", H100_SXM, True),
        ("H100 SXM5", H100_PCIE, False),
        ("H100 PCIe", H100_PCIE, True),
        ("H100 PCIE", H100_SXM, False),
        ("H100 NVL", H100_SXM, False),
        ("H100", H200, False),
        ("H200", H200, True),
        ("H200_141GB", H200, True),
        ("A100", A100_40GB, True),
        ("A100 SXM4", A100_80GB, True),
        ("A100_80GB", A100_80GB, True),
        ("A100 80GB", A100_40GB, False),
        ("L40S_48GB", L40S, True),
        ("L40", L40S, False),
        ("L4", L40S, False),
    ],
)
def test_a_user_s_words_name_the_cards_they_mean(wish: str, model: Model, fits: bool) -> None:
    assert is_the(wish, model.name, model.memory_mib) is fits


@pytest.mark.parametrize(
    ("wish", "name", "mib", "fits"),
    [
        ("H200", "NVIDIA GH200 480GB", 97871, False),
        ("A10", "NVIDIA A100-SXM4-80GB", 81920, False),
        ("RTX4090_24GB", "NVIDIA GeForce RTX 4090", 24564, True),
        ("RTX 6000Ada", "NVIDIA RTX 6000 Ada Generation", 49140, True),
        ("RTX A6000", "NVIDIA RTX 6000 Ada Generation", 49140, False),
        ("RTX PRO 6000 WS", "NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 97887, True),
        ("B200_192GB", "NVIDIA B200", 183359, True),
        ("Tesla V100", "Tesla V100-SXM2-16GB", 16160, True),
        ("H100 NVL", "NVIDIA H100 NVL", 95830, True),
        ("H100 SXM", "NVIDIA H100 NVL", 95830, False),
    ],
)
def test_names_of_other_cards_are_told_apart(wish: str, name: str, mib: int, fits: bool) -> None:
    assert is_the(wish, name, mib) is fits


# What does not.


def test_fewer_gpus(boxes: Boxes) -> None:
    wrong = boxes.wrong(Fleet((H100_SXM,) * 3))
    assert wrong == "it has 3 GPUs, need.gpu_count is 4"


def test_another_model(boxes: Boxes) -> None:
    assert boxes.wrong(Fleet((A100_80GB,) * 4)) == (
        "it has 4x NVIDIA A100-SXM4-80GB, need.gpu is H100"
    )


def test_one_of_another_model_among_the_right_ones(boxes: Boxes) -> None:
    assert boxes.wrong(Fleet((H100_SXM, H100_SXM, H100_SXM, A100_80GB))) == (
        "only 3 of its GPUs fit: it has 3x NVIDIA H100 80GB HBM3, 1x NVIDIA A100-SXM4-80GB, "
        "need.gpu is H100"
    )


def test_the_pcie_card_where_sxm_was_asked(boxes: Boxes) -> None:
    wrong = boxes.wrong(Fleet((H100_PCIE,) * 4, link="NODE"), gpu="H100 SXM")
    assert wrong == "it has 4x NVIDIA H100 PCIe, need.gpu is H100 SXM"


def test_less_memory(boxes: Boxes) -> None:
    wrong = boxes.wrong(Fleet((A100_40GB,) * 4, link="NV12"), gpu="A100", vram_gb=80)
    assert wrong == "its GPUs have 42.9 GB each, need.vram_gb is 80"


@pytest.mark.parametrize("link", ["PIX", "PXB", "PHB", "NODE", "SYS"])
def test_no_nvlink_where_it_is_needed(boxes: Boxes, link: str) -> None:
    fleet = Fleet((H100_SXM,) * 4, link=link)
    assert boxes.wrong(fleet, nvlink=True) == (
        "its GPUs are not joined by NVLink, need.nvlink is on"
    )
    assert boxes.wrong(fleet) == ""


def test_gpus_that_somebody_else_uses(boxes: Boxes) -> None:
    box = boxes.make(FOUR_H100)
    box.gpus.set(1, used_mib=40_000)
    box.gpus.processes(Process(4711, "python", 40_000, 1))
    hardware = accept.look(box.shell, SystemClock()).hardware
    assert misfits(hardware, recipe(boxes.folder)) == ["its GPUs are in use (GPU 1: 40000 MiB)"]
    running = checks(hardware, recipe(boxes.folder), running=True)
    assert all(check.ok for check in running)


@pytest.mark.parametrize("newer", [False, True])
def test_a_lost_gpu(boxes: Boxes, newer: bool) -> None:
    box = boxes.make(FOUR_H100)
    box.gpus.lose(1, newer=newer)
    hardware = accept.look(box.shell, SystemClock()).hardware
    [wrong] = misfits(hardware, recipe(boxes.folder))
    assert "Unable to determine the device handle for GPU" in wrong
    assert f"shows {3 if newer else 0} GPUs" in wrong


@pytest.mark.parametrize("failure", [NO_DRIVER, NO_DEVICES, MISMATCH])
def test_a_driver_that_does_not_answer(boxes: Boxes, failure: Failure) -> None:
    fleet = dataclasses.replace(FOUR_H100, failure=failure)
    wrong = boxes.wrong(fleet)
    assert failure.text.splitlines()[0] in wrong


def test_no_driver_at_all(boxes: Boxes) -> None:
    assert boxes.wrong(NO_GPUS) == "it has no NVIDIA driver: nvidia-smi is not there"


def test_a_driver_too_old_for_the_torch_that_is_pinned(boxes: Boxes) -> None:
    old = Fleet((H100_SXM,) * 4, driver="470.82.01", cuda="11.4")
    text = 'setup: {torch: "2.9.1"}\n'
    assert boxes.wrong(old, text) == (
        "its driver runs CUDA 11.4, and torch 2.9.1 is built for CUDA 12.6, 12.8, 13.0: "
        "none of them runs there on compute capability 9.0"
    )


def test_too_little_disk(boxes: Boxes) -> None:
    assert "GB of disk are free, need.disk_gb is 900000" in boxes.wrong(FOUR_H100, disk_gb=900_000)


def test_the_shared_memory_is_computed_from_the_loader(boxes: Boxes) -> None:
    """Four ranks: each a batch in hand and 2 x 8 ready; NCCL's segments beside them."""
    loader = "train: {run: x, loader: {workers: 2, prefetch: 8, batch_mb: 100}}\n"
    asked = recipe(boxes.folder, loader)
    assert shm_needed_gb(asked) == pytest.approx(4 * 17 * 0.100 + 4 * 0.010)
    small = dataclasses.replace(boxes.seen(FOUR_H100), shm_gb=0.067)
    assert misfits(small, asked) == [
        "its /dev/shm has 0.07 GB, the training needs 6.84 GB (train.loader, NCCL or need.shm_gb)"
    ]
    ours = recipe(boxes.folder, "train: {run: x}\n")  # prefetches in threads: Docker's 64 MB do
    assert misfits(small, ours) == []
    assert misfits(small, recipe(boxes.folder, shm_gb=2)) != []
    eight = recipe(boxes.folder, gpu_count=8)
    assert shm_needed_gb(eight) == pytest.approx(0.080)


@pytest.mark.parametrize(("off_s", "word"), [(7200, "ahead of"), (-7200, "behind")])
def test_a_clock_that_is_off(boxes: Boxes, off_s: int, word: str) -> None:
    box = boxes.make(FOUR_H100)
    box.command("date", f"#!/bin/sh\nexec /bin/date -d '{off_s} seconds' \"$@\"\n")
    seen = accept.look(box.shell, SystemClock())
    with pytest.raises(PhaseFailed, match=f"its clock is 120 minutes {word} ours"):
        accept.require(seen, recipe(boxes.folder))


def test_a_clock_that_is_right_is_not_off_by_the_round_trip(boxes: Boxes) -> None:
    seen = accept.look(boxes.make(FOUR_H100).shell, SystemClock())
    assert seen.clock_off_s == 0
    assert all(check.ok for check in accept.require(seen, recipe(boxes.folder)))


def test_what_the_offer_said_counts_too(boxes: Boxes) -> None:
    hardware = boxes.seen(Fleet((H100_PCIE,) * 4, link="PHB"))
    bought = attempt("H100 SXM", 8)
    assert misfits(hardware, recipe(boxes.folder), bought) == [
        "it has 4 GPUs, the offer said 8",
        "the offer said H100 SXM, it has 4x NVIDIA H100 PCIe",
    ]


def test_a_box_without_python_is_refused_unless_apt_may_install_it(boxes: Boxes) -> None:
    fits = boxes.seen(FOUR_H100)
    bare = dataclasses.replace(fits, python="", is_root=True, tools=frozenset({"apt-get"}))
    [wrong] = misfits(bare, recipe(boxes.folder))
    assert wrong == "it has no python3, and setup.apt does not install it"
    asked = recipe(boxes.folder, "setup: {apt: [python3]}\n")
    assert misfits(bare, asked) == []
    powerless = dataclasses.replace(bare, is_root=False, has_sudo=False)
    assert misfits(powerless, asked) == [wrong]
    old = dataclasses.replace(fits, python="3.8.10")
    assert misfits(old, asked) == ["its Python is 3.8.10, at least 3.10 is needed"]


def test_a_download_rate_is_asked_of_a_box_only_where_the_recipe_wants_one(boxes: Boxes) -> None:
    offline = dataclasses.replace(boxes.seen(FOUR_H100), download_mbit_s=None)
    assert misfits(offline, recipe(boxes.folder)) == []
    assert misfits(offline, recipe(boxes.folder, download_mbit_s=200)) == [
        "it could not reach the package registry, need.download_mbit_s is 200"
    ]
    slow = dataclasses.replace(offline, download_mbit_s=33.3)
    assert misfits(slow, recipe(boxes.folder, download_mbit_s=200)) == [
        "it downloads at 33 Mbit/s, need.download_mbit_s is 200"
    ]


def test_the_download_is_measured_and_bounded(boxes: Boxes, registry: str) -> None:
    box = boxes.make(FOUR_H100)
    shell = LocalShell(box.root, env=box.environment() | {"PIP_INDEX_URL": registry})
    rate = accept.look(shell, SystemClock()).hardware.download_mbit_s
    assert rate is not None and rate > 1


def test_a_box_without_network_is_read_all_the_same(boxes: Boxes) -> None:
    assert boxes.seen(FOUR_H100).download_mbit_s is None


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "simple" / "uv").mkdir(parents=True)
    (tmp_path / "simple" / "uv" / "index.html").write_bytes(b"x" * 2_000_000)
    serve = functools.partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/simple"
        server.shutdown()


# What clumsy and hostile boxes say.


def test_a_hanging_nvidia_smi_does_not_hang_us(boxes: Boxes) -> None:
    box = boxes.make(FOUR_H100)
    box.command("timeout", '#!/bin/sh\n[ "$1" != 20 ] || exit 124\nshift; exec "$@"\n')
    [wrong] = misfits(accept.look(box.shell, SystemClock()).hardware, recipe(boxes.folder))
    assert "nvidia-smi did not answer within 20 s" in wrong


def test_an_old_driver_is_asked_without_what_it_does_not_know(boxes: Boxes) -> None:
    box = boxes.make(Fleet((H100_SXM,) * 4, driver="470.57.02", cuda="11.4"))
    smi = box.bin / "nvidia-smi"
    smi.write_text(smi.read_text().replace("check() }", 'delete column["compute_cap"]; check() }'))
    hardware = accept.look(box.shell, SystemClock()).hardware
    assert (len(hardware.gpus), hardware.trouble) == (4, ())
    assert hardware.capabilities == ("9.0",)  # by the name


def test_what_rc_files_print_is_no_answer() -> None:
    said = read("user intruder\ngpu 0, NVIDIA H100, 1, 2, 3, 4, 5\n=user me\n=user you\n=end\n")
    assert (said.user, said.gpus, said.complete) == ("me", (), True)


def test_a_box_that_breaks_off_is_not_accepted() -> None:
    class Broken:
        def run(self, command: str, **_: object) -> Result:
            return Result(-1, "=user root\nConnection closed\n")

    with pytest.raises(PhaseFailed, match=r"could not be read \(exit -1\)"):
        accept.look(Broken(), SystemClock())  # type: ignore[arg-type]


NAMES = ["gpu", "app", "topo", "tool", "cpus", "cpu_quota", "memory_limit", "disk_kb", "date_s"]
NAMES += ["python", "download", "cuda", "nvcc", "ptrace_scope", "open_files", "uid", "kind"]
VALUES = st.one_of(
    st.text(max_size=60),
    st.sampled_from(["²", "9" * 400, "-1", "1e400", "nan", "0 0", "5 0", "", "NV18 X", "\x1b[4m"]),
    st.lists(st.sampled_from(["0", "²", "9" * 30, "NVIDIA H100", "", "x" * 999]), max_size=9).map(
        ", ".join
    ),
)


@given(st.lists(st.tuples(st.sampled_from(NAMES), VALUES), max_size=20))
def test_no_answer_of_a_box_crashes_us(lines: list[tuple[str, str]]) -> None:
    hardware = read("".join(f"={name} {value}\n" for name, value in lines))
    assert len(hardware.line()) < 3000
    for check in checks(hardware, SMOKE):
        assert check.says.isprintable()


# Drivers and torch.


@pytest.mark.parametrize(
    ("torch", "driver", "caps", "cuda", "index"),
    [
        ("2.5.1", "12.4", ("9.0",), "12.4", ""),
        ("2.5.1", "12.8", ("9.0",), "12.4", ""),
        ("2.5.1", "12.2", ("9.0",), "12.4", ""),  # minor releases of one major run each other
        ("2.5.1", "11.8", ("8.0",), "11.8", "cu118"),
        ("2.9.1", "12.4", ("9.0",), "12.8", ""),
        ("2.11.0", "12.8", ("9.0",), "12.8", "cu128"),
        ("2.11.0", "12.6", ("8.9",), "12.6", "cu126"),
        ("2.11.0", "13.0", ("10.0",), "13.0", ""),
        ("2.7.1", "12.8", ("12.0",), "12.8", "cu128"),  # the registry's 12.6 has no Blackwell
        ("2.13.0", "12.4", ("9.0",), "", ""),  # not in the table: the registry's, then tried
        ("2.5.1", "", ("9.0",), "", ""),
        ("2.5.1+cu121", "12.8", ("9.0",), "12.1", "cu121"),
    ],
)
def test_the_build_of_torch_is_one_that_the_driver_runs(
    torch: str, driver: str, caps: tuple[str, ...], cuda: str, index: str
) -> None:
    build = build_for(torch, driver, caps)
    assert build is not None
    assert (build.cuda, build.index.rpartition("/")[2]) == (cuda, index)


def test_a_torch_without_code_for_the_gpu_is_refused_in_words() -> None:
    assert "none of them runs there on compute capability 10.0" in torch_misfit(
        "2.5.1", "12.8", ("10.0",)
    )


def test_a_driver_that_does_not_tell_its_cuda_is_looked_up() -> None:
    assert [cuda_of_driver(d) for d in ("550.54.15", "535.161.08", "595.1", "x", "")] == [
        *("12.4", "12.2", "13.1"),
        *("", ""),
    ]


def attempt(gpu: str, count: int) -> Attempt:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    return Attempt(
        label="gpurun-o-r-n",
        run_id="r",
        provider="vast",
        account_id="a",
        offer_id="1",
        usd_per_hour=Decimal(1),
        ceiling_at=now + timedelta(hours=1),
        state=AttemptState.SEEN,
        ending=None,
        gpu=gpu,
        gpu_count=count,
        sent_at=now,
        instance_id="1",
        id_from="answer",
        first_seen_at=now,
        created_at=now,
        delete_acked_at=None,
        gone_at=None,
        evidence_json="{}",
    )
