"""``Branches``: the streams that ``split`` makes, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

DEFAULT = "default"
"""The branch of rows that no other one takes."""

S = TypeVar("S")


class Branches(Mapping[str, S]):
    """The streams of ``split``, as ``branches["name"]``.

    ``branches["default"]`` has the rows that none of the conditions held for; where nobody asks
    for it they are dropped, and counted as ``unmatched``.

    Args:
        named: the branches with a condition.
        make_default: makes the stream of the others.
        report: takes the mistake of a name that is none, and returns a stream to go on with.
    """

    def __init__(
        self,
        named: Mapping[str, S],
        make_default: Callable[[], S],
        report: Callable[[str], S],
    ) -> None:
        self._streams = dict(named)
        self._make_default, self._report = make_default, report

    def __getitem__(self, name: str) -> S:
        """Return the stream of a branch."""
        if name == DEFAULT and name not in self._streams:
            self._streams[name] = self._make_default()
        if name not in self._streams:
            known = list(dict.fromkeys([*self._streams, DEFAULT]))
            return self._report(f"no branch {name!r}; its branches are {known}")
        return self._streams[name]

    def __contains__(self, name: object) -> bool:
        """Say whether there is such a branch."""
        return name == DEFAULT or name in self._streams

    def __iter__(self) -> Iterator[str]:
        """Yield the names of the branches that were asked for, or have a condition."""
        return iter(self._streams)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._streams)
