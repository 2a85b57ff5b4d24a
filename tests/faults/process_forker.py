"""Run as a script: starts a worker or a client for each line of options that comes in, in milliseconds.

It has imported everything, and forks. A process dials the test that wants it; the connection is its lifeline: the test
sees its end when the process has died, and the process ends when the test has let go of it.
"""

import json
import os
import signal
import socket
import sys
import threading
import traceback
from typing import Any

import client_roles

import fedstack
from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.service.cluster.server import Server, ServerConfig
from fedstack.service.data.dispatcher.dispatch_server import DispatcherConfig, DispatchServer
from fedstack.service.data.worker.worker_server import WorkerConfig, WorkerServer
from fedstack.service.executor.executor_service import ExecutorService
from fedstack.service.host.host import GrpcServer
from fedstack.service.host.limits import ServiceLimits
from fedstack.service.host.server_thread import OwnedServer, ServerThread


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the processes
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("ready", flush=True)
    for line in sys.stdin:
        if os.fork() == 0:
            run(json.loads(line))


def run(options: dict[str, Any]) -> None:
    """Serves, or does what the role of a client is, until the lifeline ends; never returns."""
    wanted = options.pop("lifeline")
    lifeline = socket.create_connection(("127.0.0.1", wanted["port"]))
    lifeline.sendall(wanted["token"].encode())
    role = options.pop("role")
    try:
        if role == "worker":
            serve(lifeline, **options)
        elif role == "task":
            serve_task(lifeline, **options)
        elif role == "dispatcher":
            keep(lifeline, DispatchServer(DispatcherConfig(**options)))
        elif role == "data_worker":
            policy = CarrierPolicy(modules=["*"], python_code=True)
            keep(lifeline, WorkerServer(WorkerConfig(**options, policy=policy)))
        else:
            say(lifeline, pid=os.getpid())
            answer = getattr(client_roles, role)(lifeline, **options)
            say(lifeline, answer=answer)
        while lifeline.recv(1):
            pass
    except BaseException:
        say(lifeline, error=traceback.format_exc())
    finally:
        os._exit(0)  # nothing of the process that this is a copy of is to be run


def serve(
    lifeline: socket.socket,
    port: int,
    stream_port: int,
    extensions: bool,
    threads: int | None,
    limits: dict[str, Any],
) -> None:
    service = ExecutorService(
        fedstack.local_executor_factory(max_concurrent_clients=threads),
        limits=ServiceLimits(**limits),
        policy=CarrierPolicy(modules=["*"], python_code=True),
        extensions=extensions,
    )
    server = ServerThread(GrpcServer([service], port=port, streams=stream_port > 0, stream_port=stream_port))
    server.start()
    say(lifeline, pid=os.getpid(), target=server.target)


def serve_task(lifeline: socket.socket, cluster: dict[str, Any], job: str, index: int) -> None:
    """Serves as a task of a cluster until the process ends."""
    config = ServerConfig(
        policy=CarrierPolicy(modules=["*"], python_code=True), limits=ServiceLimits(heartbeat_seconds=1.0)
    )
    keep(lifeline, Server(cluster, job, index, config=config))


def keep(lifeline: socket.socket, server: OwnedServer) -> None:
    """Keeps a server until the process ends."""
    say(lifeline, pid=os.getpid(), target=server.target)
    while lifeline.recv(1):
        pass


def say(lifeline: socket.socket, **what: object) -> None:
    lifeline.sendall(json.dumps(what).encode() + b"\n")


if __name__ == "__main__":
    # The folder of this file, which is on the path, has the functions that travel by reference.
    assert threading.active_count() == 1, "only a process with one thread can be copied"
    main()
