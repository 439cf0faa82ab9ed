"""The ladder: a long run is not bought without a short one that has proven the same."""

import shlex
from datetime import timedelta

from gpurun import wiring
from gpurun.clock import Clock
from gpurun.errors import NotProven
from gpurun.model import Offer
from gpurun.places import Places
from gpurun.recipe import Recipe
from gpurun.settings import Settings
from gpurun.store import Journal
from gpurun.store.proven import Proof


def remark(
    recipe: Recipe, offer: Offer, bundle_sha256: str, settings: Settings, clock: Clock, skip: bool
) -> str:
    """Which run has proven it, or that nobody was asked to; NotProven where none has.

    Proven is the same code on the same model of GPU at the same provider, done with exit 0.
    """
    wanted = recipe.requires
    if wanted is None:
        return ""
    what = f"{offer.gpu or 'a box without GPU'} at {wiring.kind(offer.provider)}"
    if skip:
        return f"--skip-ladder: no run of {wanted.recipe} on {what} was asked for"
    since = clock.now() - timedelta(days=wanted.within_days)
    places, kind = Places(settings.state_dir), wiring.kind(offer.provider)
    found: Proof | None = None
    if places.database.exists():
        journal = Journal(places.database, clock)
        try:
            if journal.database.version() is not None:
                found = journal.proven.by(wanted.recipe, bundle_sha256, offer.gpu, kind, since)
        finally:
            journal.close()
    if found is None:
        gpu = f" --set need.gpu={shlex.quote(offer.gpu)}" if offer.gpu else ""
        raise NotProven(
            f"recipe {recipe.name} requires a run of {wanted.recipe}, done within "
            f"{wanted.within_days} days with the same code on {what}: there is none, and nothing "
            f"was rented. Run `gpurun up {wanted.recipe} --provider {kind}{gpu}` first, or go on "
            "without: `gpurun up ... --skip-ladder`."
        )
    at = f"{found.finished_at:%b %d %H:%M} UTC"
    return f"proven by run {found.run_id} of {wanted.recipe} on {what}, done {at}"
