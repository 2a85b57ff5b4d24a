"""What asks for Ray where it is not installed."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("found", ["None", "types.ModuleType('ray')"], ids=["nothing", "a folder of that name"])
def test_who_asks_for_ray_is_told_what_to_install(found: str) -> None:
    code = (
        "import sys, types, fedstack\n"
        f"sys.modules['ray'] = {found}\n"
        "for name in ('ray_executor_factory', 'create_sync_ray_execution_context'):\n"
        "    try:\n"
        "        getattr(fedstack, name)()\n"
        "    except ImportError as error:\n"
        "        print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ['Ray is not installed: pip install "fedstack[ray]"'] * 2
