"""Rounds over simulated workers whose clients take time: crashes, stalls, joins and slow workers change no bit."""

import functools
import itertools
import random
from collections import Counter
from collections.abc import Collection

import federated_language as fl
import numpy as np

import fedstack
from fedstack.errors import LeafError
from fedstack.testing import SimulatedCluster, SimulatedFaults

ROUNDS = 3


# How often the functions of clients with some values still fail before they succeed.
flaky: Counter[float] = Counter()


def fail_if_flaky(value) -> None:
    if flaky[float(value)]:
        flaky[float(value)] -= 1
        raise ConnectionResetError(f"this time, at {value}")


@fedstack.python_computation(np.float32, np.float32)
def wobble(value):
    if value < 0:
        raise ZeroDivisionError(f"at {value}")
    fail_if_flaky(value)
    return np.float32(np.sin(value) * 1e3)


@fedstack.python_computation([np.float32, np.float32], np.float32)
def difference(value, mean):
    return value - mean


@fedstack.python_computation([np.float32, np.float32], np.float32)
def mixed(left, right):
    return left * np.float32(0.7) + right


@fedstack.python_computation(np.float32, np.float32)
def reported(total):
    return total


@fl.federated_computation(fl.FederatedType(np.float32, fl.CLIENTS))
def spread(values):
    """Two phases: the second needs the mean of the first, and folds with functions that do not commute."""
    wobbled = fl.federated_map(wobble, values)
    mean = fl.federated_broadcast(fl.federated_mean(wobbled))
    return (
        fl.federated_sum(fl.federated_map(difference, (wobbled, mean))),
        fl.federated_aggregate(wobbled, np.float32(0.3), mixed, mixed, reported),
        wobbled,
    )


def values_of(number: int, clients: int, failing: Collection[int] = ()) -> list[np.float32]:
    """Returns the values of clients, which are negative where clients fail."""
    return [np.float32(-1 - client if client in failing else client + 100 * number) / 10 for client in range(clients)]


def bits(result: object) -> bytes:
    total, mixture, wobbled = result
    return b"".join(np.asarray(part).tobytes() for part in (total, mixture, *wobbled))


@functools.cache
def expected(number: int, clients: int) -> bytes:
    """Returns the bits of a round in this process."""
    with fedstack.create_sync_local_execution_context() as context, fedstack.use_context(context):
        return bits(spread(values_of(number, clients)))


def seconds_of(seed: int, number: int, client: int) -> float:
    """Returns how long a client takes: a little, and a few of them long."""
    chance = random.Random(f"{seed} {number} {client}")
    return chance.expovariate(4.0) if chance.random() < 0.9 else chance.uniform(1.0, 3.0)


def rough_faults(chance: random.Random) -> SimulatedFaults:
    """Draws what happens to workers and messages."""
    return SimulatedFaults(
        slow_rate=chance.choice([0.0, 0.02]),
        lost_rate=chance.choice([0.0, 0.02]),
        answer_lost_rate=chance.choice([0.0, 0.02]),
        doubled_rate=chance.choice([0.0, 0.02]),
        crash_seconds=chance.choice([float("inf"), 60.0, 20.0]),
        restart_seconds=(0.05, 3.0),
        part_seconds=chance.choice([float("inf"), 40.0]),
        stall_seconds=chance.choice([float("inf"), 20.0, 8.0]),
        resume_seconds=(0.05, 20.0),
        drain_seconds=chance.choice([float("inf"), 30.0]),
        grace_seconds=chance.choice([(0.0, 1.0), (0.5, 20.0)]),
        join_seconds=chance.choice([(0.0, 0.0), (0.0, 5.0)]),
    )


