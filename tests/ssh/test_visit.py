"""Working on a live box beside its run: ssh, ssh-config, pull, doctor, status, `up --on`."""

import json
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from gpurun.clock import Deadline
from tests.boxes import Box, box
from tests.boxes.shape import H100X4
from tests.hosts import Hosts, left_on, run_root

pytestmark = pytest.mark.xdist_group("one live run over SSH")
TRAIN = """\
mkdir -p out
printf %s "$TOKEN" | wc -c > out/token-length
echo '{"step": 3, "total_steps": 10, "loss": 1.5, "it_per_s": 2}' > out/metrics.jsonl
python3 -c '
import socket
with socket.create_server(("127.0.0.1", 8888)) as server:
    while True:
        server.accept()[0].sendall(b"a notebook")' &
until [ -e go ]; do sleep 0.1; done
kill $!
echo 42 > out/result.txt"""
SECRET = "s3cret-value-of-a-key"
DESK = """\
name: desk
need: {gpu: none, disk_gb: 1}
budget: {max_usd_per_hour: 10, max_usd: 10, setup_minutes: 5, run_minutes: 5, grace_minutes: 0.2}
setup: {device: cpu}
collect: [notes]
"""


@pytest.fixture(scope="module")
def machine() -> Iterator[Box]:
    with box(H100X4) as made:
        yield made


