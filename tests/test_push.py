"""Results that a box pushes by itself, to another machine or a store, with nobody of ours alive."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpurun import fuse, keeper, push
from tests.boxes import Box, Shape, box
from tests.homes import Home

pytestmark = pytest.mark.box
SAVES = """\
mkdir -p out; echo 42 > out/result.txt; echo early > "out/an odd 'name"
until [ -e go ]; do sleep 0.2; done
echo late > out/late.txt
"""


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Iterator[Box]:
    """Another machine, which keeps what is pushed to it; a test may name what it lacks."""
    with box(Shape(without=getattr(request, "param", ()))) as machine:
        yield machine


def pushing(home: Home, to: str, secrets: list[str], train: str = SAVES, **more: float) -> Path:
    path = home.recipe(train=train, **more)
    text = path.read_text() + f'collect_to: "{to}"\nsecrets: [{", ".join(secrets)}]\n'
    path.write_text(text)
    return path


def to_store(home: Home, store: Box, **more: float) -> Path:
    home.env["COLLECT_TO_KEY"] = store.key.read_text()
    where = f"{store.user}@{store.host}:/srv/it's kept"
    return pushing(home, where, [push.KEY], **more)


def kept(store: Box, run: str) -> Path:
    return store.root / "srv/it's kept" / run


def credentials(run: str) -> list[Path]:
    return list(Path("/dev/shm").glob(f"gpurun-*-{run}-*"))


@pytest.mark.parametrize("store", [(), ("rsync",)], ids=["rsync", "tar"], indirect=True)
def test_what_is_saved_is_pushed_while_training_and_at_the_end(home: Home, store: Box) -> None:
    run = home.up(to_store(home, store))
    home.until_phase(run, "train")
    home.until(lambda: (kept(store, run) / "out/an odd 'name").read_text() == "early\n", 120)
    assert not (kept(store, run) / "out/late.txt").exists()
    [root] = home.places.boxes.glob("*/root")
    (root / "go").touch()
    home.until_finished(run)
    assert home.document(run)["state"] == "done", home.logs()
    assert (kept(store, run) / "out/late.txt").read_text() == "late\n"


def test_the_fuse_pushes_what_is_there_before_it_ends_the_box(home: Home, store: Box) -> None:
    """Keeper and driver are killed: SIGTERM, the last push and the end are the fuse's alone."""
    recipe = to_store(home, store, run_minutes=0.2, grace_minutes=0.05)
    run = home.up(recipe)
    home.until_phase(run, "train")
    home.until(lambda: bool(list(home.places.boxes.glob("*/root/out/result.txt"))))
    home.kill_keeper_and_drivers()
    for pid in home.box_processes():
        if b"push.sh\0watch" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)  # it would push the same at about the same time
    within_s = fuse.TERM_DELAY_S + push.LAST_WORDS_S + 60
    home.until(lambda: (kept(store, run) / "out/result.txt").exists(), within_s)
    assert credentials(run), "the box lives on until the fuse's own deadline"
    home.until(lambda: not home.box_processes() and not credentials(run), fuse.MARGIN_S + 60)
    assert keeper.running(home.places) is None


def test_a_store_that_refuses_stops_the_run_before_the_launch(home: Home, store: Box) -> None:
    store.authorise_nobody()
    done = home.run("up", to_store(home, store), "--yes")
    assert done.returncode == 5
    assert "does not take what the box pushes, training was not launched" in done.stderr
    assert store.key.read_text().splitlines()[1] not in done.stderr + home.logs()


def test_the_credential_reaches_neither_the_training_nor_a_disk(home: Home, store: Box) -> None:
    train = "mkdir -p out; env > out/result.txt; ls -l /dev/shm > out/shm.txt"
    home.env["COLLECT_TO_KEY"] = store.key.read_text()
    recipe = pushing(home, f"{store.user}@{store.host}:/srv", [push.KEY], train=train)
    done = home.run("up", recipe, "--yes")
    assert done.returncode == 0, done.stderr + home.logs()
    text = store.key.read_text().splitlines()[1]
    for path in [*home.places.root.rglob("*"), *(home.work / "runs").rglob("*")]:
        if path.is_file():
            assert text.encode() not in path.read_bytes(), path
    assert not credentials(home.last_run())


def test_an_rclone_remote_is_pushed_to(home: Home, tmp_path: Path) -> None:
    home.env["RCLONE_CONFIG_KEEP_TYPE"] = "local"
    train = "mkdir -p out; echo 42 > out/result.txt"
    recipe = pushing(home, f"keep:{tmp_path}/store", ["RCLONE_CONFIG_KEEP_TYPE"], train=train)
    done = home.run("up", recipe, "--yes")
    assert done.returncode == 0, done.stderr + home.logs()
    assert (tmp_path / "store" / home.last_run() / "out/result.txt").read_text() == "42\n"


@pytest.mark.parametrize(
    ("to", "secret"),
    [("me@host:path", "COLLECT_TO_KEY"), ("keep:path", "RCLONE_CONFIG_KEEP_TYPE")],
)
def test_without_a_credential_nothing_is_rented(home: Home, to: str, secret: str) -> None:
    done = home.run("up", pushing(home, to, []), "--yes")
    assert done.returncode == 2
    assert f"no secret {secret}" in done.stderr
