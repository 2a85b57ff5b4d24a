"""Which tasks a cluster has: every way to say it, and a reason for each way that cannot be right."""

import copy
import json
import pickle
from collections import OrderedDict

import numpy as np
import pytest

from fedstack.errors import InvalidValueError, MembershipError, TypeMismatchError
from fedstack.transport.wire.addresses import Target, TargetResolver
from fedstack.transport.wire.cluster_spec import ClusterDef, ClusterSpec, ServerDef

DENSE = {"worker": ["w0:1", "w1:1"], "ps": ["p0:1"]}
SPARSE = {"worker": {1: "w1:1", 3: "w3:1"}}
TOML = """
[cluster]
ps = ["p0:1"]

[cluster.worker]
0 = "w0:1"
1 = "w1:1"
"""


@pytest.mark.parametrize(
    "cluster",
    [
        DENSE,
        {"worker": ("w0:1", "w1:1"), "ps": ("p0:1",)},
        {"worker": {1: "w1:1", 0: "w0:1"}, "ps": {"0": "p0:1"}},
        {"worker": {np.int64(0): "w0:1", 1: "w1:1"}, "ps": ["p0:1"]},
        OrderedDict(ps=["p0:1"], worker=["w0:1", "w1:1"]),
        ClusterDef(DENSE),
        ClusterSpec(DENSE),
        ClusterDef(ClusterSpec(DENSE)),
    ],
    ids=repr,
)
def test_a_cluster_is_made_of_whatever_has_its_tasks(cluster):
    spec = ClusterSpec(cluster)
    assert spec == ClusterSpec(DENSE)
    assert spec == DENSE
    assert spec.as_cluster_def() == ClusterDef(DENSE)
    assert hash(spec) == hash(ClusterSpec(DENSE))


def test_a_spec_tells_its_jobs_and_tasks():
    spec = ClusterSpec(DENSE)
    assert spec.jobs == ["worker", "ps"]
    assert [spec.num_tasks(job) for job in spec.jobs] == [2, 1]
    assert spec.task_indices("worker") == [0, 1]
    assert spec.task_address("worker", 1) == "w1:1"
    assert spec.job_tasks("worker") == ["w0:1", "w1:1"]
    assert spec.as_dict() == DENSE
    assert spec


def test_a_job_with_holes_tells_where_they_are():
    spec = ClusterSpec(SPARSE)
    assert spec.num_tasks("worker") == 2
    assert spec.task_indices("worker") == [1, 3]
    assert spec.job_tasks("worker") == [None, "w1:1", None, "w3:1"]
    assert spec.as_dict() == SPARSE
    assert spec == SPARSE


def test_an_empty_job_has_no_tasks_and_an_empty_cluster_no_jobs():
    spec = ClusterSpec({"worker": []})
    assert spec.job_tasks("worker") == [] == spec.task_indices("worker")
    assert spec.num_tasks("worker") == 0
    assert spec == spec.as_dict() == ClusterSpec({"worker": {}}).as_dict()
    assert spec
    assert not ClusterSpec({})


@pytest.mark.parametrize("cluster", [DENSE, SPARSE, {"worker": []}, {}], ids=repr)
def test_a_spec_equals_its_own_dictionary_and_nothing_else(cluster):
    spec = ClusterSpec(cluster)
    assert spec == spec.as_dict()
    assert spec.as_dict() == spec
    assert spec != {"other": ["o:1"]}
    assert spec != {"worker": "no cluster"}
    assert spec != "text"
    assert ClusterSpec(spec.as_dict()) == spec


def test_nothing_that_was_given_or_returned_changes_a_spec():
    given = {"worker": ["w0:1"]}
    spec = ClusterSpec(given)
    given["worker"].append("w1:1")
    spec.as_dict()["worker"].append("w2:1")
    spec.jobs.append("more")
    assert spec == {"worker": ["w0:1"]}
    with pytest.raises(TypeError):
        spec.as_cluster_def().jobs["worker"] = {}
    with pytest.raises(AttributeError):
        spec.as_cluster_def().jobs = {}
    with pytest.raises(AttributeError):
        ServerDef(spec).job_name = "worker"


