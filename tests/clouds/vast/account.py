"""Who may do what at the emulated Vast: keys, scopes, SSH keys, the audit log.

Facts that shape it: a wrong key is 404 `auth_error`, no key is 403, a deleted
key is 401; scopes follow the published map of routes; a container's own key can read, start, stop
and destroy its instance and nothing else.
"""

import secrets
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tests.clouds.wire import Call, Refusal, Reply

SCOPES = ("misc", "user_read", "user_write", "instance_read", "instance_write", "billing_read")
USER_ID = 310_077
OTHER_USER_ID = 455_210


@dataclass(frozen=True, slots=True)
class Key:
    """One API key.  `instance_id` is set for a container's own."""

    id: int
    scopes: frozenset[str]
    instance_id: str | None = None
    other_account: bool = False


@dataclass(slots=True)
class Account:
    api_key: str = field(default_factory=lambda: secrets.token_hex(32))
    ssh_keys: dict[int, dict[str, Any]] = field(default_factory=dict)
    audit: list[dict[str, Any]] = field(default_factory=list)
    containers: dict[str, str] = field(default_factory=dict)  # key: instance id
    next_id: int = 88_001

    def new_id(self) -> int:
        self.next_id += 1
        return self.next_id

    def container_key(self, instance_id: str) -> str:
        key = secrets.token_hex(32)
        self.containers[key] = instance_id
        return key

    def add_ssh_key(self, text: str, now: datetime) -> dict[str, Any]:
        number = self.new_id()
        self.ssh_keys[number] = {
            "id": number,
            "user_id": USER_ID,
            "key": text.strip(),
            "public_key": text.strip(),
            "created_at": now.isoformat(),
            "deleted_at": None,
        }
        return self.ssh_keys[number]

    def note(self, call: Call, key: Key, now: datetime) -> None:
        """Write a request down, as the audit log shows it."""
        self.audit.append(
            {
                "ip_address": call.peer,
                "api_key_id": key.id,
                "created_at": now.timestamp(),
                "api_route": f"{call.method} {call.path}",
                "args": dict(call.body),
            }
        )


def refuse(status: int, error: str, msg: str, **more: Any) -> Refusal:
    return Refusal(Reply({"success": False, "error": error, "msg": msg, **more}, status))


def wrong_key() -> Refusal:
    return refuse(404, "auth_error", "Invalid user key")


def deleted_key() -> Refusal:
    return refuse(401, "auth_error", "Invalid user key")


def login_required() -> Refusal:
    return refuse(403, "auth_error", "This action requires login.")


def lacks(scope: str) -> Refusal:
    return refuse(401, "auth_error", f"Unauthorized: this key lacks the scope {scope}.")


def constrained() -> Refusal:
    return refuse(401, "auth_error", "Unauthorized: constraint on id.")


def no_such_instance(instance_id: str) -> Refusal:
    msg = f"error 404/3606: no_such_instance Instance {instance_id} not found."
    return refuse(404, "no_such_instance", msg)