def elastic_rounds(seed: int, faults: SimulatedFaults | None = None) -> SimulatedCluster:
    """Plays rounds on a cluster that the seed draws; each ends, with the bits of a local run, or the first error."""
    chance = random.Random(seed)
    workers, clients = chance.randint(1, 5), chance.randint(1, 60)
    failing = [chance.sample(range(clients), chance.choice([0, 0, 0, 1, 2]) % (clients + 1)) for _ in range(ROUNDS)]
    wanted = [expected(number, clients) for number in range(ROUNDS)]  # before threads are simulated
    rough = rough_faults(chance)
    cluster = SimulatedCluster(
        workers,
        seed,
        faults or rough,
        client_seconds=seconds_of,
        speeds=[chance.choice([1.0, 1.0, 1.0, 0.25]) for _ in range(workers)],
        slots=chance.choice([1, 2, 8]),
    )

    async def program(cluster: SimulatedCluster) -> None:
        factory = fedstack.remote_executor_factory(cluster.stubs(), connect_seconds=300.0)
        policy = fedstack.RetryPolicy(attempts=1000, longest_pause=0.5)
        context = fedstack.contexts.AsyncExecutionContext(factory, retry_policy=policy)
        for number in range(ROUNDS):
            cluster.round = number
            values = values_of(number, clients, failing[number])
            try:
                with fedstack.use_context(context):
                    found = bits(await spread(values))
            except LeafError as error:
                assert error.client_index == min(failing[number], default=-1), f"{error} of {failing[number]}"
            else:
                assert not failing[number], f"round {number} has no error of {failing[number]}"
                assert found == wanted[number], f"round {number} has other bits"
            cluster.say(f"round {number} has ended")
        context.close()

    cluster.run(program)
    return cluster


@fedstack.python_computation([np.float32, np.float32], np.float32)
def picky_difference(value, mean):
    """Fails for the values that `wobble` makes of some clients: in the second phase, since it has the mean."""
    if value > 900:
        raise KeyError(f"at {value}")
    fail_if_flaky(value)
    return value - mean


@fl.federated_computation(fl.FederatedType(np.float32, fl.CLIENTS))
def surviving_spread(values):
    """Like `spread`, with clients that fail in the second phase, too."""
    wobbled = fl.federated_map(wobble, values)
    mean = fl.federated_broadcast(fl.federated_mean(wobbled))
    differences = fl.federated_map(picky_difference, (wobbled, mean))
    return (
        fl.federated_aggregate(wobbled, np.float32(0.3), mixed, mixed, reported),
        fl.federated_sum(differences),
        fl.federated_aggregate(differences, np.float32(0.3), mixed, mixed, reported),
        fl.federated_mean(differences, wobbled),
        differences,
    )


def told(result: object) -> tuple[bytes, dict[int, tuple[int, str]]]:
    """Returns the bits of a result, and who failed in which phase with which error."""
    *totals, differences = result
    failed = {one.client: (one.phase, str(one.error)) for one in differences if isinstance(one, fedstack.ClientFailure)}
    left = [one for one in differences if not isinstance(one, fedstack.ClientFailure)]
    return b"".join(np.asarray(part).tobytes() for part in (*totals, *left)), failed


