"""Which path of the emulated Vast API is answered by what."""

from collections.abc import Mapping

from tests.clouds.faults import Setting
from tests.clouds.vast import account_calls, create, instance_calls, job_calls
from tests.clouds.vast.account import refuse
from tests.clouds.vast.world import VastWorld
from tests.clouds.wire import Call, Endpoint, Reply

V0, V1 = "/api/v0", "/api/v1"

# Seconds between two requests to one endpoint by one key.
INTERVALS_S: Mapping[str, float] = {
    "create": 4.5,
    "destroy": 3.0,
    "list": 1.0,
    "show": 2.0,
    "change": 1.0,
    "reboot": 1.0,
    "bid": 5.5,
    "search": 6.0,
    "charges": 1.0,
    "ssh_keys": 1.0,
}


def too_frequent(setting: Setting) -> Reply:
    """Vast's 429, in each of the shapes that it has been seen in."""
    after = setting["retry_after_s"]
    headers = {} if after is None else {"retry-after": str(after)}
    text = "API requests too frequent"
    if setting["shape"] == "detail":
        return Reply({"detail": text}, 429, headers)
    if setting["shape"] == "json":
        body = {"success": False, "error": "rate_limit_exceeded", "msg": text}
        return Reply(body | ({} if after is None else {"retry_after": after}), 429, headers)
    if setting["shape"] == "threshold":
        text += ": endpoint threshold=4.5"
    return Reply(status=429, text=text, media_type="text/plain", headers=headers)


def _limited(endpoint: Endpoint) -> Endpoint:
    """The endpoint behind its rate limit and its search quota, where they are switched on."""

    def handler(world: VastWorld, call: Call) -> Reply:
        if world.knobs.hit("auth_404", endpoint.word):
            raise refuse(404, "auth_error", "Invalid user key")
        limits = world.knobs.get("rate_limits")
        if limits and endpoint.word in INTERVALS_S:
            now_s, last = world.now.timestamp(), (endpoint.word, str(call.key))
            wait_s = INTERVALS_S[endpoint.word] * limits["factor"]
            if now_s - world.last_asked.get(last, 0.0) < wait_s:
                text = f"API requests too frequent: endpoint threshold={wait_s}"
                return Reply(status=429, text=text, media_type="text/plain")
            world.last_asked[last] = now_s
        return endpoint.handler(world, call)

    return Endpoint(endpoint.method, endpoint.path, endpoint.word, handler)


def endpoints() -> list[Endpoint]:
    instance = f"{V0}/instances/{{id:int}}/"
    job = f"{V0}/commands/schedule_job/"
    calls, keys = instance_calls, account_calls
    table = [
        ("GET", f"{V0}/gpu_names/unique/", "gpu_names", keys.gpu_names),
        ("GET", f"{V0}/gpu_types/", "gpu_names", keys.gpu_types),
        ("GET", f"{V0}/users/current", "user", keys.user),
        ("GET", f"{V0}/users/current/", "user", keys.user),
        ("POST", f"{V0}/bundles/", "search", keys.search_offers),
        ("PUT", f"{V0}/search/asks/", "search", keys.search_asks),
        ("PUT", f"{V0}/asks/{{id:int}}/", "create", create.create),
        ("POST", f"{V0}/asks/bulk/", "create", create.create_many),
        ("PUT", f"{V0}/launch_instance/", "create", create.launch),
        ("GET", f"{V1}/instances/", "list", calls.list_instances),
        ("GET", f"{V0}/instances/", "list_v0", calls.deprecated),
        ("PUT", f"{V0}/instances/", "change", calls.change_many),
        ("DELETE", f"{V0}/instances/", "destroy", calls.destroy_many),
        ("GET", f"{V0}/instances/filters/", "list", calls.filters),
        ("GET", f"{V0}/instances/pending-price-increases/", "list", calls.price_increases),
        ("GET", instance, "show", calls.show),
        ("PUT", instance, "change", calls.change),
        ("DELETE", instance, "destroy", calls.destroy),
        ("PUT", f"{V0}/instances/reboot/{{id:int}}/", "reboot", calls.reboot),
        ("PUT", f"{V0}/instances/recycle/{{id:int}}/", "reboot", calls.recycle),
        ("PUT", f"{V0}/instances/bid_price/{{id:int}}/", "bid", calls.bid),
        ("PUT", f"{V0}/instances/prepay/{{id:int}}/", "bid", calls.prepay),
        ("PUT", f"{V0}/instances/request_logs/{{id:int}}/", "logs", calls.logs),
        ("PUT", f"{V0}/instances/command/{{id:int}}/", "logs", calls.execute),
        ("GET", "/results/{name}", "logs", calls.result),
        ("GET", f"{V0}/ssh/", "ssh_keys", keys.ssh_keys),
        ("POST", f"{V0}/ssh/", "ssh_keys", keys.add_ssh_key),
        ("PUT", f"{V0}/ssh/{{id:int}}/", "ssh_keys", keys.change_ssh_key),
        ("DELETE", f"{V0}/ssh/{{id:int}}/", "ssh_keys", keys.remove_ssh_key),
        ("GET", f"{instance}ssh/", "ssh_keys", keys.instance_keys),
        ("POST", f"{instance}ssh/", "ssh_keys", keys.attach_key),
        ("DELETE", f"{instance}ssh/{{key:int}}/", "ssh_keys", keys.detach_key),
        ("GET", job, "schedules", job_calls.show_jobs),
        ("POST", job, "schedule", job_calls.add_job),
        ("PUT", f"{job}{{id:int}}/", "schedules", job_calls.update_job),
        ("DELETE", f"{job}{{id:int}}/", "schedules", job_calls.remove_job),
        ("PUT", f"{V0}/commands/rsync/", "copy", calls.copy),
        ("PUT", f"{V0}/commands/copy_direct/", "copy", calls.copy),
        ("GET", f"{V0}/charges/", "charges", keys.charges),
        ("GET", f"{V1}/invoices/", "charges", keys.invoices),
        ("GET", f"{V0}/audit_logs/", "audit", keys.audit_log),
    ]
    return [_limited(Endpoint(*row)) for row in table]
