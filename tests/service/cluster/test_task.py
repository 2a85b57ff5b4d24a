"""Which task a server is: what is named counts, the only one need not be."""

import pytest

from fedstack.errors import InvalidValueError, MembershipError, TypeMismatchError
from fedstack.service.cluster.task import task_of
from fedstack.transport.wire.cluster_spec import ClusterDef, ClusterSpec, ServerDef

TWO_JOBS = {"worker": ["w0:1", "w1:1"], "ps": {5: "p5:1"}}


@pytest.mark.parametrize("cluster", [TWO_JOBS, ClusterDef(TWO_JOBS), ClusterSpec(TWO_JOBS), ServerDef(TWO_JOBS)])
def test_job_and_task_are_named_whatever_the_cluster_is_made_of(cluster):
    assert task_of(cluster, "worker", 1) == ServerDef(TWO_JOBS, "worker", 1)


def test_the_only_job_and_the_only_task_need_no_name():
    assert task_of({"worker": ["w0:1"]}) == ServerDef({"worker": ["w0:1"]}, "worker", 0)
    assert task_of(TWO_JOBS, "ps") == ServerDef(TWO_JOBS, "ps", 5)
    assert task_of({"ps": {7: "p7:1"}}) == ServerDef({"ps": {7: "p7:1"}}, "ps", 7)


def test_arguments_win_over_a_definition_which_stays_as_it_is():
    given = ServerDef(TWO_JOBS, "worker", 0)
    assert task_of(given) == given
    assert task_of(given, task_index=1) == ServerDef(TWO_JOBS, "worker", 1)
    assert task_of(given, "ps", 5) == ServerDef(TWO_JOBS, "ps", 5)
    assert given == ServerDef(TWO_JOBS, "worker", 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((TWO_JOBS,), "Expected job_name for a cluster with 2 jobs, found none; pass one of 'worker', 'ps'"),
        ((TWO_JOBS, None, 0), "Expected job_name for a cluster with 2 jobs"),
        ((TWO_JOBS, "worker"), "Expected task_index for job 'worker' with 2 tasks, found none; pass one of 0, 1"),
        (({},), "Expected a cluster with jobs, found an empty cluster"),
        (({"worker": []},), "The job 'worker' has no tasks"),
        ((TWO_JOBS, "chief"), "Expected a job of the cluster ('worker', 'ps'), found 'chief'"),
        ((TWO_JOBS, "chief", 0), "Expected a job of the cluster ('worker', 'ps'), found 'chief'"),
        ((TWO_JOBS, "worker", 2), "Expected the index of a task of job 'worker' (0, 1), found 2"),
        ((TWO_JOBS, "worker", -1), "Expected the index of a task of job 'worker' (0, 1), found -1"),
        ((TWO_JOBS, "ps", 0), "Expected the index of a task of job 'ps' (5), found 0"),
        ((ServerDef(TWO_JOBS, "worker", 3),), "Expected the index of a task of job 'worker' (0, 1), found 3"),
    ],
)
def test_all_that_is_wrong_with_membership_is_one_class_of_error(arguments, message):
    with pytest.raises(MembershipError) as caught:
        task_of(*arguments)
    assert message in str(caught.value)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("protocol", ["grpc+verbs", "http", "", 3])
def test_there_is_one_protocol(protocol):
    with pytest.raises(InvalidValueError, match="Expected 'grpc' as protocol, found"):
        task_of({"worker": ["w:1"]}, protocol=protocol)
    assert task_of({"worker": ["w:1"]}, protocol="grpc").protocol == "grpc"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((None,), "Expected a cluster as a ClusterSpec"),
        (("localhost:1",), "Expected a cluster as a ClusterSpec"),
        ((TWO_JOBS, 3), "Expected job names as text, found int 3"),
        ((TWO_JOBS, "worker", "0"), "Expected the index of a task as a whole number, found str '0'"),
        ((TWO_JOBS, "worker", True), "Expected the index of a task as a whole number, found bool True"),
    ],
)
def test_what_is_of_another_type_is_refused(arguments, message):
    with pytest.raises(TypeMismatchError) as caught:
        task_of(*arguments)
    assert message in str(caught.value)
