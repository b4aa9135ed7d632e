"""Downloads that must end in an error: wrong files, refusals and full disks, and what they leave behind."""

import errno
import hashlib
import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest
from broken_downloads import broken_off
from lying_server import (
    CHECKSUM,
    CONTENT,
    N_CUT,
    LyingServer,
    archive_of,
    be_quick,
    chunked,
    is_whole,
    names_in,
    redirect,
    status,
)

from gem_ood.errors import FileFormatError, InputError
from gem_ood.experiments.downloading import fetch
from gem_ood.experiments.part_files import PartFile
from gem_ood.experiments.sources import Archive

pytest.importorskip("pooch")


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    be_quick(monkeypatch)


# Wrong files and refusals


@pytest.mark.parametrize(
    "page", [b"<!DOCTYPE html><title>Log in</title>", b"\n <HTML>no", b"plain words"], ids=["page", "old page", "text"]
)
def test_wrong_bytes_are_refused_and_nothing_is_left(page, tmp_path):
    with LyingServer(CONTENT, status(200, page)) as server:
        with pytest.raises(FileFormatError) as caught:
            fetch(archive_of(server), tmp_path)
        assert names_in(tmp_path) == []
        assert len(server.requests) == 1
        fetch(archive_of(server), tmp_path)
    assert ("it is a web page" in str(caught.value)) == (b"<" in page)
    for word in (server.url, f"sent {len(page)} bytes", CHECKSUM, hashlib.md5(page).hexdigest(), "by hand"):
        assert word in str(caught.value)
    assert is_whole(tmp_path)


@pytest.mark.parametrize("code", [400, 401, 403, 404, 410, 204])
def test_a_refusal_is_told_at_once(code, tmp_path):
    with LyingServer(CONTENT, status(code)) as server, pytest.raises(InputError) as caught:
        fetch(archive_of(server), tmp_path)
    assert f"{server.url} cannot be downloaded: the server answered {code} " in str(caught.value)
    assert f"by hand from {server.url} and put it into {tmp_path}" in str(caught.value)
    assert len(server.requests) == 1
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("code", [408, 429, 500, 502, 503, 504])
def test_a_passing_trouble_is_waited_out(code, tmp_path):
    with LyingServer(CONTENT, status(code, b"busy"), status(code)) as server:
        fetch(archive_of(server), tmp_path)
    assert len(server.requests) == 3
    assert is_whole(tmp_path)


def test_a_trouble_that_does_not_pass_is_told_and_what_came_is_kept(tmp_path):
    with LyingServer(CONTENT) as server:
        broken_off(server, tmp_path)
        server.answers = [status(503)] * 4
        with pytest.raises(InputError, match=r"answered 503 .*\(try 4 of 4 without .* goes on from 150,000 bytes"):
            fetch(archive_of(server), tmp_path, n_tries=4)
        fetch(archive_of(server), tmp_path)
    assert is_whole(tmp_path)


@pytest.mark.parametrize(
    "place", ["/file.bin", "ftp://127.0.0.1/file.bin", "http://", "http://[::1", "http://[bad]/", "http://a:99999999/"]
)
def test_redirects_that_lead_nowhere_are_refused(place, tmp_path):
    with (
        LyingServer(CONTENT, *[redirect(place)] * 100) as server,
        pytest.raises(InputError, match=r"cannot be downloaded: .*; download file\.bin by hand") as caught,
    ):
        fetch(archive_of(server), tmp_path)
    assert "\n" not in str(caught.value)
    assert len(server.requests) <= 31
    assert names_in(tmp_path) == []