@pytest.fixture(scope="module")
def home(machine: Box, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """One live run, which every test here looks at."""
    made = Hosts(tmp_path_factory.mktemp("visit"), machine)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def run(machine: Box, home: Hosts) -> str:
    gpus = ("--set", "need.gpu=H100", "--set", "need.gpu_count=4")
    machine.gpus.set(util_percent=97, power_w=640.0, used_mib=1024)
    recipe = home.recipe(train=TRAIN, run_minutes=40)  # for all that look at it, however slowly
    recipe.write_text(f"{recipe.read_text()}secrets: [TOKEN]\n")
    home.env["TOKEN"] = SECRET
    begun = home.begin(recipe, *gpus)
    home.until(lambda: bool((home.document(begun)["train"] or {}).get("step")))
    return begun


def test_ssh_runs_a_command_in_the_runs_folder_with_its_environment(home: Hosts, run: str) -> None:
    done = home.run("ssh", run, "--", "pwd;", "echo", "$GPURUN_RUN", "$GPURUN_GPUS;", "exit", "7")
    assert done.returncode == 7
    folder, words = done.stdout.splitlines()
    assert folder.startswith("/workspace/gpurun-")
    assert words == f"{run} 4"


def test_ssh_forwards_a_port(home: Hosts, run: str) -> None:
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    going = home.start("ssh", run, "-L", f"{port}:127.0.0.1:8888", "--", "cat")
    try:
        deadline, heard = Deadline(20), b""
        while not heard and not deadline.passed():
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as client:
                heard = client.recv(64)
        assert heard == b"a notebook"
    finally:
        going.kill()
        going.communicate()


def test_the_host_block_serves_real_ssh_and_rsync(home: Hosts, run: str, tmp_path: Path) -> None:
    config = tmp_path / "config"
    block = home.run("ssh-config", run)
    assert block.returncode == 0, block.stderr
    config.write_text(block.stdout)
    ssh = ["ssh", "-F", str(config)]
    folder = home.run("ssh", run, "--", "pwd").stdout.strip()
    there = f"gpurun-{run}:{folder}/out/metrics.jsonl"
    for words in ([*ssh, f"gpurun-{run}", "true"], ["rsync", "-e", " ".join(ssh), there, tmp_path]):
        done = subprocess.run(words, capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, done.stderr
    assert '"step": 3' in (tmp_path / "metrics.jsonl").read_text()


def test_pull_fetches_what_is_collected_or_one_path(home: Hosts, run: str) -> None:
    home.run("ssh", run, "--", "mkdir", "-p", "notes;", "echo", "found", ">", "notes/a")
    done = home.run("pull", run, "notes")
    assert done.returncode == 0, done.stderr
    assert home.fetched(run, "notes/a") == "found\n"
    done = home.run("pull", run, "--json")
    names = {Path(name).name for name in json.loads(done.stdout)["files"]}
    assert {"metrics.jsonl", "train.log"} <= names
    missing = home.run("pull", run, "no-such-folder")
    assert missing.returncode == 2
    assert "nothing on the box of run" in missing.stderr


def test_status_shows_gpus_power_memory_progress_and_money(home: Hosts, run: str) -> None:
    home.until(lambda: home.document(run)["train"]["gpu_util"] is not None)  # sampled every 10 s
    train = home.document(run)["train"]
    assert (train["step"], train["total_steps"], train["loss"]) == (3, 10, 1.5)
    assert (train["gpu_util"], train["power_w"], train["gpu_mem_gib"]) == (97.0, 2560.0, 4.0)
    document = home.document(run)
    assert document["usd_per_hour"] == "3.60"
    assert document["timer"]["kind"] == "run"
    assert {guard["name"]: guard["state"] for guard in document["guards"]}["fuse"] == "armed"
    assert document["forecast"]["before_timer"] is True
    assert "2560" in home.run("status", run).stdout.replace(",", "")


def test_doctor_reads_the_box_of_the_run(home: Hosts, run: str) -> None:
    done = home.run("doctor", run)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {line[6:].split("  ")[0].strip(): line for line in done.stdout.splitlines()}
    for check in ("GPUs", "NVLink", "driver", "disk", "/dev/shm", "Python", "clock", "timer"):
        assert f"box: {check}" in rows, done.stdout
    assert "4x NVIDIA H100 80GB HBM3" in rows["box: GPUs"]


def test_a_secret_reaches_the_training_and_nothing_else(
    home: Hosts, run: str, machine: Box
) -> None:
    assert (run_root(machine) / "out/token-length").read_text().strip() == str(len(SECRET))
    for pid in machine.pids():
        with suppress(OSError):
            assert SECRET.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
    for folder in (run_root(machine), machine.root / "dev/shm", home.places.root):
        for path in folder.rglob("*"):
            if path.is_file():
                assert SECRET.encode() not in path.read_bytes(), path


def test_extend_moves_every_guard(home: Hosts, run: str) -> None:
    before = home.document(run)["timer"]
    done = home.run("extend", run, "3m", "--yes")
    assert done.returncode == 0, done.stderr
    document = home.document(run)
    assert document["timer"]["ends_at"] > before["ends_at"]
    assert {guard["seq"] for guard in document["guards"]} == {document["timer"]["seq"]}


def test_what_extend_could_not_tell_while_the_line_was_down_every_guard_is_told_later(
    home: Hosts, run: str, machine: Box
) -> None:
    machine.cut()
    try:
        refused = home.run("extend", run, "2m", "--yes")
    finally:
        machine.heal()
    assert refused.returncode == 4
    command = refused.stderr.rpartition("`gpurun ")[2].partition("`")[0]
    assert home.run(*command.split()).returncode == 0, refused.stderr
    seq = home.document(run)["timer"]["seq"]
    home.until(lambda: {guard["seq"] for guard in home.document(run)["guards"]} == {seq}, 120)


def test_the_run_then_ends_as_if_nobody_had_looked(home: Hosts, run: str, machine: Box) -> None:
    (run_root(machine) / "go").touch()
    ended = home.finished(run)
    assert ended["state"] == "done", ended["error"] + home.logs()
    assert left_on(machine) == []
    late = home.run("ssh", run, "--", "true")
    assert late.returncode == 2
    assert f"run {run} has no live box now: it is done; see `gpurun status {run}`" in late.stderr


def test_one_recipe_after_another_runs_on_a_box_that_stays(hosts_of: Callable[..., Hosts]) -> None:
    with box() as machine:
        home = hosts_of(machine)
        desk = home.work / "desk.yaml"
        desk.write_text(DESK)
        run = home.begin(desk)
        home.until_phase(run, "train")
        build = "echo x >> builds; mkdir -p data/a data/b\n"
        build += "touch data/a/dataset.json data/b/dataset.json"
        recipe = home.recipe(build=build, train="mkdir -p out; cp builds out/result.txt")
        for _ in range(2):
            done = home.run("up", recipe, "--on", run, "--json")
            assert done.returncode == 0, done.stderr + home.logs()
        assert home.fetched(run, "out/result.txt") == "x\n"  # set up once
        assert home.run("kill", run, "--yes").returncode == 0
        assert home.finished(run)["state"] == "killed"
        assert left_on(machine) == []
