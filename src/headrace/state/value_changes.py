"""Whether values that were stored under one type can be read as another, by descriptions alone.

Values are MessagePack by field name (by place in array-like records): a field that is gone is
passed over, one that is new needs a default, and no kind may change.
"""

from __future__ import annotations

from headrace.state.value_types import JSON, Description

_ALSO = {("int", "float")}


def value_changes(old: Description, new: Description) -> list[str]:
    """Say what keeps stored values from being read as a new type; empty when nothing does.

    Args:
        old: what they were stored as, from ``value_types.describe``.
        new: what they are to be read as. Where one is of no kind of its own, anything goes.
    """
    return _changes("its values", old, new)


def _changes(what: str, old: Description, new: Description) -> list[str]:
    if JSON["kind"] in (old["kind"], new["kind"]):
        return []
    was, now = old["kind"], new["kind"]
    if was != now and (was, now) not in _ALSO:
        return [f"{what} were {_words(old)}, are now {_words(new)}: give what is new another name"]
    found = []
    if old.get("optional") and not new.get("optional"):
        found.append(f"{what} could be null, and now cannot: let them, as in {now} | None")
    if (text := new.get("text")) not in (None, old.get("text")):
        known = old.get("text", "str")
        found.append(f"{what} were {known}, are now {text}: give what is new another name")
    if "values" in new:
        found += _choices(what, old, new)
    if now == "list":
        return found + _changes(f"items of {what}", old["item"], new["item"])
    if now == "map":
        keys = _changes(f"keys of {what}", old["key"], new["key"])
        return found + keys + _changes(f"values of {what}", old["value"], new["value"])
    if now == "record":
        if {"tag"} <= old.keys() & new.keys() and old["tag"] != new["tag"]:
            found.append(f"{what} have the tag {old['tag']!r}, not {new['tag']!r}: keep the tag")
        return found + (_places if new["array"] else _fields)(what, old, new)
    return found


def _choices(what: str, old: Description, new: Description) -> list[str]:
    if "values" not in old:
        return [f"{what} could be any {old['kind']}, and now only {new['values']}: let them"]
    gone = [value for value in old["values"] if value not in new["values"]]
    return [f"{what} could be {gone}, and now cannot: keep these"] if gone else []


def _fields(what: str, old: Description, new: Description) -> list[str]:
    if old["array"]:
        return [f"{what} were records in an array, are now by name: keep array_like"]
    before = {field["stored"]: field for field in old["fields"]}
    found = []
    for field in new["fields"]:
        name, known = field["name"], before.get(field["stored"])
        if known is not None:
            found += _changes(f"values of field {name!r}", known["type"], field["type"])
            found += _lost_default(field, known)
        elif field.get("required", True):
            found.append(_needs_default(name))
    gone = sorted(before.keys() - {field["stored"] for field in new["fields"]})
    if new.get("strict") and gone:
        found.append(f"{what} have fields {gone}, which forbid_unknown_fields does not let pass")
    return found


def _places(what: str, old: Description, new: Description) -> list[str]:
    if not old["array"] or bool(old.get("tagged")) != bool(new.get("tagged")):
        return [f"{what} were records of another layout: keep array_like and tag as they were"]
    before, after = old["fields"], new["fields"]
    if len(after) < len(before):
        gone = [field["name"] for field in before[len(after) :]]
        return [
            f"{what} are arrays, from which fields {gone} cannot be taken: keep them at the end"
        ]
    found = []
    for known, field in zip(before, after, strict=False):
        if known["name"] != field["name"]:
            found.append(
                f"{what} are arrays, in which {field['name']!r} is now where {known['name']!r} "
                "was: add fields at the end"
            )
        found += _changes(f"values of field {field['name']!r}", known["type"], field["type"])
        found += _lost_default(field, known)
    new_ones = after[len(before) :]
    return found + [_needs_default(f["name"]) for f in new_ones if f.get("required", True)]


def _needs_default(name: str) -> str:
    return f"field {name!r} is new, and entries from before it have none: give it a default"


def _lost_default(field: Description, known: Description) -> list[str]:
    if known.get("required", True) or not field.get("required", True):
        return []
    return [f"field {field['name']!r} had a default, which older entries may need: keep one"]


def _words(description: Description) -> str:
    kind: str = description["kind"]
    return f"{kind} or null" if description.get("optional") else kind
