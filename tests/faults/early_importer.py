"""Run as a script: imports grpc or fedstack first, dials, and forks twice; prints what is logged meanwhile.

early_importer.py grpc|fedstack TARGET
"""

import importlib
import logging
import os
import sys

importlib.import_module(sys.argv[1])

from fault_leaves import doubled_sum  # noqa: E402

import fedstack  # noqa: E402

if __name__ == "__main__":
    logging.basicConfig(stream=sys.stdout)
    context = fedstack.create_sync_remote_execution_context(sys.argv[2])
    if os.fork() == 0:  # nothing uses gRPC yet
        os._exit(0)
    with fedstack.use_context(context):
        assert doubled_sum([1, 2]) == 6
    context.close()
    for _ in range(2):
        if os.fork() == 0:
            os._exit(0)
    sys.stdout.flush()
    os._exit(0)
