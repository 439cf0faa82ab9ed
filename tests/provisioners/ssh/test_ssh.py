"""One host as a provider: it is shared by nobody, and what is ended on it is the run's alone."""

import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from gpurun.errors import (
    CreateUnclear,
    NoCapacity,
    NoOffer,
    ProviderError,
    ProviderUnreachable,
)
from gpurun.model import InstanceState, Need
from gpurun.provider import Provisioner
from gpurun.shell.fabric import FabricShell
from provisioners.ssh import Ssh
from provisioners.ssh.host import FUSE_TIMER, MARKER, make_text
from tests.boxes import Box, Shape, box
from tests.boxes.fleet import Process
from tests.boxes.shape import UBUNTU_VM
from tests.contract import LABEL, NEED, OTHER_LABEL, ProvisionerContract, order

pytestmark = pytest.mark.box
H100X4 = Need("H100", 4, 10)


class TestContract(ProvisionerContract):
    """A host serves one run at a time, which is the one promise it makes otherwise."""

    @pytest.fixture
    def cloud(self, host: Box, ssh_to: Callable[..., Ssh]) -> Provisioner:
        return ssh_to(host)

    def test_its_name_is_the_one_its_rows_bear(self, cloud: Provisioner) -> None:
        names = {offer.provider for offer in cloud.offers(NEED)}
        self.rent(cloud)
        assert names | {row.provider for row in cloud.instances()} == {cloud.name}

    def impossible_offers(self, cloud: Provisioner) -> Iterable[object]:
        """It is one machine: why it does not fit is worth more than an empty list."""
        with pytest.raises(NoOffer, match="is not what is needed: it has 4 GPUs"):
            super().impossible_offers(cloud)
        return []

    def test_two_boxes_are_two_rows(self, cloud: Provisioner) -> None:
        wanted = order(cloud, OTHER_LABEL)
        first = self.rent(cloud)
        with pytest.raises(NoCapacity, match=f"held by {LABEL}; nothing was made"):
            cloud.create(wanted)
        assert [row.id for row in cloud.instances()] == [first]

    def test_destroying_one_leaves_the_other(self, cloud: Provisioner) -> None:
        first = self.rent(cloud)
        cloud.destroy(OTHER_LABEL)
        assert [row.id for row in cloud.instances()] == [first]


def shell_of(cloud: Ssh, tmp_path: Path, label: str = LABEL) -> FabricShell:
    return FabricShell(cloud.login(label), tmp_path / "known")


@pytest.fixture
def cloud(host: Box, ssh_to: Callable[..., Ssh]) -> Ssh:
    return ssh_to(host)


def test_a_held_host_is_not_offered_and_says_by_whom(
    host: Box, cloud: Ssh, ssh_to: Callable[..., Ssh]
) -> None:
    cloud.create(order(cloud))
    other = ssh_to(host, "two")
    with pytest.raises(NoOffer, match=f"held by {LABEL} until .* which is past, and nothing of it"):
        other.offers(NEED)
    assert [row.label for row in other.instances()] == [LABEL]


def test_a_held_host_says_the_timer_that_is_now_in_force(host: Box, cloud: Ssh) -> None:
    """That of the claim was for its setup: past, it would say that the run may be ended."""
    instance_id = cloud.create(order(cloud)).instance_id
    timer = host.root / cloud.login(instance_id).root.strip("/") / FUSE_TIMER
    timer.parent.mkdir()
    timer.write_text(f"2 {instance_id} 4102444800 4102444860 60 1 key 0\n")
    with pytest.raises(NoOffer, match=r"until 2100-01-01 00:01 UTC\. A host"):
        cloud.offers(NEED)


def test_a_host_that_says_megabytes_is_quoted_in_brief(host: Box, cloud: Ssh) -> None:
    host.install(
        "nvidia-smi", "#!/bin/sh\nprintf '\\033[2J'; head -c 999999 /dev/zero | tr '\\0' Z\n"
    )
    host.install("sed", "#!/bin/sh\ncat; exit 1\n")
    with pytest.raises(ProviderError, match=r"no sensible answer: Z+$") as caught:
        cloud.offers(H100X4)
    assert len(str(caught.value)) < 600


