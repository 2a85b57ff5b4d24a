"""A reference reaches the functions that an allowed module defines, as they are there, and runs nothing on the way."""

import importlib
import sys

import numpy as np
import pytest

import fedstack
from fedstack.computations.leaves.carrier_policy import AS_GOOD_AS_CODE, CarrierPolicy
from fedstack.computations.leaves.named_functions import resolve_reference, resolves_to_itself
from fedstack.computations.leaves.python_functions import PythonLeaf
from fedstack.errors import CarrierError

MODULE = """
import functools
import numpy as np
import fedstack
import referred_others as outside
from referred_others import Imported, imported

RAN = []

def guard(function):
    @functools.wraps(function)
    def checked(x):
        if x < 0:
            raise PermissionError("guarded")
        return function(x)
    return checked

@guard
def guarded(x):
    return x

@functools.lru_cache
def cached(x):
    return x + 1

@fedstack.python_computation([np.int32], np.int32)
def leaf(x):
    return np.int32(x * 5)

@fedstack.python_computation([np.int32], np.int32)
@guard
def guarded_leaf(x):
    return np.int32(x)

def plain(x):
    return x

alias = plain

class Meta(type):
    def __getattr__(cls, name):
        RAN.append(name)
        return plain

class Group(metaclass=Meta):
    class Inner:
        @staticmethod
        def negate(x):
            return -x

    @classmethod
    def made(cls, x):
        return x

    @property
    def prop(self):
        RAN.append("prop")
        return plain

class Liar:
    __module__ = "referred_work"
    __qualname__ = "liar"

    def __getattr__(self, name):
        RAN.append(name)
        return plain

    @property
    def __class__(self):
        RAN.append("__class__")
        return type(plain)

    @property
    def method(self):
        RAN.append("method")
        return plain

    def __repr__(self):
        RAN.append("repr")
        return "liar"

liar = Liar()

def __getattr__(name):
    RAN.append(name)
    return plain
"""

OTHERS = """
RAN = []

def __getattr__(name):
    RAN.append(name)
    raise AttributeError(name)

class Imported:
    @staticmethod
    def run(x):
        return x

def imported(x):
    return x
"""


