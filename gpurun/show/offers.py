"""What can be rented, side by side: one line for each offer."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from gpurun.show.text import NONE, Look, duration, money, table

if TYPE_CHECKING:
    from gpurun.market import Priced
    from gpurun.model import Offer

HEAD = (
    *("PROVIDER", "GPU", "VRAM", "DISK", "$/H", "EXPECTED", "AT MOST", "REL", "NVLINK"),
    *("DRIVER/CUDA", "DOWN/UP", "PLACE", "SPOT", "MAY RUN", "OFFER"),
)
RIGHT = (2, 3, 4, 5, 6, 7, 10)
SPARE = (9, 8, 7, 3, 6, 13, 2, 10, 11)  # which columns a narrow terminal does without, first first


def offers_text(found: Sequence[Priced], look: Look) -> list[str]:
    return table(HEAD, [_row(one) for one in found], look, right=RIGHT, spare=SPARE)


def offer_document(
    offer: Offer, run_usd: Decimal | None, expected_usd: Decimal | None = None
) -> dict[str, Any]:
    """`run_usd` is the most that a run can cost there."""
    return {
        "provider": offer.provider,
        "id": offer.id,
        "gpu": offer.gpu,
        "gpu_count": offer.gpu_count,
        "vram_gb": offer.vram_gb or None,
        "nvlink": offer.nvlink,
        "usd_per_hour": format(offer.usd_per_hour, "f"),
        "run_usd": None if run_usd is None else f"{run_usd:.2f}",
        "expected_usd": None if expected_usd is None else f"{expected_usd:.2f}",
        "usd_per_gb_up": format(offer.usd_per_gb_up, "f"),
        "usd_per_gb_down": format(offer.usd_per_gb_down, "f"),
        "disk_gb": offer.disk_gb,
        "place": offer.place or None,
        "cpu_count": offer.cpu_count or None,
        "memory_gb": offer.memory_gb or None,
        "spot": offer.spot,
        "reliability": offer.reliability,
        "driver": offer.driver or None,
        "cuda": offer.cuda or None,
        "up_mbps": offer.up_mbps,
        "down_mbps": offer.down_mbps,
        "rentable_s": offer.rentable_s,
    }


def _row(one: Priced) -> tuple[str, ...]:
    offer = one.offer
    return (
        offer.provider,
        f"{offer.gpu_count}x {offer.gpu}" if offer.gpu else NONE,
        f"{offer.vram_gb} GB" if offer.vram_gb else NONE,
        f"{offer.disk_gb} GB",
        format(offer.usd_per_hour, "f"),
        money(one.expected_usd),
        money(one.most_usd),
        NONE if offer.reliability is None else f"{offer.reliability:.1%}",
        {True: "yes", False: "no", None: NONE}[offer.nvlink],
        f"{offer.driver or NONE}/{offer.cuda or NONE}",
        f"{_mbps(offer.down_mbps)}/{_mbps(offer.up_mbps)}",
        offer.place or NONE,
        "spot" if offer.spot else NONE,
        duration(offer.rentable_s),
        offer.id,
    )


def _mbps(speed: float | None) -> str:
    return NONE if speed is None else f"{speed:.0f}"
