"""Servers of runs in a thread of the test."""

from __future__ import annotations

import time
from contextlib import contextmanager
from threading import Thread


@contextmanager
def running(engine):
    """A server in a thread; it ends with the block."""
    from topshelf.serving.server import make_server

    server = make_server(engine)
    thread = Thread(target=server.run)
    thread.start()
    try:
        until = time.monotonic() + 30
        while not server.started:
            assert time.monotonic() < until
            assert thread.is_alive()
            time.sleep(0.01)
        yield server
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()
