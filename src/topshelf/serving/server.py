"""The process: listening, signals, a shutdown that finishes what it took."""

from __future__ import annotations

import contextlib
import gc
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from types import FrameType
from typing import Any

import uvicorn

from topshelf.errors import ConfigError
from topshelf.serving.app import create_app
from topshelf.serving.engine import Engine
from topshelf.serving.guard import Guard
from topshelf.serving.logs import log, written_logs
from topshelf.serving.service import Service
from topshelf.serving.settings import LOOPBACK, ServeSettings

_SWITCH = (
    0.0005  # seconds that a thread may keep the others from Python: with the usual 5 ms, scoring waits for the loop
)
_KEEP = (
    75  # seconds that an idle connection stays: longer than those of common balancers, which would reuse a closed one
)
_ALLOCATIONS = 20_000  # new objects between rounds of the garbage collector; requests leave no cycles behind
_FINISH = 30  # seconds that requests have to finish in when the server ends


class Server(uvicorn.Server):
    """Uvicorn's server, which says when it is ready, and drains before it stops."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self.service = service

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            log("ready", url=self.url, variants=[f"{one.name} {one.version}" for one in self.service.engine.states()])

    @property
    def url(self) -> str:
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """SIGINT and SIGTERM end the server in order, and the process with 0: uvicorn would raise them again."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {one: signal.signal(one, self.handle_exit) for one in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.service.is_draining:  # a second signal does not wait
            super().handle_exit(sig, frame)
            return
        self.service.is_draining = True
        log("draining", seconds=self.service.settings.drain_s)
        timer = threading.Timer(self.service.settings.drain_s, super().handle_exit, (sig, frame))
        timer.daemon = True
        timer.start()


def make_server(engine: Engine) -> Server:
    """A server for an engine, by the engine's settings."""
    settings = engine.settings
    check_bind(settings)
    service = Service(engine)
    app = create_app(service)
    http: Any = "h11"
    if find_spec("httptools"):
        from topshelf.serving.shedding import shedding

        http = shedding(app) if isinstance(app, Guard) else "httptools"  # with CORS, every answer needs its headers
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=http,
        loop="uvloop" if find_spec("uvloop") else "asyncio",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_FINISH,
        timeout_keep_alive=_KEEP,
        backlog=2048,
    )
    return Server(config, service)


def serve(settings: ServeSettings) -> None:
    """Serve until SIGINT or SIGTERM."""
    check_bind(settings)
    sys.setswitchinterval(_SWITCH)
    with written_logs(), Engine(settings=settings) as engine:
        server = make_server(engine)
        # What is loaded now stays: to look through it again and again took half of the time of requests, and a full
        # round, as after a reload, stopped all of them for a tenth of a second.
        gc.freeze()
        gc.set_threshold(_ALLOCATIONS, 10, 10)
        gc.enable()  # the command switches it off for the start
        server.run()
        log("stopped")


def check_bind(settings: ServeSettings) -> None:
    """Refuse to listen on a public address without keys, unless the settings say so."""
    if settings.host not in LOOPBACK and settings.keys is None and not settings.open:
        raise ConfigError(
            f"host {settings.host!r} is open to other machines, and there are no keys: everybody there could do "
            "everything. Make keys (topshelf serve-key) and set keys, listen on 127.0.0.1, or set open = true"
        )
