"""Downloads that are cut, stalled, interrupted and killed: they go on where they stopped."""

import errno
import os
import signal
import socket

import pytest
from broken_downloads import broken_off, start_process
from lying_server import (
    CONTENT,
    ETAG,
    N_CUT,
    LyingServer,
    altered,
    archive_of,
    be_quick,
    chunked,
    cut,
    is_whole,
    names_in,
    stall,
)

from gem_ood.errors import FileFormatError, InputError
from gem_ood.experiments.downloading import fetch

pytest.importorskip("pooch")


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    be_quick(monkeypatch)


# Cut and stalled


@pytest.mark.parametrize("answer", [cut(N_CUT), chunked(n_bytes=N_CUT)], ids=["length", "chunks"])
def test_a_download_that_was_cut_goes_on_by_itself(answer, tmp_path):
    with LyingServer(CONTENT, answer, cut(100_000)) as server:
        fetch(archive_of(server), tmp_path)
    assert is_whole(tmp_path)
    assert server.ranges == [None, f"bytes={N_CUT}-", f"bytes={N_CUT + 100_000}-"]
    assert [headers["If-Range"] for headers in server.requests] == [None, ETAG, ETAG]


def test_tries_that_bring_new_bytes_do_not_count(tmp_path):
    with LyingServer(CONTENT, *[cut(50_000)] * 7) as server:
        fetch(archive_of(server), tmp_path, n_tries=1)
    assert is_whole(tmp_path)
    assert server.ranges == [None, *(f"bytes={50_000 * n}-" for n in range(1, 8))]


def test_a_download_that_comes_no_further_ends_in_an_error_and_keeps_what_came(tmp_path):
    answers = [cut(50_000), cut(0), cut(0), cut(100_000), *[cut(0)] * 3]
    with LyingServer(CONTENT, *answers) as server, pytest.raises(InputError) as caught:
        fetch(archive_of(server), tmp_path, n_tries=3)
    assert len(server.requests) == 7
    assert "stopped after 150,000 of 400,000 bytes (try 3 of 3 without a new byte)" in str(caught.value)
    assert "run the same command again: it goes on from 150,000 bytes" in str(caught.value)
    assert f"by hand from {server.url} and put it into {tmp_path}" in str(caught.value)
    assert names_in(tmp_path) == [".file.bin.part", ".file.bin.part.json"]
    assert (tmp_path / ".file.bin.part").read_bytes() == CONTENT[:150_000]


def from_the_start(n_bytes):
    """Take no notice of Range, and cut after so many bytes."""

    def answer(request, server):
        del request.headers["Range"]
        cut(n_bytes)(request, server)

    return answer


def test_a_server_that_starts_over_each_time_does_not_keep_one_for_ever(tmp_path):
    answers = [from_the_start(n_bytes) for n_bytes in (100_000, 50_000, 100_000) * 50]
    with LyingServer(CONTENT, *answers) as server, pytest.raises(InputError, match="try 4 of 4 without a new byte"):
        fetch(archive_of(server), tmp_path, n_tries=4)
    assert len(server.requests) == 5


def test_a_server_that_joins_wrong_bytes_each_time_does_not_keep_one_for_ever(tmp_path):
    answers = [cut(N_CUT), altered(body=lambda right: right[::-1])] * 50
    with LyingServer(CONTENT, *answers) as server, pytest.raises(InputError):
        fetch(archive_of(server), tmp_path, n_tries=3)
    assert len(server.requests) <= 8


def test_a_later_call_asks_only_for_the_rest(tmp_path):
    counts = []
    with LyingServer(CONTENT) as server:
        broken_off(server, tmp_path)
        fetch(archive_of(server), tmp_path, on_bytes=lambda *count: counts.append(count))
    assert is_whole(tmp_path)
    assert server.ranges == [f"bytes={N_CUT}-"]
    assert counts[0] == (N_CUT, len(CONTENT))


