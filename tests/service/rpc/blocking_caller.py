"""A process that calls a method that waits: `python blocking_caller.py TARGET interrupted|stopped`."""

import sys

from fedstack.errors import DeadlineExceededError
from fedstack.service import rpc
from fedstack.transport.peers import executor_stub, method_stub


def call(target: str, how: str) -> None:
    with rpc.Client.create("grpc", target, timeout_in_ms=30_000) as client:
        if how == "stopped":
            client._calls.stub._control_seconds = 0.2
            method_stub.SOON_SECONDS = executor_stub.SOON_SECONDS = 0.8
        try:
            print(client.wait_blocking(1, timeout_in_ms=-1))
        except KeyboardInterrupt:
            print("interrupted", client.add_blocking(1, 2))
        except DeadlineExceededError as error:
            print(error)


if __name__ == "__main__":
    call(*sys.argv[1:])
