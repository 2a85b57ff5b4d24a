"""Defines what a row of a conformance suite is: one promise, in a sentence, and the coroutine that checks it."""

import inspect
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Literal, TypeAlias

import attrs

from fedstack.testing.subjects import ExecutorSubject, Runner, StackSubject

Need: TypeAlias = Literal["concurrency", "lazy arguments", "one attempt", "same process"]
Tag: TypeAlias = Literal["values", "errors", "timing"]


@attrs.frozen(eq=False)
class Promise:
    """A promise about executors, about stacks, or about both.

    Attributes:
      name: A short name that is a sentence, too.
      sentence: The promise.
      check: Raises unless the subject keeps the promise.
      of_executors: Whether it is checked on executors, through the verbs.
      of_stacks: Whether it is checked on stacks, through contexts.
      needs: What not everything under test has: `concurrency`, several leaf functions at the same time; `one attempt`,
        no retries that run leaf functions again; `same process`, leaf functions that run where they were made; `lazy
        arguments`, sequences that reach leaf functions as they are, not sent there whole.
      intrinsics: The intrinsics whose meaning the promise is about.
      tag: What the promise is about: `values`, what comes out; `errors`, what is refused, and how; `timing`, what runs
        when, how often and beside what.
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
    """Returns a decorator for a promise that can only be seen through the verbs; the docstring is its sentence."""
    return _decorator(True, False, needs, intrinsics, tag)


def promise_of_stacks(
    *, needs: Collection[Need] = (), intrinsics: Collection[str] = (), tag: Tag = "values"
) -> Callable[[Callable[[StackSubject], Awaitable[None]]], Promise]:
    """Returns a decorator for a promise about contexts and factories; the docstring is its sentence."""
    return _decorator(False, True, needs, intrinsics, tag)


def promise_of_both(
    *, needs: Collection[Need] = (), intrinsics: Collection[str] = (), tag: Tag = "values"
) -> Callable[[Callable[[Runner], Awaitable[None]]], Promise]:
    """Returns a decorator for a promise about results, however they are asked for; the docstring is its sentence."""
    return _decorator(True, True, needs, intrinsics, tag)