def test_a_cut_before_the_first_byte_leaves_nothing(tmp_path):
    with LyingServer(CONTENT, *[cut(0)] * 2) as server, pytest.raises(InputError, match="stopped after 0 of"):
        fetch(archive_of(server), tmp_path, n_tries=2)
    assert names_in(tmp_path) == []


def test_a_server_that_says_nothing_at_all_is_a_broken_try(tmp_path):
    def hang_up(request, server):
        request.connection.shutdown(socket.SHUT_RDWR)

    with LyingServer(CONTENT, hang_up) as server:
        fetch(archive_of(server), tmp_path)
    assert is_whole(tmp_path)


def test_a_server_that_stalls_is_asked_again(tmp_path):
    with LyingServer(CONTENT, stall(N_CUT)) as server:
        fetch(archive_of(server), tmp_path, timeout=0.3)
    assert is_whole(tmp_path)
    start = int(server.ranges[1].removeprefix("bytes=").removesuffix("-"))
    assert 0 < start <= N_CUT


def test_a_server_that_never_answers_is_told_of(tmp_path):
    def wait(request, server):
        server.ended.wait(30)

    with LyingServer(CONTENT, *[wait] * 2) as server, pytest.raises(InputError, match=r"nothing came for 0\.2 seconds"):
        fetch(archive_of(server), tmp_path, timeout=0.2, n_tries=2)
    assert names_in(tmp_path) == []


def test_ctrl_c_leaves_what_came_and_a_later_call_goes_on(tmp_path):
    def interrupt(n_done, _):
        if n_done > N_CUT:
            raise KeyboardInterrupt

    with LyingServer(CONTENT) as server:
        with pytest.raises(KeyboardInterrupt):
            fetch(archive_of(server), tmp_path, on_bytes=interrupt)
        n_kept = (tmp_path / ".file.bin.part").stat().st_size
        assert n_kept > N_CUT
        assert names_in(tmp_path) == [".file.bin.part", ".file.bin.part.json"]
        fetch(archive_of(server), tmp_path)
    assert is_whole(tmp_path)
    assert server.ranges == [None, f"bytes={n_kept}-"]


def test_ctrl_c_during_the_last_check_loses_nothing(tmp_path, monkeypatch):
    import pooch.core

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    with LyingServer(CONTENT) as server:
        with monkeypatch.context() as patch:
            patch.setattr(pooch.core, "hash_matches", interrupt)
            with pytest.raises(KeyboardInterrupt):
                fetch(archive_of(server), tmp_path)
        assert names_in(tmp_path) == [".file.bin.part", ".file.bin.part.json"]
        fetch(archive_of(server), tmp_path)
    assert is_whole(tmp_path)
    assert len(server.requests) == 1


def test_a_file_system_without_links_takes_the_file_as_well(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with LyingServer(CONTENT) as server:
        fetch(archive_of(server), tmp_path)
    assert is_whole(tmp_path)


def test_a_disk_that_does_not_give_back_what_was_written_is_told_of(tmp_path, monkeypatch):
    import pooch.hashes

    monkeypatch.setattr(pooch.hashes, "file_hash", lambda *_, **__: "0" * 32)
    with LyingServer(CONTENT) as server, pytest.raises(FileFormatError, match="could not be kept"):
        fetch(archive_of(server), tmp_path)
    assert names_in(tmp_path) == []


def test_a_killed_process_leaves_what_came_and_no_lock(tmp_path):
    with LyingServer(CONTENT, stall(N_CUT)) as server:
        with start_process(server, tmp_path) as process:
            for line in process.stdout:
                if int(line.split()[0]) > 100_000:
                    break
            process.send_signal(signal.SIGKILL)
        assert not (tmp_path / "file.bin").exists()
        n_kept = (tmp_path / ".file.bin.part").stat().st_size
        fetch(archive_of(server), tmp_path)
    assert 0 < n_kept <= N_CUT
    assert is_whole(tmp_path)
    assert server.ranges[1] == f"bytes={n_kept}-"