@pytest.fixture
def work(tmp_path, monkeypatch):
    (tmp_path / "referred_work.py").write_text(MODULE)
    (tmp_path / "referred_others.py").write_text(OTHERS)
    package = tmp_path / "referred_package"
    package.mkdir()
    (package / "__init__.py").write_text("import sys\nsys.referred_bodies = getattr(sys, 'referred_bodies', 0) + 1\n")
    (package / "__main__.py").write_text("raise AssertionError('the command line ran')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    made = importlib.import_module("referred_work")
    made.outside.RAN.clear()  # importing looks for a `__path__`
    yield made
    for name in [name for name in sys.modules if name.startswith("referred_")]:
        del sys.modules[name]
    if hasattr(sys, "referred_bodies"):
        del sys.referred_bodies


def test_functions_static_methods_and_leaf_computations_are_reached(work):
    assert resolve_reference("referred_work", "plain") is work.plain
    assert resolve_reference("referred_work", "Group.Inner.negate") is work.Group.Inner.negate
    assert resolve_reference("referred_work", "Group.Inner") is work.Group.Inner
    assert resolve_reference("referred_work", "leaf") is work.leaf.__wrapped__
    assert resolves_to_itself(work.plain)
    assert resolves_to_itself(work.leaf.__wrapped__)


@pytest.mark.parametrize("qualname", ["guarded", "guarded_leaf"])
def test_a_decorated_function_is_what_the_decorator_made_of_it(work, qualname):
    function = resolve_reference("referred_work", qualname)
    assert function(np.int32(3)) == 3
    with pytest.raises(PermissionError, match="guarded"):
        function(np.int32(-3))


def test_a_function_with_a_cache_keeps_it(work):
    function = resolve_reference("referred_work", "cached")
    assert function is work.cached
    leaf = PythonLeaf(function, "cached", fedstack.python_computation([np.int32], np.int32)(lambda x: x).type_signature
                      .parameter, None)  # fmt: skip
    assert leaf.evaluate(np.int32(3)) == 4


@pytest.mark.parametrize(
    "qualname",
    [
        "outside.lazy.thing",
        "outside.imported",
        "imported",
        "Imported.run",
        "missing",
        "Group.missing",
        "Group.prop",
        "Group.made",
        "liar",
        "liar.method",
        "plain.__call__",
        "plain.__globals__",
        "guarded.__wrapped__",
        "leaf.__wrapped__",
        "alias",
        "RAN",
        "RAN.append",
        "Group.__class__",
        "__builtins__.eval",
        "__loader__",
        "",
        ".",
    ],
)
def test_anything_else_is_refused_and_nothing_runs_on_the_way(work, qualname):
    with pytest.raises(CarrierError, match=r"to be a function|Cannot find the function"):
        resolve_reference("referred_work", qualname)
    assert work.RAN == []
    assert work.outside.RAN == []


@pytest.mark.parametrize(
    "module",
    [
        "referred_package.__main__",
        "referred_package.__init__",
        "referred_package.",
        ".referred_package",
        "referred_package..__main__",
        "__main__",
        "",
        "referred_package/__main__",
    ],
)
def test_no_body_of_a_module_is_run_in_another_way_than_by_its_import(work, module):
    import referred_package  # noqa: F401

    with pytest.raises(CarrierError, match="Expected the name of an importable module"):
        resolve_reference(module, "plain")
    assert sys.referred_bodies == 1


@pytest.mark.parametrize(
    "allowed", ["*", "fedstack", "fedstack.computations", "fedstack.computations.leaves.function_pickles"]
)
def test_no_reference_reaches_into_fedstack_but_its_example(allowed):
    policy = CarrierPolicy(modules=[allowed])
    for module in (
        "fedstack",
        "fedstack.computations.leaves.function_pickles",
        "fedstack.service.pool.worker_pool",
    ):
        with pytest.raises(CarrierError, match="call it in a function of your own module"):
            policy.check_module(module, f"{module}:loads")
    assert policy.allows_module("fedstack.demo.training") is (allowed in ("*", "fedstack"))
    assert CarrierPolicy(modules=[allowed]).allows_module("fedstackers.work") is (allowed == "*")


@pytest.mark.parametrize("module", ["cloudpickle", "numpy", "torch.hub", "pandas.io", "IPython", "setuptools", "attr"])
def test_packages_that_load_code_or_touch_files_count_as_code(module):
    assert CarrierPolicy(modules=[module]).runs_anything
    with pytest.raises(CarrierError, match="call it in a function of your own module"):
        CarrierPolicy().check_module(module, f"{module}:anything")


def test_what_is_installed_with_fedstack_counts_as_code():
    """A worker has these, so whoever lists modules may come upon them."""
    from importlib import metadata

    seen, waiting = set(), ["fedstack"]
    while waiting:
        name = waiting.pop()
        for requirement in metadata.requires(name) or []:
            found = requirement.partition(";")[0].strip().split("[")[0]
            found = "".join(c if c.isalnum() or c in "-_." else " " for c in found).split()[0]
            if "extra ==" not in requirement and found not in seen:
                try:
                    metadata.distribution(found)
                except metadata.PackageNotFoundError:
                    continue
                seen.add(found)
                waiting.append(found)
    # By their files: what metadata say of packages differs between versions of Python.
    files = [file for name in seen for file in metadata.files(name) or [] if file.suffix == ".py"]
    packages = {file.parts[0].removesuffix(".py") for file in files}
    packages = {package for package in packages if package.isidentifier()}
    assert {"numpy", "google", "grpc"} <= packages
    harmless = {"tomli", "typing_extensions"}  # one is for Python 3.10 only, and reads data
    assert packages - AS_GOOD_AS_CODE - harmless == set()
