"""The rules of asynchronous calls, in thousands of random interleavings."""

from __future__ import annotations

import random
from collections import Counter, defaultdict

import pytest

from headrace.runtime.async_rules import ApplyCall, BeginCall, CallEnd, CallScheduler, OpenCall

SCHEDULES = 3000


class World:
    """Plays events at random, and checks after each that every promise is kept."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.order = self.random.choice(["in", "out", "key"])
        self.most = self.random.choice([1, 1, 2, 3, 10])
        self.timeout = self.random.choice([None, 5.0])
        self.ahead = self.random.choice([4, 1000])
        self.rules = CallScheduler(self.most, self.order, self.timeout, self.ahead)
        self.now = 0.0
        self.keys: dict[int, int] = {}
        self.begun: list[int] = []
        self.began_at: dict[int, float] = {}
        self.open: dict[int, OpenCall] = {}
        self.over: list[OpenCall] = []
        self.ends: Counter[int] = Counter()
        self.timed_out: set[int] = set()
        self.applied: list[int] = []
        self.quiet = False
        self.left: set[int] = set()

    def play(self, steps: int) -> None:
        acts = [self.arrive, self.arrive, self.end, self.end, self.again, self.expire, self.turn]
        for _ in range(steps):
            self.random.choice(acts)()
            self.step(may_begin=self.random.random() < 0.9)
            self.check()

    def arrive(self) -> None:
        for _ in range(self.random.randint(1, 4)):
            key = self.random.randint(0, 3)
            self.keys[self.rules.arrive(key)] = key

    def end(self) -> None:
        if self.open:
            call = self.open.pop(self.random.choice(list(self.open)))
            assert self.rules.end(call) is CallEnd.TAKEN
            self.ends[call.number] += 1
            self.over.append(call)

    def again(self) -> None:
        """Ends what has ended: nothing may come of it."""
        if self.over:
            call = self.random.choice(self.over)
            late = call.number in self.timed_out
            assert self.rules.end(call) is (CallEnd.LATE if late else CallEnd.DOUBLE)

    def expire(self) -> None:
        self.now += self.random.choice([0.5, 3.0])
        found = self.rules.expire(self.now)
        assert self.timeout is not None or not found
        for call in found:
            assert self.now - self.began_at[call.number] >= (self.timeout or 0)
            del self.open[call.number]
            self.timed_out.add(call.number)
            self.ends[call.number] += 1
            self.over.append(call)
        for number in self.open:  # none whose time is over stays open
            assert self.timeout is None or self.now - self.began_at[number] < self.timeout

    def turn(self) -> None:
        self.quiet = not self.quiet
        if self.quiet:
            self.rules.want_quiet()
        else:
            self.rules.resume()

    def step(self, *, may_begin: bool) -> None:
        while actions := self.rules.step(self.now, may_begin=may_begin):
            for action in actions:
                match action:
                    case BeginCall(call):
                        assert may_begin
                        assert not self.quiet
                        if self.most == 1:  # all before it has taken effect
                            assert len(self.applied) == len(self.begun)
                        self.begun.append(call.number)
                        self.began_at[call.number] = self.now
                        self.open[call.number] = call
                        assert len(self.open) <= self.most
                    case ApplyCall(number):
                        assert self.ends[number] == 1
                        assert number not in self.open
                        self.applied.append(number)

    def check(self) -> None:
        assert self.rules.open == self.open
        assert self.rules.is_quiet == (not self.open)
        assert len(set(self.applied)) == len(self.applied)
        assert max(self.ends.values(), default=1) == 1
        by_key: dict[int, list[int]] = defaultdict(list)
        if self.order == "key":
            for number in self.begun:
                by_key[self.keys[number]].append(number)
            applied: dict[int, list[int]] = defaultdict(list)
            for number in self.applied:
                applied[self.keys[number]].append(number)
            for key, numbers in by_key.items():
                assert numbers == sorted(numbers)
                assert applied[key] == numbers[: len(applied[key])]
                assert len(numbers) - len(applied[key]) <= 1
        else:
            assert self.begun == sorted(self.begun)
        if self.order == "in":
            assert self.applied == list(range(len(self.applied)))
        done = set(self.applied)
        low = next(n for n in range(len(self.keys) + 1) if n not in done)
        assert self.rules.low == low
        assert self.rules.waiting == len(self.keys) - len(self.begun)
        assert all(number - low < self.ahead or self.order == "key" for number in self.open)

    def finish(self) -> None:
        """Everything that came takes effect in the end."""
        self.rules.resume()
        self.quiet = False
        while not self.rules.is_done:
            self.step(may_begin=True)
            self.end()
            self.step(may_begin=True)
        assert sorted(self.applied) == sorted(self.keys)


@pytest.mark.parametrize("block", range(10))
def test_every_promise_holds_whatever_the_order_of_events(block: int) -> None:
    for seed in range(block * SCHEDULES // 10, (block + 1) * SCHEDULES // 10):
        world = World(seed)
        try:
            world.play(world.random.randint(5, 60))
            world.finish()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def test_what_nobody_waits_for_any_more_is_a_stray() -> None:
    rules = CallScheduler(2)
    rules.arrive()
    (begin,) = rules.step(0.0)
    assert isinstance(begin, BeginCall)
    assert [call.number for call in rules.leave()] == [0]
    assert rules.end(begin.call) is CallEnd.STRAY


def test_quiet_comes_when_open_calls_have_ended_and_holds_others_back() -> None:
    rules = CallScheduler(2)
    for _ in range(3):
        rules.arrive()
    first, second = (action.call for action in rules.step(0.0) if isinstance(action, BeginCall))
    rules.want_quiet()
    rules.end(first)
    assert rules.step(0.0) == [ApplyCall(0)]
    assert not rules.is_quiet
    rules.end(second)
    assert rules.step(0.0) == [ApplyCall(1)]
    assert rules.is_quiet
    rules.resume()
    assert [type(action) for action in rules.step(0.0)] == [BeginCall]
