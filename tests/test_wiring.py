"""Providers by name: the built-in ones, and one that another, really installed, package brings."""

import importlib
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpurun.clock import SystemClock
from gpurun.errors import UsageError
from gpurun.provider import Provisioner
from gpurun.settings import SshHost
from gpurun.wiring import kind, members, names, provisioner
from provisioners.local import Local
from tests.contract import LABEL, ProvisionerContract, order

ROOT = Path(__file__).parents[1]
PLUGIN = """
    from tests.fakecloud import FakeClock, FakeCloud

    class Garage(FakeCloud):
        name = "garage"

    def garage(settings, clock):
        return Garage(FakeClock(), usd_per_hour=settings.local_usd_per_hour)

    def broken(settings, clock):
        raise RuntimeError("no key in the lock")

    def not_local(settings, clock):
        raise AssertionError("a plugin took the name of a built-in provider")
"""
PROJECT = """
    [build-system]
    requires = ["hatchling"]
    build-backend = "hatchling.build"

    [project]
    name = "gpurun-garage"
    version = "1.0"

    [project.entry-points."gpurun.provisioners"]
    garage = "gpurun_garage:garage"
    broken = "gpurun_garage:broken"
    missing = "gpurun_garage:nothing_of_this_name"
    local = "gpurun_garage:not_local"

    [tool.hatch.build.targets.wheel]
    only-include = ["gpurun_garage.py"]
"""


@pytest.fixture
def settings(tmp_path: Path) -> SimpleNamespace:
    return SimpleNamespace(
        state_dir=tmp_path, local_usd_per_hour=Decimal("0.75"), ssh_hosts=(), keys={}, box_keys={}
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source, to = tmp_path_factory.mktemp("garage"), tmp_path_factory.mktemp("wheels")
    (source / "gpurun_garage.py").write_text(textwrap.dedent(PLUGIN))
    (source / "pyproject.toml").write_text(textwrap.dedent(PROJECT))
    run("build", "--wheel", "--no-isolation", "--outdir", str(to), str(source))
    return next(to.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The second wheel, installed beside gpurun for as long as this module's tests run."""
    target = tmp_path_factory.mktemp("site")
    run("pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(target), str(wheel))
    sys.path.insert(0, str(target))
    importlib.invalidate_caches()
    yield target
    sys.path.remove(str(target))
    sys.modules.pop("gpurun_garage", None)
    importlib.invalidate_caches()


def run(*command: str) -> None:
    done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_local_is_made_from_the_settings(settings: SimpleNamespace) -> None:
    cloud = provisioner("local", settings, SystemClock())
    assert isinstance(cloud, Local)
    assert [offer.usd_per_hour for offer in cloud.offers(order(cloud).need)] == [Decimal("0.75")]


def test_a_name_that_nobody_has_names_the_nearest(settings: SimpleNamespace) -> None:
    with pytest.raises(UsageError, match=r"'locl' is not a provider: did you mean local\?"):
        provisioner("locl", settings, SystemClock())


def test_a_name_like_no_other_gets_the_list(settings: SimpleNamespace) -> None:
    with pytest.raises(UsageError, match=r"'zzz' is not a provider: there are .*local"):
        provisioner("zzz", settings, SystemClock())


def test_without_the_second_wheel_its_provider_is_unknown(settings: SimpleNamespace) -> None:
    assert "garage" not in names(settings)


def test_a_built_in_provider_costs_no_look_at_the_installed_packages(tmp_path: Path) -> None:
    program = f"""
        import sys
        from decimal import Decimal
        from pathlib import Path
        from types import SimpleNamespace
        from gpurun import wiring
        assert not any(name.startswith("provisioners") for name in sys.modules)
        from gpurun.clock import SystemClock
        settings = SimpleNamespace(state_dir=Path({str(tmp_path)!r}), local_usd_per_hour=Decimal(1))
        wiring.provisioner("local", settings, SystemClock())
        heavy = {{"importlib.metadata", "pydantic", "httpx", "sqlmodel", "fabric"}}
        assert not heavy & set(sys.modules), heavy & set(sys.modules)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("installed")
class TestPlugin(ProvisionerContract):
    @pytest.fixture
    def cloud(self, installed: Path, settings: SimpleNamespace) -> Provisioner:
        return provisioner("garage", settings, SystemClock())

    def impossible_offers(self, cloud: Provisioner):
        cloud.sold_out = True
        return super().impossible_offers(cloud)

    def test_it_comes_from_the_second_wheel(self, installed: Path, cloud: Provisioner) -> None:
        assert cloud.name == "garage"
        assert sys.modules["gpurun_garage"].__file__ == str(installed / "gpurun_garage.py")
        assert cloud.create(order(cloud, LABEL)).instance_id

    def test_it_is_listed_after_the_built_in_ones(self, settings: SimpleNamespace) -> None:
        assert names(settings)[0] == "local"
        assert names(settings).count("local") == 1
        assert "garage" in names(settings)

    def test_a_near_miss_names_it(self, settings: SimpleNamespace) -> None:
        with pytest.raises(UsageError, match=r"did you mean garage\?"):
            provisioner("garge", settings, SystemClock())

    def test_it_cannot_take_the_name_of_a_built_in_one(self, settings: SimpleNamespace) -> None:
        assert isinstance(provisioner("local", settings, SystemClock()), Local)

    @pytest.mark.parametrize("name", ["broken", "missing"])
    def test_one_that_cannot_be_loaded_is_named(self, settings: SimpleNamespace, name: str) -> None:
        with pytest.raises(UsageError, match=f"provider {name} .gpurun_garage:.* cannot be loaded"):
            provisioner(name, settings, SystemClock())


HOSTS = (SshHost(host="a.example"), SshHost(host="b.example", user="me", port=2222))


def test_each_host_of_the_settings_is_a_provider_by_itself(tmp_path: Path) -> None:
    settings = SimpleNamespace(
        state_dir=tmp_path, local_usd_per_hour=Decimal(0), ssh_hosts=HOSTS, keys={}, box_keys={}
    )
    assert members("ssh", settings) == ["ssh:root@a.example:22", "ssh:me@b.example:2222"]
    assert set(members("ssh", settings)) <= set(names(settings))
    for name in members("ssh", settings):
        assert provisioner(name, settings, SystemClock()).name == name
        assert kind(name) == "ssh"


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("ssh:c.example", "ssh:root@c.example:22"),
        ("ssh:me@c.example", "ssh:me@c.example:22"),
        ("ssh:me@c.example:2200", "ssh:me@c.example:2200"),
        ("ssh:me@[2001:db8::1]:2200", "ssh:me@2001:db8::1:2200"),
        ("ssh:me@2001:db8::1:2200", "ssh:me@2001:db8::1:2200"),  # as it calls itself
    ],
)
def test_a_host_may_be_named_without_being_in_the_settings(
    settings: SimpleNamespace, name: str, canonical: str
) -> None:
    assert provisioner(name, settings, SystemClock()).name == canonical


@pytest.mark.parametrize(
    "name",
    [
        "ssh",
        "ssh:",
        "ssh:@",
        "ssh:h:0",
        "ssh:h:70000",
        "ssh:h:x",
        "ssh:[::1",
        "ssh:me@-oX=y",
        "ssh:a b",
    ],
)
def test_what_names_no_host_is_told_how_to(settings: SimpleNamespace, name: str) -> None:
    with pytest.raises(UsageError, match="--host user@host:port"):
        provisioner(name, settings, SystemClock())
