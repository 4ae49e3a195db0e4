"""``g.process`` of several streams: one class, one instance a task, shared stores and timers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from tests.support.limits import limit
from tests.support.plans import StreamInfo, explain, plan

import headrace as hr
from headrace.errors import GraphError, InvalidInputError
from headrace.testing import TestDriver

TOLD = {"user": int, "what": str, "at": int, "n": int}


@dataclass
class Invite:
    user: int
    who: str


class Digest:
    """Counts what comes for a user, says which it was, and has a timer after each invitation."""

    def process_invites(self, invite: Invite, context: hr.Context) -> None:
        assert isinstance(invite, Invite)
        if invite.who == "nobody":
            raise ValueError("nobody invites")
        assert context.time is not None
        context.set_timer(context.time + 50, "late")
        self._tell(context)

    def process(self, message: Any, context: hr.Context) -> None:
        assert not hasattr(message, "text")
        self._tell(context)

    def _tell(self, context: hr.Context) -> None:
        seen = context.store("seen")
        n = seen.get(context.key, 0) + 1
        seen.put(context.key, n)
        context.emit({"user": context.key, "what": context.input, "at": context.time, "n": n})
        if n == 3:
            context.emit({"user": context.key}, to="third")

    def on_timer(self, timer: hr.Timer, context: hr.Context) -> None:
        assert context.input is None
        n = context.store("seen").get(timer.key)
        context.emit({"user": timer.key, "what": timer.name, "at": timer.at, "n": n})


def digest_job(factory: Any = Digest, timed: bool = True, **options: Any) -> Any:
    given = {"stores": {"seen": int}, "returns": TOLD, "sides": {"third": {"user": int}}, **options}

    @hr.job("digest")
    def digest(g: hr.Graph) -> None:
        time = "at" if timed else None
        streams = {
            "invites": g.input("invites", time=time).partition_by("user"),
            "views": g.input("views", time=time).partition_by("viewed"),
            "news": g.input("news", time=time).partition_by("user"),
        }
        made = g.process(streams, factory, uses={"news": ["user"]}, name="digest", **given)
        made.send_to(g.output("out"))
        made.side("third").send_to(g.output("third"))

    return digest


def driver_of(job: Any) -> TestDriver:
    driver = TestDriver(job, tasks=2, key_groups=8)
    number = pa.int64()
    driver.create("invites", {"user": number, "who": pa.string(), "at": number})
    driver.create("views", {"viewed": pa.int32(), "at": number})
    driver.create("news", {"user": number, "text": pa.string(), "at": number})
    return driver


def invite(user: int, at: int, who: str = "ada") -> dict[str, Any]:
    return {"user": user, "who": who, "at": at}


def feed(driver: TestDriver) -> None:
    driver.feed("invites", [invite(1, 10), invite(2, 30), invite(1, 100), invite(1, 120)])
    driver.feed("views", [{"viewed": 1, "at": at} for at in (5, 40, 35, 130)])
    driver.feed("news", [{"user": 2, "at": 20}, {"user": 1, "at": 110}])


def told(driver: TestDriver) -> dict[int, list[tuple[str, int, int]]]:
    found = defaultdict(list)
    for row in driver.output("out"):
        found[row["user"]].append((row["what"], row["at"], row["n"]))
    return dict(found)


def test_rows_of_an_epoch_come_by_event_time_and_timers_between_them() -> None:
    """The view of 35 came after that of 40, and stays after it."""
    with driver_of(digest_job()) as driver:
        feed(driver)
        driver.finish()
        found = told(driver)
        assert found[1] == [
            ("views", 5, 1),
            ("invites", 10, 2),
            ("views", 40, 3),
            ("views", 35, 4),
            ("invites", 100, 5),
            ("news", 110, 6),
            ("late", 60, 6),
            ("invites", 120, 7),
            ("views", 130, 8),
            ("late", 150, 8),
            ("late", 170, 8),
        ]
        assert found[2] == [("news", 20, 1), ("invites", 30, 2), ("late", 80, 2)]
        assert driver.output("third") == [{"user": 1}]
        assert driver.store("seen") == {1: 8, 2: 2}


def test_without_event_time_streams_come_in_the_order_given() -> None:
    class Untimed(Digest):
        def process_invites(self, invite: Invite, context: hr.Context) -> None:
            self._tell(context)

    with driver_of(digest_job(Untimed, timed=False)) as driver:
        feed(driver)
        driver.run()
        assert [what for what, *_ in told(driver)[1]] == [
            *["invites"] * 3,
            *["views"] * 4,
            "news",
        ]


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_many_blocks_are_one_order(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with driver_of(digest_job()) as driver:
        feed(driver)
        driver.finish()
        expected = told(driver)
    limit(monkeypatch, several_block_rows=rows)
    with driver_of(digest_job()) as driver:
        feed(driver)
        driver.finish()
        assert expected == told(driver)


def test_state_and_timers_survive_a_crash_and_are_shared() -> None:
    with driver_of(digest_job()) as driver:
        driver.feed("invites", [invite(1, 10)])
        driver.feed("views", [{"viewed": 1, "at": 20}])
        driver.run()
        driver.crash(lose_hosts=[0])
        driver.feed("invites", [invite(1, 200)])
        driver.feed("views", [{"viewed": 1, "at": 200}])
        driver.feed("news", [{"user": 3, "at": 200}])
        driver.run()
        # 60 has passed in no partition before these rows.
        assert told(driver)[1][2:] == [("invites", 200, 3), ("views", 200, 4), ("late", 60, 4)]


def test_a_refused_message_is_a_dead_letter_of_its_own_stream() -> None:
    with driver_of(digest_job(on_error="dead_letter")) as driver:
        feed(driver)
        driver.feed("invites", [invite(7, 125, "nobody"), invite(7, 126)])
        driver.feed("views", [{"viewed": None, "at": 126}])
        driver.finish()
        letters = driver.output("digest.dead")
        assert [(one["stream"], one["offset"], one["key"]) for one in letters] == [
            ("invites", 4, "7")
        ]
        assert "nobody invites" in letters[0]["message"]
        assert told(driver)[7] == [("invites", 126, 1), ("late", 176, 1)]
        assert told(driver)[1][:2] == [("views", 5, 1), ("invites", 10, 2)]


def test_an_error_shows_the_message_it_met() -> None:
    with driver_of(digest_job()) as driver:
        driver.feed("views", [{"viewed": 4, "at": 1}])
        driver.feed("invites", [invite(4, 2, "nobody")])
        with pytest.raises(InvalidInputError, match=r"nobody invites.*Invite"):
            driver.run()


def test_what_is_emitted_wrongly_is_told_with_its_record() -> None:
    class Wrong(Digest):
        def process(self, message: Any, context: hr.Context) -> None:
            context.emit({"user": "no number", "what": "", "at": 1, "n": 1})

    with driver_of(digest_job(Wrong)) as driver:
        driver.feed("invites", [invite(4, 2)])
        driver.feed("views", [{"viewed": 4, "at": 3}])
        with pytest.raises(InvalidInputError, match="no number") as found:
            driver.run()
        assert "viewed" in str(found.value)


class Nothing:
    def process_invites(self, invite: Any, context: hr.Context) -> None: ...


class Stray(Digest):
    def process_nuws(self, news: Any, context: hr.Context) -> None: ...


class Later(Digest):
    async def process_views(self, view: Any, context: hr.Context) -> None: ...


class Short(Digest):
    def process_views(self, view: Any) -> None: ...


@dataclass
class Unlike:
    viewed: str


class Mistyped(Digest):
    def process_views(self, view: Unlike, context: hr.Context) -> None: ...


@pytest.mark.parametrize(
    ("factory", "text"),
    [
        (Nothing, "has no method process_views"),
        (Stray, r"methods \['process_nuws'\] for streams that it is not given"),
        (Later, "process_views is a generator or async"),
        (Short, "process_views takes"),
        (Mistyped, "stream 'views': takes Unlike, whose field 'viewed' is str"),
        (hr.StatelessProcessor, "contract of one stream"),
    ],
)
def test_a_class_that_does_not_fit_is_a_mistake_of_the_graph(factory: Any, text: str) -> None:
    with driver_of(digest_job(factory)) as driver, pytest.raises(GraphError, match=text):
        driver.start()


def mistake(build: Callable[[hr.Graph], Any]) -> str:
    @hr.job("wrong")
    def wrong(g: hr.Graph) -> None:
        build(g)

    with TestDriver(wrong) as driver:
        number, text = pa.int64(), pa.string()
        driver.create("a", {"k": number, "at": number})
        driver.create("b", {"k": text, "at": number})
        with pytest.raises(GraphError) as found:
            driver.start()
        return str(found.value)


def test_streams_that_do_not_fit_are_mistakes_of_the_graph() -> None:
    class Any_:
        def process(self, message: Any, context: hr.Context) -> None: ...

    def by(g: hr.Graph, name: str, *keys: str) -> Any:
        return g.input(name).partition_by(*keys)

    assert "never meet" in mistake(
        lambda g: g.process({"a": by(g, "a", "k"), "b": by(g, "b", "k")}, Any_)
    )
    assert "as many columns" in mistake(
        lambda g: g.process({"a": by(g, "a", "k"), "b": by(g, "b", "k", "at")}, Any_)
    )
    assert "is not partitioned by any" in mistake(
        lambda g: g.process({"a": g.input("a"), "b": by(g, "b", "k")}, Any_)
    )
    assert "takes streams; found 3" in mistake(
        lambda g: g.process({"a": by(g, "a", "k"), "b": 3}, Any_)  # type: ignore[dict-item]
    )
    assert "g.process takes a dict of streams" in mistake(lambda g: g.process({}, Any_))
    assert "names that methods can have" in mistake(
        lambda g: g.process({"a b": by(g, "a", "k")}, Any_)
    )

    def twice(g: hr.Graph) -> None:
        stream = by(g, "a", "k")
        g.process({"a": stream, "b": stream}, Any_)

    assert "is given twice" in mistake(twice)
    assert "uses= names streams ['c']" in mistake(
        lambda g: g.process({"a": by(g, "a", "k")}, Any_, uses={"c": ["k"]})
    )
    assert "no column 'v'" in mistake(
        lambda g: g.process({"a": by(g, "a", "k")}, Any_, uses={"a": ["v"]})
    )


def test_explain_names_the_streams() -> None:
    known = {
        "invites": StreamInfo(pa.schema({"user": pa.int64(), "who": pa.string()}), 2),
        "views": StreamInfo(pa.schema({"viewed": pa.int32()}), 2),
        "news": StreamInfo(pa.schema({"user": pa.int64(), "text": pa.string()}), 2),
    }
    text = explain(plan(digest_job(timed=False).build(), known), width=200)
    assert "process of invites (user, who), views, news (user) with Digest" in text
