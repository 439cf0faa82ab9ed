"""docs/your-code.md, followed: somebody else's training goes through on a host, unchanged."""

import hashlib
import shutil
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.boxes import Box, box
from tests.hosts import Hosts

pytestmark = pytest.mark.box
ROOT = Path(__file__).parents[1]
ROWS = "".join(f"{x / 10},{(x * 7) % 10 / 10},{int(x > 10)}\n" for x in range(20))


@pytest.fixture
def host() -> Iterator[Box]:
    with box() as machine:
        yield machine


@pytest.fixture
def hosts(host: Box, tmp_path: Path) -> Iterator[Hosts]:
    made = Hosts(tmp_path / "home", host)
    yield made
    made.close()


@pytest.fixture
def address(host: Box, tmp_path: Path) -> Iterator[str]:
    """Where the box finds numbers.csv."""
    public = tmp_path / "public"
    public.mkdir()
    (public / "numbers.csv").write_text(ROWS)
    handler = partial(SimpleHTTPRequestHandler, directory=public)
    server = ThreadingHTTPServer((host.gateway, 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://{host.gateway}:{server.server_port}/numbers.csv"
    server.shutdown()
    thread.join()
    server.server_close()


def project(hosts: Hosts, address: str, sha256: str) -> Path:
    """The recipe as it is shipped with gpurun, its example of `data` taken into use."""
    shutil.copy(ROOT / "tests/scripts/train.py", hosts.work)
    text = (ROOT / "recipes/your-code.yaml").read_text()
    before, data, after = text.partition("# data:")
    example, blank, rest = f"{data}{after}".partition("\n\n")
    lines = [line.removeprefix("# ").removeprefix("#") for line in example.splitlines()]
    used = "\n".join(lines).replace("https://example.org/numbers.csv", address)
    used = used.replace("64 hexadecimal digits, as sha256sum prints them", sha256)
    recipe = hosts.work / "your-code.yaml"
    recipe.write_text(before + used + blank + rest)
    return recipe


def test_a_training_of_somebody_else_goes_through_unchanged(
    host: Box, hosts: Hosts, address: str
) -> None:
    recipe = project(hosts, address, hashlib.sha256(ROWS.encode()).hexdigest())
    run = hosts.begin(recipe)
    hosts.until(lambda: bool(hosts.document(run)["train"]) and hosts.document(run)["train"]["step"])
    document = hosts.finished(run)
    assert (document["state"], document["exit_code"]) == ("done", 0), hosts.logs()
    train = document["train"]
    assert (train["step"], train["total_steps"]) == (40, 40)
    assert train["loss"] < 0.6
    assert hosts.fetched(run, "checkpoints/model_40.json").startswith("[")
    assert not (host.root / "var/tmp/gpurun").exists()


def test_data_with_another_digest_is_not_trained_on(hosts: Hosts, address: str) -> None:
    done = hosts.run("up", project(hosts, address, "0" * 64), "--provider", "ssh", "--yes")
    assert done.returncode == 5
    assert f"the recipe expects {'0' * 64}" in done.stderr


def test_a_pinned_commit_is_shipped_as_it_was(hosts: Hosts, address: str) -> None:
    recipe = project(hosts, address, hashlib.sha256(ROWS.encode()).hexdigest())
    source = hosts.root / "yours"
    source.mkdir()
    shutil.copy(ROOT / "tests/scripts/train.py", source)
    git = ["git", "-C", str(source), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "Train"]):
        subprocess.run([*git, *words], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    (source / "train.py").write_text("raise SystemExit('not this one')\n")
    ship = f"  - git: file://{source}\n    commit: {commit.stdout.strip()}\n    to: app\n"
    recipe.write_text(recipe.read_text().replace("  - from: .", ship + "  - from: .", 1))
    recipe.write_text(recipe.read_text().replace("    to: app\n# - git", "    to: also\n# - git"))
    run = hosts.begin(recipe)
    document = hosts.finished(run)
    assert document["state"] == "done", hosts.logs()
