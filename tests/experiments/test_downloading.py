"""Downloads that end well: the file is whole, right and alone, or was there already."""

import hashlib
import logging
from pathlib import Path

import pytest
from broken_downloads import broken_off
from lying_server import (
    CHECKSUM,
    CONTENT,
    N_CUT,
    LyingServer,
    altered,
    archive_of,
    be_quick,
    chunked,
    cut,
    is_whole,
    names_in,
    redirect,
)

from gem_ood.errors import FileFormatError, InputError
from gem_ood.experiments.downloading import fetch
from gem_ood.experiments.sources import Archive

pytest.importorskip("pooch")


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    be_quick(monkeypatch)


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
        broken_off(server, tmp_path)
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
