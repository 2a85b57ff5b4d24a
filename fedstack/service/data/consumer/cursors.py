"""Writes the place of a consumer in a pass, and reads it again: cursors."""

import attrs
from google.protobuf.message import DecodeError

from fedstack.computations.values.tensor_values import describe
from fedstack.errors import InvalidValueError, TypeMismatchError
from fedstack.proto.data_service_pb2 import PassCursor
from fedstack.service.data.consumer.deliveries import Position


@attrs.frozen
class Cursor:
    """A place in a pass.

    Attributes:
      incarnation: Stands for what the dispatcher knew.
      digest: That of the dataset.
      job_name: The job; empty for a pass of one consumer.
      repetition: Which pass of the job.
      consumer: The id of the consumer.
      position: The place.
    """

    incarnation: bytes
    digest: bytes
    job_name: str
    repetition: int
    consumer: bytes
    position: Position

    def to_bytes(self) -> bytes:
        """Returns what `read_cursor` reads."""
        return PassCursor(
            incarnation=self.incarnation,
            digest=self.digest,
            job_name=self.job_name,
            repetition=self.repetition,
            consumer=self.consumer,
            finished=self.position.finished,
            begun=[PassCursor.Begun(range=id, rows=rows) for id, rows in self.position.rows.items()],
        ).SerializeToString()


def read_cursor(content: object) -> Cursor:
    """Returns the place that bytes stand for.

    Raises:
      TypeMismatchError: If they are no bytes.
      InvalidValueError: If they are not what an iterator's `cursor()` has returned.
    """
    if not isinstance(content, bytes):
        raise TypeMismatchError(
            f"Expected resume to be what an iterator's cursor() has returned, found {describe(content)}"
        )
    try:
        proto = PassCursor.FromString(content)
    except DecodeError:
        proto = PassCursor()
    if not proto.consumer or not proto.digest:
        raise InvalidValueError(
            f"Expected resume to be what an iterator's cursor() has returned, found {len(content)} other bytes"
        )
    position = Position(frozenset(proto.finished), {one.range: one.rows for one in proto.begun})
    return Cursor(proto.incarnation, proto.digest, proto.job_name, proto.repetition, proto.consumer, position)
