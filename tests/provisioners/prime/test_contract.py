"""The contract, on the emulated Prime Intellect."""

from collections.abc import Iterable

import pytest

from gpurun.errors import NoOffer
from gpurun.provider import OverSsh, Provisioner
from provisioners.prime import Prime
from tests.clouds.prime.world import DELETING_S
from tests.clouds.serve import Cloud
from tests.clouds.world import BOOT_S
from tests.contract import ProvisionerContract


class TestContract(ProvisionerContract):
    @pytest.fixture
    def cloud(self, prime: Prime, api: Cloud) -> Provisioner:
        self.api = api
        assert isinstance(prime, OverSsh)
        return prime

    def settle(self, cloud: Provisioner) -> None:
        self.api.advance(max(BOOT_S, DELETING_S) + 1)

    def impossible_offers(self, cloud: Provisioner) -> Iterable[object]:
        """A GPU that nobody makes is a slip of the pen: what is like it is named."""
        with pytest.raises(NoOffer, match="prime knows no GPU 'GPU OF NO MAKER'"):
            super().impossible_offers(cloud)
        return []
