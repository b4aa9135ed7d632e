"""Downloading: a public archive comes into a folder, goes on where it stopped, and stays only if its checksum is right.

What has come so far is in a part file, which a broken connection, a full disk or a kill leaves for the next call. The
name of the archive itself never stands for anything but the whole file.
"""

import errno
import hashlib
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gem_ood.errors import FileFormatError, InputError
from gem_ood.experiments.part_files import PartFile, Version, header_text
from gem_ood.experiments.sources import Archive
from gem_ood.extras import require_extra
from gem_ood.features import is_count
from gem_ood.numpy_format import one_line

if TYPE_CHECKING:
    from requests import Response

__all__ = ["fetch"]

#: Seconds before the second try; each further wait is twice as long.
BACKOFF_SECONDS = 0.5
LONGEST_TIMEOUT = 86_400
CHUNK_BYTES = 1 << 16

#: Bytes after which a server that does not tell the length of a file is no longer listened to.
LARGEST_DOWNLOAD = 8_000_000_000
CHECKSUMS = ("md5", "sha1", "sha256", "sha512")

#: Answers that may be others a moment later: timeouts and too many requests; all from 500 on are such as well.
PASSING_TROUBLES = (408, 425, 429)

OnBytes = Callable[[int, int | None], None]


class _BrokenError(Exception):
    """A try failed in a way that another may mend."""


def fetch(
    archive: Archive,
    folder: str | os.PathLike[str],
    *,
    on_bytes: OnBytes | None = None,
    timeout: float = 30.0,
    n_tries: int = 5,
) -> Path:
    """Return the path of the archive in the folder, downloaded if it is not there, its checksum checked in any case.

    A download that broke off goes on where it stopped, in this call or in a later one. If another process is at the
    same file, this one waits for it.

    Args:
        archive: What to fetch.
        folder: Where to; it is made if it is not there.
        on_bytes: Called with the bytes that are done and those in all (None if the server does not tell), while
            downloading, while checking a file that is already there, and while waiting for another process. The
            bytes that are done may become fewer: what turns out not to be of the file is asked for again.
        timeout: Seconds without any byte after which a try is given up.
        n_tries: After how many tries in a row it is given up, each of which brought no byte further than before.

    Raises:
        InputError: If it cannot be downloaded or written; the message says what was kept and what to do.
        FileFormatError: If the file that came, or was there, has another checksum, or is announced with another length.

    >>> import tempfile
    >>> hello = Archive("hello.txt", "https://example.org/hello.txt", "md5:5d41402abc4b2a76b9719d911017c592", "a word")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "hello.txt").write_bytes(b"hello")
    ...     fetch(hello, folder).name
    'hello.txt'
    """
    _refuse_bad_options(archive, timeout, n_tries)
    report: OnBytes = on_bytes or (lambda n_done, n_total: None)
    target = Path(folder) / archive.file_name
    part = PartFile(target, url=archive.url, checksum=archive.checksum)
    with _naming(target, part):
        if _is_present(archive, target, report):
            return target
        require_extra("data", "pooch", purpose="downloads")
        target.parent.mkdir(parents=True, exist_ok=True)
        with part.locked(lambda: report(part.size, None)):
            # Asked again after each wait: another process, or the user by hand, may have put it there meanwhile.
            if not _is_present(archive, target, report):
                _download(archive, part, report, timeout=timeout, n_tries=n_tries)
                if not _is_present(archive, target, report):
                    _put(archive, part, target)
            part.discard()
    return target


