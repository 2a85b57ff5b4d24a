"""Names of packages that are imported when they are first asked for."""

import subprocess
import sys

import pytest

import fedstack.service.data
import fedstack.service.rpc
import fedstack.testing


def test_a_name_is_what_its_module_has() -> None:
    from fedstack.service.data.datasets.dataset import Dataset

    assert fedstack.service.data.Dataset is Dataset
    assert vars(fedstack.service.data)["Dataset"] is Dataset  # asked for once


def test_a_name_that_a_package_does_not_have_is_an_attribute_error_with_its_name() -> None:
    with pytest.raises(AttributeError, match="module 'fedstack.testing' has no attribute 'check_stacks'"):
        _ = fedstack.testing.check_stacks


@pytest.mark.parametrize(
    "package",
    [fedstack.service, fedstack.service.data, fedstack.service.rpc, fedstack.testing],
    ids=lambda one: one.__name__,
)
def test_the_names_of_a_package_are_listed_before_they_are_asked_for_and_nothing_else_is(package) -> None:
    subpackages = {"coordinator", "data", "rpc"} if package is fedstack.service else set()
    assert {name for name in dir(package) if not name.startswith("__")} == {*package.__all__, *subpackages}


def test_a_name_that_is_like_one_of_a_package_is_answered_with_that_one() -> None:
    code = "import fedstack.service.data\nfedstack.service.data.DataSet"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "Did you mean: 'Dataset'?" in done.stderr


def test_nothing_is_imported_before_it_is_asked_for() -> None:
    code = (
        "import sys, fedstack.service.data, fedstack.testing\n"
        "assert 'grpc' not in sys.modules\n"
        "assert 'fedstack.testing.conformance' not in sys.modules\n"
        "fedstack.service.GrpcServer\n"
        "assert 'grpc' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