def test_specs_and_definitions_can_be_copied_pickled_and_printed():
    for each in (ClusterSpec(SPARSE), ClusterDef(DENSE), ServerDef(DENSE, "worker", 1), ClusterSpec(DENSE).job("ps")):
        assert pickle.loads(pickle.dumps(each)) == each == copy.deepcopy(each)
        assert len({each, copy.copy(each)}) == 1
    assert repr(ClusterSpec(SPARSE)) == "ClusterSpec({'worker': {1: 'w1:1', 3: 'w3:1'}})"
    assert repr(ClusterDef(SPARSE)) == "ClusterDef({'worker': {1: 'w1:1', 3: 'w3:1'}})"


# What the original accepts of these stands in `tests/service/cluster/test_observed_errors.py`.
@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        (None, "a ClusterDef or a dictionary of jobs, such as {'worker': ['localhost:8000']}, found None"),
        (["w:1"], "Expected a cluster as a ClusterSpec"),
        ({"worker": "w:1"}, "Expected the tasks of job 'worker' as a list or tuple of addresses, or a dictionary from"),
        ({"worker": "w:1"}, "found str 'w:1'; enclose it in [...]"),
        ({"worker": {"w:1"}}, "Expected the tasks of job 'worker' as a list"),
        ({"worker": None}, "Expected the tasks of job 'worker' as a list"),
        ({3: ["w:1"]}, "Expected job names as text, found int 3"),
        ({"worker": ["w:1", 8000]}, "Expected an address as text for task 1 of job 'worker', found int 8000"),
        ({"worker": [None, "w:1"]}, "for task 0 of job 'worker', found None; omit the task and write {index: address}"),
        ({"worker": {1.5: "w:1"}}, "Expected task indices of job 'worker' as whole numbers, found float 1.5"),
        ({"worker": {True: "w:1"}}, "Expected task indices of job 'worker' as whole numbers, found bool True"),
    ],
)
def test_what_is_of_another_type_is_refused_naming_job_and_task(cluster, message):
    with pytest.raises(TypeMismatchError) as caught:
        ClusterSpec(cluster)
    assert message in str(caught.value)
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        ({"": ["w:1"]}, "Expected job names consisting of letters, digits, '_', '-' and '.', found ''"),
        ({"my job": ["w:1"]}, "found 'my job'"),
        ({"worker": [""]}, "Expected the address of a server, found ''; write host:port"),
        (
            {"worker": ["w:1", "w"]},
            "Invalid address for task 1 of job 'worker': Expected an address with a port, found 'w'",
        ),
        ({"worker": ["w:http"]}, "for task 0 of job 'worker'"),
        ({"worker": ["w:99999"]}, "Expected a port from 0 to 65535, found 99999 in 'w:99999'"),
        (
            {"worker": ["0.0.0.0:1"]},
            "Expected an address for task 0 of job 'worker' that other tasks can dial, found '0.0.0.0:1', which",
        ),
        ({"worker": ["[::]:1"]}, "that other tasks can dial, found"),
        ({"worker": ["*:1"]}, "that other tasks can dial, found"),
        ({"worker": ["w:1", "w:01"]}, "for task 1 of job 'worker', found the address of task 0 of job 'worker': w:01"),
        ({"worker": ["[::1]:1", "[0:0::1]:1"]}, "found the address of task 0 of job 'worker': [0:0::1]:1"),
        ({"worker": {-1: "w:1"}}, "Expected task indices of job 'worker' to be at least 0, found -1"),
        ({"worker": {10**9: "w:1"}}, "Expected task indices of job 'worker' to be below 1000000, found 1000000000"),
        ({"worker": {"-1": "w:1"}}, "Expected task indices of job 'worker' to be at least 0, found -1"),
        ({"worker": {"one": "w:1"}}, "Expected task indices of job 'worker' as whole numbers, found str 'one'"),
        ({"worker": {1: "w:1", "1": "v:1"}}, "each task of job 'worker' to be listed once, found task 1 twice"),
        (
            {"worker": ["w:1", "v:1"], "ps": ["V:1"]},
            "Expected a unique address for task 0 of job 'ps', found the address of task 1 of job 'worker': V:1",
        ),
        ({"worker": ["localhost:1", "127.0.0.1:1"]}, "found the address of task 0 of job 'worker': 127.0.0.1:1"),
        ({"worker": ["localhost:1", "[::1]:1"]}, "found the address of task 0 of job 'worker': [::1]:1"),
        ({"worker": ["w.:1", "w:1"]}, "found the address of task 0 of job 'worker': w:1"),
        ({"worker": ["unix:/a", "unix:/./a"]}, "found the address of task 0 of job 'worker': unix:/./a"),
        ({"worker": ["unix:/a", "unix:///b/../a"]}, "found the address of task 0 of job 'worker'"),
        (
            {"worker": ["grpc://w:1", "grpcs://w:1"]},
            "for task 1 of job 'worker', found the address of task 0 of job 'worker'",
        ),
    ],
)
def test_what_cannot_be_right_is_refused_naming_job_and_task(cluster, message):
    with pytest.raises(InvalidValueError) as caught:
        ClusterSpec(cluster)
    assert message in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_several_tasks_may_ask_for_any_port():
    spec = ClusterSpec({"worker": ["localhost:0", "localhost:0"]})
    assert spec.job_tasks("worker") == ["localhost:0", "localhost:0"]


