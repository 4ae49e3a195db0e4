"""Word count: the number of times each word has occurred so far.

    headrace bus append lines lines.jsonl --infer --time at
    headrace run word_count.py --bounded
    headrace bus tail words

It reads the stream ``lines`` and sends to one other:

    words    word and its count so far, for each word of an epoch
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import headrace as hr


@dataclass
class Word:
    """One word of a line, in lower case."""

    word: str


def split(line: Any) -> Iterator[Word]:
    """Make one message of each word."""
    for word in re.findall(r"\w+", line.text.lower()):
        yield Word(word)


@hr.job("word-count")
def word_count(g: hr.Graph) -> None:
    words = g.input("lines", time="at").flat_map(split, name="split")
    counts = words.partition_by("word").aggregate(name="count", times=hr.agg.count())
    counts.send_to(g.output("words"))
