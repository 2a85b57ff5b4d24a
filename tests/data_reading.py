"""Reads at data workers, for tests."""

from fedstack.computations.types.language import Type
from fedstack.computations.values.columns import Column
from fedstack.proto.data_service_pb2 import ReadRequest, SplitRange
from fedstack.service.data.reading.readers import Reader, reader_at
from fedstack.transport.grpc.credentials import ClientCredentials
from fedstack.transport.peers.io_loop import io_loop

SECONDS = 20.0


def whole(digest: bytes, first_element: int = 0) -> ReadRequest:
    """Returns what asks for all elements of a dataset."""
    return ReadRequest(digest=digest, splits=SplitRange(whole=True), first_element=first_element)


def some(digest: bytes, num_splits: int, first: int, last: int, first_element: int = 0) -> ReadRequest:
    """Returns what asks for those of some splits."""
    splits = SplitRange(first=first, last=last)
    return ReadRequest(digest=digest, splits=splits, num_splits=num_splits, first_element=first_element)


async def blocks_of(reader: Reader, what: ReadRequest, element: Type, found: list[Column]) -> None:
    """Reads to the end, or to an error."""
    reading = reader.open(what, element)
    try:
        while blocks := await reading.next():
            found.extend(blocks)
    finally:
        await reading.close()


def read_blocks(
    address: str,
    what: ReadRequest,
    element: Type,
    found: list[Column] | None = None,
    credentials: ClientCredentials | None = None,
) -> list[Column]:
    """Returns the blocks that a worker has; in `found`, until an error."""
    blocks: list[Column] = [] if found is None else found

    async def work() -> None:
        reader = reader_at(address, credentials)
        try:
            await blocks_of(reader, what, element, blocks)
        finally:
            await reader.close()

    io_loop.run_sync(work(), SECONDS)
    return blocks


def read(address: str, what: ReadRequest, element: Type, credentials: ClientCredentials | None = None) -> list[object]:
    """Returns the elements that a worker has."""
    blocks = read_blocks(address, what, element, credentials=credentials)
    return [item for block in blocks for item in block.items()]
