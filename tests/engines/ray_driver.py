"""Drivers of Ray that tests run in a process of their own: `python ray_driver.py wait FOLDER`."""

import sys

import ray
from ray_calls import checked, held_up, numbers, processes

import fedstack
from fedstack.errors import NoWorkersError

HALF = {"num_workers": 2, "resources_per_worker": {"CPU": 0.5}}
QUIET = {"log_to_driver": False, "logging_level": "ERROR"}


def again() -> None:
    """Calls before anybody has initialised Ray, and after it was shut down."""
    with fedstack.create_sync_ray_execution_context(**HALF):
        before = set(processes(numbers(1)))
        assert ray.is_initialized()
        ray.shutdown()
        ray.init(**QUIET)
        after = set(processes(numbers(1)))
        print(len(before), len(after), before.isdisjoint(after), flush=True)
    ray.shutdown()


def shut_down() -> None:
    """Calls after Ray was shut down, and after the next local cluster, in which all has the same numbers, was begun."""
    local = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 80_000_000, **QUIET}

    def call(computation, *arguments) -> None:
        try:
            print(computation(*arguments), ray.is_initialized(), flush=True)
        except NoWorkersError as error:
            print(str(error).splitlines()[0], ray.is_initialized(), flush=True)

    ray.init("local", **local)
    with fedstack.create_sync_ray_execution_context(**HALF):
        call(checked, numbers(5))
        ray.shutdown()
        call(checked, numbers(5))
        ray.init("local", **local)
        call(checked, numbers(5))
    print("closed", flush=True)


def wait(folder: str) -> None:
    """Says in which processes clients run, and waits for them."""
    with fedstack.create_sync_ray_execution_context(**HALF):
        print(*set(processes(numbers(4))), flush=True)
        held_up(folder, numbers(4))


if __name__ == "__main__":
    {"again": again, "shut_down": shut_down, "wait": wait}[sys.argv[1]](*sys.argv[2:])
