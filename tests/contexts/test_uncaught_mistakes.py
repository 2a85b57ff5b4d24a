"""Mistakes in federated computations that end a block, a script or a cell."""

import subprocess
import sys
import types

import federated_language as fl
import numpy as np
import pytest

import fedstack
from fedstack.contexts import uncaught_mistakes

FIX = "To fix it: send what is at the server to the clients first, with fl.federated_broadcast."
SCRIPT = """
import sys
import federated_language as fl
import numpy as np
import fedstack

def hook(kind, error, trace):
    print("the hook before:", kind.__name__, file=sys.stderr)
    sys.__excepthook__(kind, error, trace)

sys.excepthook = hook
fedstack.set_sync_local_execution_context()
fedstack.set_sync_local_execution_context()

@fl.federated_computation(fl.FederatedType(np.float32, fl.SERVER), fl.FederatedType(np.float32, fl.CLIENTS))
def forgotten(model, values):
    return fl.federated_map(fl.federated_computation(lambda x: x[0], [np.float32, np.float32]), (model, values))
"""


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have no notes")
def test_a_script_that_ends_with_a_mistake_says_what_to_do():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("the hook before: TypeError\nTraceback")
    assert done.stderr.rstrip().endswith(FIX)
    assert done.stderr.count(FIX) == 1


def forget_a_broadcast():
    fl.federated_computation(
        lambda model, values: fl.federated_zip((model, values)),
        fl.FederatedType(np.float32, fl.SERVER),
        fl.FederatedType(np.float32, fl.CLIENTS),
    )


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have no notes")
@pytest.mark.parametrize("block", [lambda context: context, fedstack.use_context])
def test_a_mistake_that_leaves_a_block_of_a_context_says_what_to_do(block):
    with fedstack.create_sync_local_execution_context() as context, pytest.raises(TypeError) as caught:
        with block(context):
            forget_a_broadcast()
    assert caught.value.__notes__ == [FIX]


class Events:
    """What IPython has, as far as it is used here."""

    def __init__(self) -> None:
        self.functions = {}

    def register(self, event, function) -> None:
        self.functions.setdefault(event, set()).add(function)


def test_a_cell_that_ends_with_a_mistake_says_what_to_do(monkeypatch, capsys):
    events = Events()
    shell = types.SimpleNamespace(events=events)
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    context = fedstack.create_sync_local_execution_context()
    uncaught_mistakes.set_default_context(context)
    uncaught_mistakes.set_default_context(context)
    fl.framework.set_no_default_context()
    context.close()
    [after_cell] = events.functions["post_run_cell"]
    after_cell(types.SimpleNamespace(error_in_exec=None))
    try:
        forget_a_broadcast()
    except TypeError as error:
        after_cell(types.SimpleNamespace(error_in_exec=error))
    assert capsys.readouterr().err == FIX + "\n"