def test_a_closed_port_is_told_in_one_line(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    nowhere = Archive("file.bin", f"http://127.0.0.1:{port}/file.bin", CHECKSUM, "")
    with pytest.raises(InputError) as caught:
        fetch(nowhere, tmp_path, n_tries=2)
    trouble = "Connection refused (try 2 of 2 without a new byte); run the same command again, or"
    assert f"could not be downloaded: {trouble}" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert names_in(tmp_path) == []


def test_a_proxy_that_is_not_there_is_told_of(tmp_path, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "")
    with (
        LyingServer(CONTENT) as server,
        pytest.raises(InputError, match="the proxy that is set here: Connection refused"),
    ):
        fetch(archive_of(server), tmp_path, n_tries=1)
    assert server.requests == []


def test_an_unknown_host_is_told_in_one_line(tmp_path, monkeypatch):
    def unknown(*_, **__):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    monkeypatch.setenv("no_proxy", "*")
    nowhere = Archive("file.bin", "http://no-such-host.invalid/file.bin", CHECKSUM, "")
    with pytest.raises(InputError, match=r"could not be downloaded: Name or service not known \(try 2 of 2 "):
        fetch(nowhere, tmp_path, n_tries=2)


@pytest.mark.parametrize("url", ["", "no-scheme", "nothing://127.0.0.1/file.bin", "http://", "http://[bad/file.bin"])
def test_an_address_that_is_none_is_refused(url, tmp_path):
    with pytest.raises(InputError, match="cannot be downloaded"):
        fetch(Archive("file.bin", url, CHECKSUM, ""), tmp_path)
    assert names_in(tmp_path) == []


@pytest.mark.parametrize(
    ("changes", "options", "words"),
    [
        ({"file_name": ""}, {}, "plain name"),
        ({"file_name": "../file.bin"}, {}, "plain name"),
        ({"file_name": ".."}, {}, "plain name"),
        ({"checksum": "abc"}, {}, "must be like 'md5:.*; pass one of md5, sha1, sha256, sha512, a colon and"),
        ({"checksum": "crc:abc"}, {}, "must be like 'md5:"),
        ({"checksum": "md5:"}, {}, "must be like 'md5:"),
        ({}, {"timeout": 0}, "timeout must be positive"),
        ({}, {"timeout": float("nan")}, "timeout must be positive"),
        ({}, {"timeout": float("inf")}, "timeout must be positive and at most 86,400"),
        ({}, {"timeout": "a"}, "timeout must be positive and at most 86,400 but is 'a'; pass seconds"),
        ({}, {"n_tries": 0}, "n_tries must be at least 1 but is 0; pass a whole number, such as 5"),
        ({}, {"n_tries": "a"}, "n_tries must be at least 1 but is 'a'; pass a whole number"),
        ({}, {"n_tries": 1.5}, "n_tries must be at least 1 but is 1.5; pass a whole number"),
        ({"n_bytes": -1}, {}, "n_bytes of file.bin must be a whole number but is -1; leave it out"),
        ({"n_bytes": "many"}, {}, "n_bytes of file.bin must be a whole number but is 'many'; leave it out"),
    ],
)
def test_bad_options_are_refused(changes, options, words, tmp_path):
    values = {"file_name": "file.bin", "url": "http://127.0.0.1:1/", "checksum": CHECKSUM, "about": ""} | changes
    with pytest.raises(InputError, match=words):
        fetch(Archive(**values), tmp_path, **options)


# Disks


def test_too_little_space_is_told_before_the_first_byte(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=len(CONTENT) - 1))
    with LyingServer(CONTENT) as server, pytest.raises(InputError, match=r"free at least 1 MB .* run the same command"):
        fetch(archive_of(server), tmp_path)
    assert len(server.requests) == 1
    assert names_in(tmp_path) == []


def test_only_the_space_for_the_rest_is_needed(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    with LyingServer(CONTENT) as server:
        broken_off(server, tmp_path)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=len(CONTENT) - N_CUT - 1))
        with pytest.raises(InputError, match=r"150,000 of 400,000 bytes are there.* goes on from 150,000 bytes"):
            fetch(archive_of(server), tmp_path)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=len(CONTENT) - N_CUT))
        fetch(archive_of(server), tmp_path)
    assert is_whole(tmp_path)


