"""A dispatcher, and who calls it."""

from collections.abc import Iterator

import pytest
from dispatching import Peer

from fedstack.service.data import DispatcherConfig, DispatchServer


@pytest.fixture(params=["grpc", "grpc+local"])
def dispatcher(request: pytest.FixtureRequest) -> Iterator[DispatchServer]:
    with DispatchServer(DispatcherConfig(protocol=request.param)) as server:
        yield server


@pytest.fixture
def peer(dispatcher: DispatchServer) -> Iterator[Peer]:
    with Peer(dispatcher.target) as peer:
        yield peer
