"""A report in the browser while its run is going: a server of this machine alone."""

from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from covey.report import page
from covey.report.from_files import content_of_files, read_state

_HOSTS = ("127.0.0.1", "localhost")


def server_of(directory: Path, *, port: int = 0) -> ThreadingHTTPServer:
    """A server of the report of a run, which only this machine can reach.

    While the run is going, the page is made of its files anew and reloads itself when there are
    more rounds; afterwards it is the finished `report.html`. There are no other files to ask for.

    Args:
        directory: The run directory.
        port: Port on 127.0.0.1. Default: 0, any free one; see `server_address`.

    Returns:
        The server; `serve_forever` runs it.

    Raises:
        ValueError: The directory holds no run.
    """
    read_state(directory)

    class Handler(BaseHTTPRequestHandler):
        """Answers with the page, or with the state of the run."""

        def do_GET(self) -> None:
            """Answer one request."""
            # A name of somebody else's that points here would let their page read this one.
            if self.headers.get("Host", "").rpartition(":")[0] not in _HOSTS:
                self.send_error(HTTPStatus.FORBIDDEN, "only for this machine")
            elif self.path == "/":
                self._send("text/html; charset=utf-8", page_of(directory))
            elif self.path == "/state":
                self._send("text/plain; charset=utf-8", read_state(directory).version.encode())
            else:
                self.send_error(HTTPStatus.NOT_FOUND)

        def _send(self, kind: str, body: bytes) -> None:
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base's name)
            """Requests are not printed."""

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


def page_of(directory: Path) -> bytes:
    """The page of a run now: made of its files while it is going, else its `report.html`.

    Args:
        directory: The run directory.
    """
    report = directory / "report.html"
    if report.exists() and not read_state(directory).running:
        return report.read_bytes()
    return page.render(content_of_files(directory)).encode()
