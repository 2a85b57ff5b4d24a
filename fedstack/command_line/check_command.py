"""The subcommand `fedstack check`, which checks that a server can be used."""

import datetime
import json
import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypedDict

import attrs

from fedstack.command_line.command import SUCCESS, say, subcommand
from fedstack.command_line.peer_options import (
    ABOUT_ADDRESS,
    PEER_OPTIONS,
    PLAIN,
    ask,
    failed,
    kind_of,
    peer_of,
    why_grpc,
)
from fedstack.errors import FedstackError
from fedstack.foundations.deadline import Deadline

if TYPE_CHECKING:
    from fedstack.transport.grpc.credentials import ClientCredentials
    from fedstack.transport.peers.executor_stub import ExecutorStub
    from fedstack.transport.wire.addresses import Target

_ROUND_TRIPS = 5
# The minimum time limit, in seconds, of a call after the server has answered the first calls.
_LEAST_SECONDS = 0.1
# How long before the end of the server's certificate a warning is printed.
_SOON = datetime.timedelta(days=14)


class Answer(TypedDict):
    """The facts that `fedstack check` reports about every usable server."""

    target: str
    service: str
    encryption: str
    token: str
    transport: str
    round_trip_ms: float
    certificate_valid_until: str | None


class Details(TypedDict):
    """The facts that `fedstack check` reports only about a server with fedstack's extensions."""

    version: str
    python_version: str
    leaf_runtimes: list[str]
    allowed_modules: list[str]
    missing_modules: list[str]
    max_value_bytes: int


def run(**given: Any) -> int:
    """Checks a server. Prints its properties to standard output, and problems to standard error."""
    options = SimpleNamespace(**given)
    target, credentials = peer_of(options)

    from fedstack.transport.grpc.tls_contexts import valid_until

    deadline = Deadline(options.timeout)

    def left() -> float:
        return deadline.left or _LEAST_SECONDS

    async def look(stub: "ExecutorStub") -> tuple[Answer, Details | None]:
        handshake = await stub.handshake()
        kind = await kind_of(target, stub) if handshake is None else f"fedstack {handshake.version}"
        times: list[float] = []
        for _ in range(_ROUND_TRIPS):
            begin = time.perf_counter()
            await stub.handshake()
            times.append(time.perf_counter() - begin)
        reason = "" if handshake is None else await why_grpc(target, credentials)
        answer = Answer(
            target=str(target),
            service=kind,
            encryption=_encryption(target, credentials),
            token=_token(credentials, handshake.asks_for_token if handshake is not None else None),
            transport="gRPC" if handshake is None else f"gRPC: {reason}" if reason else "streams",
            round_trip_ms=round(1000 * min(times), 3),
            certificate_valid_until=None,
        )
        if handshake is None:
            return answer, None
        return answer, Details(
            version=handshake.version,
            python_version=handshake.python_version,
            leaf_runtimes=list(handshake.leaf_runtimes),
            allowed_modules=list(handshake.allowed_modules),
            missing_modules=list(handshake.missing_modules),
            max_value_bytes=handshake.max_value_bytes,
        )

    try:
        answer, details = ask(target, credentials, options.timeout, look)
        if credentials.certificate is not None:
            without = attrs.evolve(credentials, certificate=None, private_key=None)
            if _lets_in(attrs.evolve(target, secure=True), without, left()):
                answer["encryption"] = "TLS, client certificate not required"
    except FedstackError as error:
        return failed(target, error, as_json=options.json)
    end = valid_until(target, credentials, left())
    if end is not None:
        answer["certificate_valid_until"] = datetime.datetime.fromtimestamp(end, datetime.timezone.utc).isoformat()
    if options.json:
        print(json.dumps({"ok": True, **answer, **(details or {})}))
    else:
        _print(answer, details)
    return SUCCESS


def _lets_in(target: "Target", credentials: "ClientCredentials", timeout: float) -> bool:
    """Returns whether the server accepts `credentials`."""

    async def look(stub: "ExecutorStub") -> bool:
        return await stub.handshake() is not None

    try:
        return ask(target, credentials, timeout, look, explains=False)
    except FedstackError:
        return False


def _token(credentials: "ClientCredentials", asked_for: bool | None) -> str:
    if credentials.token is None:
        return "none"
    return {True: "accepted", False: "not required", None: "sent"}[asked_for]


def _encryption(target: "Target", credentials: "ClientCredentials") -> str:
    if not credentials.secures(target):
        return "none"
    return "TLS" if credentials.certificate is None else "TLS, with client certificate"


def _allowed(details: Details) -> list[str]:
    missing = {*details["missing_modules"]}
    return [f"{name} (not installed there)" if name in missing else name for name in details["allowed_modules"]]


def _print(answer: Answer, details: Details | None) -> None:
    rows = [("encryption", answer["encryption"]), ("token", answer["token"]), ("transport", answer["transport"])]
    end = answer["certificate_valid_until"]
    if end is not None:
        rows.insert(1, ("certificate", f"valid until {end[:16].replace('T', ' ')} UTC"))
    if details is None:
        use = ", which can be used one value at a time" if answer["service"] == PLAIN else ""
        say(f"{answer['target']} is up: {answer['service']}{use}")
    else:
        say(f"{answer['target']} is up: {answer['service']}, Python {details['python_version']}")
        rows += [
            ("leaf runtimes", ", ".join(details["leaf_runtimes"]) or "none"),
            ("allowed modules", ", ".join(_allowed(details)) or "none"),
            ("largest value", f"{details['max_value_bytes'] / 2**30:.3g} GiB"),
        ]
    rows.append(("round trip", f"{answer['round_trip_ms']:.2f} ms"))
    for name, value in rows:
        say(f"  {name:<16} {value}")
    if end is not None and datetime.datetime.fromisoformat(end) - datetime.datetime.now(datetime.timezone.utc) < _SOON:
        say("The server's certificate ends soon; renew it.", to_error=True)
    mine = f"{sys.version_info.major}.{sys.version_info.minor}"
    theirs = mine if details is None else details["python_version"]
    if details is not None and theirs != mine and any("Pickled" in name for name in details["leaf_runtimes"]):
        say(
            "Functions can be sent to this server by reference only: sending their code requires the same Python "
            f"version, and this process runs Python {mine}.",
            to_error=True,
        )


COMMAND = subcommand(
    "check",
    run,
    "Check that a server can be reached and used; if not, explain why.",
    PEER_OPTIONS,
    more=ABOUT_ADDRESS,
)
