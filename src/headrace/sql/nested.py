"""Arrays, structs and JSON of SQL, compiled to Polars."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import polars as pl
from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB

from headrace.sql.compiling import Compiled, Compiling, binary, unary

ELEMENT = pl.element()


def _array(compiler: Compiling, node: exp.Array) -> pl.Expr:
    """Return an array of values, or one made of another: ``[x + 1 for x in items if x > 0]``."""
    first = node.expressions[0] if node.expressions else None
    if first is None:
        raise compiler.mistake(node, "an empty array has no type: write NULL, or leave it out")
    if not isinstance(first, exp.Comprehension):
        return pl.concat_list(compiler.all(node.expressions))
    name = first.expression.name
    items = compiler(first.args["iterator"])
    if (condition := first.args.get("condition")) is not None:
        items = items.list.eval(ELEMENT.filter(_of_element(compiler, name, condition)))
    return items.list.eval(_of_element(compiler, name, first.this))


def _of_element(compiler: Compiling, name: str, body: Any) -> pl.Expr:
    """Return an expression of an element, which is all that it can read."""

    def own(node: Any) -> Any:
        is_name = isinstance(node, exp.Identifier) and node.name == name
        if not is_name or isinstance(node.parent, exp.Column):
            return node
        made = exp.Column(this=node.copy())
        made.this.meta.update(node.meta)
        return made

    tree = exp.Paren(this=body.copy()).transform(own)
    return compiler.of_elements({name: ELEMENT})(tree)


def _lambda(compiler: Compiling, node: Any, *, is_filter: bool) -> pl.Expr:
    call = node.expression
    if not isinstance(call, exp.Lambda) or len(call.expressions) != 1:
        raise compiler.mistake(node, "expected a function of one element, such as x -> x + 1")
    made = _of_element(compiler, call.expressions[0].name, call.this)
    return compiler(node.this).list.eval(ELEMENT.filter(made) if is_filter else made)


def _sorted(compiler: Compiling, node: exp.ArraySort) -> pl.Expr:
    asc = node.args.get("asc")
    is_descending = isinstance(asc, exp.Boolean) and not asc.this
    return compiler(node.this).list.sort(descending=is_descending, nulls_last=True)


def _put(compiler: Compiling, node: Any, *, is_first: bool) -> pl.Expr:
    """Return an array with one more element; a null array is as an empty one."""
    items, value = compiler(node.this), compiler(node.expression)
    both = [value, items] if is_first else [items, value]
    return pl.when(items.is_null()).then(pl.concat_list(value)).otherwise(pl.concat_list(both))


def _concatenated(compiler: Compiling, node: exp.ArrayConcat) -> pl.Expr:
    """Put arrays behind each other; null ones are as empty ones."""
    made, *others = compiler.all([node.this, *node.expressions])
    for other in others:
        made = pl.coalesce(made.list.concat(other), made, other)
    return made


def _joined(compiler: Compiling, node: exp.ArrayToString) -> pl.Expr:
    between = compiler.constant(node.expression, "the separator")
    items = compiler(node.this)
    texts = items.list.eval(ELEMENT.cast(pl.String).drop_nulls())
    return pl.when(items.is_not_null()).then(texts.list.join(str(between)))


def _without_nulls(items: pl.Expr) -> pl.Expr:
    return items.list.drop_nulls()


def _of_some(apply: Callable[[pl.Expr], pl.Expr]) -> Callable[[pl.Expr], pl.Expr]:
    """Return what is null for an array without any value."""
    return lambda items: pl.when(_without_nulls(items).list.len() > 0).then(apply(items))


def _element(compiler: Compiling, items: Any, position: Any) -> pl.Expr:
    at = int(compiler.constant(position, "a position"))
    if at == 0:
        return pl.when(pl.lit(value=False)).then(compiler(items).list.first())
    return compiler(items).list.get(at - 1 if at > 0 else at, null_on_oob=True)


def _slice(compiler: Compiling, items: Any, low: Any, high: Any) -> pl.Expr:
    """Return the elements between two positions, both included."""
    first = 1 if low is None else int(compiler.constant(low, "a position"))
    last = None if high is None else int(compiler.constant(high, "a position"))
    if first < 1 or (last is not None and last < 0):
        raise compiler.mistake(items, "positions of a slice count from the first element, 1")
    length = None if last is None else max(0, last - first + 1)
    return compiler(items).list.slice(first - 1, length)


def _bracket(compiler: Compiling, node: exp.Bracket) -> pl.Expr:
    inner = node.expressions[0]
    if isinstance(inner, exp.Literal) and inner.is_string:
        return compiler(node.this).struct.field(str(inner.this))
    if isinstance(inner, exp.Slice):
        return _slice(compiler, node.this, inner.this, inner.expression)
    at = int(compiler.constant(inner, "a position"))
    kind = node.this.type
    # The parser takes 1 away, unless it takes what is before the bracket for no array.
    if kind is None or kind.this in (exp.DataType.Type.UNKNOWN, exp.DataType.Type.ARRAY):
        at += 1
    at = at - 1 if at > 0 else at
    return compiler(node.this).list.get(at, null_on_oob=True)


def _struct(compiler: Compiling, node: exp.Struct) -> pl.Expr:
    made = []
    for one in node.expressions:
        if not isinstance(one, exp.PropertyEQ):
            raise compiler.mistake(one, "name the fields of a struct: {'a': 1}")
        made.append(compiler(one.expression).alias(one.this.name))
    return pl.struct(made)


def _field(compiler: Compiling, node: Any) -> pl.Expr:
    name = compiler.constant(node.expression, "the name of a field")
    return compiler(node.this).struct.field(str(name))


def _path(compiler: Compiling, keys: Any) -> str:
    """Return a path of JSON as text, with its root."""
    if isinstance(keys, exp.JSONPath):
        path = str(keys.sql("duckdb")).strip("'")
    else:
        path = str(compiler.constant(keys, "a path"))
    return path if path.startswith("$") else f"$.{path}"


def _json_text(compiler: Compiling, node: Any) -> pl.Expr:
    """Return what is at a path as text; ``doc -> 'a' ->> 'b'`` is one path."""
    path, inner = _path(compiler, node.expression), node.this
    while isinstance(inner, exp.JSONExtract):
        path = _path(compiler, inner.expression) + path.removeprefix("$")
        inner = inner.this
    return compiler(inner).str.json_path_match(path)


def _json(compiler: Compiling, node: exp.JSONExtract) -> pl.Expr:
    return _of_json(compiler(node.this), _AtPath(_steps(compiler, node.expression)), pl.String())


def _arrow(compiler: Compiling, node: exp.Lambda) -> pl.Expr:
    """Compile ``doc -> 'a'`` within a call, where the parser takes it for a function."""
    if len(node.expressions) != 1 or not isinstance(node.this, exp.Literal):
        raise compiler.mistake(node, "a function of elements is for list_transform, list_filter")
    document = exp.Column(this=node.expressions[0].copy())
    steps = _steps(compiler, DuckDB().to_json_path(node.this))
    return _of_json(compiler(document), _AtPath(steps), pl.String())


def _steps(compiler: Compiling, path: Any) -> list[str | int]:
    parts = path.expressions if isinstance(path, exp.JSONPath) else None
    known = (exp.JSONPathRoot, exp.JSONPathKey, exp.JSONPathSubscript)
    if parts is None or not all(isinstance(part, known) for part in parts):
        raise compiler.mistake(path, "expected a path such as '$.a.b[0]'")
    return [part.this for part in parts if not isinstance(part, exp.JSONPathRoot)]


class _AtPath:
    """Returns the part of a document at a path, as JSON; ``None``: there is none."""

    def __init__(self, keys: Sequence[str | int]) -> None:
        self._keys = keys

    def __call__(self, document: Any) -> str | None:
        """Return it."""
        for key in self._keys:
            is_there = isinstance(document, list) if isinstance(key, int) else False
            if isinstance(document, dict) and key in document:
                document = document[key]
            elif is_there and -len(document) <= int(key) < len(document):
                document = document[int(key)]
            else:
                return None
        return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def _of_json(
    text: pl.Expr, make: Callable[[Any], Any], kind: pl.DataType, wrong: Any = None
) -> pl.Expr:
    return text.map_batches(_Documents(make, kind, wrong), return_dtype=kind, is_elementwise=True)


class _Documents:
    """Calls a function for the document that each text is; ``wrong`` is for what is no JSON."""

    def __init__(self, make: Callable[[Any], Any], kind: pl.DataType, wrong: Any) -> None:
        self._make, self._kind, self._wrong = make, kind, wrong

    def __call__(self, texts: pl.Series) -> pl.Series:
        """Return the results."""
        return pl.Series([self._of(text) for text in texts], dtype=self._kind)

    def _of(self, text: str | None) -> Any:
        if text is None:
            return None
        try:
            return self._make(json.loads(text))
        except ValueError:
            return self._wrong


def _length(document: Any) -> int:
    return len(document) if isinstance(document, list) else 0


def _keys(document: Any) -> list[str]:
    return list(document) if isinstance(document, dict) else []


def _is_json(document: Any) -> bool:
    return True


FUNCTIONS: dict[str, Callable[..., pl.Expr]] = {
    "list_sum": lambda c, items: _of_some(lambda x: x.list.sum())(c(items)),
    "list_avg": lambda c, items: _of_some(lambda x: x.list.mean())(c(items)),
    "list_count": lambda c, items: _without_nulls(c(items)).list.len().cast(pl.Int64),
    "list_unique": lambda c, items: _without_nulls(c(items)).list.n_unique().cast(pl.Int64),
    "list_reverse": lambda c, items: c(items).list.reverse(),
    "list_extract": _element,
    "list_element": _element,
    "array_extract": _element,
    "list_slice": _slice,
    "list_contains": lambda c, items, x: c(items).list.contains(c(x)),
    "array_contains": lambda c, items, x: c(items).list.contains(c(x)),
    "list_has_all": lambda c, items, other: c(other).list.set_difference(c(items)).list.len() == 0,
    "json_array_length": lambda c, doc: _of_json(c(doc), _length, pl.Int64()),
    "json_valid": lambda c, doc: _of_json(c(doc), _is_json, pl.Boolean(), wrong=False),
}
"""Functions of arrays and JSON that sqlglot has no tree of its own for."""

NESTED: dict[type, Compiled] = {
    exp.Array: _array,
    exp.ArraySize: unary(lambda x: x.list.len().cast(pl.Int64)),
    exp.ArrayDistinct: unary(lambda x: _without_nulls(x).list.unique(maintain_order=True)),
    exp.ArraySort: _sorted,
    exp.ArrayReverse: unary(lambda x: x.list.reverse()),
    exp.ArrayAppend: lambda c, n: _put(c, n, is_first=False),
    exp.ArrayPrepend: lambda c, n: _put(c, n, is_first=True),
    exp.ArrayConcat: _concatenated,
    exp.ArrayContains: binary(lambda a, b: a.list.contains(b)),
    exp.ArrayOverlaps: binary(
        lambda a, b: _without_nulls(a).list.set_intersection(_without_nulls(b)).list.len() > 0
    ),
    exp.ArrayMin: unary(lambda x: x.list.min()),
    exp.ArrayMax: unary(lambda x: x.list.max()),
    exp.ArraySlice: lambda c, n: _slice(c, n.this, n.args["start"], n.args.get("end")),
    exp.ArrayToString: _joined,
    exp.ArrayFilter: lambda c, n: _lambda(c, n, is_filter=True),
    exp.Transform: lambda c, n: _lambda(c, n, is_filter=False),
    exp.Flatten: unary(lambda x: x.list.eval(ELEMENT.list.explode())),
    exp.Bracket: _bracket,
    exp.Struct: _struct,
    exp.StructExtract: _field,
    exp.JSONExtract: _json,
    exp.JSONKeys: unary(lambda x: _of_json(x, _keys, pl.List(pl.String()))),
    exp.Lambda: _arrow,
    exp.JSONExtractScalar: _json_text,
}
"""What compiles trees of arrays, structs and JSON."""
