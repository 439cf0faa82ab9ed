"""Who may do what at the emulated Prime Intellect: one key, its scopes, SSH keys, a team.

Facts that shape it: a wrong key is 401, no key and a missing scope are 403; scopes are read and
write by area; a team has its own wallet, and its id travels in the body of a create.
"""

import secrets
import uuid
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tests.clouds.wire import Refusal, Reply

USER_ID, OTHER_USER_ID = "clz8u5r0k0001mh0fd3x9q2wt", "clz9x1c2b0007lk0g7p4s8yne"
TEAM_ID = "cm1t7e4a20003qv0h6k8zjr5d"
WALLET_ID, TEAM_WALLET_ID = "clz8u5r0k0002wallet0000pers", "cm1t7e4a20004wallet0000team"
AREAS = ("availability", "instances", "ssh_keys", "disks", "user", "billing")


@dataclass(slots=True)
class Account:
    api_key: str = field(default_factory=lambda: f"pit_{secrets.token_hex(24)}")
    ssh_keys: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add_ssh_key(self, name: str, text: str, now: datetime) -> dict[str, Any]:
        """The first key becomes the primary one."""
        number = uuid.uuid4().hex
        self.ssh_keys[number] = {
            "id": number,
            "userId": USER_ID,
            "name": name,
            "publicKey": text.strip(),
            "isPrimary": not self.ssh_keys,
            "isUserKey": True,
            "createdAt": iso(now),
            "updatedAt": iso(now),
        }
        return self.ssh_keys[number]

    def keys_for(self, ssh_key_id: str | None) -> list[str]:
        """What a new pod lets in: the key that was named, or the primary ones."""
        return [
            key["publicKey"]
            for number, key in self.ssh_keys.items()
            if (number == ssh_key_id if ssh_key_id else key["isPrimary"])
        ]


def iso(at: datetime | None) -> str | None:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z") if at else None


def refuse(status: int, detail: Any) -> Refusal:
    return Refusal(Reply({"detail": detail}, status))


def invalid(place: tuple[str, ...], problem: str, kind: str, shape: str) -> Refusal:
    """A 422, in either of its two shapes."""
    if shape == "errors":
        path = ".".join(place)
        return Refusal(Reply({"errors": [{"param": path, "details": problem}]}, 422))
    return refuse(422, [{"loc": ["body", *place], "msg": problem, "type": kind}])
