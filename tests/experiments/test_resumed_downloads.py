"""Downloads that go on from bytes that are there: those of another file are never joined to them."""

import json

import numpy as np
import pytest
from broken_downloads import broken_off
from lying_server import (
    CHANGED,
    CONTENT,
    ETAG,
    N_CUT,
    LyingServer,
    altered,
    archive_of,
    be_quick,
    cut,
    everything,
    honest,
    is_whole,
    names_in,
    status,
)

from gem_ood.errors import FileFormatError, InputError
from gem_ood.experiments.downloading import fetch
from gem_ood.experiments.part_files import PartFile, Version

pytest.importorskip("pooch")

OTHER = np.random.default_rng(1).bytes(len(CONTENT))


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    be_quick(monkeypatch)


# Lies about the rest


def test_a_server_that_takes_no_notice_of_ranges_is_read_from_the_start(tmp_path):
    with LyingServer(CONTENT) as server:
        broken_off(server, tmp_path)
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
        broken_off(server, tmp_path)
        server.answers = [lie]
        fetch(archive_of(server), tmp_path)
    assert is_whole(tmp_path)
    assert server.ranges == [f"bytes={N_CUT}-", None]


def test_a_rest_whose_total_is_not_told_is_joined(tmp_path):
    counts = []
    with LyingServer(CONTENT) as server:
        broken_off(server, tmp_path)
        server.answers = [altered(Content_Range=f"bytes {N_CUT}-{len(CONTENT) - 1}/*")]
        fetch(archive_of(server), tmp_path, on_bytes=lambda *count: counts.append(count))
    assert is_whole(tmp_path)
    assert counts[0] == (N_CUT, len(CONTENT))
    assert server.ranges == [f"bytes={N_CUT}-"]


def test_a_rest_of_wrong_bytes_is_thrown_away_and_all_of_it_asked_for(tmp_path):
    with LyingServer(CONTENT) as server:
        broken_off(server, tmp_path)
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
        broken_off(server, tmp_path)
        fetch(archive_of(server), tmp_path)
    assert is_whole(tmp_path)
    assert server.ranges == [f"bytes={N_CUT}-"]
    assert server.requests[0]["If-Range"] == sent


@pytest.mark.parametrize("knows_if_range", [True, False])
@pytest.mark.parametrize("tells", [{"etag": '"old"'}, {"changed": "Sun, 31 Dec 2023 00:00:00 GMT", "etag": None}])
def test_a_file_that_changed_between_two_tries_is_read_from_the_start(tells, knows_if_range, tmp_path):
    with LyingServer(OTHER, **tells) as server:
        server.answers = [cut(N_CUT), status(503)]
        with pytest.raises(InputError, match="answered 503"):
            fetch(archive_of(server), tmp_path, n_tries=1)
        server.requests.clear()
        server.content, server.etag, server.changed = CONTENT, tells["etag"] and ETAG, CHANGED

        def forgetful(request, server):
            del request.headers["If-Range"]
            honest(request, server)

        server.answers = [honest if knows_if_range else forgetful]
        fetch(archive_of(server), tmp_path)
    assert is_whole(tmp_path)
    assert server.ranges == ([f"bytes={N_CUT}-"] if knows_if_range else [f"bytes={N_CUT}-", None])


def test_a_file_that_changed_without_a_word_is_read_from_the_start(tmp_path):
    with LyingServer(OTHER, cut(N_CUT), status(503), etag=None, changed=None) as server:
        with pytest.raises(InputError, match="answered 503"):
            fetch(archive_of(server), tmp_path, n_tries=1)
        server.requests.clear()
        server.content = CONTENT
        fetch(archive_of(server), tmp_path)
    assert is_whole(tmp_path)
    assert server.ranges == [f"bytes={N_CUT}-", None]


def test_an_answer_that_there_is_no_rest_starts_over(tmp_path):
    with LyingServer(CONTENT) as server:
        broken_off(server, tmp_path)
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
        {"etag": '"one"\r\nHost: elsewhere'},
        {"etag": '"one"\n'},
        {"etag": " "},
        {"etag": "\u20ac"},
        {"last_modified": "Mon\n"},
        {"length": "many"},
        {"length": True},
        {"length": -1},
        b"[" * 100_000,
    ],
    ids=[
        *("missing", "empty", "cut", "list", "strange", "binary", "url", "checksum", "etag", "etag of lines"),
        *("etag with an end", "blank etag", "foreign etag", "date", "length", "true", "negative", "deep"),
    ],
)
def test_bytes_that_nobody_knows_the_file_of_are_not_gone_on_with(record, tmp_path):
    with LyingServer(CONTENT) as server:
        broken_off(server, tmp_path)
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
        broken_off(server, tmp_path)
        (tmp_path / ".file.bin.part").write_bytes(left)
        fetch(archive_of(server), tmp_path)
    assert is_whole(tmp_path)
    assert len(server.requests) == n_requests


@pytest.mark.parametrize("name", [".file.bin.part", ".file.bin.part.json", ".file.bin.lock"])
@pytest.mark.parametrize("is_there", [True, False])
def test_links_in_the_place_of_its_files_are_thrown_away_and_not_followed(name, is_there, tmp_path):
    folder, victim = tmp_path / "data", tmp_path / "victim"
    folder.mkdir()
    with LyingServer(CONTENT) as server:
        broken_off(server, folder)
        kept = (folder / name).read_bytes() if name.endswith("json") else CONTENT[:10]
        (folder / name).unlink(missing_ok=True)
        if is_there:
            victim.write_bytes(kept)
        (folder / name).symlink_to(victim)
        fetch(archive_of(server), folder)
    assert is_whole(folder)
    assert not (folder / "file.bin").is_symlink()
    assert server.ranges == [f"bytes={N_CUT}-" if name.endswith("lock") else None]
    assert victim.exists() == is_there
    assert not is_there or victim.read_bytes() == kept


def test_a_link_that_takes_the_place_of_the_bytes_is_not_written_through(tmp_path):
    part = PartFile(tmp_path / "file.bin", url="", checksum="")
    (tmp_path / "victim").write_bytes(b"dear")
    part.path.symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic link"):
        part.append()
    assert (part.size, part.version) == (0, None)
    assert (tmp_path / "victim").read_bytes() == b"dear"


@pytest.mark.parametrize("etag", ["\xe9", "\x01"])
def test_a_name_of_the_version_that_cannot_be_sent_back_is_done_without(etag, tmp_path):
    with LyingServer(CONTENT, etag=etag, changed=None) as server:
        broken_off(server, tmp_path)
        fetch(archive_of(server), tmp_path)
    assert is_whole(tmp_path)
    assert server.ranges == [f"bytes={N_CUT}-"]
    assert server.requests[0]["If-Range"] is None


# The record


def test_versions_differ_only_in_what_both_tell():
    version = Version("u", "c", length=3, etag="a", last_modified="m")
    assert version.agrees_with(Version("u", "c"))
    assert Version("u", "c").agrees_with(version)
    for other in (Version("u", "c", length=4), Version("u", "c", etag="b"), Version("v", "c")):
        assert not version.agrees_with(other)
        assert not other.agrees_with(version)
