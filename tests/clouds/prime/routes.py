"""Which path of the emulated Prime Intellect API is answered by what, with or without its slash."""

from tests.clouds.faults import Setting
from tests.clouds.prime import account_calls, pod_calls
from tests.clouds.prime.create import create_pod
from tests.clouds.prime.world import PrimeWorld
from tests.clouds.wire import Call, Endpoint, Handler, Reply

V1 = "/api/v1"


def too_many(setting: Setting) -> Reply:
    """Prime's 429."""
    after = setting["retry_after_s"]
    headers = {} if after is None else {"retry-after": str(after)}
    return Reply({"detail": "Too many requests."}, 429, headers)


def endpoints() -> list[Endpoint]:
    calls, pods = account_calls, pod_calls
    table: list[tuple[str, str, str, Handler]] = [
        ("GET", "/availability/gpus", "search", calls.gpus),
        ("GET", "/availability/multi-node", "search", calls.clusters),
        ("GET", "/availability/clusters", "search", calls.clusters),
        ("GET", "/availability/gpu-summary", "search", calls.summary),
        ("GET", "/availability/multi-node-summary", "search", calls.summary),
        ("GET", "/availability/disks", "search", calls.disk_offers),
        ("GET", "/pods/status", "status", pods.statuses),
        ("GET", "/pods/history", "history", pods.history),
        ("GET", "/pods", "list", pods.list_pods),
        ("POST", "/pods", "create", create_pod),
        ("GET", "/pods/{id}", "show", pods.show),
        ("DELETE", "/pods/{id}", "destroy", pods.delete),
        ("GET", "/pods/{id}/log", "log", pods.log),
        ("GET", "/disks", "disks", calls.list_disks),
        ("POST", "/disks", "disks", calls.create_disk),
        ("GET", "/disks/{id}", "disks", calls.show_disk),
        ("PATCH", "/disks/{id}", "disks", calls.change_disk),
        ("DELETE", "/disks/{id}", "disks", calls.remove_disk),
        ("GET", "/ssh_keys", "ssh_keys", calls.ssh_keys),
        ("POST", "/ssh_keys", "ssh_keys", calls.add_ssh_key),
        ("PATCH", "/ssh_keys/{id}", "ssh_keys", calls.change_ssh_key),
        ("DELETE", "/ssh_keys/{id}", "ssh_keys", calls.remove_ssh_key),
        ("GET", "/user/whoami", "user", calls.whoami),
        ("GET", "/user/teams", "user", calls.teams),
        ("GET", "/teams/{id}/members", "user", calls.members),
        ("GET", "/billing/wallet", "wallet", calls.wallet),
    ]
    legacy = Endpoint("GET", f"{V1}/availability/", "search", calls.legacy)
    return [
        legacy,
        Endpoint("GET", f"{V1}/availability", "search", _to_slash),
        *(
            Endpoint(method, f"{V1}{path}{slash}", word, _strict(word, handler))
            for method, path, word, handler in table
            for slash in ("", "/")
        ),
    ]


def _strict(word: str, handler: Handler) -> Handler:
    """The handler, which wants its slash while the knob is set."""

    def handle(world: PrimeWorld, call: Call) -> Reply:
        if not call.path.endswith("/") and world.knobs.hit("redirects", word):
            return _to_slash(world, call)
        return handler(world, call)

    return handle


def _to_slash(world: PrimeWorld, call: Call) -> Reply:
    query = f"?{call.query}" if call.query else ""
    return Reply(status=307, text="", headers={"location": f"{call.path}/{query}"})
