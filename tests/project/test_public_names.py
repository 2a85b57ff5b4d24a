"""The public names, written down a second time so that no change of them goes unnoticed."""

import importlib
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]

PUBLIC_NAMES = {
    "fedstack": [
        "ClientCredentials",
        "ClientFailure",
        "ClientFailures",
        "ClientOutcomes",
        "ClientStates",
        "FedstackError",
        "LocalOptions",
        "RemoteOptions",
        "RetryPolicy",
        "__version__",
        "batches",
        "by_client",
        "client_outcomes",
        "client_seeds",
        "create_async_local_execution_context",
        "create_async_ray_execution_context",
        "create_async_remote_execution_context",
        "create_sync_local_execution_context",
        "create_sync_ray_execution_context",
        "create_sync_remote_execution_context",
        "explain",
        "from_generator",
        "jax_computation",
        "local_executor_factory",
        "pool_executor_factory",
        "python_computation",
        "ray_executor_factory",
        "register_leaf_runtime",
        "remote_executor_factory",
        "set_async_local_execution_context",
        "set_async_ray_execution_context",
        "set_async_remote_execution_context",
        "set_sync_local_execution_context",
        "set_sync_ray_execution_context",
        "set_sync_remote_execution_context",
        "sizing_executor_factory",
        "type_of",
        "use_context",
    ],
    "fedstack.backends": ["Backend", "BackendExecutorFactory", "Task"],
    "fedstack.contexts": [
        "AsyncExecutionContext",
        "ProgressCounts",
        "ProgressListener",
        "ResourceManagingExecutorFactory",
        "SyncExecutionContext",
        "use_language_tracing",
    ],
    "fedstack.leaves": [
        "CarrierPolicy",
        "Destination",
        "FusedStep",
        "FusedTensor",
        "Fuser",
        "Leaf",
        "LeafRuntime",
        "register_leaf_runtime",
    ],
    "fedstack.observe": [
        "CallEnded",
        "CallRetried",
        "CallStarted",
        "ClientFailed",
        "ClientsChanged",
        "ClientsHandedIn",
        "ClientsRan",
        "ClientsRetried",
        "ClientsTakenOver",
        "Event",
        "Folded",
        "LeafCompiled",
        "LeafLoaded",
        "LoopStalled",
        "Observer",
        "PhaseEnded",
        "PhaseStarted",
        "RpcEnded",
        "SessionClosed",
        "SessionOpened",
        "Subscription",
        "WorkCancelled",
        "WorkerLost",
        "WorkerReady",
        "add_observer",
        "export_to_opentelemetry",
        "trace_to",
    ],
    "fedstack.executors": [
        "ComposingExecutor",
        "DataBackend",
        "DataExecutor",
        "FederatingExecutor",
        "LeafExecutor",
        "ReferenceResolvingExecutor",
        "RemoteExecutor",
        "SequenceExecutor",
        "SizeInfo",
        "SizingExecutor",
        "TransformingExecutor",
    ],
    "fedstack.data.partition": [
        "ContinuousPartitioner",
        "DirichletPartitioner",
        "ExponentialPartitioner",
        "GroupedNaturalIdPartitioner",
        "IidPartitioner",
        "InnerDirichletPartitioner",
        "LinearPartitioner",
        "NaturalIdPartitioner",
        "Partition",
        "Partitioner",
        "PathologicalPartitioner",
        "ShardPartitioner",
        "SizePartitioner",
        "SquarePartitioner",
        "plot_label_distributions",
    ],
    "fedstack.service.rpc": ["Client", "Code", "MethodService", "Server", "StatusOrResult"],
    "fedstack.program": [
        "CSVFileReleaseManager",
        "DatasetDataSource",
        "DatasetDataSourceIterator",
        "EarlyStopping",
        "FederatedContext",
        "FileProgramStateManager",
        "JSONLinesReleaseManager",
        "MLflowReleaseManager",
        "MemoryProgramStateManager",
        "PlotReleaseManager",
        "Run",
        "TableDataSource",
        "TableDataSourceIterator",
        "TensorBoardReleaseManager",
    ],
    "fedstack.service": [
        "ClusterDef",
        "ClusterSpec",
        "ExecutorService",
        "GrpcServer",
        "Server",
        "ServerConfig",
        "ServerCredentials",
        "ServerDef",
        "ServerLimits",
        "ServerThread",
        "ServiceLimits",
        "local_worker_pool",
        "wait_for_addresses",
    ],
    "fedstack.service.data": [
        "DataWorkerLimits",
        "Dataset",
        "DispatchServer",
        "DispatcherConfig",
        "DispatcherLimits",
        "ShardingPolicy",
        "WorkerConfig",
        "WorkerServer",
        "distribute",
        "from_dataset_id",
        "register_dataset",
    ],
    "fedstack.service.coordinator": [
        "AsyncClusterCoordinator",
        "AsyncVariable",
        "ClosureCancelledError",
        "ClusterCoordinator",
        "PerWorkerValues",
        "RemoteValue",
        "Variable",
        "as_completed",
        "current_worker_index",
        "wait",
    ],
    "fedstack.testing": [
        "ConformanceError",
        "ExecutorRow",
        "Fault",
        "FaultInjectingExecutor",
        "FaultPlan",
        "RaisingExecutor",
        "SimulatedCluster",
        "SimulatedFaults",
        "SimulationError",
        "StackRow",
        "TraceEvent",
        "TracingExecutor",
        "check_executor",
        "check_stack",
        "executor_rows",
        "stack_rows",
    ],
}


@pytest.mark.parametrize("module", PUBLIC_NAMES)
def test_a_package_exports_exactly_the_names_that_are_written_down(module: str) -> None:
    assert sorted(importlib.import_module(module).__all__) == sorted(PUBLIC_NAMES[module])


@pytest.mark.parametrize("module", PUBLIC_NAMES)
def test_every_public_name_is_there_and_documented(module: str) -> None:
    package = importlib.import_module(module)
    public = [getattr(package, name) for name in package.__all__]
    assert [value for value in public if callable(value) and not value.__doc__] == []


def test_the_site_has_a_page_for_every_package() -> None:
    pages = {path.stem for path in (ROOT / "docs" / "api").glob("fedstack*.rst")}
    assert pages == {*PUBLIC_NAMES, "fedstack.errors"}


def test_the_site_is_not_built_while_a_method_has_no_docstring() -> None:
    class Shown:
        """A class."""

        def told(self) -> None:
            """A method."""

        def untold(self) -> None: ...

        @property
        def odd(self) -> None: ...

    module = ModuleType("room")
    vars(module).update(__all__=["Shown"], Shown=Shown)
    undocumented = runpy.run_path(str(ROOT / "docs" / "conf.py"))["undocumented"]
    pages = {f"room.Shown{name}" for name in ("", ".told", ".untold", ".odd")}
    assert list(undocumented(module, pages)) == ["room.Shown.untold", "room.Shown.odd"]
    assert next(undocumented(module, pages - {"room.Shown.told"})) == "room.Shown.told"


def test_the_front_door_has_at_most_forty_names() -> None:
    assert len(PUBLIC_NAMES["fedstack"]) <= 40


def test_what_import_fedstack_leads_to_can_be_written_with_dots_alone() -> None:
    names = [
        "service.Server",
        "service.rpc.Client",
        "service.data.Dataset",
        "service.coordinator.ClusterCoordinator",
        "leaves.Leaf",
    ]
    program = "import fedstack\n" + "".join(f"fedstack.{name}\n" for name in names)
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