def _refuse_bad_options(archive: Archive, timeout: float, n_tries: int) -> None:
    name = archive.file_name
    if name in ("", "..") or Path(name).name != name:
        raise InputError(f"the file name of an archive must be a plain name but is {name!r}; leave out its folders")
    if not re.fullmatch(rf"({'|'.join(CHECKSUMS)}):[0-9a-f]+", archive.checksum.lower()):
        raise InputError(
            f"the checksum of {name} must be like 'md5:c32a1d...' but is {archive.checksum!r}; pass one of "
            f"{', '.join(CHECKSUMS)}, a colon and the digits"
        )
    if archive.n_bytes is not None and not is_count(archive.n_bytes, least=0):
        raise InputError(
            f"n_bytes of {name} must be a whole number but is {archive.n_bytes!r}; leave it out if unknown"
        )
    is_number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if not is_number or not 0 < timeout <= LONGEST_TIMEOUT:
        raise InputError(f"timeout must be positive and at most {LONGEST_TIMEOUT:,} but is {timeout!r}; pass seconds")
    if not is_count(n_tries):
        raise InputError(f"n_tries must be at least 1 but is {n_tries!r}; pass a whole number, such as 5")


@contextmanager
def _naming(target: Path, part: PartFile) -> Iterator[None]:
    """Turn an error of the disk into one line that says what to do about it."""
    try:
        yield
    except OSError as error:
        folder = target.parent
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            version = part.version
            length = None if version is None else version.length
            raise _full_disk(target, part.size, length) from error
        if os.path.exists(folder) and not os.path.isdir(folder):
            raise InputError(f"{folder} is a file, but {target.name} goes into a folder; name a folder") from error
        raise InputError(
            f"{target.name} cannot be read or written in {folder} ({error.strerror or error}); mend that or name "
            f"another folder"
        ) from error


def _full_disk(target: Path, n_done: int, length: int | None) -> InputError:
    needed = "more space" if length is None else f"at least {-(-(length - n_done) // 1_000_000):,} MB"
    return InputError(
        f"the disk of {target.parent} is too full for {target.name}{_out_of(n_done, length)}; free {needed} there or "
        f"name a folder on another disk, and run the same command again{_going_on(n_done)}"
    )


def _out_of(n_done: int, length: int | None) -> str:
    return "" if length is None else f" ({n_done:,} of {length:,} bytes are there)"


def _going_on(n_done: int) -> str:
    return f": it goes on from {n_done:,} bytes" if n_done else ""


def _is_present(archive: Archive, target: Path, report: OnBytes) -> bool:
    """Return whether the file is there; raise if it is another one, which may be dear to the user."""
    if not target.exists():
        return False
    if not target.is_file():
        raise InputError(f"{target} is not a file, but {archive.file_name} is to be there; move it or name a folder")
    came = _checksum(archive, target, report)
    if came != archive.checksum.lower():
        raise FileFormatError(
            f"{target} has the checksum {came} but {archive.checksum} was expected: it is damaged, cut short or "
            f"another version; move it away or delete it, and run the same command again to download it from "
            f"{archive.url}"
        )
    return True


def _checksum(archive: Archive, path: Path, report: OnBytes | None = None) -> str:
    algorithm = archive.checksum.lower().partition(":")[0]
    found = hashlib.new(algorithm, usedforsecurity=False)
    n_done, n_total = 0, path.stat().st_size
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            found.update(chunk)
            n_done += len(chunk)
            if report is not None:
                report(n_done, n_total)
    return f"{algorithm}:{found.hexdigest()}"


def _put(archive: Archive, part: PartFile, target: Path) -> None:
    """Let pooch check the whole file once more and move it to its name."""
    import pooch

    def give_part(url: str, output_file: str, _: object) -> None:
        os.remove(output_file)
        try:
            # A second name rather than a new one: pooch removes its own when it is interrupted.
            os.link(part.path, output_file)
        except OSError:
            os.replace(part.path, output_file)

    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel(logging.WARNING)  # it tells people what it does, on stderr
    try:
        pooch.retrieve(
            archive.url,
            known_hash=archive.checksum,
            fname=archive.file_name,
            path=target.parent.resolve(),
            downloader=give_part,
        )
    except ValueError as error:  # a disk that does not give back what was written
        part.discard()
        raise FileFormatError(f"{target} could not be kept: {error} Run the same command again") from error
    finally:
        logger.setLevel(level)


