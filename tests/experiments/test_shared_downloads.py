"""Downloads that several processes or threads want at once, and the lock that keeps them apart."""

import errno
import threading

import pytest
from broken_downloads import start_process
from lying_server import (
    CONTENT,
    N_CUT,
    LyingServer,
    archive_of,
    be_quick,
    cut,
    is_whole,
    names_in,
)

from gem_ood import locking
from gem_ood.experiments.downloading import fetch
from gem_ood.experiments.part_files import PartFile

pytest.importorskip("pooch")


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    be_quick(monkeypatch)


# Two at once


def test_a_second_process_waits_for_the_first_and_takes_its_file(tmp_path):
    release = threading.Event()

    def slowly(request, server):
        cut(N_CUT)(request, server)
        release.wait(60)
        request.wfile.write(CONTENT[N_CUT:])

    with LyingServer(CONTENT, slowly) as server, start_process(server, tmp_path) as first:
        assert first.stdout.readline() == f"0 {len(CONTENT)}\n"
        with start_process(server, tmp_path) as second:
            waiting = second.stdout.readline().split()
            release.set()
            second.communicate(timeout=60)
        first.communicate(timeout=60)
    assert waiting[1] == "None"
    assert (first.returncode, second.returncode) == (0, 0)
    assert len(server.requests) == 1
    assert is_whole(tmp_path)


def test_many_threads_that_want_one_file_get_it_from_one_download(tmp_path):
    with LyingServer(CONTENT, cut(N_CUT)) as server:
        threads = [threading.Thread(target=fetch, args=(archive_of(server), tmp_path)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert is_whole(tmp_path)
    assert server.ranges == [None, f"bytes={N_CUT}-"]


def test_only_one_of_many_threads_ever_holds_the_lock(tmp_path):
    inside, most = [], []

    def hold():
        for _ in range(20):
            with PartFile(tmp_path / "file.bin", url="", checksum="").locked(lambda: None):
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=hold) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 80
    assert names_in(tmp_path) == []


def test_a_lock_whose_file_was_removed_meanwhile_is_taken_anew(tmp_path, monkeypatch):
    lock, taken = locking._lock, []

    def lock_late(descriptor):
        if not taken:
            (tmp_path / ".file.bin.lock").unlink()
        taken.append(descriptor)
        lock(descriptor)

    monkeypatch.setattr(locking, "_lock", lock_late)
    with PartFile(tmp_path / "file.bin", url="", checksum="").locked(lambda: None):
        assert len(taken) == 2
        assert names_in(tmp_path) == [".file.bin.lock"]


def test_a_file_system_without_locks_is_used_as_it_is(tmp_path, monkeypatch):
    def refuse(_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(locking, "_lock", refuse)
    with LyingServer(CONTENT) as server:
        fetch(archive_of(server), tmp_path)
    assert is_whole(tmp_path)
