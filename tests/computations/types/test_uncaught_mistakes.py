"""Mistakes in federated computations that end a block, a script or a cell."""

import os
import re
import subprocess
import sys
import traceback
import types

import federated_language as fl
import numpy as np
import pytest

import fedstack

FIX = "To fix it: send the server's value to the clients first, with fl.federated_broadcast."
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


def test_a_script_that_ends_with_a_mistake_says_what_to_do():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("the hook before: TypeError\nTraceback")
    assert done.stderr.rstrip().endswith(FIX)
    assert done.stderr.count(FIX) == 1
    assert set(re.findall('^  File "(.*?)"', done.stderr, re.MULTILINE)) == {"<string>"}, "the frames of the user only"


FAILS = """
import fedstack, numpy as np
@fedstack.python_computation(np.int32, np.int32)
def fail(x):
    return [x][x]
"""


def with_errors(end: str, *options: str) -> str:
    """Returns what a script prints whose function fails, and which ends with a statement."""
    command = [sys.executable, *options, "-c", f"{FAILS}\n{end}"]
    return subprocess.run(command, capture_output=True, text=True).stderr.rstrip()


PAGE = "More about this error: fedstack explain-error "


@pytest.mark.parametrize(
    ("end", "name"),
    [
        ("fail(7)", "ContextError"),
        ("fedstack.type_of(None)", "TypeMismatchError"),
        ("with fedstack.create_sync_local_execution_context():\n    fail(7)", "LeafError"),
        ("fedstack.set_sync_local_execution_context()\nfail(7)", "LeafError"),
        ("fedstack.set_sync_local_execution_context()\nfail('text')", "TypeMismatchError"),
        (
            "fedstack.set_sync_local_execution_context()\n"
            "class Mine(fedstack.errors.LeafError):\n    pass\nraise Mine('a failure')",
            "LeafError",
        ),
    ],
)
def test_an_error_that_ends_a_script_leads_to_its_paragraph(end: str, name: str) -> None:
    found = with_errors(end)
    assert found.endswith(PAGE + name)
    assert found.count(PAGE) == 1
    assert set(re.findall('^  File "(.*?)"', found, re.MULTILINE)) == {"<string>"}, "the frames of the user only"


def test_an_error_that_ends_a_thread_leads_to_its_paragraph() -> None:
    found = with_errors("import threading\nthreading.Thread(target=fail, args=[7], name='mine').start()")
    assert found.startswith("Exception in thread mine:")
    assert found.endswith(PAGE + "ContextError")
    files = re.findall('^  File "(.*?)"', found, re.MULTILINE)
    assert {os.path.basename(file) for file in files} <= {"<string>", "threading.py"}, "no frames of fedstack"


if sys.version_info >= (3, 11):  # before, there are no groups

    def test_each_error_of_a_group_leads_to_its_paragraph() -> None:
        end = """
import asyncio
async def main():
    with fedstack.create_async_local_execution_context() as context, fedstack.use_context(context):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(asyncio.wait_for(fail(1), 60))
            tasks.create_task(asyncio.sleep(60))
asyncio.run(main())
"""
        shown = with_errors(end)
        assert shown.count(f"{PAGE}LeafError") == 1
        assert "ExceptionGroup" in shown
        assert f"{os.path.dirname(fedstack.__file__)}{os.sep}" not in shown, "the frames of the user only"


def test_another_error_that_ends_a_thread_is_shown_as_it_is() -> None:
    found = with_errors("import threading\nthreading.Thread(target=lambda: 1 // 0).start()")
    assert found.endswith("by zero")


UNREADABLE = """
import threading
class Unreadable(AttributeError):
    def __str__(self):
        return "no " + self.missing
def work():
    raise Unreadable()
"""


@pytest.mark.parametrize("end", ["work()", "threading.Thread(target=work).start()"])
def test_an_error_whose_text_cannot_be_made_is_shown_as_python_shows_it(end: str) -> None:
    found = with_errors(UNREADABLE + end)
    assert found.endswith("Unreadable: <exception str() failed>")
    assert "in work" in found
    assert "Error in" not in found
    assert "excepthook" not in found


BROADCAST = """
@fl.federated_computation(fl.FederatedType(np.float32, fl.SERVER), fl.FederatedType(np.float32, fl.CLIENTS))
def forgotten(model, values):
    try:
        raise OSError("config missing")
    except OSError:
        return fl.federated_zip((model, values))
"""


def test_the_users_own_error_before_a_mistake_is_shown() -> None:
    found = with_errors(f"import federated_language as fl\n{BROADCAST}")
    assert "OSError: config missing" in found
    assert FIX in found


def test_in_development_mode_all_frames_are_shown() -> None:
    assert "contexts.py" in with_errors("fedstack.set_sync_local_execution_context()\nfail(7)", "-X", "dev")


def test_another_error_that_ends_a_script_is_shown_as_it_is() -> None:
    assert with_errors("fedstack.set_sync_local_execution_context()\n1 // 0").endswith("by zero")


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


class Shell:
    """What IPython has, as far as it is used here."""

    def __init__(self) -> None:
        self.custom_exceptions = ()
        self.shown = []

    def set_custom_exc(self, kinds, handler) -> None:
        self.custom_exceptions, self.handler = kinds, handler

    def showtraceback(self, found, tb_offset) -> None:
        self.shown.append("".join(traceback.format_exception(*found)))

    def run_cell(self, function) -> str:
        """Returns what is shown of the error that ends a cell."""
        try:
            function()
        except self.custom_exceptions as error:
            self.handler(self, type(error), error, error.__traceback__, tb_offset=1)
        return self.shown[-1]


@pytest.fixture
def shell(monkeypatch):
    made = Shell()
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: made))
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    return made


def install_twice():
    for _ in range(2):
        context = fedstack.create_sync_local_execution_context()
        context.close()


def test_a_cell_that_ends_with_a_mistake_shows_the_advice_and_no_frames_of_the_language(shell, capsys):
    install_twice()
    found = shell.run_cell(forget_a_broadcast)
    assert FIX in found + capsys.readouterr().err
    assert "in forget_a_broadcast" in found
    assert "fl.federated_zip((model, values))" in found
    assert "federated_language" + os.sep not in found
    assert found.count('\n  File "') < 6  # the frames of the user


def test_an_error_of_fedstack_that_ends_a_cell_leads_to_its_paragraph(shell, capsys):
    def fail():
        raise fedstack.errors.NoWorkersError("none is left")

    install_twice()
    found = (shell.run_cell(fail) + capsys.readouterr().err).rstrip()
    assert found.endswith(PAGE + "NoWorkersError")
    assert "in fail" in found


def test_another_error_in_a_cell_is_shown_as_it_is(shell, capsys):
    install_twice()
    clients = fl.FederatedType(np.float32, fl.CLIENTS)
    found = shell.run_cell(lambda: fl.federated_computation(lambda values, extra=1: values, clients))
    assert "federated_language" + os.sep in found
    assert "To fix it" in shell.run_cell(forget_a_broadcast) + capsys.readouterr().err
    assert "1 / 0" in shell.run_cell(lambda: 1 / 0)


def test_a_handler_of_the_users_own_stays(shell):
    shell.set_custom_exc((ValueError,), print)
    install_twice()
    assert shell.handler is print
