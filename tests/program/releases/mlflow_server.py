"""A tracking server of MLflow in this process: its REST calls, answered from its own store. It can hang, or be full."""

import json
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

from mlflow.entities import Metric, RunStatus, RunTag, ViewType
from mlflow.exceptions import MlflowException
from mlflow.protos import service_pb2 as messages
from mlflow.protos.databricks_pb2 import RESOURCE_DOES_NOT_EXIST
from mlflow.utils.proto_json_utils import message_to_json


class TrackingServer:
    """A server over a store, which `with` starts and stops. It may be started again at the same port.

    Attributes:
      calls: How often each path was called.
      failing: The HTTP status that calls get, or 0.
      hangs: Calls wait until it is set.
    """

    def __init__(self, store, port: int) -> None:
        self.store, self.port = store, port
        self.calls, self.failing = Counter[str](), 0
        self.hangs = threading.Event()
        self.hangs.set()
        self.called = threading.Event()

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> "TrackingServer":
        handler = type("Handler", (_Handler,), {"owner": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), handler)
        self._server.daemon_threads = False  # so that closing waits for them
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.hangs.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    owner: TrackingServer

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        self._answer(url.path, dict(parse_qsl(url.query)))

    def do_POST(self) -> None:
        self._answer(self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, path: str, given: dict) -> None:
        name = path.partition("/mlflow/")[2]
        self.owner.calls[name] += 1
        self.owner.called.set()
        self.owner.hangs.wait(30)
        status, body = self.owner.failing, '{"error_code": "RESOURCE_EXHAUSTED", "message": "the disk is full"}'
        if not status:
            try:
                status, body = 200, message_to_json(_CALLS[name](self.owner.store, given))
            except MlflowException as error:
                status, body = error.get_http_status_code(), error.serialize_as_json()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())


def _experiment(store, given):
    found = store.get_experiment_by_name(given["experiment_name"])
    if found is None:
        raise MlflowException("no such experiment", error_code=RESOURCE_DOES_NOT_EXIST)
    return messages.GetExperimentByName.Response(experiment=found.to_proto())


def _create_run(store, given):
    tags = [RunTag(one["key"], one["value"]) for one in given.get("tags", [])]
    made = store.create_run(
        given["experiment_id"], given.get("user_id", ""), given["start_time"], tags, given.get("run_name")
    )
    return messages.CreateRun.Response(run=made.to_proto())


def _search(store, given):
    ids, limit, order = given["experiment_ids"], int(given["max_results"]), given.get("order_by")
    found = store.search_runs(ids, given.get("filter", ""), ViewType.ACTIVE_ONLY, limit, order)
    return messages.SearchRuns.Response(runs=[run.to_proto() for run in found])


def _log_batch(store, given):
    metrics = [
        Metric(one["key"], float(one["value"]), int(one["timestamp"]), int(one.get("step", 0)))
        for one in given["metrics"]
    ]
    store.log_batch(given["run_id"], metrics, [], [])
    return messages.LogBatch.Response()


def _history(store, given):
    found = store.get_metric_history(given["run_id"], given["metric_key"])
    return messages.GetMetricHistory.Response(metrics=[one.to_proto() for one in found])


def _update(store, given):
    status = RunStatus.from_string(given["status"])
    info = store.update_run_info(given["run_id"], status, given.get("end_time"), given.get("run_name"))
    return messages.UpdateRun.Response(run_info=info.to_proto())


_CALLS = {
    "experiments/create": lambda store, given: messages.CreateExperiment.Response(
        experiment_id=store.create_experiment(given["name"])
    ),
    "experiments/get-by-name": _experiment,
    "metrics/get-history": _history,
    "runs/create": _create_run,
    "runs/get": lambda store, given: messages.GetRun.Response(run=store.get_run(given["run_id"]).to_proto()),
    "runs/log-batch": _log_batch,
    "runs/search": _search,
    "runs/update": _update,
}