def test_an_unknown_job_or_task_is_named_with_those_that_are_there():
    spec = ClusterSpec(DENSE)
    for ask in (spec.num_tasks, spec.task_indices, spec.job_tasks, spec.job, lambda job: spec.task_address(job, 0)):
        with pytest.raises(MembershipError, match=r"Expected a job of the cluster \('worker', 'ps'\), found 'chief'"):
            ask("chief")
        with pytest.raises(MembershipError, match=r"Expected a job of the cluster \('worker', 'ps'\), found \['ps'\]"):
            ask(["ps"])
    for wrong, found in [(2, "2"), ("1", "str '1'"), (True, "bool True"), (1.0, "float 1.0"), ([0], "list")]:
        with pytest.raises(ValueError, match=rf"Expected the index of a task of job 'worker' \(0, 1\), found {found}"):
            spec.task_address("worker", wrong)
    assert spec.task_address("worker", np.int64(1)) == "w1:1"


def test_paths_of_sockets_differ_by_the_case_of_their_letters():
    assert ClusterSpec({"worker": ["unix:/tmp/a", "unix:/tmp/A"]}).num_tasks("worker") == 2


def test_a_job_stands_for_the_addresses_of_its_tasks():
    expected = (Target("w0:1"), Target("w1:1"))
    assert ClusterSpec(DENSE).job("worker").resolve() == expected
    assert isinstance(ClusterSpec(DENSE).job("worker"), TargetResolver)
    assert ClusterSpec(SPARSE).job("worker").resolve() == (Target("w1:1"), Target("w3:1"))


def test_a_spec_stands_for_its_workers_where_that_is_plain():
    assert isinstance(ClusterSpec(DENSE), TargetResolver)
    assert ClusterSpec(DENSE).resolve() == ClusterSpec(DENSE).job("worker").resolve()
    assert ClusterSpec({"evaluator": ["e:1"]}).resolve() == (Target("e:1"),)
    with pytest.raises(
        MembershipError, match="or a job named 'worker', found 'chief', 'ps'; select a job with spec.job"
    ):
        ClusterSpec({"chief": ["c:1"], "ps": ["p:1"]}).resolve()
    with pytest.raises(MembershipError, match="Job 'worker' has no tasks"):
        ClusterSpec({"worker": []}).resolve()
    with pytest.raises(MembershipError, match=r"found port 0 \(any free port\) for 1, 2; let the tasks"):
        ClusterSpec({"worker": ["w:1", "w:0", "v:0"]}).resolve()


@pytest.fixture
def toml(tmp_path):
    path = tmp_path / "cluster.toml"
    path.write_text(TOML)
    return path


def test_a_file_has_the_jobs_in_a_table(toml):
    assert ClusterSpec.from_file(toml) == ClusterSpec.from_file(str(toml)) == DENSE
    toml.write_bytes(b"\xef\xbb\xbf" + toml.read_bytes().replace(b"\n", b"\r\n"))  # as Windows writes it
    assert ClusterSpec.from_file(toml) == DENSE


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "Expected only a table [cluster] with a list of addresses per job, found no table in"),
        ('worker = ["w:1"]', "found 'worker' in"),
        ('[cluster]\nworker = ["w:1"]\n[task]\nindex = 1', "found 'task' in"),
        ("[cluster", "Invalid TOML in "),
        ("{", "Invalid JSON in "),
        ('{"cluster": {"a": ["w:1"], "a": ["w:2"]}}', "the name 'a' occurs twice"),
        ("cluster = 3", "Expected a cluster as a ClusterSpec"),
        ('[cluster]\nworker = ["w"]', "Invalid address for task 0 of job 'worker': "),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_name(tmp_path, content, message):
    path = tmp_path / "bad.toml"
    path.write_text(content)
    with pytest.raises((InvalidValueError, TypeMismatchError)) as caught:
        ClusterSpec.from_file(path)
    assert message in str(caught.value)
    assert f"in {path}" in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(InvalidValueError, match="in the file .*none.toml: No such file"):
        ClusterSpec.from_file(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidValueError, match="it is not encoded as UTF-8"):
        ClusterSpec.from_file(tmp_path / "binary.toml")


