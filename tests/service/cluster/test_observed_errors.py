"""What TensorFlow's Server and ClusterSpec were seen to do with mistakes, row by row, and what ours do.

Rows that are about more than one call stand in `test_server.py`: a port in use, names of hosts, all interfaces, start
and join, the port of a definition, and that a port is free once its server has stopped or is gone.
"""

import socket

import pytest

from fedstack.errors import AddressError, InvalidValueError, MembershipError, TypeMismatchError
from fedstack.service import ClusterSpec, Server, ServerDef

TWO = {"worker": ["localhost:7001", "localhost:7002"]}


def made(cluster):
    return lambda: ClusterSpec(cluster)


def server(*arguments, **options):
    return lambda: Server(*arguments, **options)


@pytest.mark.parametrize(
    ("make", "expected", "message"),
    [
        pytest.param(*row, id=observed)
        for observed, *row in [
            # of ClusterSpec
            ("a text of tasks: TypeError", made({"worker": "w:1"}), TypeMismatchError, "of job 'worker' as a list or"),
            ("a set of tasks: TypeError", made({"worker": {"w:1"}}), TypeMismatchError, "of job 'worker' as a list or"),
            ("no tasks: TypeError", made({"worker": None}), TypeMismatchError, "of job 'worker' as a list or tuple"),
            (
                "a job's name no text: TypeError",
                made({1: ["w:1"]}),
                TypeMismatchError,
                "Expected job names as text",
            ),
            ("an address no text: TypeError", made({"worker": [1]}), TypeMismatchError, "for task 0 of job 'worker'"),
            ("a negative index: taken", made({"worker": {-1: "w:1"}}), InvalidValueError, "to be at least 0, found -1"),
            ("an address twice: taken", made({"worker": ["w:1", "w:1"]}), InvalidValueError, "for task 1 of job 'work"),
            ("an empty address: taken", made({"worker": [""]}), InvalidValueError, "for task 0 of job 'worker'"),
            (
                "what is no address: taken",
                made({"worker": ["w:1", "?"]}),
                InvalidValueError,
                "for task 1 of job 'worker'",
            ),
            ("an unknown job: ValueError", lambda: ClusterSpec(TWO).num_tasks("ps"), MembershipError, "found 'ps'"),
            (
                "an unknown task: ValueError",
                lambda: ClusterSpec(TWO).task_address("worker", 2),
                MembershipError,
                "found 2",
            ),
            # of Server
            ("a job not there, no index: ValueError", server(TWO, "ps"), MembershipError, "found 'ps'"),
            ("a job not there, an index: InternalError", server(TWO, "ps", 0), MembershipError, "found 'ps'"),
            ("an index not there: InternalError", server(TWO, "worker", 3), MembershipError, "(0, 1), found 3"),
            ("a negative index: InternalError", server(TWO, "worker", -1), MembershipError, "(0, 1), found -1"),
            ("no job, though several: ValueError", server({**TWO, "ps": []}), MembershipError, "Expected job_name"),
            ("no index, though several: ValueError", server(TWO, "worker"), MembershipError, "Expected task_index"),
            ("no port: InvalidArgumentError", server({"worker": ["localhost"]}), InvalidValueError, "with a port"),
            (
                "a word as port: InvalidArgumentError",
                server({"a": ["localhost:x"]}),
                InvalidValueError,
                "task 0 of job 'a'",
            ),
            (
                "port 99999: taken",
                server({"a": ["localhost:99999"]}),
                InvalidValueError,
                "from 0 to 65535, found 99999",
            ),
            (
                "a host not there: taken",
                server({"a": ["no.invalid:0"]}, config=None),
                InvalidValueError,
                "Expected TLS",
            ),
            (
                "a protocol not there: NotFoundError",
                server(TWO, "worker", 0, "rdma"),
                InvalidValueError,
                "Expected 'grpc'",
            ),
            (
                "an empty definition: NotFoundError",
                server(ServerDef({})),
                MembershipError,
                "Expected a cluster with jobs",
            ),
            ("something else: TypeError", server(3), TypeMismatchError, "Expected a cluster as a ClusterSpec"),
        ]
    ],
)
def test_a_mistake_has_an_error_of_ours_that_names_it(make, expected, message):
    with pytest.raises(expected) as caught:
        make()
    assert type(caught.value) is expected
    assert message in str(caught.value)


def test_a_port_in_use_is_told_where_the_original_says_unknown_error():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AddressError, match=f"^Port {port} of 127.0.0.1 is in use; stop the process that"):
            Server({"worker": [f"127.0.0.1:{port}"]})


def test_nobody_is_connected_to_a_server_before_it_starts():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        waiting = Server({"worker": [f"127.0.0.1:{port}"]}, start=False)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        waiting.stop()


def test_what_the_original_gets_wrong_about_its_own_specs_is_right():
    empty = ClusterSpec({"worker": []})
    assert empty.job_tasks("worker") == []  # there: max() arg is an empty sequence
    for spec in (empty, ClusterSpec(TWO), ClusterSpec({"worker": {3: "w:1"}})):
        assert spec == spec.as_dict()  # there: False
        assert hash(spec) == hash(ClusterSpec(spec))  # there: unhashable
