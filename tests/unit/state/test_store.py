"""The overlay: reads see changes, then committed data; its bytes are counted exactly."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.state.backend import Position
from headrace.state.memory import MemoryBackend
from headrace.state.store import ENTRY_OVERHEAD_BYTES, KeyValueStore

KEYS = st.binary(max_size=2)
VALUES = st.none() | st.binary(max_size=3)


@given(
    committed=st.dictionaries(KEYS, st.binary(max_size=3), max_size=8),
    batches=st.lists(st.lists(st.tuples(KEYS, VALUES), max_size=6), max_size=5),
    low=KEYS,
    high=st.none() | KEYS,
)
def test_a_store_is_a_dict_over_a_dict(committed, batches, low, high) -> None:
    backend = MemoryBackend(None, ["s"])
    backend.apply({"s": (list(committed), list(committed.values()))}, Position("line", 1, ""))
    store = KeyValueStore(backend, "s")
    overlay: dict[bytes, bytes | None] = {}
    for batch in batches:
        if len(batch) == 1:
            ((key, value),) = batch
            store.delete(key) if value is None else store.put(key, value)
        else:
            store.put_many([key for key, _ in batch], [value for _, value in batch])
        overlay.update(batch)
        now = {key: value for key, value in (committed | overlay).items() if value is not None}
        asked = [*now, *overlay, low]
        assert store.get_many(asked) == [now.get(key) for key in asked]
        wanted = sorted(key for key in now if low <= key and (high is None or key < high))
        assert list(store.scan(low, high)) == [(key, now[key]) for key in wanted]
        content = sum(len(key) + len(value or b"") for key, value in overlay.items())
        assert store.overlay_bytes == content + ENTRY_OVERHEAD_BYTES * len(overlay)
    assert list(backend.scan("s")) == sorted(committed.items())
    keys, values = store.take_changes()
    assert list(zip(keys, values, strict=True)) == sorted(overlay.items(), key=lambda e: e[0])
    assert (store.overlay_bytes, store.take_changes()) == (0, ([], []))