def test_two_controllers_that_claim_at_once_never_share_it(
    host: Box, cloud: Ssh, ssh_to: Callable[..., Ssh]
) -> None:
    """The claim is one mkdir; both offers were read while the host was free."""
    one, two = order(cloud), order(ssh_to(host, "two"), OTHER_LABEL)
    claims = []
    for provisioner, wanted in ((cloud, one), (ssh_to(host, "two"), two)):
        try:
            claims.append(provisioner.create(wanted).instance_id)
        except NoCapacity:
            claims.append("")
    assert claims == [LABEL, ""]


def test_a_claim_that_broke_off_is_given_free_after_two_minutes(host: Box, cloud: Ssh) -> None:
    wanted = order(cloud)
    host.sh("mkdir /var/tmp/gpurun")
    with pytest.raises(NoOffer, match="just beginning"):
        cloud.offers(NEED)
    with pytest.raises(NoCapacity):
        cloud.create(wanted)
    host.sh("touch -d '3 minutes ago' /var/tmp/gpurun")
    assert list(cloud.offers(NEED))
    assert cloud.create(wanted).instance_id == LABEL


@pytest.mark.parametrize("before", ["rm -rf M", "mkdir M && touch -d '3 minutes ago' M"])
def test_of_many_that_claim_in_the_same_instant_one_gets_the_host(host: Box, before: str) -> None:
    """The second: a claim that broke off is taken over by one alone."""
    waits = "touch /tmp/ready.$$\nwhile [ ! -e /tmp/go ]; do :; done\n"
    for _ in range(5):
        host.sh(f"rm -rf /tmp/ready.* /tmp/go {MARKER}; {before.replace('M', MARKER)}")
        claims = [
            subprocess.Popen(
                host.inside(["sh", "-c", waits + make_text(label, "/workspace", 1, "1")]),
                stdout=subprocess.PIPE,
                text=True,
            )
            for label in (f"gpurun-{n}-{time.monotonic_ns()}" for n in range(4))
        ]
        host.sh(
            'while [ "$(ls /tmp/ready.* 2>/dev/null | wc -l)" -lt 4 ]; do :; done; touch /tmp/go'
        )
        said = [claim.communicate(timeout=30)[0].split()[-1:] for claim in claims]
        assert said.count(["made"]) == 1, said


def test_what_nobody_of_us_put_in_the_markers_place_stays(host: Box, cloud: Ssh) -> None:
    host.sh("echo precious > /var/tmp/gpurun")
    with pytest.raises(NoCapacity, match="/var/tmp/gpurun cannot be made; nothing"):
        cloud.create(order(cloud))
    assert host.sh("cat /var/tmp/gpurun; ls /workspace") == "precious\n"


def test_a_claim_that_cannot_be_written_leaves_nothing(host: Box, cloud: Ssh) -> None:
    host.install("date", "#!/bin/sh\nrm -rf /var/tmp/gpurun\n")
    with pytest.raises(NoCapacity, match="cannot be written"):
        cloud.create(order(cloud))
    assert host.sh("ls -A /var/tmp /workspace").split() == ["/var/tmp:", "/workspace:"]


def test_a_marker_of_another_hand_steers_no_terminal_and_sets_no_price(
    host: Box, cloud: Ssh
) -> None:
    host.sh(
        "mkdir /var/tmp/gpurun && cd /var/tmp/gpurun && printf '\\033[2Jx $(id)\\n../y' > label\n"
        "printf '1\\n99\\n1E+99999999\\nb\\n' > facts; head -c 9000000 /dev/zero >> facts"
    )
    [row] = cloud.instances()
    assert (row.id, row.usd_per_hour) == ("?[2Jx $(id)", Decimal("1.25"))
    with pytest.raises(NoOffer, match=r"held by \?\[2Jx"):
        cloud.offers(NEED)
    with pytest.raises(ProviderError, match="look at /var/tmp/gpurun on the host, and remove it"):
        cloud.destroy(row.id)
    assert host.sh("ls /var/tmp/gpurun/label")


def test_gpus_that_are_busy_are_not_offered(host: Box, cloud: Ssh) -> None:
    host.gpus.processes(Process(4242, "python", 1000))
    with pytest.raises(NoOffer, match=r"busy with 4242, python"):
        cloud.offers(H100X4)
    assert list(cloud.offers(NEED))  # a run without GPUs disturbs nobody


