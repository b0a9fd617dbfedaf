"""Runs to serve, made without training, and a server of one in its own process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import IO, Any

from benchmarks.harness import ROOT

DIM, K, PER_USER = 64, 20, 20
CLUSTER = 50  # items per cluster of the made vectors
READY = 120  # seconds that a server may take to start on a busy machine


def make_run(folder: Path, users: int, items: int, *, seed: int = 0, letter: str = "i") -> None:
    """A finished run of MF with made vectors, written as any run is; the ids of its items begin with ``letter``.

    Items lie around the centres of clusters, and a user near the mean of some of the own items. The lengths of the 64
    directions fall as those of trained vectors do. About 20 items per user are seen.
    """
    import polars as pl
    import torch

    from topshelf.config import assemble
    from topshelf.data import Dataset, IdMap, Split, generate
    from topshelf.training import Fitted, save
    from topshelf.training.build import build_model, resolve

    made = generate(users, items, interactions_per_user=PER_USER, seed=seed)
    named = IdMap(pl.select(pl.format(letter + "{}", pl.int_range(items))).to_series())
    train = type(made)(made.indptr, made.indices, made.users, named)
    more = {"model": {"dim": DIM}, "train": {"refit": True}, "data": {"test_fraction": 0}}
    config = resolve(assemble(loss="softmax", k=K, seed=seed, more=more))
    model = build_model(config, users, items)
    generator = torch.Generator().manual_seed(seed)
    length = torch.arange(1, DIM + 1).pow(-0.5)
    centres = torch.randn(-(-items // CLUSTER), DIM, generator=generator)
    own = torch.arange(items) % len(centres)
    with torch.no_grad():
        model.item_vectors.copy_((centres[own] + 0.7 * torch.randn(items, DIM, generator=generator)) * length)
        chosen = made.indices[made.indptr[:-1]]
        noise = torch.randn(users, DIM, generator=generator) * length
        model.query_vectors.copy_(model.item_vectors[torch.from_numpy(chosen)] + 0.5 * noise)
    save(Fitted(config, Dataset("made", Split(train, train.none(), train.none(), "ratio")), model), folder)


class Served:
    """A server process."""

    def __init__(self, process: subprocess.Popen[str], url: str, seconds: float) -> None:
        self.process, self.url, self.seconds = process, url, seconds  # seconds until it was ready

    @property
    def rss(self) -> float:
        """MiB of the process and its children."""
        return sum(_rss(pid) for pid in (self.process.pid, *_children(self.process.pid))) / 1024

    @property
    def cpu(self) -> float:
        """Seconds of processor time so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def call(self, path: str, body: Any = None) -> Any:
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, content, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=300) as answer:
            return json.load(answer)


def _rss(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def _children(pid: int) -> list[int]:
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@contextmanager
def serving(run: Path, **settings: Any) -> Iterator[Served]:
    """``topshelf serve`` of a run, which is ready; settings as of --set, with dots as in batch__size."""
    words = [f"--set={name.replace('__', '.')}={value}" for name, value in settings.items()]
    with _process([sys.executable, "-m", "topshelf", "serve", str(run), "--port", "0", *words]) as served:
        yield served


@contextmanager
def bare(answer: bytes) -> Iterator[Served]:
    """The same HTTP server with nothing behind it: it reads the body and gives a constant answer."""
    with _process([sys.executable, "-m", "benchmarks.served", answer.decode()]) as served:
        yield served


@contextmanager
def _process(command: list[str]) -> Iterator[Served]:
    began = time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    with (
        subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True) as process,
    ):
        assert process.stderr is not None
        try:
            url = _ready(process)
            seconds = time.perf_counter() - began
            Thread(target=_drain, args=(process.stderr,), daemon=True).start()
            yield Served(process, url, seconds)
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


def _ready(process: subprocess.Popen[str]) -> str:
    """The address that the server says; /health/ready answers then."""
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if '"ready"' in line:
            url: str = json.loads(line)["url"]
            with urllib.request.urlopen(f"{url}/health/ready", timeout=READY) as answer:
                if answer.status == 200:
                    return url
    raise SystemExit(f"the server did not start: {''.join(said[-5:])}")


def _drain(stream: IO[str]) -> None:
    """Read what the server logs, so that it never waits for us."""
    while os.read(stream.fileno(), 1 << 20):
        pass


def serve_constant(answer: bytes) -> None:
    """What :func:`bare` starts."""
    import uvicorn

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return
        while (await receive()).get("more_body"):
            pass
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    config = uvicorn.Config(
        app, port=0, lifespan="off", log_config=None, access_log=False, server_header=False, loop="uvloop"
    )
    server = uvicorn.Server(config)
    started = server.startup

    async def startup(sockets: Any = None) -> None:
        await started(sockets)
        port = server.servers[0].sockets[0].getsockname()[1]
        print(json.dumps({"event": "ready", "url": f"http://127.0.0.1:{port}"}), file=sys.stderr, flush=True)

    server.startup = startup  # type: ignore[method-assign]
    server.run()


if __name__ == "__main__":
    serve_constant(sys.argv[1].encode())
