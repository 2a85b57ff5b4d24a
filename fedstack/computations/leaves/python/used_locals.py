"""Finds which names a computation refers to, and which locals of a block its result needs."""

from fedstack.computations.types.language import computation_pb2


def used_locals(block: computation_pb2.Block) -> list[computation_pb2.Block.Local]:
    """Returns the locals that the result of a block needs, in order."""
    wanted = free_references(block.result)
    used: list[computation_pb2.Block.Local] = []
    for local in reversed(block.local):
        if local.name in wanted:
            wanted.discard(local.name)
            wanted |= free_references(local.value)
            used.append(local)
    used.reverse()
    return used


def free_references(computation: computation_pb2.Computation) -> set[str]:
    """Returns the names that a computation refers to and does not bind itself."""
    kind = computation.WhichOneof("computation")
    if kind == "reference":
        return {computation.reference.name}
    if kind == "call":
        found = free_references(computation.call.function)
        return found | free_references(computation.call.argument) if computation.call.HasField("argument") else found
    if kind == "selection":
        return free_references(computation.selection.source)
    if kind == "struct":
        return set[str]().union(*(free_references(element.value) for element in computation.struct.element))
    if kind == "lambda":
        body = getattr(computation, "lambda")
        return free_references(body.result) - {body.parameter_name}
    if kind == "block":
        found = free_references(computation.block.result)
        for local in reversed(computation.block.local):
            found.discard(local.name)
            found |= free_references(local.value)
        return found
    return set()