def test_gpus_are_offered_by_model_and_count(cloud: Ssh) -> None:
    [offer] = cloud.offers(H100X4)
    assert (offer.gpu, offer.gpu_count) == ("H100 80GB HBM3", 4)
    with pytest.raises(NoOffer, match=r"it has 4 GPUs, need.gpu_count is 8"):
        cloud.offers(replace(H100X4, gpu_count=8))
    with pytest.raises(NoOffer, match=r"it has 4x NVIDIA H100 80GB HBM3, need.gpu is A100"):
        cloud.offers(replace(H100X4, gpu="A100"))
    assert list(cloud.offers(replace(H100X4, gpu="H100 SXM")))  # accept tells the form


def test_a_host_with_fewer_gpus_than_its_owner_says_is_not_offered(
    host: Box, ssh_to: Callable[..., Ssh]
) -> None:
    cloud = ssh_to(host, gpu_count=8)
    with pytest.raises(NoOffer, match=r"it has 4 GPUs, ssh_hosts says 8"):
        cloud.offers(H100X4)
    assert list(cloud.offers(NEED))


def test_the_account_is_the_hosts_own(host: Box, cloud: Ssh, ssh_to: Callable[..., Ssh]) -> None:
    assert cloud.account() == ssh_to(host, "two").account()
    host.sh("echo 0123456789abcdef0123456789abcdef > /etc/machine-id")
    assert cloud.account().endswith("0123456789abcdef0123456789abcdef")


def test_all_that_the_run_started_is_ended_and_nothing_else(
    host: Box, cloud: Ssh, tmp_path: Path
) -> None:
    label = cloud.create(order(cloud)).instance_id
    shell = shell_of(cloud, tmp_path)
    ours = (
        "setsid sleep 1001 >/dev/null 2>&1 &"
        " (setsid sh -c 'env -i sleep 1002; :' >/dev/null 2>&1 &)"
    )
    assert shell.run(ours, timeout_s=10).ok
    subprocess.run(
        ["ssh", *host.ssh_options(), f"{host.user}@{host.host}", "setsid sleep 2001 >&- 2>&- &"],
        check=True,
    )
    cloud.destroy(label)
    left = host.sh("ps -eo args")
    assert "sleep 2001" in left
    assert "sleep 100" not in left


def test_in_a_cgroup_even_what_cleared_its_environment_is_ended(
    ssh_to: Callable[..., Ssh], tmp_path: Path
) -> None:
    with box(Shape(cgroups=True)) as host:
        cloud = ssh_to(host)
        label = cloud.create(order(cloud)).instance_id
        shell = shell_of(cloud, tmp_path)
        assert shell.run("(env -i setsid sleep 1001 >&- 2>&- &)", timeout_s=10).ok
        assert "sleep 1001" in host.sh("ps -eo args")
        cloud.destroy(label)
        assert "sleep 1001" not in host.sh("ps -eo args")
        assert not (host.root / "sys/fs/cgroup" / label).exists()


def test_a_run_whose_marker_somebody_removed_is_not_gone_while_it_runs(
    host: Box, cloud: Ssh, tmp_path: Path
) -> None:
    label = cloud.create(order(cloud)).instance_id
    assert shell_of(cloud, tmp_path).run("(setsid sleep 1001 >&- 2>&- &)", timeout_s=10).ok
    host.sh("rm -rf /var/tmp/gpurun")
    assert cloud.instances() == []
    found = cloud.instance(label)
    assert found is not None
    assert found.state is InstanceState.RUNNING
    cloud.destroy(label)
    assert cloud.instance(label) is None
    assert "sleep 1001" not in host.sh("ps -eo args")


