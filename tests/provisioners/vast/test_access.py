"""Which key is used, and that gpurun finds Vast by its name, key and address."""

from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

import pytest
from pydantic import SecretStr

from gpurun.avoid import Avoided
from gpurun.clock import SystemClock
from gpurun.errors import UsageError
from gpurun.model import Need
from gpurun.wiring import has_key, names, provisioner
from provisioners.vast.access import URL, find
from tests.clouds.clock import Clock
from tests.clouds.serve import Cloud, cloud
from tests.clouds.stub import StubBoxes
from tests.provisioners.vast.conftest import START, adapter

NONE: dict[str, str] = {}


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_keys_in_their_order(tmp_path: Path) -> None:
    config = tmp_path / "elsewhere"
    environ = {"XDG_CONFIG_HOME": str(config)}
    assert find("", environ, tmp_path) is None
    for path, text in (
        (tmp_path / ".vast_api_key", "legacy\n"),
        (config / "vastai" / "vast_api_key", "client\n"),
    ):
        write(path, text)
        found = find("", environ, tmp_path)
        assert found is not None
        assert (found.api_key, found.source) == (text.strip(), str(path))
    of_shell, of_settings = (
        find(key, environ | {"VAST_API_KEY": " shell\n"}, tmp_path) for key in ("", "settings")
    )
    assert of_shell is not None
    assert of_settings is not None
    assert (of_shell.api_key, of_settings.api_key) == ("shell", "settings")


def test_an_empty_variable_does_not_hide_the_file(tmp_path: Path) -> None:
    write(tmp_path / ".config" / "vastai" / "vast_api_key", "client")
    found = find("", {"VAST_API_KEY": ""}, tmp_path)
    assert found is not None
    assert found.api_key == "client"


def test_the_address_is_the_official_one_unless_vast_url_says_otherwise(tmp_path: Path) -> None:
    plain = find("k", NONE, tmp_path)
    other = find("k", {"VAST_URL": "https://vast.example.org/"}, tmp_path)
    assert plain is not None
    assert other is not None
    assert (plain.url, other.url) == (URL, "https://vast.example.org")
    assert "api_key" not in repr(plain)


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    for name in ("VAST_API_KEY", "VAST_URL", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return SimpleNamespace(
        state_dir=tmp_path, keys={}, box_keys={}, ssh_hosts=(), local_usd_per_hour=Decimal(0)
    )


def test_without_a_key_vast_is_not_asked_and_says_what_to_run(settings: SimpleNamespace) -> None:
    assert not has_key("vast", settings)
    assert "vast" not in names(settings)
    with pytest.raises(UsageError, match="run `gpurun auth vast`"):
        provisioner("vast", settings, SystemClock())


def test_with_a_key_it_rents_where_vast_url_says_and_avoids_bad_machines(
    market: Cloud, settings: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VAST_URL", market.url)
    settings.keys["vast"] = SecretStr(market.api_key)
    assert "vast" in names(settings)
    clock = SystemClock()
    vast = provisioner("vast", settings, clock)
    need = Need("H100", 4, 200)
    assert [offer.machine for offer in vast.offers(need)] == ["21004", "21007", "21010"]
    Avoided(settings.state_dir, clock).remember("vast", "21004", "slow", timedelta(days=1))
    assert [offer.machine for offer in vast.offers(need)] == ["21007", "21010"]


def test_a_wide_market_is_searched_on_by_price_while_nothing_fits(boxes: StubBoxes) -> None:
    """Vast returns 64 at most; for what it cannot filter by, the next page begins at the price."""
    with cloud("vast", boxes=boxes, clock=Clock(START, rate=0), offers=500) as market:
        vast = adapter(market)
        assert len(vast.offers(Need(None, 0, 20))) == 64
        assert market.world.searches == 1
        assert vast.offers(Need(None, 0, 20, image="nvidia/cuda:13.0.1-cuda13.0")) == []
        assert market.world.searches == 1 + 3
