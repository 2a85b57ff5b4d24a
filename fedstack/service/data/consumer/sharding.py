"""Says how a dataset is divided among workers, and reads what users say of that."""

import enum

from fedstack.errors import InvalidValueError, TypeMismatchError
from fedstack.foundations.value_text import describe


class ShardingPolicy(enum.Enum):
    """How the elements of a dataset are divided among data workers.

    Attributes:
      OFF: Each worker reads the whole dataset.
      DYNAMIC: Each element is read once, by whichever worker comes to it.
      FILE: Each of at most 100,000 files is read at one address: of `n` `worker_addresses` of the dispatcher, the file
        of the number `i` at that of the number `i % n`. Where that worker is not there, another one reads the file.
      DATA: The worker at each of `n` addresses reads the whole dataset, and sends every `n`-th element of it.
      FILE_OR_DATA, HINT: Not offered.
    """

    OFF = "off"
    DYNAMIC = "dynamic"
    FILE = "file"
    DATA = "data"
    FILE_OR_DATA = "file_or_data"
    HINT = "hint"


_NAMES = {"parallel_epochs": ShardingPolicy.OFF, "distributed_epoch": ShardingPolicy.DYNAMIC}
_FORMS = "ShardingPolicy.OFF ('parallel_epochs'), DYNAMIC ('distributed_epoch'), FILE or DATA"
_NOT_OFFERED = (ShardingPolicy.FILE_OR_DATA, ShardingPolicy.HINT)


def checked_policy(mode: object) -> ShardingPolicy:
    """Returns the policy that users mean.

    Raises:
      TypeMismatchError: If it is neither a policy nor text.
      InvalidValueError: If it is none that is offered.
    """
    if isinstance(mode, str):
        known = {**_NAMES, **{one.value: one for one in _NOT_OFFERED}}
        if mode not in known:
            raise InvalidValueError(f"Expected {_FORMS} as processing_mode, found {mode!r}")
        mode = known[mode]
    if not isinstance(mode, ShardingPolicy):
        raise TypeMismatchError(f"Expected {_FORMS} as processing_mode, found {describe(mode)}")
    if mode in _NOT_OFFERED:
        raise InvalidValueError(
            f"Expected {_FORMS} as processing_mode, found {mode}, which is not offered; give ShardingPolicy.FILE or "
            "ShardingPolicy.DATA, or add a step shard(n, index)"
        )
    return mode
