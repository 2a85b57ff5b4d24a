"""What may have bugs planted in it, and what is to find them: fast tests first, then simulations."""

import attrs

_BACKENDS = "tests/backends"
_DATA = "tests/service/data"
_MEMBERSHIP = "tests/membership"
_COORDINATOR = "tests/service/coordinator"
_PEERS = "tests/transport/peers"


@attrs.frozen
class Tests:
    """Tests that run in this order, as pytest names them."""

    names: tuple[str, ...]


@attrs.frozen
class Seeds:
    """A simulated program, and how many seeds it gets, from zero on."""

    program: str
    count: int


@attrs.frozen
class Machine:
    """What decides something over time.

    Attributes:
      paths: Its modules, from the root of the repository.
      finders: What is to find bugs in it, in this order.
    """

    paths: tuple[str, ...]
    finders: tuple[Tests | Seeds, ...]


MACHINES = (
    Machine(
        (
            "fedstack/service/data/dispatcher/journal.py",
            "fedstack/service/data/dispatcher/ledger.py",
            "fedstack/service/data/dispatcher/definition_files.py",
        ),
        (
            Tests(
                (
                    f"{_DATA}/dispatcher/test_ledger.py",
                    f"{_DATA}/dispatcher/test_definition_files.py",
                    f"{_DATA}/dispatcher/test_journal_format.py",
                )
            ),
            Tests(
                (
                    f"{_DATA}/dispatcher/test_journal.py",
                    f"{_DATA}/dispatcher/test_private_folder.py",
                    f"{_DATA}/dispatcher/test_lost_commits.py",
                )
            ),
            Seeds("passes", 12),
        ),
    ),
    Machine(
        ("fedstack/service/data/dispatcher/passes.py", "fedstack/service/data/dispatcher/ranges.py"),
        (
            Tests(
                (
                    f"{_DATA}/dispatcher/test_ranges.py",
                    f"{_DATA}/dispatcher/test_passes.py",
                    f"{_DATA}/dispatcher/test_journal_format.py",
                )
            ),
            Tests((f"{_DATA}/dispatcher/test_dispatch_service.py", f"{_DATA}/dispatcher/test_copies.py")),
            Seeds("passes", 10),
            Tests((f"{_DATA}/dispatcher/test_range_rules.py", f"{_DATA}/dispatcher/test_dispatcher_fuzz.py")),
        ),
    ),
    Machine(
        ("fedstack/service/data/consumer/pass_plan.py", "fedstack/service/data/consumer/acknowledgements.py"),
        (
            Tests(
                (
                    f"{_DATA}/consumer/test_acknowledgements.py",
                    f"{_DATA}/consumer/test_what_a_pass_takes.py",
                    f"{_DATA}/consumer/test_who_reads_in_a_pass.py",
                    f"{_DATA}/consumer/test_pass_plan.py",
                )
            ),
            Seeds("passes", 20),
        ),
    ),
    Machine(
        (
            "fedstack/service/coordinator/scheduler.py",
            "fedstack/service/coordinator/queues.py",
            "fedstack/service/coordinator/losses.py",
        ),
        (
            Tests(
                (
                    f"{_COORDINATOR}/test_scheduler.py",
                    f"{_COORDINATOR}/test_scheduler_losses.py",
                    f"{_COORDINATOR}/test_scheduler_order.py",
                    f"{_COORDINATOR}/test_scheduler_fetches.py",
                    f"{_COORDINATOR}/test_slow_places.py",
                    f"{_COORDINATOR}/test_pace.py",
                    f"{_COORDINATOR}/test_unequal_workers.py",
                )
            ),
            Seeds("scheduled_calls", 10),
            Tests((f"{_COORDINATOR}/test_scheduler_machine.py",)),
            Seeds("scheduled_calls", 10),
            Seeds("calls_that_are_not_repeated", 10),
        ),
    ),
    Machine(
        ("fedstack/backends/elastic/assignments.py", "fedstack/backends/elastic/balance.py"),
        (Tests((f"{_BACKENDS}/test_assignments.py", f"{_BACKENDS}/test_balance.py")), Seeds("elastic_rounds", 30)),
    ),
    Machine(
        ("fedstack/backends/elastic/early_end.py", "fedstack/executors/survivors/ending.py"),
        (Tests((f"{_BACKENDS}/test_early_end.py",)), Seeds("ending_rounds", 30)),
    ),
    Machine(
        ("fedstack/membership/members.py", "fedstack/membership/waits.py"),
        (
            Tests(
                (
                    f"{_MEMBERSHIP}/test_members.py",
                    f"{_MEMBERSHIP}/test_waits.py",
                    f"{_MEMBERSHIP}/test_members_machine.py",
                )
            ),
            Seeds("rounds", 10),
        ),
    ),
    Machine(
        ("fedstack/membership/ledger.py", "fedstack/membership/search.py"),
        (Tests((f"{_MEMBERSHIP}/test_loss_ledger.py", f"{_MEMBERSHIP}/test_search_for_culprits.py")),),
    ),
    Machine(
        ("fedstack/transport/peers/leases.py", "fedstack/transport/peers/retry.py"),
        (Tests((f"{_PEERS}/test_leases.py", f"{_PEERS}/test_retry.py")), Seeds("kept_values", 10), Seeds("rounds", 10)),
    ),
)
