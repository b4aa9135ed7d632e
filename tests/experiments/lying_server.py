"""A web server on loopback that serves one file and, as told, cuts, stalls and lies; it takes down what it was asked.

>>> import urllib.request
>>> with LyingServer(b"some bytes") as server:
...     urllib.request.build_opener(urllib.request.ProxyHandler({})).open(server.url).read()
b'some bytes'
"""

import hashlib
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from gem_ood.errors import InputError
from gem_ood.experiments import downloading
from gem_ood.experiments.downloading import fetch
from gem_ood.experiments.sources import Archive

#: What the tests download.
CONTENT = np.random.default_rng(0).bytes(400_000)
CHECKSUM = f"md5:{hashlib.md5(CONTENT).hexdigest()}"
#: Where a download that is broken off ends.
N_CUT = 150_000

#: What the server calls its file and when that last changed, unless a test says otherwise.
ETAG = '"one"'
CHANGED = "Mon, 01 Jan 2024 00:00:00 GMT"


class LyingServer:
    """Answers request after request as the list of `answers` says, and honestly after its end.

    An answer is a function that gets the request and the server; those below make the usual ones.
    """

    def __init__(self, content, *answers, etag=ETAG, changed=CHANGED):
        self.content, self.answers, self.etag, self.changed = content, list(answers), etag, changed
        self.requests = []  # the headers of each
        self.ended = threading.Event()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                self.close_connection = True
                owner.requests.append(self.headers)
                answer = owner.answers.pop(0) if owner.answers else honest
                answer(self, owner)

            def log_message(self, *_):
                pass

        class Quiet(ThreadingHTTPServer):
            def handle_error(self, *_):
                pass  # a client that went away

        self._server = Quiet(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self.url = f"http://127.0.0.1:{self._server.server_port}/file.bin"

    @property
    def ranges(self):
        """What was asked for in each request, None where everything was."""
        return [headers["Range"] for headers in self.requests]

    def versions(self):
        found = {"ETag": self.etag, "Last-Modified": self.changed}
        return {name: value for name, value in found.items() if value is not None}

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def send(request, status, headers, body=b""):
    request.send_response(status)
    for name, value in headers.items():
        request.send_header(name, value)
    request.send_header("Connection", "close")
    request.end_headers()
    request.wfile.write(body)
    request.wfile.flush()


def _wanted(request, server):
    """Return the status, the headers and the body that are right, with ranges and If-Range."""
    content, headers = server.content, server.versions()
    condition = request.headers["If-Range"]
    asked = re.fullmatch(r"bytes=(\d+)-", request.headers["Range"] or "")
    if asked is None or condition not in (None, server.etag, server.changed):
        return 200, headers | {"Content-Length": str(len(content))}, content
    start = int(asked[1])
    if start >= len(content):
        return 416, headers | {"Content-Range": f"bytes */{len(content)}", "Content-Length": "0"}, b""
    told = {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"}
    return 206, headers | told | {"Content-Length": str(len(content) - start)}, content[start:]


def honest(request, server):
    send(request, *_wanted(request, server))


def everything(request, server):
    """Take no notice of Range."""
    send(request, 200, server.versions() | {"Content-Length": str(len(server.content))}, server.content)


def cut(n_bytes):
    """Announce everything that is wanted, send so many bytes of it and close."""

    def answer(request, server):
        status, headers, body = _wanted(request, server)
        send(request, status, headers, body[:n_bytes])

    return answer


def stall(n_bytes):
    """As `cut`, but hold the line."""

    def answer(request, server):
        cut(n_bytes)(request, server)
        server.ended.wait(30)

    return answer


def status(code, body=b"", **headers):
    def answer(request, server):
        send(request, code, {"Content-Length": str(len(body))} | headers, body)

    return answer


def redirect(place):
    return status(302, Location=place)


def altered(*, body=None, **changes):
    """As `honest`, with some headers changed, or left out where None; `body` maps the right bytes to those sent."""

    def answer(request, server):
        code, headers, right = _wanted(request, server)
        headers |= {name.replace("_", "-"): value for name, value in changes.items()}
        headers = {name: value for name, value in headers.items() if value is not None}
        send(request, code, headers, right if body is None else body(right))

    return answer


def chunked(*, n_bytes=None, **changes):
    """Send chunk after chunk without a length; if `n_bytes` is told, cut after so many."""

    def answer(request, server):
        code, headers, body = _wanted(request, server)
        del headers["Content-Length"]
        headers |= {name.replace("_", "-"): value for name, value in changes.items()}
        send(request, code, headers | {"Transfer-Encoding": "chunked"})
        for start in range(0, len(body[:n_bytes]), 10_000):
            piece = body[:n_bytes][start : start + 10_000]
            request.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        if n_bytes is None:
            request.wfile.write(b"0\r\n\r\n")

    return answer


def be_quick(monkeypatch):
    """Wait hardly at all between tries, and ask loopback whatever proxies there are."""
    monkeypatch.setattr(downloading, "BACKOFF_SECONDS", 0.001)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "127.0.0.1")


def archive_of(server, *, checksum=CHECKSUM):
    return Archive("file.bin", server.url, checksum, "random bytes")


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def is_whole(folder):
    """The file is right and alone."""
    return names_in(folder) == ["file.bin"] and (folder / "file.bin").read_bytes() == CONTENT


def left_by_cut(server, folder):
    """Break a download off in the middle, and forget that it was asked for."""
    server.answers.insert(0, cut(N_CUT))
    with pytest.raises(InputError):
        fetch(archive_of(server), folder, n_tries=1)
    assert (folder / ".file.bin.part").read_bytes() == CONTENT[:N_CUT]
    server.requests.clear()
