"""Speaks to a worker with nothing but gRPC and the messages, as docs/wire.md explains: the mean of some numbers.

fedstack's `RemoteExecutor.connect` does it too. Run `fedstack serve`, and in another terminal this file.
"""

import argparse
import sys

import grpc
from federated_language.proto import array_pb2, computation_pb2, data_type_pb2

from fedstack.proto import executor_pb2

SERVICE = "/tensorflow_federated.v0.ExecutorGroup"
FLOAT = computation_pb2.Type(tensor=computation_pb2.TensorType(dtype=data_type_pb2.DT_FLOAT))
CLIENTS, SERVER = computation_pb2.Placement(uri="clients"), computation_pb2.Placement(uri="server")


def placed(placement, all_equal):
    return computation_pb2.FederatedType(placement={"value": placement}, all_equal=all_equal, member=FLOAT)


def value_at_clients(numbers):
    arrays = [array_pb2.Array(dtype=data_type_pb2.DT_FLOAT, float32_list={"value": [n]}, shape={}) for n in numbers]
    members = [executor_pb2.Value(array=array) for array in arrays]
    return executor_pb2.Value(federated={"type": placed(CLIENTS, all_equal=False), "value": members})


def mean_function():
    argument = computation_pb2.Type(federated=placed(CLIENTS, all_equal=False))
    result = computation_pb2.Type(federated=placed(SERVER, all_equal=True))
    type_spec = computation_pb2.Type(function={"parameter": argument, "result": result})
    return executor_pb2.Value(computation={"type": type_spec, "intrinsic": {"uri": "federated_mean"}})


def mean(call, numbers):
    """Has a worker compute a mean; `call(method, **fields)` sends a request and returns the response."""
    counts = [executor_pb2.Cardinality(placement=CLIENTS, cardinality=len(numbers))]
    executor = call("GetExecutor", cardinalities=counts).executor
    try:
        argument = call("CreateValue", executor=executor, value=value_at_clients(numbers)).value_ref
        function = call("CreateValue", executor=executor, value=mean_function()).value_ref
        result = call("CreateCall", executor=executor, function_ref=function, argument_ref=argument).value_ref
        value = call("Compute", executor=executor, value_ref=result).value
        return value.federated.value[0].array.float32_list.value[0]
    finally:
        call("DisposeExecutor", executor=executor)


def main():
    parser = argparse.ArgumentParser(description="Has a worker compute the mean of some numbers.")
    parser.add_argument("target", nargs="?", default="localhost:8000", metavar="ADDRESS", help="as in localhost:8000")
    parser.add_argument("--token-file", type=argparse.FileType(), metavar="FILE", help="with its token")
    options = parser.parse_args()
    metadata = [("authorization", f"Bearer {options.token_file.read().strip()}")] if options.token_file else []
    with grpc.insecure_channel(options.target) as channel:

        def call(method, **fields):
            request, response = getattr(executor_pb2, f"{method}Request"), getattr(executor_pb2, f"{method}Response")
            send = channel.unary_unary(f"{SERVICE}/{method}", request.SerializeToString, response.FromString)
            return send(request(**fields), timeout=60, metadata=metadata)

        try:
            print(mean(call, [1.5, 2.5, 3.5, 4.5, 5.5]))
        except grpc.RpcError as error:
            sys.exit(f"{options.target}: {error.code().name}: {error.details()}")


if __name__ == "__main__":
    main()
