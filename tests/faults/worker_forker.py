"""Run as a script: starts a worker process for each line of options that comes in, in milliseconds.

It has imported everything, and forks. A worker dials the test that wants it and says where it serves; the connection is
its lifeline: the test sees its end when the worker has died, and the worker ends when the test has let go of it.
"""

import json
import os
import signal
import socket
import sys
import threading
from typing import Any

import fedstack
from fedstack.computations.carriers import CarrierPolicy
from fedstack.service.executor_service import ExecutorService
from fedstack.service.grpc_server import GrpcServer
from fedstack.service.limits import ServiceLimits
from fedstack.service.server_thread import ServerThread


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the workers
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("ready", flush=True)
    for line in sys.stdin:
        if os.fork() == 0:
            serve(json.loads(line))


def serve(options: dict[str, Any]) -> None:
    """Serves until the lifeline ends; never returns."""
    try:
        lifeline = socket.create_connection(("127.0.0.1", options["lifeline"]))
        service = ExecutorService(
            fedstack.local_executor_factory(),
            limits=ServiceLimits(**options["limits"]),
            policy=CarrierPolicy(modules=["*"], python_code=True),
            extensions=options["extensions"],
        )
        server = ServerThread(GrpcServer([service], port=options["port"]))
        server.start()
        lifeline.sendall(json.dumps({"pid": os.getpid(), "target": server.target}).encode() + b"\n")
        while lifeline.recv(1):
            pass
    finally:
        os._exit(0)  # nothing of the process that this is a copy of is to be run


if __name__ == "__main__":
    # The folder of this file, which is on the path, has the functions that travel by reference.
    assert threading.active_count() == 1, "only a process with one thread can be copied"
    main()
