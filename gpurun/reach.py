"""A shell on a box, however its provider lets it be reached."""

from gpurun.errors import UsageError
from gpurun.places import Places
from gpurun.provider import OverSsh, OwnShell, Provisioner
from gpurun.shell import Shell


def shell_of(cloud: Provisioner, instance_id: str, places: Places) -> Shell:
    """A shell whose commands run in this box's root directory; nothing is asked of it yet.

    ProviderError: the provider cannot tell yet where the box answers.
    """
    if isinstance(cloud, OwnShell):
        return cloud.shell(instance_id)
    if isinstance(cloud, OverSsh):
        from gpurun.shell.fabric import FabricShell  # slow to import

        return FabricShell(cloud.login(instance_id), places.known_hosts)
    raise UsageError(f"provider {cloud.name} offers no way to reach its boxes")
