"""Drivers of Ray that tests run in a process of their own: `python ray_driver.py wait FOLDER`."""

import sys
import threading
from pathlib import Path

import ray
from ray_calls import PATIENCE_SECONDS, checked, held_up, numbers, processes, wait_until

import fedstack
from fedstack.backends.ray_cluster import ray_workers
from fedstack.errors import NoWorkersError

HALF = {"num_workers": 2, "resources_per_worker": {"CPU": 0.5}}


def shut_down(folder: str) -> None:
    """Calls before anybody has initialised Ray, after it was shut down, after it was again, and meanwhile."""

    def call(computation, *arguments) -> None:
        try:
            print(computation(*arguments), ray.is_initialized(), flush=True)
        except NoWorkersError as error:
            print(str(error).splitlines()[0], ray.is_initialized(), flush=True)

    def cut() -> None:
        wait_until(lambda: any(Path(folder).glob("here-*")), "clients are at work")
        ray.shutdown()

    with fedstack.create_sync_ray_execution_context(**HALF):
        call(checked, numbers(5))
        ray.shutdown()
        call(checked, numbers(5))
        ray.init(log_to_driver=False, logging_level="ERROR")
        call(checked, numbers(5))
        thread = threading.Thread(target=cut)
        thread.start()
        call(held_up, folder, numbers(4))
        thread.join()
    print("closed", flush=True)


def wait(folder: str) -> None:
    """Says in which processes clients run, and waits for them."""
    ray_workers._OTHERS_SECONDS = PATIENCE_SECONDS
    with fedstack.create_sync_ray_execution_context(**HALF):
        print(*set(processes(numbers(4))), flush=True)
        held_up(folder, numbers(4))


def start() -> None:
    """Calls where nobody has initialised Ray, and again when the thread that did so has had the time to end."""
    starters: list[threading.Thread] = []
    init = ray.init

    def noted() -> None:
        starters.append(threading.current_thread())
        init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")

    def call() -> None:
        with fedstack.use_context(context):
            print(checked(numbers(5)), flush=True)

    ray.init = noted
    with fedstack.create_sync_ray_execution_context(num_workers=1) as context:
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        starters[0].join(3.0)  # threads that only wait for work end after one second
        print(starters[0].is_alive(), flush=True)  # Linux ends what a thread has started together with it
        call()


if __name__ == "__main__":
    {"shut_down": shut_down, "start": start, "wait": wait}[sys.argv[1]](*sys.argv[2:])
