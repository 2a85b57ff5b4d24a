"""A server of methods in a process of its own: `python method_server.py PORT`; it says where it listens."""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
from served_methods import add, mean

from fedstack.service import rpc


def slow(x):
    time.sleep(60)
    return x


def serve(port: str, kind: str) -> None:
    server = rpc.Server.create("grpc", f"localhost:{port}")
    server.register("add", add if kind == "first" else mean)
    server.register("slow", slow, parameter_types=[np.int32], result_type=np.int32)
    server.register("same", lambda a: a, parameter_types=[(np.float32, [None])], result_type=(np.float32, [None]))
    with server:
        print(server.target, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    serve(*sys.argv[1:])