def _download(archive: Archive, part: PartFile, report: OnBytes, *, timeout: float, n_tries: int) -> None:
    """Fill the part file with the whole file; its checksum is right when this returns."""
    by_hand = f"download {archive.file_name} by hand from {archive.url} and put it into {part.path.parent}"
    known = part.version
    if known is None or known.length not in (None, archive.n_bytes or known.length):
        part.discard()
    error: InputError | None = None
    # Against the furthest byte ever: a server that starts over each time makes no progress, however much it sends.
    n_failed, n_furthest = 0, part.size
    while n_failed < n_tries:
        if error is not None:
            time.sleep(BACKOFF_SECONDS * 2 ** max(n_failed - 1, 0))
        try:
            is_joined = _ask(archive, part, report, timeout=timeout, by_hand=by_hand)
        except _BrokenError as trouble:
            n_failed = 0 if part.size > n_furthest else n_failed + 1
            n_furthest = max(n_furthest, part.size)
            error = InputError(
                f"{archive.url} could not be downloaded: {trouble} (try {n_failed} of {n_tries} without a new byte); "
                f"run the same command again{_going_on(part.size)}, or {by_hand}"
            )
            continue
        came = _checksum(archive, part.path)
        if came == archive.checksum.lower():
            with part.path.open("rb+") as file:
                os.fsync(file.fileno())
            return
        error = FileFormatError(
            f"{archive.url} sent {part.size:,} bytes with the checksum {came} but {archive.checksum} was expected"
            f"{_guess(part.path)}; nothing of it was kept: run the same command again later, or {by_hand}"
        )
        n_failed, n_furthest = n_failed + 1, max(n_furthest, part.size)
        part.discard()
        if not is_joined:  # the same answer would come again
            break
    assert error is not None
    raise error


def _guess(path: Path) -> str:
    with path.open("rb") as file:
        is_page = re.match(rb"\s*<(!doctype html|html)", file.read(512), re.IGNORECASE)
    return ": it is a web page, perhaps one that asks to log in" if is_page else ""


def _ask(archive: Archive, part: PartFile, report: OnBytes, *, timeout: float, by_hand: str) -> bool:
    """Ask once for what is missing, and return whether the whole file is joined from several answers."""
    import requests
    from urllib3.exceptions import HTTPError

    known = part.version
    n_have = 0 if known is None else part.size
    if known is not None and n_have == known.length:
        return True
    headers = {"Accept-Encoding": "identity"}
    if known is not None and n_have:
        headers["Range"] = f"bytes={n_have}-"
        if known.validator is not None:
            headers["If-Range"] = known.validator
    try:
        with _answer(archive, headers, timeout=timeout, by_hand=by_hand) as answer:
            status = answer.status_code
            if status == 416 and n_have:
                return True  # nothing follows what is there: it is the whole, or its checksum will tell
            if status >= 500 or status in PASSING_TROUBLES:
                raise _BrokenError(f"the server answered {status} {answer.reason}")
            if status not in (200, 206):
                raise InputError(
                    f"{archive.url} cannot be downloaded: the server answered {status} {answer.reason}; {by_hand}"
                )
            _refuse_length(archive, part, answer, by_hand=by_hand)
            _receive(archive, part, answer, report, known=known if n_have else None, by_hand=by_hand)
    except (requests.RequestException, HTTPError) as error:
        where = "the proxy that is set here: " if isinstance(error, requests.exceptions.ProxyError) else ""
        raise _BrokenError(where + _reason(error, timeout)) from error
    return status == 206


def _answer(archive: Archive, headers: dict[str, str], *, timeout: float, by_hand: str) -> "Response":
    """Return the head of the server's answer; raise if the address, or one that it leads to, cannot be right."""
    import requests

    try:
        return requests.get(archive.url, headers=headers, stream=True, timeout=timeout)
    except (ValueError, requests.TooManyRedirects) as error:  # some of an address are plain ValueErrors
        raise InputError(f"{archive.url} cannot be downloaded: {one_line(error)[:300]}; {by_hand}") from error


