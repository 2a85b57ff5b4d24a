"""Functions travel by handle in a process, and by reference or by value to another one that allows it."""

import functools
import hashlib
import importlib
import linecache
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import federated_language as fl
import numpy as np
import pytest
from federated_language.proto import computation_pb2
from google.protobuf import any_pb2

import fedstack
from fedstack.computations.leaves import carrier_policy, leaf_runtimes
from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.computations.leaves.carriers import portable_carrier
from fedstack.computations.leaves.function_pickles import dumps, loads
from fedstack.computations.leaves.leaf_runtimes import load_leaf
from fedstack.computations.leaves.named_functions import resolve_reference
from fedstack.errors import CarrierError
from fedstack.leaves import Destination, Leaf, LeafRuntime
from fedstack.proto import carriers_pb2

INT = fl.TensorType(np.int32)
LIMIT_SECONDS = 50

MODULE = """
import os
import numpy as np
import fedstack

NOT_A_FUNCTION = 7

def triple(x):
    return np.int32(x * 3)

@fedstack.python_computation([np.int32], np.int32)
def decorated(x):
    return np.int32(x * 5)

class Group:
    @staticmethod
    def negate(x):
        return np.int32(-x)

def make():
    def inner(x):
        return x
    return inner
"""


def triple(x):
    return np.int32(x * 3)


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A module that is installed here, and in processes that get its folder."""
    (tmp_path / "carried_library").mkdir()
    (tmp_path / "carried_library" / "__init__.py").write_text("")
    (tmp_path / "carried_library" / "work.py").write_text(MODULE)
    (tmp_path / "carried_library" / "broken.py").write_text("raise RuntimeError('no import today')")
    (tmp_path / "carried_library_too.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield importlib.import_module("carried_library.work")
    for name in [name for name in sys.modules if name.startswith("carried_library")]:
        del sys.modules[name]


@pytest.fixture
def policy(monkeypatch):
    """The policy of this process, for a test to change."""
    made = CarrierPolicy()
    monkeypatch.setattr(carrier_policy, "policy", made)
    return made


def decorated(function):
    return fedstack.python_computation([np.int32], np.int32)(function)


def with_content(message):
    """Returns the computation of a leaf from integers to integers."""
    computation = computation_pb2.Computation(type=fl.FunctionType(INT, INT).to_proto())
    computation.data.content.Pack(message)
    return computation


def reference(module, qualname, digest=b""):
    return with_content(carriers_pb2.PythonReference(module=module, qualname=qualname, digest=digest))


def portable(computation, allow_by_value=False):
    """Returns a computation as it leaves the process, and the name of its carrier."""
    proto = computation_pb2.Computation()
    proto.CopyFrom(computation.to_proto())
    proto.data.content.CopyFrom(portable_carrier(proto.data.content, Destination(takes_code=allow_by_value)))
    return proto, proto.data.content.TypeName().rpartition(".")[2]


def refused(computation, message):
    with pytest.raises(CarrierError, match=message):
        load_leaf(computation)


# By handle.


def test_a_handle_has_the_name_of_its_function_and_loads_it():
    computation = decorated(triple)
    handle = carriers_pb2.PythonHandle()
    assert computation.to_proto().data.content.Unpack(handle)
    assert handle.name == "triple"
    assert handle.process == leaf_runtimes.PROCESS
    leaf = load_leaf(computation.to_proto())
    assert leaf.name == "triple"
    assert leaf.call(np.int32(2)) == 6


def test_every_decoration_has_a_handle_of_its_own():
    one, other = decorated(triple), decorated(triple)
    assert one.to_proto() != other.to_proto()


def test_a_handle_of_another_process_is_refused():
    refused(
        with_content(carriers_pb2.PythonHandle(process="elsewhere", serial=1, name="triple")),
        "Expected a function of this process, found a handle to 'triple' in another process; define the function",
    )


def test_a_handle_that_was_given_another_type_is_refused():
    original = decorated(triple)
    computation = computation_pb2.Computation()
    computation.CopyFrom(original.to_proto())
    computation.type.CopyFrom(fl.FunctionType(np.float32, np.float32).to_proto())
    refused(
        computation,
        r"Expected 'triple' to be declared with the type \(int32 -> int32\), found \(float32 -> float32\)",
    )


@pytest.mark.parametrize("kind", [carriers_pb2.PythonHandle, carriers_pb2.PythonReference, carriers_pb2.PickledPython])
def test_a_carrier_of_bytes_that_are_none_is_refused(kind):
    computation = with_content(kind())
    computation.data.content.value = b"\xff\xff\xff"
    refused(computation, f"The content is not a valid fedstack.v1.{kind.DESCRIPTOR.name}: ")


# On the way out.


def test_a_function_at_the_top_of_a_module_leaves_by_reference(library):
    proto, kind = portable(decorated(library.triple))
    assert kind == "PythonReference"
    sent = carriers_pb2.PythonReference()
    proto.data.content.Unpack(sent)
    assert (sent.module, sent.qualname) == ("carried_library.work", "triple")
    assert sent.digest == hashlib.sha256(b"def triple(x):\n    return np.int32(x * 3)\n").digest()


@pytest.mark.parametrize("name", ["decorated", "Group.negate"])
def test_a_decorated_function_and_a_static_method_leave_by_reference_too(library, name):
    if name == "decorated":
        proto, kind = portable(library.decorated)
    else:
        proto, kind = portable(decorated(library.Group.negate))
    assert kind == "PythonReference"
    sent = carriers_pb2.PythonReference()
    proto.data.content.Unpack(sent)
    assert sent.qualname == name


@pytest.mark.parametrize("make", [lambda: lambda x: x, lambda: make_closure(3), lambda: make_main()])
def test_a_function_that_has_no_name_elsewhere_leaves_by_value_where_that_is_allowed(make):
    computation = decorated(make())
    with pytest.raises(CarrierError, match="Expected a portable function, found .*; define it at the top level of a"):
        portable(computation)
    assert portable(computation, allow_by_value=True)[1] == "PickledPython"


def make_closure(factor):
    def scaled(x):
        return np.int32(x * factor)

    return scaled


def make_main():
    names = {"__name__": "__main__"}
    exec("def mine(x):\n    return x", names)
    return names["mine"]


def test_a_cached_function_of_a_script_goes_by_value_with_an_empty_cache(policy):
    def slow(x):
        return x + np.int32(1)

    slow.__module__, slow.__qualname__ = "__main__", "slow"
    cached = functools.lru_cache(maxsize=7)(slow)
    assert cached.__module__ == "__main__"
    cached(1)
    policy.python_code = True
    proto, kind = portable(decorated(lambda x: cached(int(x))), allow_by_value=True)
    assert kind == "PickledPython"
    assert load_leaf(proto).call(np.int32(2)) == 3
    loaded = loads(dumps(cached))
    assert loaded.cache_parameters() == {"maxsize": 7, "typed": False}
    assert loaded.cache_info().currsize == 0


def test_a_function_that_refers_to_what_cannot_leave_is_refused_by_name():
    lock = threading.Lock()

    def locked(x):
        with lock:
            return x

    with pytest.raises(CarrierError, match=r"Pickling 'locked' raised TypeError"):
        portable(decorated(locked), allow_by_value=True)


def test_other_contents_leave_as_they_are():
    content = any_pb2.Any(type_url="type.googleapis.com/somebody.Else", value=b"whatever")
    assert portable_carrier(content, Destination(takes_code=False)) is content


def test_a_handle_that_nobody_knows_cannot_leave():
    gone = with_content(
        carriers_pb2.PythonHandle(process=leaf_runtimes.PROCESS, serial=2**40, name="gone")
    ).data.content
    foreign = with_content(carriers_pb2.PythonHandle(process="elsewhere", serial=1, name="gone")).data.content
    for content in (gone, foreign):
        with pytest.raises(CarrierError, match="Expected a function of this process, found 'gone'"):
            portable_carrier(content, Destination(takes_code=True))


# By reference.


@pytest.mark.parametrize("allowed", [["carried_library"], ["carried_library.work"], ["other", "carried_library"]])
def test_a_reference_into_an_allowed_module_is_followed(library, policy, allowed):
    policy.modules = allowed
    proto, _ = portable(decorated(library.triple))
    leaf = load_leaf(proto)
    assert leaf.name == "triple"
    assert leaf.call(np.int32(2)) == 6
    assert load_leaf(reference("carried_library.work", "Group.negate")).call(np.int32(2)) == -2
    assert load_leaf(reference("carried_library.work", "decorated")).call(np.int32(2)) == 10


@pytest.mark.parametrize("allowed", [[], ["carried"], ["carried_library.work.more"], ["carried_library.other"], [""]])
def test_a_reference_into_any_other_module_is_refused(library, policy, allowed):
    policy.modules = allowed
    refused(
        reference("carried_library.work", "triple"),
        r"Expected a function of an allowed module \(.*\), found carried_library\.work:triple; .* --allow-module",
    )


def test_a_reference_is_refused_once_the_file_has_changed_that_was_imported(library, policy, tmp_path):
    policy.modules = ["carried_library"]
    proto, _ = portable(decorated(library.triple))
    assert load_leaf(proto).call(np.int32(2)) == 6
    (tmp_path / "carried_library" / "work.py").write_text(MODULE.replace("* 3", "* 30") + "\n")
    linecache.checkcache()
    edited, _ = portable(decorated(library.triple))
    for sent in (proto, edited):
        refused(sent, "The file that defines carried_library.work:triple has changed")


@pytest.mark.parametrize("module", ["builtins", "os", "os.path"])
def test_nobody_is_advised_to_allow_a_module_of_python_itself(policy, module):
    refused(
        reference(module, "eval"),
        "Expected a function of an allowed module .*; call it in a function of your own",
    )


@pytest.mark.parametrize(
    ("modules", "python_code", "anything"),
    [
        ([], False, False),
        (["mine"], False, False),
        (["mine", "*"], False, True),
        (["shutil"], False, True),
        (["os.path"], False, True),
        ([], True, True),
    ],
)
def test_what_is_as_good_as_any_code_counts_as_that(modules, python_code, anything):
    assert CarrierPolicy(modules, python_code).runs_anything is anything


def test_who_allows_code_allows_references_too(library, policy):
    policy.python_code = True
    assert load_leaf(reference("carried_library.work", "triple")).call(np.int32(2)) == 6


def test_a_module_whose_name_begins_like_that_of_an_allowed_one_is_refused(library, policy):
    policy.modules = ["carried_library"]
    refused(reference("carried_library_too", "triple"), "Expected a function of an allowed module")
    assert "carried_library_too" not in sys.modules


def test_a_reference_to_another_version_is_refused(library, policy):
    policy.modules = ["carried_library"]
    refused(
        reference("carried_library.work", "triple", digest=b"another"),
        r"Expected the sender's version of carried_library\.work:triple, found another version; install",
    )


@pytest.mark.parametrize(
    ("module", "qualname"),
    [
        ("carried_library.work", "missing"),
        ("carried_library.work", "triple.missing"),
        ("carried_library.work", ""),
        ("carried_library.missing", "triple"),
        ("carried_library_three.work", "triple"),
    ],
)
def test_a_reference_that_leads_nowhere_is_refused(library, policy, module, qualname):
    policy.modules = ["carried_library", "carried_library_three"]
    refused(reference(module, qualname), f"Cannot find the function {module}:{qualname}: ")


def test_a_module_that_the_worker_does_not_have_is_refused_with_what_to_do(policy):
    policy.modules = ["carried_library_three"]
    refused(reference("carried_library_three.work", "triple"), "install the module where the function runs, or add")


@pytest.mark.parametrize(
    "qualname",
    ["os.system", "np.sqrt", "NOT_A_FUNCTION", "make.<locals>.inner", "__loader__.get_data", "triple.__globals__.get"],
)
def test_a_reference_leads_only_to_functions_that_the_module_defines(library, policy, qualname):
    # A module that imports os is not a way to os.system.
    policy.modules = ["carried_library"]
    refused(
        reference("carried_library.work", qualname),
        r"to be a function that its module defines|Cannot find the function",
    )


def test_resolving_gives_the_function_inside_a_decorated_computation(library):
    assert resolve_reference("carried_library.work", "decorated") is library.decorated.__wrapped__


def test_a_reference_with_a_type_that_is_no_function_is_refused(library, policy):
    policy.modules = ["carried_library"]
    computation = reference("carried_library.work", "triple")
    computation.type.CopyFrom(INT.to_proto())
    refused(computation, "Expected 'triple' to have a functional type, found int32")


# By value.


def test_code_by_value_is_refused_unless_allowed(policy):
    proto, _ = portable(decorated(make_closure(3)), allow_by_value=True)
    refused(proto, "Expected a Python function by reference, found 'scaled' by value; .* --allow-python-code")
    policy.python_code = True
    assert load_leaf(proto).call(np.int32(2)) == 6


def test_code_for_another_python_is_refused(policy):
    policy.python_code = True
    pickled = carriers_pb2.PickledPython(function=b"", python_version="2.7", name="old")
    refused(with_content(pickled), r"Expected code for Python 3\.\d+, found code for Python 2\.7; run the same version")


@pytest.mark.parametrize("content", [b"", b"no pickle", b"\x80\x05cno_such_module\nf\n."])
def test_code_that_cannot_be_loaded_is_refused_by_name(policy, content):
    policy.python_code = True
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    pickled = carriers_pb2.PickledPython(function=content, python_version=version, name="odd")
    refused(with_content(pickled), "Loading 'odd' raised ")


def test_a_pickle_of_something_else_than_a_function_is_refused(policy):
    policy.python_code = True
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    for content, message in [
        (7, "Loading 'seven' raised TypeError"),
        ((7, None), "Expected 'seven' to have a functional type, found"),
        ((abs, {}), "Expected the pickle of 'seven' to contain Containers or None, found "),
    ]:
        pickled = carriers_pb2.PickledPython(function=pickle.dumps(content), python_version=version, name="seven")
        refused(with_content(pickled), message)


# In another process.


CHILD = """
import sys
import federated_language as fl
import fedstack
from federated_language.proto import computation_pb2
from fedstack.computations.leaves.carrier_policy import policy
from fedstack.errors import CarrierError

