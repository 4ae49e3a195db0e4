"""Schemas, batches, messages and keys: what flows, before anything moves it.

Read ``schema`` for the types, ``keys`` for the canonical encoding, ``frame`` for the one
on-disk form of a batch, ``messages`` for batches as Python objects and back.
"""

from headrace.records.keys import EncodedKeys, decode_key, encode_columns, encode_key
from headrace.records.schema import normalise, normalise_schema

__all__ = [
    "EncodedKeys",
    "decode_key",
    "encode_columns",
    "encode_key",
    "normalise",
    "normalise_schema",
]
