"""Says whom to dial: addresses as users write them, or something that finds them."""

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeAlias, cast, runtime_checkable

from fedstack.errors import InvalidValueError
from fedstack.transport.wire.addresses import FORMS, Target, parse_target


@runtime_checkable
class TargetResolver(Protocol):
    """Finds the servers to dial, anew each time it is asked."""

    def resolve(self) -> Sequence[Target]:
        """Returns the servers as they are now."""
        ...


Targets: TypeAlias = str | Target | TargetResolver | Sequence[str | Target]


def resolve_targets(targets: Targets) -> tuple[Target, ...]:
    """Returns the servers to dial.

    Args:
      targets: One or several addresses (see `parse_target`), or what finds them.

    Raises:
      InvalidValueError: If there is none, or an address cannot be read.
    """
    listed: object = targets
    if isinstance(targets, (str, Target)):
        listed = (targets,)
    elif isinstance(targets, TargetResolver):
        listed = targets.resolve()
    if not isinstance(listed, Iterable):  # a path has a method of that name, too
        raise _no_addresses(targets)
    found = tuple(_to_target(target) for target in cast("Iterable[object]", listed))
    if not found:
        raise InvalidValueError("Expected at least one address of a server, found none")
    return found


def resolve_target(place: TargetResolver) -> Target:
    """Returns the one server that something stands for, such as the job of a cluster with one task.

    Raises:
      InvalidValueError: If there are several, or none.
    """
    found = resolve_targets(place)
    if len(found) != 1:
        raise InvalidValueError(
            f"Expected one server, found {len(found)}: {', '.join(map(str, found))}; give the address of one"
        )
    return found[0]


def address_of(place: "str | TargetResolver") -> str:
    """Returns the address of the one server that something stands for; an address is returned as it is.

    Raises:
      InvalidValueError: If there are several, or none.
    """
    return resolve_target(place).written if isinstance(place, TargetResolver) else place


def _to_target(target: object) -> Target:
    if isinstance(target, str):
        return parse_target(target)
    if not isinstance(target, Target):
        raise _no_addresses(target)
    return target


def _no_addresses(found: object) -> InvalidValueError:
    return InvalidValueError(f"Expected addresses as text, found {found!r}; write {FORMS}")
