"""Writes the place of a consumer in a pass, and reads it again: cursors."""

import zlib

import attrs
from google.protobuf.message import DecodeError

from fedstack.errors import InvalidValueError, TypeMismatchError
from fedstack.foundations.value_text import describe
from fedstack.proto.data_service_pb2 import Commit, PassCursor
from fedstack.service.data.consumer.deliveries import Position

_CHECK_BYTES = 4


@attrs.frozen
class Cursor:
    """A place in a pass.

    Attributes:
      commit: The latest commit of the dispatcher that the consumer had heard of.
      digest: That of the dataset.
      job_name: The job; empty for a pass of one consumer.
      policy: The name of the sharding policy.
      repetition: Which pass of the job.
      consumer: The id of the consumer.
      position: The place.
    """

    commit: Commit
    digest: bytes
    job_name: str
    policy: str
    repetition: int
    consumer: bytes
    position: Position

    def to_bytes(self) -> bytes:
        """Returns what `read_cursor` reads."""
        content = PassCursor(
            commit=self.commit,
            digest=self.digest,
            job_name=self.job_name,
            policy=self.policy,
            repetition=self.repetition,
            consumer=self.consumer,
            finished=self.position.finished,
            begun=[PassCursor.Begun(range=id, rows=rows) for id, rows in self.position.rows.items()],
            left_out=self.position.left_out,
        ).SerializeToString()
        return content + _check_sum(content)


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
    content, check_sum = content[:-_CHECK_BYTES], content[-_CHECK_BYTES:]
    try:
        proto = PassCursor.FromString(content)
    except DecodeError:
        proto = PassCursor()
    if check_sum != _check_sum(content) or not proto.consumer or not proto.digest:
        raise InvalidValueError(
            f"Expected resume to be what an iterator's cursor() has returned, found {len(content) + len(check_sum)} "
            "other bytes, or some of them have changed"
        )
    begun = {one.range: one.rows for one in proto.begun}
    position = Position(frozenset(proto.finished), begun, proto.left_out)
    return Cursor(proto.commit, proto.digest, proto.job_name, proto.policy, proto.repetition, proto.consumer, position)


def _check_sum(content: bytes) -> bytes:
    return zlib.crc32(content).to_bytes(_CHECK_BYTES, "big")
