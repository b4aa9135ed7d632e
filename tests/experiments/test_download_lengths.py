"""Downloads whose length is known beforehand, or that never end: no more is fetched than the file can have."""

from dataclasses import replace

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
    send,
    status,
)

from gem_ood.errors import FileFormatError
from gem_ood.experiments import downloading
from gem_ood.experiments.downloading import fetch
from gem_ood.experiments.sources import ARCHIVES, WEIGHTS

pytest.importorskip("pooch")

#: What the publishers' servers announce; the others' lengths are not known for sure.
SIZES = {"cifar10": 170_052_171, "cifar100": 168_513_733, "svhn": 64_275_384, "textures": 625_239_812}


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    be_quick(monkeypatch)


def sized(server, n_bytes=None):
    return replace(archive_of(server), n_bytes=len(CONTENT) if n_bytes is None else n_bytes)


def endless(request, server):
    """Send for ever, without a word of how much."""
    send(request, 200, {"ETag": '"endless"'})
    while not server.ended.is_set():
        request.wfile.write(bytes(65_536))


def test_the_lengths_that_are_known_are_told_in_megabytes_too():
    assert {name: archive.n_bytes for name, archive in ARCHIVES.items() if archive.n_bytes is not None} == SIZES
    for name, n_bytes in SIZES.items():
        assert ARCHIVES[name].about.endswith(f" {round(n_bytes / 2**20)} MB")
    assert all(archive.n_bytes is None for archive in WEIGHTS.values())


@pytest.mark.parametrize("answer", [None, cut(N_CUT), chunked(), chunked(n_bytes=N_CUT), altered(Content_Length=None)])
def test_a_file_of_the_length_that_is_known_comes(answer, tmp_path):
    with LyingServer(CONTENT, *([] if answer is None else [answer])) as server:
        fetch(sized(server), tmp_path)
    assert is_whole(tmp_path)


@pytest.mark.parametrize("n_bytes", [0, len(CONTENT) - 1, len(CONTENT) + 1])
def test_another_length_is_refused_before_a_byte_is_fetched(n_bytes, tmp_path):
    counts = []
    with LyingServer(CONTENT) as server, pytest.raises(FileFormatError) as caught:
        fetch(sized(server, n_bytes), tmp_path, on_bytes=lambda *count: counts.append(count))
    assert f"{server.url} announces 400,000 bytes but file.bin has {n_bytes:,}; nothing was fetched" in str(
        caught.value
    )
    assert f"by hand from {server.url} and put it into {tmp_path}" in str(caught.value)
    assert counts == []
    assert len(server.requests) == 1
    assert names_in(tmp_path) == []


def test_a_page_that_asks_to_log_in_is_known_by_its_length(tmp_path):
    page = status(200, b"<html>", **{"Content-Type": "text/html; charset=utf-8"})
    with LyingServer(CONTENT, page) as server:
        broken_off(server, tmp_path)
        server.answers = [page]
        with pytest.raises(FileFormatError, match=r"announces 6 bytes but file\.bin has 400,000: it is a web page"):
            fetch(sized(server), tmp_path)
        assert (tmp_path / ".file.bin.part").read_bytes() == CONTENT[:N_CUT]
        fetch(sized(server), tmp_path)
    assert is_whole(tmp_path)
    assert server.ranges == [f"bytes={N_CUT}-"] * 2


def test_bytes_of_a_file_of_another_length_are_not_gone_on_with(tmp_path):
    with LyingServer(CONTENT + b"more") as server:
        server.answers = [cut(N_CUT), status(404)]
        with pytest.raises(downloading.InputError, match="answered 404"):
            fetch(archive_of(server), tmp_path)
        server.content = CONTENT
        server.requests.clear()
        fetch(sized(server), tmp_path)
    assert is_whole(tmp_path)
    assert server.ranges == [None]


def test_a_rest_of_a_file_of_another_length_is_refused_with_what_was_there(tmp_path):
    with LyingServer(CONTENT, chunked(n_bytes=N_CUT), status(404)) as server:
        with pytest.raises(downloading.InputError, match="answered 404"):
            fetch(sized(server), tmp_path)
        assert names_in(tmp_path) == [".file.bin.part", ".file.bin.part.json"]
        server.answers = [altered(Content_Range=f"bytes {N_CUT}-{len(CONTENT) - 1}/{len(CONTENT) + 7}")]
        with pytest.raises(FileFormatError, match=r"announces 400,007 bytes but file\.bin has 400,000"):
            fetch(sized(server), tmp_path)
    assert names_in(tmp_path) == []


def test_a_server_that_sends_for_ever_is_stopped_at_the_length_that_is_known(tmp_path):
    counts = []
    with LyingServer(CONTENT, endless) as server:
        with pytest.raises(FileFormatError, match=r"sent [\d,]+ bytes and more, but file\.bin has 400,000; nothing"):
            fetch(sized(server), tmp_path, on_bytes=lambda *count: counts.append(count))
        assert names_in(tmp_path) == []
        fetch(sized(server), tmp_path)
    assert is_whole(tmp_path)
    assert len(CONTENT) < counts[-1][0] <= len(CONTENT) + downloading.CHUNK_BYTES


def test_a_server_that_sends_for_ever_is_stopped_where_nothing_is_known(tmp_path, monkeypatch):
    monkeypatch.setattr(downloading, "LARGEST_DOWNLOAD", 1_000_000)
    with (
        LyingServer(CONTENT, endless) as server,
        pytest.raises(FileFormatError, match=r"bytes and more, but no file of more than 1,000,000 is fetched"),
    ):
        fetch(archive_of(server), tmp_path)
    assert len(server.requests) == 1
    assert names_in(tmp_path) == []


def test_a_rest_that_goes_on_for_ever_is_stopped_at_its_end(tmp_path):
    def endless_rest(request, server):
        headers = {"Content-Range": f"bytes {N_CUT}-{len(CONTENT) - 1}/{len(CONTENT)}", **server.versions()}
        send(request, 206, headers, CONTENT[N_CUT:])
        while not server.ended.is_set():
            request.wfile.write(bytes(65_536))

    with LyingServer(CONTENT) as server:
        broken_off(server, tmp_path)
        server.answers = [endless_rest]
        fetch(archive_of(server), tmp_path)
    assert is_whole(tmp_path)
    assert server.ranges == [f"bytes={N_CUT}-", None]


def test_a_length_that_no_file_has_is_refused_before_a_byte_is_fetched(tmp_path, monkeypatch):
    monkeypatch.setattr(downloading, "LARGEST_DOWNLOAD", len(CONTENT) - 1)
    with LyingServer(CONTENT) as server:
        with pytest.raises(FileFormatError, match="400,000 bytes but no file of more than 399,999 is fetched"):
            fetch(archive_of(server), tmp_path)
        fetch(sized(server), tmp_path)  # one that is known to be so large is
    assert is_whole(tmp_path)


def test_the_checksum_is_that_of_the_content_whose_length_is_known(tmp_path):
    other = bytes(len(CONTENT))
    with LyingServer(other) as server, pytest.raises(FileFormatError, match=f"but {CHECKSUM} was expected"):
        fetch(sized(server), tmp_path)
    assert names_in(tmp_path) == []
