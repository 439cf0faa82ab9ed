"""A pod that is a real box: whoever registered a key gets in by the adapter's own login."""

from decimal import Decimal
from pathlib import Path

import pytest

from gpurun.clock import Deadline, SystemClock
from gpurun.model import InstanceState, Need, Order
from gpurun.shell.fabric import FabricShell
from gpurun.sshkeys import public_keys
from tests.boxes import make_key, public_line
from tests.clouds.serve import cloud
from tests.provisioners.prime.renter import LABEL, adapter

pytestmark = pytest.mark.box


@pytest.mark.parametrize(
    ("upstream", "home"), [("datacrunch", "/root"), ("lambda", "/home/ubuntu")]
)
def test_a_pod_is_entered_with_the_key_that_was_registered(
    tmp_path: Path, upstream: str, home: str
) -> None:
    key = make_key(tmp_path / "id")
    with cloud("prime") as api:
        prime = adapter(api, SystemClock(), public_keys(key, tmp_path), key_file=key)
        prime.register_ssh_key("another", "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHRoZWly x")
        prime.register_ssh_key("ours", public_line(key))
        need = Need("H100 SXM", 1, 50)
        offer = next(each for each in prime.offers(need) if each.place.startswith(upstream))
        now = SystemClock().now()
        made = prime.create(Order(offer, need, LABEL, now, now, offer.usd_per_hour))
        deadline = Deadline(30)
        while not deadline.passed():
            row = prime.instance(made.instance_id)
            if row is not None and row.state is InstanceState.RUNNING:
                break
        shell = FabricShell(prime.login(made.instance_id), tmp_path / "known")
        said = shell.run("pwd; nvidia-smi -L | wc -l", timeout_s=30)
        assert said.output.split() == [f"{home}/gpurun", "1"]
        prime.destroy(made.instance_id)
        gone = Deadline(30)
        while not gone.passed() and api.meter().alive:
            pass
        assert api.meter().alive == 0
        assert api.meter().billed_usd < Decimal("0.05")
