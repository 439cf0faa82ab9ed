"""The steps of a run, compared as data; and the few that are worth running in a real shell."""

import dataclasses
import functools
import hashlib
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from gpurun.clock import SystemClock
from gpurun.engine import accept
from gpurun.phases import (
    OPTIMISER_FILE,
    ORDER,
    PHASES,
    Command,
    Detached,
    Facts,
    Files,
    KeepWheel,
    ReuseWheel,
    Upload,
)
from gpurun.phases.data import fetch_text
from gpurun.phases.steps import once
from gpurun.recipe import Recipe, load
from gpurun.shell import Result
from gpurun.shell.local import LocalShell
from tests.boxes.fleet import A100_80GB, H100_SXM, L40S, Fleet
from tests.gpubox import GpuBox

FACTS = Facts(bundle_sha256="ab12", label="gpurun-o-r-n", run_id="r", torch_cpu_index="https://cpu")
TEXT = """\
name: steps
need: {gpu: none}
budget: {max_usd_per_hour: 1, max_usd: 1, setup_minutes: 2, run_minutes: 1}
setup: {device: cpu, apt: [git], pip: [numpy], torch: "2.13.0"}
env: {GREETING: it's me}
data: {build: make data, path: data, verify: {files: {"*/dataset.json": 2}, run: check it}}
check: try it
train: {run: train it}
collect: [out]
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    return recipe_of(tmp_path, TEXT)


@pytest.fixture
def shell(tmp_path: Path) -> LocalShell:
    root = tmp_path / "root"
    root.mkdir()
    return LocalShell(root, env={"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(root)})


def recipe_of(folder: Path, text: str) -> Recipe:
    path = folder / "steps.yaml"
    path.write_text(text)
    return load(str(path), provider="local")


def step(shell: LocalShell, text: str) -> Result:
    """As the engine runs a step: env.sh before it, and the first line that fails ends it."""
    return shell.run(f"set -e\n[ ! -f .gpurun/env.sh ] || . .gpurun/env.sh\n{text}", timeout_s=60)


def steps_of(recipe: Recipe, facts: Facts = FACTS) -> list[tuple[str, type, str]]:
    return [
        (phase, type(step), str(step))
        for phase in ORDER
        if phase in PHASES
        for step in PHASES[phase](recipe, facts)
    ]


def test_a_run_is_these_steps_in_this_order(recipe: Recipe) -> None:
    assert steps_of(recipe) == [
        ("ship", Upload, "upload the bundle ab12"),
        ("ship", Command, "write the environment of the commands"),
        ("setup", Command, "apt: git"),
        ("setup", Command, "make a virtual environment"),
        ("setup", Command, "uv, or pip where it cannot be had"),
        ("setup", Command, "pip: numpy"),
        ("setup", Command, "torch 2.13.0 for cpu"),
        ("setup", Command, "try torch on cpu"),
        ("data", Command, "make data"),
        ("verify", Files, "data/*/dataset.json matches 2 files"),
        ("verify", Command, "check it"),
        ("verify", Command, "try it"),
        ("train", Detached, "launch, detached: train it"),
    ]


def test_a_run_of_our_trainer_on_gpus_settles_its_optimiser(tmp_path: Path) -> None:
    box = GpuBox(tmp_path / "box", Fleet((H100_SXM,) * 4, cuda="11.8", driver="520.61.05"))
    facts = dataclasses.replace(FACTS, hardware=accept.look(box.shell, SystemClock()).hardware)
    setup = [
        (kind, says) for phase, kind, says in steps_of(load("smoke"), facts) if phase == "setup"
    ]
    assert setup == [
        (Command, "apt: git tmux"),
        (Command, "make a virtual environment"),
        (Command, "uv, or pip where it cannot be had"),
        (Command, "pip: 'numpy>=1.26,<3'"),
        (Command, "torch 2.5.1 for cuda, built for CUDA 11.8"),
        (Command, "try torch on cuda"),
        (ReuseWheel, str(ReuseWheel())),
        (Command, "AdamATan2: its CUDA extension if it works, else in PyTorch"),
        (KeepWheel, str(KeepWheel())),
    ]
    install = next(s for s in PHASES["setup"](load("smoke"), facts) if "torch 2.5.1" in str(s))
    assert "install torch==2.5.1 --index-url https://download.pytorch.org/whl/cu118" in install.text
    on_cpu = load("smoke", provider="local")
    assert [says for phase, _, says in steps_of(on_cpu) if phase == "setup"][-1] == (
        "AdamATan2 in PyTorch"
    )


def test_the_timer_of_the_training_is_armed_after_the_dataset_is_verified() -> None:
    assert ORDER.index("verify") < ORDER.index("arm") < ORDER.index("train")


def test_no_step_of_the_setup_may_outlast_the_setup_timer(recipe: Recipe) -> None:
    for phase in ("setup", "data", "verify"):
        for each in PHASES[phase](recipe, FACTS):
            assert not isinstance(each, Command) or each.timeout_s <= 120


def test_without_packages_no_environment_is_made(recipe: Recipe) -> None:
    bare = recipe.model_copy(
        update={"setup": recipe.setup.model_copy(update={"apt": [], "pip": [], "torch": None})}
    )
    assert list(PHASES["setup"](bare, FACTS)) == []


# The environment.


def test_every_later_command_has_the_recipes_environment(recipe: Recipe, shell: LocalShell) -> None:
    _, write = PHASES["ship"](recipe, FACTS)
    assert isinstance(write, Command)
    assert step(shell, write.text).ok
    told = step(shell, 'echo "$GREETING/$GPURUN_RUN/$GPURUN_GPUS"')
    assert told.output == "it's me/r/1\n"
    assert (shell.root / ".gpurun" / "collect.txt").read_text() == "out\n"


def test_tools_of_the_user_and_of_the_image_are_on_the_path(
    recipe: Recipe, shell: LocalShell
) -> None:
    _, write = PHASES["ship"](recipe, FACTS)
    assert isinstance(write, Command)
    step(shell, write.text)
    path = step(shell, 'echo "$PATH"').output.strip().split(":")
    assert path[:2] == [f"{shell.root}/venv/bin", f"{shell.root}/.local/bin"]
    assert {"/usr/local/cuda/bin", "/opt/conda/bin"} <= set(path)
    assert path.index("/usr/bin") < path.index("/opt/conda/bin")


@pytest.mark.parametrize(
    ("models", "wish", "archs", "visible"),
    [
        ((H100_SXM, H100_SXM), "H100", "9.0", ""),
        ((A100_80GB, A100_80GB), "A100", "8.0", ""),
        ((L40S, L40S), "L40S", "8.9", ""),
        ((A100_80GB, H100_SXM), "80GB", "8.0;9.0", ""),
        ((A100_80GB, H100_SXM, H100_SXM), "H100", "9.0", "1,2"),
    ],
)
def test_extensions_are_compiled_for_the_gpus_that_are_there(
    tmp_path: Path, models: tuple, wish: str, archs: str, visible: str
) -> None:
    box = GpuBox(tmp_path / "box", Fleet(models, link="SYS"))
    facts = dataclasses.replace(FACTS, hardware=accept.look(box.shell, SystemClock()).hardware)
    text = TEXT.replace("{gpu: none}", f"{{gpu: {wish}, gpu_count: 2}}")
    _, write = PHASES["ship"](recipe_of(tmp_path, text), facts)
    assert isinstance(write, Command)
    assert f"TORCH_CUDA_ARCH_LIST={archs}" in str(write)  # the log shows it
    assert step(box.shell, write.text).ok
    told = step(box.shell, 'echo "$TORCH_CUDA_ARCH_LIST $CUDA_VISIBLE_DEVICES"')
    assert told.output == f"{archs} {visible}\n"


def test_a_recipe_may_name_the_architectures_itself(tmp_path: Path) -> None:
    box = GpuBox(tmp_path / "box", Fleet((H100_SXM,)))
    facts = dataclasses.replace(FACTS, hardware=accept.look(box.shell, SystemClock()).hardware)
    text = TEXT.replace("{gpu: none}", "{gpu: H100}").replace(
        "env: {", 'env: {TORCH_CUDA_ARCH_LIST: "8.0;9.0", '
    )
    _, write = PHASES["ship"](recipe_of(tmp_path, text), facts)
    assert isinstance(write, Command)
    step(box.shell, write.text)
    assert step(box.shell, 'echo "$TORCH_CUDA_ARCH_LIST"').output == "8.0;9.0\n"


def test_the_training_knows_which_optimiser_was_settled(recipe: Recipe, shell: LocalShell) -> None:
    _, write = PHASES["ship"](recipe, FACTS)
    assert isinstance(write, Command)
    step(shell, write.text)
    assert step(shell, 'echo "${GPURUN_OPTIMISER:-none}"').output == "none\n"
    (shell.root / OPTIMISER_FILE).write_text("torch AdamATan2 in PyTorch, for a reason\n")
    assert step(shell, "sh -c 'echo $GPURUN_OPTIMISER'").output == "torch\n"


# Done once.


def test_a_step_that_is_done_is_not_done_again_on_this_box(shell: LocalShell) -> None:
    text = once("echo worked >> count\nif [ -f stop ]; then exit 0; fi\n: > stop")
    assert step(shell, text).ok
    assert step(shell, text).output == "done before on this box\n"
    assert (shell.root / "count").read_text() == "worked\n"
    assert step(shell, once("echo other")).output == "other\n"


def test_a_step_that_failed_is_done_again(shell: LocalShell) -> None:
    text = once("[ -f ready ]\necho now")
    assert not step(shell, text).ok
    (shell.root / "ready").touch()
    assert step(shell, text).output == "now\n"


# Fetching.


class Server(ThreadingHTTPServer):
    """Files of a folder, with ranges; `cuts` is how many answers break off half way."""

    cuts = 0
    asked: tuple[str, ...] = ()


class Handler(SimpleHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        wanted = self.headers.get("Range", "")
        self.server.asked += (wanted,)
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            self.send_error(404)
            return
        data = path.read_bytes()
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
        if start >= len(data):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        if self.server.cuts:
            self.server.cuts -= 1
            self.wfile.write(data[start : start + 1000])
            self.close_connection = True
            return
        self.wfile.write(data[start:])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "files").mkdir()
    serve = functools.partial(Handler, directory=str(tmp_path / "files"))
    with Server(("127.0.0.1", 0), serve) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made
        made.shutdown()


def fetched(shell: LocalShell, server: Server, sha256: str | None) -> Result:
    source = f"http://127.0.0.1:{server.server_port}/weights.bin"
    return step(shell, fetch_text(source, "data/it's here.bin", sha256))


def test_a_download_that_breaks_goes_on_where_it_stopped(
    shell: LocalShell, server: Server, tmp_path: Path
) -> None:
    data = bytes(range(256)) * 40
    (tmp_path / "files" / "weights.bin").write_bytes(data)
    server.cuts = 2
    result = fetched(shell, server, hashlib.sha256(data).hexdigest())
    assert result.ok, result.output
    assert (shell.root / "data" / "it's here.bin").read_bytes() == data
    assert server.asked == ("", "bytes=1000-", "bytes=2000-")
    assert "is here" in fetched(shell, server, hashlib.sha256(data).hexdigest()).output
    assert len(server.asked) == 3


def test_a_download_with_another_digest_is_no_file(
    shell: LocalShell, server: Server, tmp_path: Path
) -> None:
    (tmp_path / "files" / "weights.bin").write_bytes(b"other")
    result = fetched(shell, server, "0" * 64)
    assert not result.ok
    assert "the recipe expects 0000" in result.output
    assert list((shell.root / "data").iterdir()) == []


def test_a_download_that_is_not_there_fails_at_once(shell: LocalShell, server: Server) -> None:
    result = fetched(shell, server, None)
    assert not result.ok
    assert "cannot be fetched: HTTP Error 404" in result.output
    assert len(server.asked) == 1
