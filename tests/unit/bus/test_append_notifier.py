"""A notifier rings for index files of watched folders, and only wakes those who must look."""

import threading

import pytest

from headrace.bus.log_stream import AppendNotifier, FolderWatcher


@pytest.fixture
def watch():
    watch = FolderWatcher()
    yield watch
    watch.close()


def test_an_index_file_that_begins_or_grows_rings(tmp_path, watch):
    notifier = AppendNotifier()
    assert watch.add(tmp_path, notifier)
    for content in ("a", "b"):
        seen = notifier.count
        with open(tmp_path / "index-000000.log", "a", encoding="ascii") as file:
            file.write(content)
        notifier.wait(seen, 30)
        assert notifier.count > seen


def test_each_stream_has_its_own_bell(tmp_path, watch):
    bells = {name: AppendNotifier() for name in ("a", "b")}
    for name, notifier in bells.items():
        (tmp_path / name).mkdir()
        assert watch.add(tmp_path / name, notifier)
    (tmp_path / "a" / "0.seg").touch()  # a segment alone wakes nobody
    (tmp_path / "b" / "index-000000.log").touch()
    bells["b"].wait(0, 30)
    assert bells["b"].count > 0
    assert bells["a"].count == 0


def test_a_folder_that_cannot_be_watched_is_told(tmp_path, watch):
    assert not watch.add(tmp_path / "missing", AppendNotifier())


def test_closing_wakes_all_who_wait(tmp_path):
    watch, notifier = FolderWatcher(), AppendNotifier()
    watch.add(tmp_path, notifier)
    waiter = threading.Thread(target=notifier.wait, args=(0, 60))
    waiter.start()
    watch.close()
    waiter.join(30)
    assert not waiter.is_alive()
