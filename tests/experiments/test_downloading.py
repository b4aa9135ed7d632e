"""Downloads from a server that cuts, stalls and lies: the file is whole and right, or it is not there."""

import errno
import hashlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from lying_server import (
    CHANGED,
    CHECKSUM,
    CONTENT,
    ETAG,
    N_CUT,
    LyingServer,
    altered,
    archive_of,
    be_quick,
    chunked,
    cut,
    everything,
    honest,
    is_whole,
    left_by_cut,
    names_in,
    redirect,
    stall,
    status,
)

from gem_ood.errors import FileFormatError, InputError
from gem_ood.experiments import part_files
from gem_ood.experiments.downloading import fetch
from gem_ood.experiments.part_files import PartFile, Version
from gem_ood.experiments.sources import Archive

pytest.importorskip("pooch")

OTHER = np.random.default_rng(1).bytes(len(CONTENT))

#: A process of its own that fetches and says how far it is.
PROGRAM = """
import sys
from gem_ood.experiments.downloading import fetch
from gem_ood.experiments.sources import Archive

url, checksum, folder = sys.argv[1:]
fetch(Archive("file.bin", url, checksum, ""), folder, on_bytes=lambda *counts: print(*counts, flush=True))
"""


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    be_quick(monkeypatch)


def start_process(server, folder):
    command = [sys.executable, "-c", PROGRAM, server.url, CHECKSUM, str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


# Success


@pytest.mark.parametrize("algorithm", ["md5", "sha1", "sha256", "sha512"])
def test_a_file_comes_whole_and_alone(algorithm, tmp_path):
    checksum = f"{algorithm}:{hashlib.new(algorithm, CONTENT).hexdigest()}".upper()
    with LyingServer(CONTENT) as server:
        assert fetch(archive_of(server, checksum=checksum), tmp_path) == tmp_path / "file.bin"
    assert is_whole(tmp_path)
    assert server.ranges == [None]


def test_a_file_of_no_bytes_comes(tmp_path):
    with LyingServer(b"") as server:
        path = fetch(archive_of(server, checksum=f"md5:{hashlib.md5(b'').hexdigest()}"), tmp_path)
    assert names_in(tmp_path) == ["file.bin"]
    assert path.read_bytes() == b""


def test_progress_never_falls_and_ends_at_the_total(tmp_path):
    counts = []
    with LyingServer(CONTENT, cut(N_CUT)) as server:
        fetch(archive_of(server), tmp_path, on_bytes=lambda *count: counts.append(count))
    done = [n_done for n_done, _ in counts]
    assert done == sorted(done)
    assert len(set(done)) > 5
    assert counts[0] == (0, len(CONTENT))
    assert counts[-1] == (len(CONTENT), len(CONTENT))


def test_a_file_whose_length_is_not_told_comes(tmp_path):
    counts = []
    with LyingServer(CONTENT, chunked()) as server:
        fetch(archive_of(server), tmp_path, on_bytes=lambda *count: counts.append(count))
    assert is_whole(tmp_path)
    assert counts[0] == (0, None)
    assert counts[-1] == (len(CONTENT), len(CONTENT))


def test_a_length_beside_chunks_is_not_believed(tmp_path):
    with LyingServer(CONTENT, chunked(Content_Length="7")) as server:
        fetch(archive_of(server), tmp_path)
    assert is_whole(tmp_path)
    assert len(server.requests) == 1


@pytest.mark.parametrize("length", [None, "many", "-1"])
def test_a_file_that_ends_with_the_connection_comes(length, tmp_path):
    with LyingServer(CONTENT, altered(Content_Length=length)) as server:
        fetch(archive_of(server), tmp_path)
    assert is_whole(tmp_path)


def test_nothing_is_printed_or_changed_in_pooch(tmp_path, capfd, monkeypatch):
    import pooch

    records = []
    handler = logging.Handler()
    monkeypatch.setattr(handler, "handle", records.append)
    monkeypatch.setattr(pooch.get_logger(), "handlers", [handler])
    monkeypatch.setattr(pooch.get_logger(), "level", logging.DEBUG)
    with LyingServer(CONTENT) as server:
        fetch(archive_of(server), tmp_path)
    assert records == []
    assert capfd.readouterr() == ("", "")
    assert pooch.get_logger().level == logging.DEBUG


def test_a_folder_that_is_not_there_is_made(tmp_path):
    with LyingServer(CONTENT) as server:
        fetch(archive_of(server), tmp_path / "new" / "Dätä ~")
    assert is_whole(tmp_path / "new" / "Dätä ~")


def test_a_relative_folder_is_taken_from_where_one_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with LyingServer(CONTENT) as server:
        assert fetch(archive_of(server), "~") == Path("~/file.bin")
    assert is_whole(tmp_path / "~")


def test_redirects_are_followed_with_the_range(tmp_path):
    with LyingServer(CONTENT) as server:
        left_by_cut(server, tmp_path)
        server.answers = [redirect("/elsewhere"), redirect(server.url)]
        fetch(archive_of(server), tmp_path)
    assert is_whole(tmp_path)
    assert server.ranges == [f"bytes={N_CUT}-"] * 3


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip", "deflate"])
def test_what_a_server_calls_an_encoding_is_not_undone(encoding, tmp_path):
    import gzip

    zipped = gzip.compress(CONTENT[:100_000])
    with LyingServer(zipped, altered(Content_Encoding=encoding)) as server:
        fetch(archive_of(server, checksum=f"md5:{hashlib.md5(zipped).hexdigest()}"), tmp_path)
    assert (tmp_path / "file.bin").read_bytes() == zipped
    assert server.requests[0]["Accept-Encoding"] == "identity"


# A file that is already there


def test_a_file_that_is_there_needs_no_network(tmp_path):
    counts = []
    (tmp_path / "file.bin").write_bytes(CONTENT)
    nowhere = Archive("file.bin", "http://127.0.0.1:1/file.bin", CHECKSUM, "")
    assert fetch(nowhere, tmp_path, on_bytes=lambda *count: counts.append(count)) == tmp_path / "file.bin"
    assert counts == [(len(CONTENT), len(CONTENT))]
    assert is_whole(tmp_path)


def test_another_file_under_the_name_is_refused_and_left_alone(tmp_path):
    (tmp_path / "file.bin").write_bytes(b"my own")
    with LyingServer(CONTENT) as server, pytest.raises(FileFormatError) as caught:
        fetch(archive_of(server), tmp_path)
    message = str(caught.value)
    for word in (str(tmp_path / "file.bin"), CHECKSUM, hashlib.md5(b"my own").hexdigest(), server.url, "move it away"):
        assert word in message
    assert (tmp_path / "file.bin").read_bytes() == b"my own"
    assert server.requests == []


def test_a_file_put_there_by_hand_meanwhile_is_left_alone(tmp_path):
    def put(n_done, _):
        if n_done == len(CONTENT):
            (tmp_path / "file.bin").write_bytes(b"my own")

    with LyingServer(CONTENT) as server, pytest.raises(FileFormatError, match="move it away"):
        fetch(archive_of(server), tmp_path, on_bytes=put)
    assert (tmp_path / "file.bin").read_bytes() == b"my own"


def test_a_folder_under_the_name_is_refused(tmp_path):
    (tmp_path / "file.bin").mkdir()
    with LyingServer(CONTENT) as server, pytest.raises(InputError, match=r"file\.bin is not a file"):
        fetch(archive_of(server), tmp_path)


# Cut and stalled


@pytest.mark.parametrize("answer", [cut(N_CUT), chunked(n_bytes=N_CUT)], ids=["length", "chunks"])
def test_a_download_that_was_cut_goes_on_by_itself(answer, tmp_path):
    with LyingServer(CONTENT, answer, cut(100_000)) as server:
        fetch(archive_of(server), tmp_path)
    assert is_whole(tmp_path)
    assert server.ranges == [None, f"bytes={N_CUT}-", f"bytes={N_CUT + 100_000}-"]
    assert [headers["If-Range"] for headers in server.requests] == [None, ETAG, ETAG]


def test_a_download_that_is_always_cut_ends_in_an_error_and_keeps_what_came(tmp_path):
    with LyingServer(CONTENT, *[cut(50_000)] * 3) as server, pytest.raises(InputError) as caught:
        fetch(archive_of(server), tmp_path, n_tries=3)
    assert len(server.requests) == 3
    assert "stopped after 150,000 of 400,000 bytes (try 3 of 3)" in str(caught.value)
    assert "run the same command again: it goes on from 150,000 bytes" in str(caught.value)
    assert f"by hand from {server.url} and put it into {tmp_path}" in str(caught.value)
    assert names_in(tmp_path) == [".file.bin.part", ".file.bin.part.json"]
    assert (tmp_path / ".file.bin.part").read_bytes() == CONTENT[:150_000]


def test_a_later_call_asks_only_for_the_rest(tmp_path):
    counts = []
    with LyingServer(CONTENT) as server:
        left_by_cut(server, tmp_path)
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
    lock, taken = part_files._lock, []

    def lock_late(descriptor):
        if not taken:
            (tmp_path / ".file.bin.lock").unlink()
        taken.append(descriptor)
        lock(descriptor)

    monkeypatch.setattr(part_files, "_lock", lock_late)
    with PartFile(tmp_path / "file.bin", url="", checksum="").locked(lambda: None):
        assert len(taken) == 2
        assert names_in(tmp_path) == [".file.bin.lock"]


def test_a_file_system_without_locks_is_used_as_it_is(tmp_path, monkeypatch):
    def refuse(_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(part_files, "_lock", refuse)
    with LyingServer(CONTENT) as server:
        fetch(archive_of(server), tmp_path)
    assert is_whole(tmp_path)


# Lies about the rest


def test_a_server_that_takes_no_notice_of_ranges_is_read_from_the_start(tmp_path):
    with LyingServer(CONTENT) as server:
        left_by_cut(server, tmp_path)
        server.answers = [everything]
        fetch(archive_of(server), tmp_path)
    assert is_whole(tmp_path)
    assert server.ranges == [f"bytes={N_CUT}-"]


@pytest.mark.parametrize(
    "lie",
    [
        altered(Content_Range=f"bytes {N_CUT - 1}-{len(CONTENT) - 1}/{len(CONTENT)}"),
        altered(Content_Range=f"bytes 0-{len(CONTENT) - 1}/{len(CONTENT)}"),
        altered(Content_Range=f"bytes {N_CUT}-{len(CONTENT) - 1}/{len(CONTENT) + 1}"),
        altered(Content_Range=f"bytes {N_CUT}-{len(CONTENT) - 2}/{len(CONTENT)}"),
        altered(Content_Range=f"bytes {N_CUT}-{len(CONTENT)}/{len(CONTENT)}"),
        altered(Content_Range=f"bytes {N_CUT}-{N_CUT - 1}/{len(CONTENT)}"),
        altered(Content_Length=str(len(CONTENT) - N_CUT - 10)),
        altered(Content_Range="bytes half-rest/all"),
        altered(Content_Range=f"bytes {N_CUT}-{len(CONTENT) - 1}/{'9' * 5000}"),
        altered(Content_Range=None),
        altered(ETag='"two"'),
        altered(Last_Modified="Tue, 02 Jan 2024 00:00:00 GMT"),
        altered(Content_Length=None, Content_Range=f"bytes {N_CUT}-{N_CUT + 9}/{len(CONTENT)}"),
    ],
    ids=[
        "start",
        "all",
        "total",
        "length",
        "beyond",
        "backwards",
        "short",
        "words",
        "digits",
        "none",
        "etag",
        "changed",
        "more",
    ],
)
def test_a_rest_that_is_another_than_asked_is_not_joined(lie, tmp_path):
    with LyingServer(CONTENT) as server:
        left_by_cut(server, tmp_path)
        server.answers = [lie]
        fetch(archive_of(server), tmp_path)
    assert is_whole(tmp_path)
    assert server.ranges == [f"bytes={N_CUT}-", None]


def test_a_rest_whose_total_is_not_told_is_joined(tmp_path):
    counts = []
    with LyingServer(CONTENT) as server:
        left_by_cut(server, tmp_path)
        server.answers = [altered(Content_Range=f"bytes {N_CUT}-{len(CONTENT) - 1}/*")]
        fetch(archive_of(server), tmp_path, on_bytes=lambda *count: counts.append(count))
    assert is_whole(tmp_path)
    assert counts[0] == (N_CUT, len(CONTENT))
    assert server.ranges == [f"bytes={N_CUT}-"]


def test_a_rest_of_wrong_bytes_is_thrown_away_and_all_of_it_asked_for(tmp_path):
    with LyingServer(CONTENT) as server:
        left_by_cut(server, tmp_path)
        server.answers = [altered(body=lambda right: right[::-1])]
        fetch(archive_of(server), tmp_path)
    assert is_whole(tmp_path)
    assert server.ranges == [f"bytes={N_CUT}-", None]


def test_a_part_that_nobody_asked_for_is_not_taken_for_the_whole(tmp_path):
    part = status(206, CONTENT[:10], **{"Content-Range": f"bytes 0-9/{len(CONTENT)}"})
    with LyingServer(CONTENT, part) as server:
        fetch(archive_of(server), tmp_path)
    assert is_whole(tmp_path)
    assert server.ranges == [None, None]


@pytest.mark.parametrize(
    ("etag", "changed", "sent"),
    [(ETAG, CHANGED, ETAG), ('W/"weak"', CHANGED, CHANGED), ('W/"weak"', None, None), (None, None, None)],
    ids=["etag", "weak etag and date", "weak etag", "nothing"],
)
def test_the_rest_is_asked_for_under_the_strongest_condition_there_is(etag, changed, sent, tmp_path):
    with LyingServer(CONTENT, etag=etag, changed=changed) as server:
        left_by_cut(server, tmp_path)
        fetch(archive_of(server), tmp_path)
    assert is_whole(tmp_path)
    assert server.ranges == [f"bytes={N_CUT}-"]
    assert server.requests[0]["If-Range"] == sent


@pytest.mark.parametrize("knows_if_range", [True, False])
@pytest.mark.parametrize("tells", [{"etag": '"old"'}, {"changed": "Sun, 31 Dec 2023 00:00:00 GMT", "etag": None}])
def test_a_file_that_changed_between_two_tries_is_read_from_the_start(tells, knows_if_range, tmp_path):
    with LyingServer(OTHER, **tells) as server:
        server.answers = [cut(N_CUT)]
        with pytest.raises(InputError):
            fetch(archive_of(server), tmp_path, n_tries=1)
        server.content, server.etag, server.changed = CONTENT, tells["etag"] and ETAG, CHANGED

        def forgetful(request, server):
            del request.headers["If-Range"]
            honest(request, server)

        server.answers = [honest if knows_if_range else forgetful]
        fetch(archive_of(server), tmp_path)
    assert is_whole(tmp_path)
    assert server.ranges == ([None, f"bytes={N_CUT}-"] if knows_if_range else [None, f"bytes={N_CUT}-", None])


def test_a_file_that_changed_without_a_word_is_read_from_the_start(tmp_path):
    with LyingServer(OTHER, cut(N_CUT), etag=None, changed=None) as server:
        with pytest.raises(InputError):
            fetch(archive_of(server), tmp_path, n_tries=1)
        server.content = CONTENT
        fetch(archive_of(server), tmp_path)
    assert is_whole(tmp_path)
    assert server.ranges == [None, f"bytes={N_CUT}-", None]


def test_an_answer_that_there_is_no_rest_starts_over(tmp_path):
    with LyingServer(CONTENT) as server:
        left_by_cut(server, tmp_path)
        server.answers = [status(416)]
        fetch(archive_of(server), tmp_path)
    assert is_whole(tmp_path)
    assert server.ranges == [f"bytes={N_CUT}-", None]


def test_a_whole_file_that_was_announced_longer_is_known_by_its_checksum(tmp_path):
    with LyingServer(CONTENT, altered(Content_Length=str(len(CONTENT) + 10))) as server:
        fetch(archive_of(server), tmp_path)
    assert is_whole(tmp_path)
    assert server.ranges == [None, f"bytes={len(CONTENT)}-"]


def test_a_file_that_was_announced_shorter_is_refused(tmp_path):
    lie = altered(Content_Length=str(len(CONTENT) - 10))
    with LyingServer(CONTENT, lie) as server, pytest.raises(FileFormatError, match="sent 399,990 bytes"):
        fetch(archive_of(server), tmp_path)
    assert names_in(tmp_path) == []


# What lies about in the folder


@pytest.mark.parametrize(
    "record",
    [
        None,
        b"",
        b"{",
        b"[1]",
        b'{"size": 3}',
        b"\xff\xfe",
        {"url": "http://127.0.0.1/other"},
        {"checksum": "md5:0"},
        {"etag": 3},
        {"length": "many"},
    ],
    ids=["missing", "empty", "cut", "list", "strange", "binary", "url", "checksum", "etag", "length"],
)
def test_bytes_that_nobody_knows_the_file_of_are_not_gone_on_with(record, tmp_path):
    with LyingServer(CONTENT) as server:
        left_by_cut(server, tmp_path)
        path = tmp_path / ".file.bin.part.json"
        if record is None:
            path.unlink()
        else:
            path.write_bytes(
                json.dumps(json.loads(path.read_bytes()) | record).encode() if isinstance(record, dict) else record
            )
        fetch(archive_of(server), tmp_path)
    assert is_whole(tmp_path)
    assert server.ranges == [None]


def test_bytes_that_nobody_knows_the_file_of_are_not_promised(tmp_path):
    (tmp_path / ".file.bin.part").write_bytes(CONTENT[:10])
    with LyingServer(CONTENT, status(500)) as server, pytest.raises(InputError, match="run the same command again, or"):
        fetch(archive_of(server), tmp_path, n_tries=1)
    assert names_in(tmp_path) == []


@pytest.mark.parametrize(
    ("left", "n_requests"), [(CONTENT, 0), (CONTENT[:-1] + b"?", 1), (CONTENT + b"?", 2)], ids=["whole", "bad", "long"]
)
def test_a_part_of_full_length_is_checked_before_it_is_taken(left, n_requests, tmp_path):
    with LyingServer(CONTENT) as server:
        left_by_cut(server, tmp_path)
        (tmp_path / ".file.bin.part").write_bytes(left)
        fetch(archive_of(server), tmp_path)
    assert is_whole(tmp_path)
    assert len(server.requests) == n_requests


# The record


def test_versions_differ_only_in_what_both_tell():
    version = Version("u", "c", length=3, etag="a", last_modified="m")
    assert version.agrees_with(Version("u", "c"))
    assert Version("u", "c").agrees_with(version)
    for other in (Version("u", "c", length=4), Version("u", "c", etag="b"), Version("v", "c")):
        assert not version.agrees_with(other)
        assert not other.agrees_with(version)
