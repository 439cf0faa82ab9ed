"""An authenticated SSH connection over a socket of our own.

The socket is ours because paramiko leaves Nagle's algorithm on, which costs 45 ms a command, and
never notices a peer that is gone: TCP_USER_TIMEOUT does.
"""

import logging
import socket
from contextlib import suppress
from dataclasses import dataclass

import fabric
import paramiko

from gpurun.provider import Login
from gpurun.shell.keys import private_key
from gpurun.shell.pins import Pins
from gpurun.shell.trouble import HostKeyChanged, LoginRefused, Unreachable, Why

# Paramiko prints what breaks in its threads to stderr unless somebody listens.
logging.getLogger("paramiko").addHandler(logging.NullHandler())

# The first two cost half the CPU of the rest, which is in paramiko's own order.
CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")
# As OpenSSH: by default paramiko takes a new key every 512 MB, and a channel that closes at that
# moment makes its thread wait for itself.
REKEY_BYTES = 1 << 36
IDLE_PROBE_S = 10  # after this long without traffic the kernel probes the peer,
PROBE_EVERY_S = 5  # and then this often
KEEPALIVE_S = 30  # SSH's own, for proxies that forget idle connections
LOCKED = (
    "the private keys in ~/.ssh are protected by a passphrase and no agent holds one that is "
    "admitted: run `ssh-add`"
)
WAKE_S = 15.0  # how often an idle connection's thread looks up; paramiko's own is 10 times a second


@dataclass(frozen=True, slots=True)
class Waits:
    """How long each kind of silence is borne, in seconds.

    connect_s  for TCP's handshake with one address
    greeting_s for the server's first word: a frozen box accepts and says nothing
    login_s    for the key exchange, and again for the authentication
    dead_s     for the acknowledgement of what was sent (TCP_USER_TIMEOUT)
    channel_s  for a channel on a live connection, and for a kill to be done
    stall_s    for the next byte of a transfer, reconnecting meanwhile
    """

    connect_s: float = 10.0
    greeting_s: float = 15.0
    login_s: float = 15.0
    dead_s: float = 15.0
    channel_s: float = 15.0
    stall_s: float = 120.0


USUAL = Waits()


def connect(
    login: Login, address: tuple[str, int], pins: Pins, waits: Waits
) -> tuple[fabric.Connection, socket.socket]:
    """Log in at this address.  Unreachable, LoginRefused and HostKeyChanged say why not."""
    key = private_key(login.key) if login.key else None
    sock = _socket(login, address, waits)
    try:
        _greeted(sock, address, waits)
        connection = _connection(login, pins, sock, key, waits)
        _log_in(connection, login, address, pins)
    except BaseException:
        sock.close()
        raise
    connection.transport.packetizer.REKEY_BYTES = REKEY_BYTES
    connection.transport.packetizer.REKEY_PACKETS = REKEY_BYTES
    connection.transport.set_keepalive(KEEPALIVE_S)
    sock.settimeout(WAKE_S)
    return connection, sock


def _socket(login: Login, address: tuple[str, int], waits: Waits) -> socket.socket:
    host, port = address
    try:
        sock = socket.create_connection(address, timeout=waits.connect_s)
    except (socket.gaierror, UnicodeError, OverflowError) as error:
        raise Unreachable(
            Why.UNKNOWN_HOST, f"{host}:{port} cannot be looked up ({error}): check host and port"
        ) from error
    except ConnectionRefusedError as error:
        raise Unreachable(
            Why.PORT_CLOSED,
            f"nothing listens at {host}:{port} (connection refused): check the port, or wait "
            "until its sshd has started",
        ) from error
    except OSError as error:
        raise Unreachable(
            Why.NO_ANSWER,
            f"{host}:{port} does not answer ({error.strerror or error}): check that the machine "
            "is up and no firewall is in between",
        ) from error
    try:
        _tune(sock, waits)
    except OSError as error:  # the peer went away already
        sock.close()
        raise Unreachable(Why.CUT, f"{host}:{port} broke off: {error}") from error
    return sock


