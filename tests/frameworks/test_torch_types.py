"""Types of real tensors, modules and states of PyTorch, and leaves that take and return them."""

from collections import OrderedDict

import federated_language as fl
import numpy as np
import pytest
import torch
from torch import nn

import fedstack
from fedstack.errors import TypeMismatchError


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(OrderedDict(conv=nn.Conv2d(1, 2, 3), norm=nn.BatchNorm2d(2), flat=nn.Flatten()))


STATE = fedstack.type_of(network().state_dict())
IMAGES = fl.to_type((np.float32, [None, 1, 5, 5]))


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (torch.float16, np.float16),
        (torch.float32, np.float32),
        (torch.float64, np.float64),
        (torch.int8, np.int8),
        (torch.int64, np.int64),
        (torch.uint8, np.uint8),
        (torch.bool, np.bool_),
        (torch.complex64, np.complex64),
    ],
)
def test_a_tensor_has_the_type_of_its_array(dtype, expected):
    assert fedstack.type_of(torch.zeros((2, 3), dtype=dtype)) == fl.TensorType(expected, [2, 3])


def test_a_tensor_of_bfloat16_keeps_its_type():
    assert str(fedstack.type_of(torch.zeros(2, dtype=torch.bfloat16))) == "bfloat16[2]"


def test_a_parameter_with_a_gradient_a_transposed_view_and_a_number_have_types():
    weights = nn.Parameter(torch.zeros(2, 3))
    assert str(fedstack.type_of({"w": weights, "t": weights.T, "loss": weights.sum()})) == (
        "<w=float32[2,3],t=float32[3,2],loss=float32>"
    )


def test_a_state_dict_keeps_the_names_of_layers_and_the_counter_of_batches():
    assert str(STATE) == (
        "<conv.weight=float32[2,1,3,3],conv.bias=float32[2],norm.weight=float32[2],norm.bias=float32[2],"
        "norm.running_mean=float32[2],norm.running_var=float32[2],norm.num_batches_tracked=int64>"
    )


def test_a_module_is_an_error_that_says_to_pass_its_state():
    with pytest.raises(TypeMismatchError, match=r"pass its state_dict\(\)"):
        fedstack.type_of(network())


def test_a_round_takes_and_returns_a_state_dict():
    @fedstack.python_computation([STATE, IMAGES], STATE)
    def normalise(state, images):
        net = network()
        net.load_state_dict({name: torch.tensor(value) for name, value in state.items()})
        net(torch.tensor(images))  # moves the running mean
        return net.state_dict()

    @fl.federated_computation(fl.FederatedType(STATE, fl.SERVER), fl.FederatedType(IMAGES, fl.CLIENTS))
    def total(state, images):
        return fl.federated_sum(fl.federated_map(normalise, (fl.federated_broadcast(state), images)))

    state = network().state_dict()
    images = [np.full((4, 1, 5, 5), value, np.float32) for value in (1.0, 2.0)]
    expected = []
    for batch in images:
        net = network()
        net(torch.tensor(batch))
        expected.append(net.state_dict())
    with fedstack.create_sync_local_execution_context():
        found = total(state, images)
    assert list(found) == list(state)
    assert found["norm.num_batches_tracked"] == 2
    for name in state:
        np.testing.assert_allclose(found[name], expected[0][name] + expected[1][name], rtol=1e-6)


def test_a_tensor_of_another_shape_is_an_error_with_its_path():
    @fedstack.python_computation([STATE], np.float32)
    def first(state):
        return state["conv.bias"][0]

    with fedstack.create_sync_local_execution_context():
        with pytest.raises(TypeMismatchError, match=r"found shape \[3\]; at arg.conv.bias"):
            first({**network().state_dict(), "conv.bias": torch.zeros(3)})