policy.modules, policy.python_code = sys.argv[1].split(","), sys.argv[2] == "code"
proto = computation_pb2.Computation.FromString(sys.stdin.buffer.read())
context = fedstack.create_sync_local_execution_context()
with fedstack.use_context(context):
    try:
        print(fl.framework.ConcreteComputation.from_proto(proto)([1, 2, 3]))
    except CarrierError as error:
        print("refused:", error)
context.close()
"""


def run_elsewhere(computation, folder, modules="none", code="none"):
    """Runs a computation over clients in a new process and returns what that prints."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, modules, code],
        input=computation.SerializeToString(),
        capture_output=True,
        env={"PYTHONPATH": str(folder), "PATH": ""},
        timeout=LIMIT_SECONDS,
        check=True,
    )
    return done.stdout.decode().strip()


def summed(leaf):
    """Returns a computation that sums what a leaf gives for each client."""
    clients = fl.FederatedType(INT, fl.CLIENTS)
    outer = fl.federated_computation(lambda x: fl.federated_sum(fl.federated_map(leaf, x)), clients)
    return outer.to_proto()


def replaced(computation, leaf, content):
    """Returns a computation with the carrier of a leaf replaced."""
    proto = computation_pb2.Computation()
    proto.CopyFrom(computation)
    handle = leaf.to_proto().data.content

    def visit(message):
        for _, value in message.ListFields():
            for part in value if hasattr(value, "__len__") and not isinstance(value, (str, bytes)) else [value]:
                if isinstance(part, any_pb2.Any) and part == handle:
                    part.CopyFrom(content)
                elif hasattr(part, "ListFields"):
                    visit(part)

    visit(proto)
    return proto


