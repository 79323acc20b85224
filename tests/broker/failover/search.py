"""A search through every state that a model can come to: breadth first, so that what it finds is as short as can be."""

from __future__ import annotations

import gc
import random
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from msgspec import Struct, structs

from tests.broker.failover.model import Budget, Model, Violation, World

Key: TypeAlias = tuple[World, Budget]


class Found(Struct):
    """What a search has found."""

    states: int
    steps: int
    seconds: float
    depth: int
    why: str = ""
    """The promise that is broken; "": none."""
    trace: tuple[str, ...] = ()
    """The steps that break it."""
    whole: bool = True
    """Every state was looked at."""

    def __str__(self) -> str:
        text = f"{self.states} states, {self.steps} steps, {self.depth} deep, {self.seconds:.1f} s"
        if not self.why:
            return text
        return "\n".join([text, self.why, *(f"{at:4d}. {one}" for at, one in enumerate(self.trace, 1))])


def search(model: Model, first: World, budget: Budget, *, states_max: int = 10_000_000) -> Found:
    """Look through what can become of a state. Ends at the first promise that is broken.

    A state that was met with at least as much left of every budget is not looked at again.
    """
    begun = time.perf_counter()
    first = model.settled(first)
    came: dict[Key, tuple[Key, str] | None] = {(first, budget): None}
    richest: dict[World, list[tuple[int, ...]]] = {first: [structs.astuple(budget)]}
    waiting: deque[tuple[World, Budget, int]] = deque([(first, budget, 0)])
    steps = depth = 0
    with _no_collection():
        while waiting:
            world, left, depth = waiting.popleft()
            label = ""
            try:
                for label, reached, rest in model.steps(world, left):
                    steps += 1
                    new = model.settled(reached)
                    have = structs.astuple(rest)
                    known = richest.get(new)
                    if known is None:
                        richest[new] = [have]
                        came[new, rest] = (world, left), label
                        world, left = new, rest
                        model.check(new)
                        world, left = came[new, rest][0]
                    elif any(all(map(int.__ge__, one, have)) for one in known):
                        continue
                    else:
                        known.append(have)
                        came[new, rest] = (world, left), label
                    waiting.append((new, rest, depth + 1))
            except Violation as error:
                seconds = time.perf_counter() - begun
                return Found(len(richest), steps, seconds, depth + 1, str(error), tuple(_trace(came, (world, left))))
            if len(came) > states_max:
                return Found(len(richest), steps, time.perf_counter() - begun, depth, whole=False)
    return Found(len(richest), steps, time.perf_counter() - begun, depth)


def _trace(came: dict[Key, tuple[Key, str] | None], at: Key) -> Iterator[str]:
    labels: list[str] = []
    while (before := came[at]) is not None:
        at, label = before
        labels.append(label)
    return reversed(labels)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Values without cycles: looking for some would take most of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def walk(model: Model, first: World, budget: Budget, labels: Iterable[str]) -> tuple[World, Budget]:
    """Return where these steps lead, one after the other. Raises Violation; LookupError: one of them cannot be taken there."""
    world, left = model.settled(first), budget
    for label in labels:
        found = next(((reached, rest) for one, reached, rest in model.steps(world, left) if one == label), None)
        if found is None:
            raise LookupError(label)
        world, left = model.settled(found[0]), found[1]
        model.check(world)
    return world, left


def wander(model: Model, first: World, budget: Budget, seed: int, walks: int) -> Found:
    """Take random steps from a state until there are none, so often: for groups with too many states to look at each."""
    begun, choice, steps, depth = time.perf_counter(), random.Random(seed), 0, 0
    for _ in range(walks):
        world, left, trace = model.settled(first), budget, list[str]()
        try:
            while found := list(model.steps(world, left)):
                label, reached, left = choice.choice(found)
                trace.append(label)
                world = model.settled(reached)
                model.check(world)
        except Violation as error:
            return Found(steps, steps, time.perf_counter() - begun, len(trace), str(error), tuple(trace))
        steps, depth = steps + len(trace), max(depth, len(trace))
    return Found(steps, steps, time.perf_counter() - begun, depth)