class FullDisk:
    """A file that takes so many bytes and no more."""

    def __init__(self, file, n_free):
        self.file, self.n_free = file, n_free

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    def write(self, data):
        n_written = self.file.write(data[: self.n_free])
        self.n_free -= n_written
        if n_written < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return n_written


def test_a_disk_that_fills_up_is_told_and_what_came_is_gone_on_with(tmp_path, monkeypatch):
    append = PartFile.append

    with LyingServer(CONTENT) as server:
        with monkeypatch.context() as patch:
            patch.setattr(PartFile, "append", lambda part: FullDisk(append(part), 100_000))
            with pytest.raises(InputError) as caught:
                fetch(archive_of(server), tmp_path)
        assert "too full for file.bin (100,000 of 400,000 bytes are there); free at least 1 MB" in str(caught.value)
        assert not (tmp_path / "file.bin").exists()
        fetch(archive_of(server), tmp_path)
    assert is_whole(tmp_path)
    assert server.ranges == [None, "bytes=100000-"]


@pytest.fixture
def tiny_disk(tmp_path):
    folder = tmp_path / "tiny"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("only an administrator may mount a disk")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_real_disk_that_fills_up_leaves_a_part_and_no_file(tiny_disk):
    with LyingServer(CONTENT, chunked()) as server:
        with pytest.raises(InputError, match=r"too full for file\.bin; free more space"):
            fetch(archive_of(server), tiny_disk)
        n_kept = (tiny_disk / ".file.bin.part").stat().st_size
        assert names_in(tiny_disk) == [".file.bin.part", ".file.bin.part.json"]
        with pytest.raises(InputError, match=rf"\({n_kept:,} of 400,000 bytes are there\); free at least 1 MB"):
            fetch(archive_of(server), tiny_disk)
        subprocess.run(["mount", "-o", "remount,size=1m", str(tiny_disk)], check=True)
        fetch(archive_of(server), tiny_disk)
    assert n_kept > N_CUT
    assert is_whole(tiny_disk)
    assert server.ranges == [None, f"bytes={n_kept}-", f"bytes={n_kept}-"]


def test_a_file_too_large_for_the_file_system_is_told(tmp_path):
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with LyingServer(CONTENT) as server:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limits[1]))
        try:
            with pytest.raises(InputError, match=r"cannot be read or written in .* \(File too large\)"):
                fetch(archive_of(server), tmp_path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not (tmp_path / "file.bin").exists()


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "taken").write_bytes(b"")
    with LyingServer(CONTENT) as server:
        with pytest.raises(InputError, match=r"taken is a file, but file\.bin goes into a folder"):
            fetch(archive_of(server), tmp_path / "taken")
        with pytest.raises(InputError, match="Not a directory"):
            fetch(archive_of(server), tmp_path / "taken" / "deeper")
    assert server.requests == []


@pytest.fixture
def guest():
    """A folder that others own, and a user who is no administrator."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "theirs")
        folder.mkdir()
        (folder / "old.bin").write_bytes(CONTENT)
        Path(place).chmod(0o755)
        folder.chmod(0o555)
        is_root = os.geteuid() == 0
        if is_root:
            os.seteuid(65534)
        yield folder
        if is_root:
            os.seteuid(0)
        folder.chmod(0o755)


def test_a_folder_that_may_not_be_written_is_refused(guest):
    with (
        LyingServer(CONTENT) as server,
        pytest.raises(InputError, match=r"cannot be read or written .*Permission denied"),
    ):
        fetch(archive_of(server), guest)
    assert server.requests == []
    assert names_in(guest) == ["old.bin"]


def test_a_file_in_a_folder_that_may_not_be_written_is_taken(guest):
    assert fetch(Archive("old.bin", "http://127.0.0.1:1/", CHECKSUM, ""), guest) == guest / "old.bin"
