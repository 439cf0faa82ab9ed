"""How this user stands with each cloud: key, permissions, credit, SSH key; for `doctor`."""

import os
from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING

from gpurun.atonce import ask_each
from gpurun.clock import Clock
from gpurun.errors import NoOffer, ProviderError
from gpurun.model import Need
from gpurun.provider import Examined, Prepaid, Provisioner, Remark
from gpurun.wiring import CLOUDS, has_key, provisioner

if TYPE_CHECKING:
    from gpurun.settings import Settings

LOW_HOURS = 1
_FLEETING = (
    "in this shell's environment alone: a keeper that is started elsewhere, as after a reboot, "
    "could end nothing. `gpurun auth {name}` stores it"
)
ANSWER_WITHIN_S = 20.0  # one after the other: account, permissions, SSH keys, credit, offers


def standing(
    settings: "Settings",
    clock: Clock,
    needs: dict[str, Need],
    recipe: str,
    *,
    within_s: float = ANSWER_WITHIN_S,
) -> list[Remark]:
    """A line for each thing at each cloud; `needs` are those of the recipe there."""
    heard = ask_each(
        [name for name in CLOUDS if has_key(name, settings)],
        lambda name: remarks_of(provisioner(name, settings, clock), needs.get(name), recipe),
        clock,
        within_s,
    )
    told = {
        each.provider: each.answer or [Remark("key", str(each.trouble), False)] for each in heard
    }
    found = []
    for name in CLOUDS:
        if name not in told:
            found.append(Remark(name, f"no key; `gpurun auth {name}` stores one"))
            continue
        if name not in settings.keys and os.environ.get(f"{name.upper()}_API_KEY", "").strip():
            found.append(Remark(f"{name}: key's place", _FLEETING.format(name=name)))
        found += [Remark(f"{name}: {each.what}", each.says, each.ok) for each in told[name]]
    return found


def remarks_of(cloud: Provisioner, need: Need | None, recipe: str) -> list[Remark]:
    """A key that is refused is one line; what else cannot be asked hides nothing of the rest."""
    try:
        found = [Remark("account", cloud.account())]
    except ProviderError as error:
        return [Remark("key", str(error), False)]
    if isinstance(cloud, Examined):
        found += _tried("permissions", cloud.remarks)
    if isinstance(cloud, Prepaid):
        found += _tried("credit", lambda: [_credit(cloud.credit_usd(), cloud, need, recipe)])
    return found


def _tried(what: str, look: Callable[[], list[Remark]]) -> list[Remark]:
    try:
        return look()
    except ProviderError as error:
        return [Remark(what, str(error), False)]


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
    except (NoOffer, ProviderError) as error:
        return Remark("credit", f"{says}; nothing for {recipe} now: {error}", credit_usd > 0)
    if offer is None or offer.usd_per_hour <= 0:
        return Remark("credit", f"{says}; nothing for {recipe} is offered now", credit_usd > 0)
    hours = credit_usd / offer.usd_per_hour
    says += f": {hours:.1f} hours of {recipe} at ${offer.usd_per_hour}/h ({offer.id})"
    return Remark("credit", says, hours >= LOW_HOURS)
