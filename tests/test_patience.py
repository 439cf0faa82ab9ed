"""Requests are spaced and repeated as a provider lists it; a purchase goes out once, whatever."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx
import pytest

from gpurun.patience import LONGEST_WAIT_S, TRIES, Patience
from gpurun.provider import Endpoint
from provisioners.vast.limits import ENDPOINTS
from tests.fakecloud import FakeClock

Said = httpx.Response | Exception
LISTS = "/api/v1/instances/"


class Server(httpx.BaseTransport):
    """Answers what it was told to, in order, then 200; remembers when it was asked."""

    def __init__(self, clock: FakeClock, *answers: Said) -> None:
        self.clock = clock
        self.answers = list(answers)
        self.asked_s: list[float] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.asked_s.append(self.clock.boot_s() - 1000)
        answer = self.answers.pop(0) if self.answers else httpx.Response(200)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def ask(server: Server, method: str, path: str, times: int = 1) -> list[int]:
    patience = Patience(server, ENDPOINTS, server.clock, jitter=lambda: 1.0)
    with httpx.Client(base_url="https://vast.test", transport=patience) as http:
        return [http.request(method, path).status_code for _ in range(times)]


@pytest.mark.parametrize(
    "trouble",
    [
        httpx.ReadTimeout("slow"),
        httpx.ConnectError("refused"),
        httpx.RemoteProtocolError("cut"),
        httpx.Response(502),
        httpx.Response(503),
        httpx.Response(429, headers={"retry-after": "1"}),
    ],
)
def test_a_purchase_is_never_sent_again(clock: FakeClock, trouble: Said) -> None:
    server = Server(clock, trouble)
    if isinstance(trouble, Exception):
        with pytest.raises(type(trouble)):
            ask(server, "PUT", "/api/v0/asks/77/")
    else:
        assert ask(server, "PUT", "/api/v0/asks/77/") == [trouble.status_code]
    assert server.asked_s == [0]
    assert clock.slept_s == []


@pytest.mark.parametrize("path", ["/api/v0/instances/7/", "/api/v0/commands/schedule_job/"])
def test_nor_is_what_no_list_names(clock: FakeClock, path: str) -> None:
    """Start, stop and a new scheduled job: their effect may be there already."""
    method = "PUT" if "instances" in path else "POST"
    server = Server(clock, httpx.Response(502))
    assert ask(server, method, path) == [502]
    assert len(server.asked_s) == 1


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_a_read_and_a_delete_are_asked_again_at_growing_distances(
    clock: FakeClock, method: str
) -> None:
    server = Server(clock, httpx.ReadTimeout("slow"), httpx.Response(502), httpx.Response(500))
    assert ask(server, method, "/api/v0/instances/7/") == [200]
    gaps = [b - a for a, b in zip(server.asked_s, server.asked_s[1:], strict=False)]
    least = 2 if method == "GET" else 3
    assert gaps == [max(least, 1), max(least, 2), max(least, 4)]


def test_patience_ends_with_the_last_answer(clock: FakeClock) -> None:
    server = Server(clock, *[httpx.Response(503) for _ in range(9)])
    assert ask(server, "GET", LISTS) == [503]
    assert len(server.asked_s) == TRIES
    lost = Server(clock, *[httpx.ReadTimeout("slow") for _ in range(9)])
    with pytest.raises(httpx.ReadTimeout):
        ask(lost, "GET", LISTS)
    assert len(lost.asked_s) == TRIES


def test_a_refusal_is_an_answer(clock: FakeClock) -> None:
    server = Server(clock, httpx.Response(404))
    assert ask(server, "DELETE", "/api/v0/instances/7/") == [404]


def soon(seconds: float) -> str:
    return format_datetime(
        datetime(2026, 11, 21, 12, tzinfo=UTC) + timedelta(seconds=seconds), True
    )


@pytest.mark.parametrize(
    "limited",
    [
        httpx.Response(429, headers={"retry-after": "17"}),
        httpx.Response(429, headers={"retry-after": soon(17)}),
        httpx.Response(429, json={"success": False, "retry_after": 17}),
    ],
)
def test_what_the_provider_asks_for_is_waited(clock: FakeClock, limited: httpx.Response) -> None:
    server = Server(clock, limited)
    assert ask(server, "GET", LISTS) == [200]
    assert server.asked_s == [0, 17]


@pytest.mark.parametrize(
    "headers",
    [
        {"retry-after": "61"},
        {"x-ratelimit-reset": str(int(datetime(2026, 11, 22, tzinfo=UTC).timestamp()))},
    ],
)
def test_a_long_wait_is_left_to_whoever_asks_again(
    clock: FakeClock, headers: dict[str, str]
) -> None:
    """A quota that is used up until midnight must not hold a command until then."""
    server = Server(clock, httpx.Response(429, headers=headers))
    assert ask(server, "GET", LISTS) == [429]
    assert sum(clock.slept_s) <= LONGEST_WAIT_S


def test_each_endpoint_is_spaced_as_vast_documents_it(clock: FakeClock) -> None:
    for method, path, interval_s in (
        ("DELETE", "/api/v0/instances/7/", 3.0),
        ("GET", "/api/v0/instances/7/", 2.0),
        ("GET", LISTS, 1.0),
        ("PUT", "/api/v0/asks/7/", 4.5),
    ):
        server = Server(clock)
        start_s = clock.boot_s() - 1000
        ask(server, method, path, times=3)
        assert server.asked_s == [start_s + n * interval_s for n in range(3)]


def test_ten_searches_may_follow_each_other_and_the_next_waits_for_the_minute(
    clock: FakeClock,
) -> None:
    server = Server(clock)
    ask(server, "POST", "/api/v0/bundles/", times=12)
    assert server.asked_s == [0.0] * 10 + [60.0] * 2


def test_pauses_differ_from_client_to_client(clock: FakeClock) -> None:
    def pauses(jitter: Callable[[], float]) -> list[float]:
        server = Server(clock, httpx.Response(503), httpx.Response(503))
        patience = Patience(server, [Endpoint("GET", "/", repeat=True)], clock, jitter)
        before = len(clock.slept_s)
        httpx.Client(base_url="https://vast.test", transport=patience).get("/")
        return clock.slept_s[before:]

    assert pauses(lambda: 0.5) == [0.5, 1.0]
    assert pauses(lambda: 1.5) == [1.5, 3.0]


class Watch(FakeClock):
    def __init__(self) -> None:
        super().__init__()
        self.dates: list[datetime] = []

    def observe(self, provider_date: datetime, took_s: float = 0.0) -> None:
        self.dates.append(provider_date)


def test_the_date_of_an_answer_is_seen_unless_it_comes_from_a_cache() -> None:
    clock = Watch()
    fresh, cached = {"date": soon(5)}, {"date": soon(9), "age": "600"}
    server = Server(
        clock,
        httpx.Response(200, headers=fresh),
        httpx.Response(200, headers=cached),
        httpx.Response(200, headers={"date": "yesterday"}),
    )
    ask(server, "GET", LISTS, times=3)
    assert clock.dates == [datetime(2026, 11, 21, 12, 0, 5, tzinfo=UTC)]
