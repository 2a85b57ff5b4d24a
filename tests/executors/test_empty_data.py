"""A data block without content is a computation that cannot be right."""

import asyncio

import federated_language as fl
import numpy as np
import pytest
from federated_language.proto import computation_pb2

from fedstack.errors import InvalidComputationError
from fedstack.executors import LeafExecutor


@pytest.mark.parametrize("type_spec", [fl.TensorType(np.int32), fl.FunctionType(None, np.int32)])
def test_a_data_block_with_nothing_in_it_is_no_valid_computation(type_spec) -> None:
    computation = computation_pb2.Computation(type=type_spec.to_proto(), data=computation_pb2.Data())

    executor = LeafExecutor()

    async def run() -> object:
        value = await executor.create_value(computation)
        if isinstance(type_spec, fl.FunctionType):
            value = await executor.create_call(value)
        return await value.compute()

    expected = r"with its content, found .*(nothing|without any)|an empty data block|found an empty data"
    with pytest.raises(InvalidComputationError, match=expected) as caught:
        asyncio.run(run())
    executor.close()
    assert isinstance(caught.value, ValueError)