@pytest.mark.long
def test_a_function_by_reference_runs_in_a_process_that_allows_its_module(library, tmp_path):
    leaf = decorated(library.triple)
    sent = replaced(summed(leaf), leaf, portable_carrier(leaf.to_proto().data.content, Destination(takes_code=False)))
    assert run_elsewhere(sent, tmp_path, modules="carried_library") == "18"
    assert run_elsewhere(sent, tmp_path).startswith("refused: Expected a function of an allowed module (none)")


@pytest.mark.long
def test_a_function_by_value_runs_in_a_process_that_allows_code(tmp_path):
    leaf = decorated(make_closure(5))
    sent = replaced(summed(leaf), leaf, portable_carrier(leaf.to_proto().data.content, Destination(takes_code=True)))
    assert run_elsewhere(sent, tmp_path, code="code") == "30"
    found = run_elsewhere(sent, tmp_path)
    assert found.startswith("refused: Expected a Python function by reference, found 'scaled' by value")


def test_a_function_by_handle_does_not_run_in_another_process(tmp_path):
    leaf = decorated(triple)
    found = run_elsewhere(summed(leaf), tmp_path, modules="carried_library", code="code")
    assert found.startswith(
        "refused: Expected a function of this process, found a handle to 'triple' in another process"
    )


