"""How this user stands with each cloud: key, permissions, credit, SSH key; for `doctor`."""

from decimal import Decimal
from typing import TYPE_CHECKING

from gpurun.clock import Clock
from gpurun.errors import GpurunError, NoOffer
from gpurun.model import Need
from gpurun.provider import Examined, Prepaid, Provisioner, Remark
from gpurun.wiring import CLOUDS, has_key, provisioner

if TYPE_CHECKING:
    from gpurun.settings import Settings

LOW_HOURS = 1


def standing(
    settings: "Settings", clock: Clock, needs: dict[str, Need], recipe: str
) -> list[Remark]:
    """A line for each thing at each cloud; `needs` are those of the recipe there."""
    found = []
    for name in CLOUDS:
        if not has_key(name, settings):
            found.append(Remark(name, f"no key; `gpurun auth {name}` stores one"))
            continue
        try:
            remarks = _of(provisioner(name, settings, clock), needs.get(name), recipe)
        except GpurunError as error:
            remarks = [Remark("account", str(error), False)]
        found += [Remark(f"{name}: {each.what}", each.says, each.ok) for each in remarks]
    return found


def _of(cloud: Provisioner, need: Need | None, recipe: str) -> list[Remark]:
    found = cloud.remarks() if isinstance(cloud, Examined) else []
    if isinstance(cloud, Prepaid):
        found = [*found, _credit(cloud.credit_usd(), cloud, need, recipe)]
    return found


def _credit(
    credit_usd: Decimal | None, cloud: Provisioner, need: Need | None, recipe: str
) -> Remark:
    if credit_usd is None:
        return Remark("credit", "this key may not see it")
    says = f"${credit_usd:.2f}"
    if need is None:
        return Remark("credit", says, credit_usd > 0)
    try:
        offer = next(iter(cloud.offers(need)), None)
    except NoOffer as error:
        return Remark("credit", f"{says}; nothing for {recipe} now: {error}", credit_usd > 0)
    if offer is None or offer.usd_per_hour <= 0:
        return Remark("credit", f"{says}; nothing for {recipe} is offered now", credit_usd > 0)
    hours = credit_usd / offer.usd_per_hour
    says += f": {hours:.1f} hours of {recipe} at ${offer.usd_per_hour}/h ({offer.id})"
    return Remark("credit", says, hours >= LOW_HOURS)