def test_the_environment_has_a_file_or_what_would_be_in_it(toml):
    inline = json.dumps({"cluster": DENSE})
    assert ClusterSpec.from_text(inline) == ClusterSpec.from_text(TOML) == ClusterSpec.from_text(str(toml)) == DENSE
    for text in (str(toml), f" {toml}\n", TOML, f"# of the tests{TOML}", inline):
        assert ClusterSpec.from_environment({"FEDSTACK_CLUSTER": text, "TF_CONFIG": "not read"}) == DENSE


def test_without_a_variable_of_ours_that_of_tensorflow_counts(monkeypatch):
    found = json.dumps({"cluster": DENSE, "task": {"type": "worker", "index": 1}, "rpc_layer": "grpc"})
    assert ClusterSpec.from_environment({"TF_CONFIG": found, "FEDSTACK_CLUSTER": " "}) == DENSE
    monkeypatch.setenv("TF_CONFIG", found)
    monkeypatch.delenv("FEDSTACK_CLUSTER", raising=False)
    assert ClusterSpec.from_environment() == DENSE
    assert ServerDef.from_environment() == ServerDef(DENSE, "worker", 1)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({}, "or TF_CONFIG, found neither variable set"),
        ({"FEDSTACK_CLUSTER": "/none.toml"}, "/none.toml: No such file or directory (named by FEDSTACK_CLUSTER)"),
        (
            {"FEDSTACK_CLUSTER": "{}"},
            "Expected only a table [cluster] with a list of addresses per job, found no table",
        ),
        ({"FEDSTACK_CLUSTER": '{"cluster": {"worker": [""]}}'}, "or unix:/path (in FEDSTACK_CLUSTER)"),
        ({"TF_CONFIG": "{"}, "Invalid JSON in "),
        ({"TF_CONFIG": "[1]"}, "Expected a table, found list [1] in TF_CONFIG"),
        ({"TF_CONFIG": "{}"}, "TF_CONFIG has no member 'cluster'"),
        (
            {"TF_CONFIG": '{"cluster": {"worker": ["w:0", "w"]}}'},
            "Invalid address for task 1 of job 'worker': Expected an address with a port, found 'w'",
        ),
    ],
)
def test_what_is_wrong_with_the_environment_is_said_with_the_variable(variables, message):
    with pytest.raises(InvalidValueError) as caught:
        ClusterSpec.from_environment(variables)
    assert message in str(caught.value)


def test_the_environment_names_a_task():
    ours = {"FEDSTACK_CLUSTER": json.dumps({"cluster": DENSE})}
    tf_config = {"TF_CONFIG": json.dumps({"cluster": DENSE, "task": {"type": "ps", "index": "0"}})}
    assert ServerDef.from_environment(ours) == ServerDef(DENSE)
    named = {"FEDSTACK_JOB": "worker", "FEDSTACK_TASK": "1"}
    assert ServerDef.from_environment({**ours, **named}) == ServerDef(DENSE, "worker", 1)
    assert ServerDef.from_environment({**ours, **tf_config}) == ServerDef(DENSE)
    assert ServerDef.from_environment(tf_config) == ServerDef(DENSE, "ps", 0)
    assert ServerDef.from_environment({**tf_config, **named}) == ServerDef(DENSE, "worker", 1)
    with pytest.raises(InvalidValueError, match="Expected the index of a task in FEDSTACK_TASK, found 'one'"):
        ServerDef.from_environment({**ours, "FEDSTACK_TASK": "one"})


def test_a_server_definition_is_checked_where_it_is_made():
    assert ServerDef(DENSE, "", None) == ServerDef(ClusterDef(DENSE))
    with pytest.raises(TypeMismatchError, match="Expected the index of a task as a whole number, found str '1'"):
        ServerDef(DENSE, "worker", "1")
    with pytest.raises(TypeMismatchError, match="Expected job names as text, found int 1"):
        ServerDef(DENSE, 1)
    with pytest.raises(TypeMismatchError, match="Expected a cluster as a ClusterSpec"):
        ServerDef(None)