def surviving_rounds(seed: int, faults: SimulatedFaults | None = None) -> SimulatedCluster:
    """Plays rounds whose clients fail, under a policy that tolerates it; each ends with the bits of a local run.

    Some clients fail once or twice, and succeed on another try.
    """
    chance = random.Random(f"survivors {seed}")
    workers, clients = chance.randint(1, 5), chance.randint(1, 60)
    policy = fedstack.ClientFailures(min_clients=0, retries=chance.choice([0, 0, 1, 2]))
    rounds = []
    for number in range(ROUNDS):
        share = chance.choice([0.0, 0.05, 0.3, 1.0])
        failing = [client for client in range(clients) if chance.random() < share]
        rounds.append(values_of(number, clients, failing))
    with fedstack.create_sync_local_execution_context(client_failures=policy):
        wanted = [told(surviving_spread(values)) for values in rounds]  # before threads are simulated
    flaky.clear()
    for value in itertools.chain.from_iterable(rounds):
        flaky[float(value)] = chance.randint(0, policy.retries)
        flaky[float(np.float32(np.sin(value) * 1e3))] = chance.randint(0, policy.retries)
    cluster = SimulatedCluster(
        workers,
        seed,
        faults or rough_faults(chance),
        client_seconds=seconds_of,
        speeds=[chance.choice([1.0, 1.0, 1.0, 0.25]) for _ in range(workers)],
        slots=chance.choice([1, 2, 8]),
    )

    async def program(cluster: SimulatedCluster) -> None:
        factory = fedstack.remote_executor_factory(cluster.stubs(), connect_seconds=300.0)
        context = fedstack.contexts.AsyncExecutionContext(
            factory, retry_policy=fedstack.RetryPolicy(attempts=1000, longest_pause=0.5), client_failures=policy
        )
        for number, values in enumerate(rounds):
            cluster.round = number
            with fedstack.use_context(context):
                found, failed = told(await surviving_spread(values))
            bits_wanted, failed_wanted = wanted[number]
            assert failed.keys() == failed_wanted.keys(), f"round {number}: {failed} failed instead of {failed_wanted}"
            assert {one: what[0] for one, what in failed.items()} == {
                one: what[0] for one, what in failed_wanted.items()
            }
            assert found == bits_wanted, f"round {number} has other bits"
            cluster.say(f"round {number} has ended")
        context.close()

    cluster.run(program)
    return cluster


def ending_rounds(seed: int, faults: SimulatedFaults | None = None) -> SimulatedCluster:
    """Plays rounds that do not wait for all clients; each has the bits of a local run of what was recorded of it."""
    chance = random.Random(f"endings {seed}")
    workers, clients = chance.randint(1, 5), chance.randint(1, 60)
    enough = chance.choice([0.3, 0.6, 0.9, chance.randint(1, 60)])
    policy = fedstack.ClientFailures(min_clients=0, enough=enough, retries=chance.choice([0, 1]))
    rounds = []
    for number in range(ROUNDS):
        share = chance.choice([0.0, 0.05, 0.3])
        failing = [client for client in range(clients) if chance.random() < share]
        rounds.append(values_of(number, clients, failing))
    cluster = SimulatedCluster(
        workers,
        seed,
        faults or rough_faults(chance),
        client_seconds=seconds_of,
        speeds=[chance.choice([1.0, 1.0, 1.0, 0.25]) for _ in range(workers)],
        slots=chance.choice([1, 2, 8]),
    )
    found: list[object] = []
    flaky.clear()

    async def program(cluster: SimulatedCluster) -> fedstack.ClientOutcomes:
        factory = fedstack.remote_executor_factory(cluster.stubs(), connect_seconds=300.0)
        context = fedstack.contexts.AsyncExecutionContext(
            factory, retry_policy=fedstack.RetryPolicy(attempts=1000, longest_pause=0.5), client_failures=policy
        )
        with fedstack.use_context(context), fedstack.client_outcomes() as outcomes:
            for number, values in enumerate(rounds):
                cluster.round = number
                found.append(told(await surviving_spread(values)))
                cluster.say(f"round {number} has ended")
        context.close()
        return outcomes

    outcomes = cluster.run(program)
    for number in range(ROUNDS):
        for phase in outcomes.of_call(number).phases:
            kinds = Counter(one.kind for one in phase.values())
            assert len(phase) == clients, f"round {number} tells of {len(phase)} clients"
            if kinds["late"]:
                assert kinds["done"] >= policy.enough_of(clients - kinds["absent"]), f"round {number}: {kinds}"
    replayed = fedstack.ClientFailures(min_clients=0, replay=outcomes)
    with fedstack.create_sync_local_execution_context(client_failures=replayed):
        for number, values in enumerate(rounds):
            assert told(surviving_spread(values)) == found[number], f"round {number} has other bits"
    return cluster
