"""Words the error for a fleet in which no worker is ready."""

from collections.abc import Sequence

from fedstack.computations.types.language import RetryableError
from fedstack.errors import AuthenticationError, FedstackError, NoWorkersError
from fedstack.membership.member import AnyMember, MemberState
from fedstack.transport.wire.connection_errors import listed


def none_ready(workers: Sequence[AnyMember], seconds: float) -> Exception:
    """Returns the error to raise where none of the workers is ready.

    Args:
      workers: All that there are.
      seconds: How long the caller has waited.
    """
    if not workers:
        return NoWorkersError(f"The fleet had no worker within {seconds:g} s; add one")
    causes = {worker.address: worker.cause_after(seconds) for worker in workers}
    is_single = len(causes) == 1  # the same address may have been given twice
    mistakes = [w.cause for w in workers if w.cause and not isinstance(w.cause, RetryableError)]
    error: FedstackError
    if not mistakes and all(worker.state is MemberState.GONE for worker in workers):
        ended = "The worker process has" if is_single else f"All {len(causes)} worker processes have"
        error = NoWorkersError(
            f"{ended} ended, likely because of a client function (os._exit, a crash, too much memory); fix that, and "
            "start a new pool:"
            f"{listed(causes)}"
        )
        error.is_final = True
    elif len(mistakes) < len(workers):
        away = (
            "The worker is not ready; start it" if is_single else f"None of {len(causes)} workers is ready; start them"
        )
        error = NoWorkersError(
            f"{away} with `fedstack serve`, and ask {'it' if is_single else 'one'} with `fedstack check`:"
            f"{listed(causes)}"
        )
    elif len(set(map(str, mistakes))) == 1 or not isinstance(mistakes[0], AuthenticationError):
        return mistakes[0]
    else:
        error = AuthenticationError(f"None of {len(causes)} workers lets us in:{listed(causes)}")
    error.causes = causes
    return error
