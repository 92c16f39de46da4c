"""A server that speaks S3, in a process of its own: `python s3_server.py` says where it listens.

It keeps objects in memory, and asks nobody for credentials.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server


class OneAtATime:
    """An application that answers one request after the other.

    moto looks for an object and writes it in two steps. S3 promises that of two conditional writes
    one is refused, so no request may come between them.
    """

    def __init__(self, application: Callable[..., Iterable[bytes]]) -> None:
        self._application = application
        self._turn = threading.Lock()

    def __call__(self, environ: Any, start_response: Any) -> Iterable[bytes]:
        with self._turn:
            return list(self._application(environ, start_response))


if __name__ == "__main__":
    application = OneAtATime(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, application, threaded=True)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