def _refuse_length(archive: Archive, part: PartFile, answer: "Response", *, by_hand: str) -> None:
    """Raise before the first byte if the server announces another length than the file has, or than any has."""
    length = _extent(answer)[2]
    if length is None or (length <= LARGEST_DOWNLOAD if archive.n_bytes is None else length == archive.n_bytes):
        return
    if answer.status_code == 206:  # then what is there is of that other file
        part.discard()
    is_page = "html" in answer.headers.get("Content-Type", "").lower()
    raise FileFormatError(
        f"{archive.url} announces {length:,} bytes but {_expected(archive)}"
        f"{': it is a web page, perhaps one that asks to log in' if is_page else ''}; nothing was fetched: run the "
        f"same command again later, or {by_hand}"
    )


def _expected(archive: Archive) -> str:
    if archive.n_bytes is None:
        return f"no file of more than {LARGEST_DOWNLOAD:,} is fetched"
    return f"{archive.file_name} has {archive.n_bytes:,}"


def _receive(
    archive: Archive, part: PartFile, answer: "Response", report: OnBytes, *, known: Version | None, by_hand: str
) -> None:
    """Add the body of an answer to the part file, or to a new one if it is not the rest of what is there."""
    from urllib3.exceptions import ProtocolError

    start, stop, length = _extent(answer)
    headers = answer.headers
    etag, changed = (header_text(headers.get(name)) for name in ("ETag", "Last-Modified"))
    said = Version(archive.url, archive.checksum, length, etag, changed)
    if answer.status_code == 200:
        part.begin(said)
    elif known is None or start != part.size or not said.agrees_with(known):
        part.discard()
        raise _BrokenError(f"the server sent another part than the one asked for ({headers.get('Content-Range')})")
    elif length is None:
        length = known.length
    n_done = part.size
    if length is not None and length - n_done > shutil.disk_usage(part.path.parent).free:
        raise _full_disk(part.path.with_name(archive.file_name), n_done, length)
    report(n_done, length)
    most = next(n for n in (stop, archive.n_bytes, LARGEST_DOWNLOAD) if n is not None)
    with part.append() as file:
        try:
            # Bytes as they are sent: what some servers call an encoding is the archive's own compression.
            for chunk in answer.raw.stream(CHUNK_BYTES, decode_content=False):
                file.write(chunk)
                n_done += len(chunk)
                report(n_done, length)
                if n_done > most:
                    break
        except ProtocolError:  # a connection that was cut; what it lacks is told below, if that is known
            if length is None:
                raise
    if stop is not None and n_done > stop:
        part.discard()
        raise _BrokenError(f"the server sent more than the {stop:,} bytes it announced")
    if n_done > most:
        part.discard()
        raise FileFormatError(
            f"{archive.url} sent {n_done:,} bytes and more, but {_expected(archive)}; nothing of it was kept: run the "
            f"same command again later, or {by_hand}"
        )
    if length is not None and n_done < length:
        raise _BrokenError(f"the server stopped after {n_done:,} of {length:,} bytes")
    report(n_done, n_done)


def _extent(answer: "Response") -> tuple[int | None, int | None, int | None]:
    """Return where the body of an answer starts and stops in the file, and the length of the file, if it says so."""
    told = re.fullmatch(r"\d{1,18}", answer.headers.get("Content-Length", ""), re.ASCII)
    n_body = None if told is None or "Transfer-Encoding" in answer.headers else int(told[0])
    if answer.status_code == 200:
        return 0, n_body, n_body
    place = answer.headers.get("Content-Range", "")
    found = re.fullmatch(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)", place, re.ASCII)
    if found is None:
        return None, None, None
    start, stop = int(found[1]), int(found[2]) + 1
    if n_body not in (None, stop - start):
        return None, None, None
    return start, stop, None if found[3] == "*" else int(found[3])


def _reason(error: BaseException, timeout: float) -> str:
    """Return in a few words what lies at the bottom of an error of the network."""
    inner: list[BaseException | None] = [getattr(error, "reason", None), error.__cause__, *error.args]
    deeper = next((cause for cause in inner if isinstance(cause, BaseException)), None)
    if deeper is not None:
        return _reason(deeper, timeout)
    if isinstance(error, TimeoutError):
        return f"nothing came for {timeout:g} seconds"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