def _tune(sock: socket.socket, waits: Waits) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_USER_TIMEOUT", int(waits.dead_s * 1000)),
        ("TCP_KEEPIDLE", min(IDLE_PROBE_S, int(waits.dead_s))),
        ("TCP_KEEPALIVE", IDLE_PROBE_S),  # macOS's name for it
        ("TCP_KEEPINTVL", PROBE_EVERY_S),
        ("TCP_KEEPCNT", 3),
    ):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _greeted(sock: socket.socket, address: tuple[str, int], waits: Waits) -> None:
    """An SSH server speaks first; what it says stays in the socket, for paramiko to read."""
    host, port = address
    sock.settimeout(waits.greeting_s)
    try:
        said = sock.recv(64, socket.MSG_PEEK)
    except TimeoutError as error:
        raise Unreachable(
            Why.NO_ANSWER,
            f"{host}:{port} accepts connections but says nothing for {waits.greeting_s:.0f} s: "
            "the box is frozen, or it is no SSH server",
        ) from error
    except OSError as error:
        raise Unreachable(Why.CUT, f"{host}:{port} broke off: {error}") from error
    if not said:
        raise Unreachable(
            Why.CUT, f"{host}:{port} closes each connection at once: its sshd is busy or starting"
        )
    if not b"SSH-".startswith(said[:4]):
        line = said.splitlines()[0].decode(errors="replace")
        raise Unreachable(
            Why.NOT_SSH, f"{host}:{port} is not an SSH server, it says {line!r}: check the port"
        )


def _connection(
    login: Login, pins: Pins, sock: socket.socket, key: paramiko.PKey | None, waits: Waits
) -> fabric.Connection:
    connection = fabric.Connection(
        login.name,  # the name its host key is looked up by, whatever the address
        user=login.user,
        port=22,
        config=fabric.Config(overrides={"load_ssh_configs": False}, lazy=True),
        connect_kwargs={
            "sock": sock,
            "pkey": key,
            "allow_agent": key is None,
            "look_for_keys": key is None,
            "timeout": waits.login_s,
            "banner_timeout": waits.login_s,
            "auth_timeout": waits.login_s,
            "channel_timeout": waits.channel_s,
            "transport_factory": _transport,
        },
    )
    if pins.file.exists():  # its key's type is then asked for first
        connection.client.load_host_keys(str(pins.file))
    connection.client.set_missing_host_key_policy(pins)
    return connection


def _transport(
    sock: socket.socket, disabled_algorithms: None = None, **_gss: object
) -> paramiko.Transport:
    made = paramiko.Transport(sock, disabled_algorithms=disabled_algorithms)
    options = made.get_security_options()
    options.ciphers = sorted(options.ciphers, key=lambda name: name not in CIPHERS)
    return made


def _log_in(
    connection: fabric.Connection, login: Login, address: tuple[str, int], pins: Pins
) -> None:
    try:
        connection.open()
    except HostKeyChanged:
        _abandon(connection)
        raise
    except paramiko.BadHostKeyException as error:
        _abandon(connection)
        pins.judge(error.key)
        raise  # not reached: a key that paramiko finds wrong is wrong
    except (paramiko.SSHException, EOFError, OSError) as error:
        transport = connection.client.get_transport()
        judged = transport is not None and transport.is_active()
        _abandon(connection)
        if not judged or "timeout" in str(error).lower():
            raise _cut(address, error) from error
        if isinstance(error, paramiko.PasswordRequiredException):
            raise LoginRefused(Why.KEY_LOCKED, LOCKED) from error
        raise LoginRefused(Why.NOT_ADMITTED, _not_admitted(login, address)) from error


def _abandon(connection: fabric.Connection) -> None:
    with suppress(Exception):
        connection.client.close()


def _cut(address: tuple[str, int], error: BaseException) -> Unreachable:
    host, port = address
    return Unreachable(Why.CUT, f"{host}:{port} broke off during the login: {error or 'no word'}")


def _not_admitted(login: Login, address: tuple[str, int]) -> str:
    host, port = address
    with_key = f"key {login.key}" if login.key else "any key of the agent or of ~/.ssh"
    option = f" -i {login.key}" if login.key else ""
    return (
        f"{host}:{port} does not admit user {login.user} with {with_key}: "
        f"`ssh{option} -p {port} {login.user}@{host}` must work first"
    )
