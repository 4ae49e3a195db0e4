"""Email digest: one mail with all news for a member, four hours after the first.

    headrace bus append invites invites.jsonl --infer --time at --key user
    headrace bus append views views.jsonl --infer --time at --key viewed
    headrace bus append news news.jsonl --infer --time at --key user
    headrace run email_digest.py
    headrace bus tail mails --follow

One class reads three streams by event time, so the order of reading does not change the mails.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import headrace as hr

EVERY_MS = 4 * 3_600_000


@dataclass
class Invite:
    """An invitation to a member."""

    user: str
    sender: str


@dataclass
class View:
    """A view of a member's page."""

    viewed: str


@dataclass
class Mail:
    """The news for a member."""

    user: str
    by: list[str] = field(default_factory=list)
    views: int = 0
    news: list[str] = field(default_factory=list)


class Digest:
    """Keeps the next mail of each member."""

    def process_invites(self, invite: Invite, context: hr.Context) -> None:
        mail = self._next(context)
        context.store("next").put(invite.user, replace(mail, by=[*mail.by, invite.sender]))

    def process_views(self, view: View, context: hr.Context) -> None:
        mail = self._next(context)
        context.store("next").put(view.viewed, replace(mail, views=mail.views + 1))

    def process_news(self, news: Any, context: hr.Context) -> None:
        mail = self._next(context)
        context.store("next").put(news.user, replace(mail, news=[*mail.news, news.title]))

    def _next(self, context: hr.Context) -> Mail:
        mail = context.store("next").get(context.key)
        if mail is None:
            context.set_timer(context.time + EVERY_MS)
        return mail or Mail(context.key)

    def on_timer(self, timer: hr.Timer, context: hr.Context) -> None:
        context.emit(context.store("next").get(timer.key))
        context.store("next").delete(timer.key)


@hr.job("email-digest")
def email_digest(g: hr.Graph) -> None:
    keys = {"invites": "user", "views": "viewed", "news": "user"}
    new = {
        name: g.input(name, time="at", out_of_orderness="1m").partition_by(key).in_order()
        for name, key in keys.items()
    }
    mails = g.process(new, Digest, stores={"next": Mail}, returns=Mail, name="digest")
    mails.send_to(g.output("mails"))