def test_the_self_destroy_ends_the_run_but_keeps_its_files(
    host: Box, cloud: Ssh, tmp_path: Path
) -> None:
    label = cloud.create(order(cloud)).instance_id
    shell = shell_of(cloud, tmp_path)
    assert shell.run(
        f"echo precious > model.pt; echo key > /dev/shm/{label}.env\n"
        "(setsid sleep 1001 >/dev/null 2>&1 &)",
        timeout_s=10,
    ).ok
    # As the fuse does: from a process of the box itself, which must not end before its work.
    done = shell.run(f"sh -c {cloud_text(cloud, label)}; echo code $?", timeout_s=30)
    assert done.output.endswith("code 0\n"), done.output
    assert "sleep 1001" not in host.sh("ps -eo args")
    assert shell.run(f"cat model.pt; ls /dev/shm/{label}.env", timeout_s=10).output.startswith(
        "precious\n"
    )
    assert not (host.root / f"dev/shm/{label}.env").exists()


def cloud_text(cloud: Ssh, label: str) -> str:
    import shlex

    return shlex.quote(cloud.self_destroy(label))


def test_what_nobody_fetched_is_kept_and_the_rest_is_removed(
    host: Box, cloud: Ssh, tmp_path: Path
) -> None:
    label = cloud.create(order(cloud)).instance_id
    shell = shell_of(cloud, tmp_path)
    assert shell.run(
        "mkdir -p out venv .gpurun; echo out > .gpurun/collect.txt\n"
        "echo old > out/fetched; echo new > 'out/an odd  name'; echo big > venv/torch\n"
        "echo $(stat -c '%Y' out/fetched)000000000 4 out/fetched > .gpurun/collected.txt\n"
        "touch -d @$(stat -c '%Y' out/fetched) out/fetched",
        timeout_s=10,
    ).ok
    cloud.destroy(label)
    kept = host.root / "workspace/kept" / label
    assert [p.relative_to(kept).as_posix() for p in kept.rglob("*") if p.is_file()] == [
        "out/an odd  name"
    ]
    assert not (host.root / "workspace" / label).exists()
    assert list(cloud.offers(NEED))


def test_without_python_the_whole_directory_is_kept(ssh_to: Callable[..., Ssh]) -> None:
    with box(Shape(without=("python3",))) as host:
        cloud = ssh_to(host)
        label = cloud.create(order(cloud)).instance_id
        (host.root / "workspace" / label / "model.pt").write_text("precious")
        cloud.destroy(label)
        assert (host.root / "workspace/kept" / label / label / "model.pt").exists()
        assert cloud.instances() == []


def test_a_host_that_was_restarted_runs_nothing_of_the_run(host: Box, cloud: Ssh) -> None:
    cloud.create(order(cloud))
    host.reboot()
    assert [row.state for row in cloud.instances()] == [InstanceState.STOPPED]


def test_a_user_with_sudo_gets_a_workspace_of_their_own(ssh_to: Callable[..., Ssh]) -> None:
    with box(UBUNTU_VM) as host:
        cloud = ssh_to(host)
        label = cloud.create(order(cloud)).instance_id
        assert (host.root / "workspace" / label).stat().st_uid == 1000
        cloud.destroy(label)
        assert cloud.instances() == []


@pytest.mark.parametrize("workspace", ["read-only", "root's"])
def test_a_workspace_that_cannot_be_written_is_said_and_leaves_nothing(
    workspace: str, ssh_to: Callable[..., Ssh]
) -> None:
    with box(Shape(user="ubuntu", sudo=False, workspace=workspace)) as host:
        cloud = ssh_to(host)
        with pytest.raises(NoOffer, match=r"its user can neither write /workspace nor use sudo"):
            cloud.offers(NEED)
        elsewhere = ssh_to(host, workspace="/home/ubuntu/runs")
        with pytest.raises(NoCapacity, match=r"/workspace can neither be made nor written"):
            cloud.create(order(elsewhere))
        assert not (host.root / "var/tmp/gpurun").exists()
        assert elsewhere.create(order(elsewhere)).instance_id == LABEL


def test_a_host_that_cannot_be_reached_answers_nothing(host: Box, cloud: Ssh) -> None:
    wanted = order(cloud)
    host.refuse()
    host.reset_connections()
    for ask in (cloud.instances, cloud.account, lambda: cloud.destroy(LABEL)):
        with pytest.raises(ProviderUnreachable, match="cannot be reached"):
            ask()
    with pytest.raises(CreateUnclear):
        cloud.create(wanted)
    host.accept()
    assert cloud.instances() == []
