"""Defines promises, the rows of the conformance suites: a promise is a sentence, and a coroutine that checks it."""

import inspect
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Literal, TypeAlias

import attrs

from fedstack.testing.subjects import ExecutorSubject, Runner, StackSubject

Need: TypeAlias = Literal["client failures", "concurrency", "lazy arguments", "one attempt", "same process"]
Tag: TypeAlias = Literal["values", "errors", "timing"]


@attrs.frozen(eq=False)
class Promise:
    """A promise about executors, about stacks, or about both.

    Attributes:
      name: A short name, which reads as a sentence.
      sentence: The text of the promise.
      check: A coroutine function that raises if the subject breaks the promise.
      of_executors: Whether the promise is checked on executors, through the verbs.
      of_stacks: Whether the promise is checked on stacks, through contexts.
      needs: The features that the check needs and that not every subject has: `client failures` (the whole stack
        supports `ClientFailures`), `concurrency` (several leaf functions run
        at the same time), `one attempt` (no retry runs a leaf function again), `same process` (leaf functions run in
        the process that created them) and `lazy arguments` (sequences are passed to leaf functions lazily, not sent
        whole).
      intrinsics: The intrinsics whose meaning the promise defines.
      tag: The subject of the promise: `values` (results), `errors` (which inputs are rejected, and how) or `timing`
        (when, how often and how concurrently functions run).
    """

    name: str
    sentence: str
    check: Callable[[Any], Awaitable[None]]
    of_executors: bool
    of_stacks: bool
    needs: frozenset[Need]
    intrinsics: tuple[str, ...]
    tag: Tag


def _decorator(
    of_executors: bool, of_stacks: bool, needs: Collection[Need], intrinsics: Collection[str], tag: Tag
) -> Callable[[Callable[[Any], Awaitable[None]]], Promise]:
    def decorate(check: Callable[[Any], Awaitable[None]]) -> Promise:
        name = getattr(check, "__name__", "")
        sentence = " ".join((inspect.getdoc(check) or "").split())
        return Promise(name, sentence, check, of_executors, of_stacks, frozenset(needs), tuple(intrinsics), tag)

    return decorate


def promise_of_executors(
    *, needs: Collection[Need] = (), intrinsics: Collection[str] = (), tag: Tag = "values"
) -> Callable[[Callable[[ExecutorSubject], Awaitable[None]]], Promise]:
    """Returns a decorator for a promise about the verbs of executors. The docstring of the check is its sentence."""
    return _decorator(True, False, needs, intrinsics, tag)


def promise_of_stacks(
    *, needs: Collection[Need] = (), intrinsics: Collection[str] = (), tag: Tag = "values"
) -> Callable[[Callable[[StackSubject], Awaitable[None]]], Promise]:
    """Returns a decorator for a promise about contexts and factories. The docstring of the check is its sentence."""
    return _decorator(False, True, needs, intrinsics, tag)


def promise_of_both(
    *, needs: Collection[Need] = (), intrinsics: Collection[str] = (), tag: Tag = "values"
) -> Callable[[Callable[[Runner], Awaitable[None]]], Promise]:
    """Returns a decorator for a promise about executors and stacks. The docstring of the check is its sentence."""
    return _decorator(True, True, needs, intrinsics, tag)