# Other people's leaves.


class Tenfold(Leaf):
    def evaluate(self, argument):
        return argument * 10


class TenfoldRuntime(LeafRuntime):
    def load(self, computation):
        return Tenfold("tenfold", INT, INT)


def test_a_runtime_that_somebody_registers_runs_leaves_of_its_kind(fedstack_context, monkeypatch):
    monkeypatch.setattr(leaf_runtimes, "_runtimes", dict(leaf_runtimes._runtimes))
    computation = with_content(computation_pb2.Placement(uri="any message will do"))
    run = fl.framework.ConcreteComputation.from_proto(computation)
    with pytest.raises(
        CarrierError,
        match=r"found federated_language\.Placement; .* an entry point in the group 'fedstack\.leaf_runtimes'",
    ):
        run(1)
    fedstack.register_leaf_runtime("federated_language.Placement", TenfoldRuntime())
    assert run(7) == 70
    mapped = fl.federated_computation(lambda x: fl.federated_map(run, x), fl.FederatedType(INT, fl.CLIENTS))
    assert mapped([1, 2]) == [10, 20]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("raise ValueError('no data')", "raised ValueError: no data$"),
        ("raise SystemExit('bye')", "raised SystemExit: bye$"),
        ("import missing_library", "raised ModuleNotFoundError: No .* 'missing_library'; install the missing"),
    ],
)
def test_a_module_that_is_there_and_cannot_be_imported_is_told_from_one_that_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, told: str
) -> None:
    (tmp_path / "broken_at_import.py").write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        CarrierError,
        match=f"Cannot load the function broken_at_import:f: importing broken_at_import {told}",
    ):
        resolve_reference("broken_at_import", "f")


def test_a_function_that_is_sent_by_value_keeps_the_name_of_its_file() -> None:
    scope: dict[str, object] = {"__name__": "__main__"}
    exec(compile("def fail():\n    return 1 / 0", "mine.py", "exec"), scope)
    assert loads(dumps(scope["fail"])).__code__.co_filename == "mine.py"
