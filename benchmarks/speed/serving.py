"""What a server of one process can take: throughput, latency, reloads, overload, kill -9, start-up, checks of keys.

    python -m benchmarks.speed.serving [--quick] [--stage NAME ...] [--rounds 3] [--minutes 10] [--page] [--json FILE]

Runs of MF with made vectors (100,000 users, 50,000 items, d = 64, k = 20, about 20 seen items per user; 1,000,000
items for the index), served by ``topshelf serve`` with its default settings (for load, without its limit of the wait),
each server in a process of its own, on the same machine as the load. Users are asked for at random.

- load: requests per second that wrk gets over 256 connections, of the server with micro-batches, the same with
  batch.size = 1, and a bare handler (uvicorn, a constant answer of the same length), in turn; the best round counts.
  Beside them the rate of one product of all item vectors with one query and its top 20, in a process that does nothing
  else. Then times at half of that rate, from the moment that a request was due (open loop).
- index: the same for 1,000,000 items by HNSW: recall as the server measures it at its start, rate, times at half of it.
- reloads: wrk without a pause for --minutes while the server switches 20 times between two runs. Every answer must have
  the items of the version that it names. Memory of the process after a fifth of the time and at the end.
- overload: five times the rate, over --crowd connections, each of which waits for its answer before it sends again;
  what was really offered is in the table. A probe with a fixed schedule, 2% of the rate, is sent along: times of what
  is accepted and of the 503, and when they are back to normal. It is compared with the probe beside the full rate,
  over 192 connections, so that nothing is refused there. On two cores nobody can offer the server of 50,000 items five
  times its rate.
- overload-index: the same with 1,000,000 items by HNSW, a server slow enough to be offered five times its rate.
- startup: a server that stores events is killed (kill -9) while four writers send some, 50 times. What was acknowledged
  must be there once. Seconds from the start of the process to /health/ready.
- keys: time of a check of the right key, a wrong secret, an unknown name, and text of another form.

Rows are written as they are finished; stages of an older file that are not run again stay. ``--page`` measures nothing:
it writes the tables of FILE into docs/serving.md.
"""

from __future__ import annotations

import json
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from typing import Any

from benchmarks.harness import ROOT, Benchmark, Row, apart, interleaved, table, today
from benchmarks.load import Times, check_wrk, finished, probe, probe_running, wrk, wrk_running
from benchmarks.served import DIM, K, Served, bare, make_run, serving

SIZE = {"users": 100_000, "items": 50_000, "many": 1_000_000, "seconds": 8.0, "times": 20.0, "kills": 50}
QUICK = {"users": 300, "items": 200, "many": 400, "seconds": 1.0, "times": 3.0, "kills": 2}
CONNECTIONS, FULL = 256, 192
RELOADS, OVER, PROBE = 20, 5.0, 0.02
AIM = {"p99": 0.025, "batching": 3.0, "recall": 0.95, "memory": 1.05, "overload": 2.0, "recovery": 5.0, "start": 3.0}
BEGIN, END = "<!-- measured: benchmarks/speed/serving.py --page -->", "<!-- end of measured -->"


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


class Runs:
    """Run folders, made when they are first asked for."""

    def __init__(self, folder: Path, size: Row) -> None:
        self.folder, self.size = folder, size

    def of(self, letter: str, items: str = "items") -> Path:
        path = self.folder / f"{items}-{letter}"
        if not path.exists():
            say(f"making a run of {self.size[items]:,} items")
            seed = ord(letter) - ord("a")
            apart(_make, path, self.size["users"], self.size[items], seed, letter)
        return path


def _make(path: Path, users: int, items: int, seed: int, letter: str) -> None:
    make_run(path, users, items, seed=seed, letter=letter)


def load(runs: Runs, options: Namespace) -> Row:
    size, run = runs.size, runs.of("a")
    patient = {"batch__budget_ms": 10_000}  # neither refuses anything, so that the rates are of the same requests
    with serving(run, **patient) as batched, serving(run, batch__size=1, **patient) as single:
        answer = json.dumps(batched.call("/recommend", {"user": "1", "k": K}), separators=(",", ":")).encode()
        with bare(answer) as constant:
            servers = {"batched": batched, "unbatched": single, "bare": constant}
            rounds = _rates(servers, size, options.rounds)
        rate = max(row["rate"] for row in rounds["batched"])
        say(f"{rate:,.0f} requests per second; times at half of it")
        half = probe(batched.url, rate / 2, size["times"], size["users"]).row()
    products = apart(_products, size["items"], options.rounds)
    best = {name: max(row["rate"] for row in rows) for name, rows in rounds.items()} | products
    return {
        "rates": {name: [row["rate"] for row in rows] for name, rows in rounds.items()},
        "not_200": {name: sum(row["not_200"] for row in rows) for name, rows in rounds.items()},
        "cpu": {name: min(row["cpu"] for row in rows) for name, rows in rounds.items()},
        "best": best,
        "saturated_p99": min(row["p99"] for row in rounds["batched"]),
        "batching": best["batched"] / best["unbatched"],
        "of_bare": best["batched"] / best["bare"],
        "of_product": best["batched"] / best["product"],
        "half": {"rate": rate / 2, **half},
        "start": batched.seconds,
    }


def _rates(servers: dict[str, Served], size: Row, rounds: int) -> dict[str, list[Row]]:
    """What wrk counts of each server, in turn; ``cpu`` are seconds of processor time of the server per request."""
    found: dict[str, list[Row]] = {name: [] for name in servers}
    for n in range(rounds + 1):
        for name, server in servers.items():
            before = server.cpu
            row = wrk(server.url, size["seconds"] if n else 2, size["users"], CONNECTIONS, seed=n)
            if n:  # the first is to warm up
                found[name].append({**row, "cpu": (server.cpu - before) / row["requests"]})
                say(f"  {name}: {row['rate']:,.0f} per second, {1e6 * found[name][-1]['cpu']:.0f} us of the processor")
    return found


def _products(items: int, rounds: int) -> dict[str, float]:
    """Products of all item vectors with one query, and their top k, per second."""
    import torch

    vectors, queries = torch.randn(items, DIM), torch.randn(200, DIM)

    def one_by_one() -> None:
        for query in queries:
            torch.topk(vectors @ query, min(K, items))

    seconds = interleaved({"product": one_by_one}, 3 * rounds)
    return {"product": len(queries) / min(seconds["product"])}


def index(runs: Runs, options: Namespace) -> Row:
    size, run = runs.size, runs.of("a", "many")
    folder = runs.folder / "indexes"
    is_kept = folder.exists()  # of an earlier call: then nothing is built here
    say("starting a server with an index that is kept" if is_kept else "starting a server that builds the index")
    with serving(run, index__kind="hnsw", index__folder=folder) as server:
        (state,) = server.call("/model")["variants"]
        rows = _rates({"hnsw": server}, size, options.rounds)["hnsw"]
        rate = max(row["rate"] for row in rows)
        half = probe(server.url, rate / 2, size["times"], size["users"]).row()
        rss = server.rss
    with serving(run, index__kind="hnsw", index__folder=folder) as again:
        start = again.seconds
    build = None if is_kept else server.seconds
    best = {"recall": state["recall"], "rate": rate, "rss": rss, "build": build, "start": start}
    return {"items": size["many"], **best, "half": {"rate": rate / 2, **half}}


def reloads(runs: Runs, options: Namespace) -> Row:
    size, seconds = runs.size, 60 * options.minutes
    run, other = runs.of("a"), runs.of("b")
    with serving(run) as server:
        versions = {server.call("/model")["variants"][0]["version"]: "a"}
        versions[server.call("/admin/reload", {"run": other.name})["version"]] = "b"
        changes: list[Row] = []
        memory: list[tuple[float, float]] = []
        began = time.perf_counter()
        with wrk_running(server.url, seconds, size["users"], CONNECTIONS, versions=versions) as process:
            while (now := time.perf_counter() - began) < seconds:
                memory.append((now, server.rss))
                if now >= (len(changes) + 0.5) * seconds / RELOADS and len(changes) < RELOADS:
                    changes.append(server.call("/admin/reload", {"run": (run, other)[len(changes) % 2].name}))
                    say(f"  reload {len(changes)}: {changes[-1]['seconds']:.1f} s, {server.rss:,.0f} MiB")
                time.sleep(0.2)
            row = finished(process)
    fifth, end = _memory(memory, 0.2 * seconds, seconds), _memory(memory, seconds, seconds)
    kept = {
        name: row[name] for name in ("requests", "rate", "good", "busy", "failed", "mixed", "sockets", "p50", "p99")
    }
    took = [change["seconds"] for change in changes]
    more = {"reloads": len(changes), "reload_seconds": statistics.median(took), "minutes": options.minutes}
    return {**kept, **more, "rss_fifth": fifth, "rss_end": end, "growth": end / fifth}


def _memory(samples: list[tuple[float, float]], moment: float, seconds: float) -> float:
    """The median MiB of the samples of a sixtieth of the time before a moment; of the last one before it, if none."""
    before = [(at, rss) for at, rss in samples if at <= moment]
    return statistics.median([rss for at, rss in before if at >= moment - seconds / 60] or [before[-1][1]])


def overload(runs: Runs, options: Namespace) -> Row:
    with serving(runs.of("a")) as server:
        return _overload(server, runs.size, options)


def overload_index(runs: Runs, options: Namespace) -> Row:
    run, folder = runs.of("a", "many"), runs.folder / "indexes"
    with serving(run, index__kind="hnsw", index__folder=folder) as server:
        return _overload(server, runs.size, options)


def _overload(server: Served, size: Row, options: Namespace) -> Row:
    users, seconds = size["users"], size["times"]
    rate = max(wrk(server.url, size["seconds"], users, CONNECTIONS)["rate"] for _ in range(options.rounds))
    say(f"{rate:,.0f} requests per second; the probe beside that load")
    with probe_running(server.url, PROBE * rate, seconds, users) as result:
        wrk(server.url, seconds, users, FULL)
        saturated = result().between(1, seconds - 1)
    say(f"p99 {1000 * (saturated.percentile(99) or 0):.1f} ms; half of the rate, five times, half")
    with probe_running(server.url, PROBE * rate, 3 * seconds, users) as result:
        began = time.perf_counter()
        usual = wrk(server.url, seconds, users, CONNECTIONS, rate=rate / 2)
        over_from = time.perf_counter() - began
        over = wrk(server.url, seconds, users, options.crowd, rate=OVER * rate)
        over_until = time.perf_counter() - began
        wrk(server.url, seconds, users, CONNECTIONS, rate=rate / 2)
        times: Times = result()
    normal, during = times.between(1, over_from), times.between(over_from + 1, over_until - 1)
    edge = 2 * (normal.percentile(99) or 0)
    return {
        "rate": rate,
        "saturated": saturated.row(),
        "normal": {"offered": usual["requests"] / usual["seconds"], **normal.row()},
        "over": {"offered": over["requests"] / over["seconds"], "accepted": over["rate"], **during.row()},
        "ratio": (during.percentile(99) or 0) / (saturated.percentile(99) or 1),
        "recovery": _recovery(times, over_until, edge),
    }


def _recovery(times: Times, since: float, edge: float) -> float | None:
    """Seconds after a moment from which half a second of the probe has nothing but good answers below the edge."""
    start = since
    while start + 0.5 <= times.due[-1]:
        some = times.between(start, start + 0.5)
        if len(some.due) and (some.status == 200).all() and (some.percentile(99) or 0) <= edge:
            return start - since
        start += 0.1
    return None


def startup(runs: Runs, options: Namespace) -> Row:  # noqa: ARG001
    run, file = runs.of("a"), runs.folder / f"events-{time.time_ns()}.db"  # a new one: ids are numbered from 0
    writers = [_Writer(number) for number in range(4)]
    seconds: list[float] = []
    for _ in range(runs.size["kills"]):
        with serving(run, events__path=file) as server:
            seconds.append(server.seconds)
            for writer in writers:
                writer.begin(server.url)
            time.sleep(0.5)
            server.process.kill()
            for writer in writers:
                writer.end()
    with serving(run, events__path=file) as server:
        seconds.append(server.seconds)
    with sqlite3.connect(file) as connection:
        stored = [row[0] for row in connection.execute("SELECT item FROM events")]
    acknowledged = {item for writer in writers for item in writer.acknowledged}
    say(f"{len(acknowledged):,} events acknowledged, {len(stored):,} stored")
    return {
        "kills": runs.size["kills"],
        "acknowledged": len(acknowledged),
        "lost": len(acknowledged - set(stored)),
        "duplicated": len(stored) - len(set(stored)),
        "starts": {"median": statistics.median(seconds), "most": max(seconds)},
        "imports": _imports(),
    }


class _Writer:
    """Sends events one after the other; one that was not acknowledged is sent again, to the next server."""

    def __init__(self, name: int) -> None:
        self.name, self.number, self.acknowledged = name, 0, set[str]()

    def begin(self, url: str) -> None:
        self.stop = Event()
        self.thread = Thread(target=self._write, args=(url,))
        self.thread.start()

    def end(self) -> None:
        self.stop.set()
        self.thread.join()

    def _write(self, url: str) -> None:
        from topshelf.client import Client
        from topshelf.errors import TopshelfError

        with Client(url, retries=0, timeout=5) as client:
            while not self.stop.is_set():
                item = f"i{self.name}-{self.number}"
                try:
                    client.record([{"user": str(self.name), "item": item, "id": item}])
                except (TopshelfError, OSError):
                    return
                self.acknowledged.add(item)
                self.number += 1


def _imports() -> dict[str, float]:
    """Processor seconds of importing the server, and torch alone: the best of three."""
    code = "import gc, time; gc.disable(); {}; print(time.process_time())"  # as the command does
    found = {}
    for name in ("torch", "topshelf.serving.server"):
        command = [sys.executable, "-c", code.format(f"import {name}")]
        said = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(3)]
        found[name] = min(map(float, said))
    return found


def keys(runs: Runs, options: Namespace) -> Row:  # noqa: ARG001
    from topshelf.serving.keys import KeyRing, make_key

    file = runs.folder / "keys.json"
    key = make_key(file, "read")
    ring = KeyRing(file)
    texts = {"right": key, "wrong secret": key[:-1] + ("x" if key[-1] != "x" else "y")}
    texts |= {"unknown name": f"ts_{'0' * 8}{key[11:]}", "another form": "x" * len(key)}

    def checks(text: str) -> Callable[[], object]:
        return lambda: [ring.find(text) for _ in range(500)]

    seconds = interleaved({name: checks(text) for name, text in texts.items()}, 40)
    return {name: min(some) / 500 for name, some in seconds.items()}


STAGES: dict[str, Callable[[Runs, Namespace], Row]] = {
    "load": load,
    "index": index,
    "reloads": reloads,
    "overload": overload,
    "overload-index": overload_index,
    "startup": startup,
    "keys": keys,
}


def ms(seconds: float | None) -> str:
    return "none" if seconds is None else f"{1000 * seconds:.1f} ms"


def shown_load(row: Row) -> list[list[str]]:
    best, half = row["best"], row["half"]
    return [
        ["requests per second, micro-batches", f"{best['batched']:,.0f}", ""],
        ["... with batch.size = 1", f"{best['unbatched']:,.0f}", f"batching: {row['batching']:.2f} times (aim: 3)"],
        ["... of a bare handler", f"{best['bare']:,.0f}", f"the server: {row['of_bare']:.2f} of it"],
        ["products with one query per second", f"{best['product']:,.0f}", f"the server: {row['of_product']:.2f} of it"],
        ["processor time per request", f"{1e6 * row['cpu']['batched']:.0f} us",
         f"batch.size = 1: {1e6 * row['cpu']['unbatched']:.0f} us; bare: {1e6 * row['cpu']['bare']:.0f} us"],
        ["answers other than 200 meanwhile", f"{row['not_200']['batched']:,}",
         f"batch.size = 1: {row['not_200']['unbatched']:,}"],
        [f"p50, p99 at {half['rate']:,.0f} per second", f"{ms(half['p50'])}, {ms(half['p99'])}",
         f"aim: p99 below 25 ms; {half['requests'] - half['good']:,} of {half['requests']:,} not 200"],
    ]  # fmt: skip


def shown_index(row: Row) -> list[list[str]]:
    half = row["half"]
    return [
        [f"HNSW, {row['items']:,} items: recall@{K} when it starts", f"{row['recall']:.3f}", "aim: 0.95"],
        ["... requests per second", f"{row['rate']:,.0f}", f"{row['rss']:,.0f} MiB"],
        [f"... p50, p99 at {half['rate']:,.0f} per second", f"{ms(half['p50'])}, {ms(half['p99'])}",
         f"aim: p99 below 25 ms; {half['requests'] - half['good']:,} of {half['requests']:,} not 200"],
        ["... start with an index from index.folder", f"{row['start']:.1f} s",
         "" if row.get("build") is None else f"with building it: {row['build']:.0f} s"],
    ]  # fmt: skip


def shown_reloads(row: Row) -> list[list[str]]:
    failed = row["failed"] + row["sockets"]
    return [
        [f"{row['minutes']:g} minutes without a pause, {row['reloads']} reloads: requests", f"{row['requests']:,}",
         f"{row['rate']:,.0f} per second; a reload takes {row['reload_seconds']:.1f} s"],
        ["... failed, 503, of mixed versions", f"{failed:,}, {row['busy']:,}, {row['mixed']:,}", "aim: 0, 0, 0"],
        ["... memory after a fifth of the time, at the end", f"{row['rss_fifth']:,.0f}, {row['rss_end']:,.0f} MiB",
         f"{row['growth']:.3f} times (aim: at most 1.05)"],
    ]  # fmt: skip


def shown_overload(row: Row) -> list[list[str]]:
    over, recovery = row["over"], row["recovery"]
    return [
        [f"offered {over['offered']:,.0f} per second ({over['offered'] / row['rate']:.1f} times): accepted",
         f"{over['accepted']:,.0f} per second", f"{over['failed']:,} of the probe neither 200 nor 503"],
        ["... p99 of what is accepted", ms(over["p99"]),
         f"{row['ratio']:.2f} times that at the full rate, {ms(row['saturated']['p99'])} (aim: at most 2)"],
        ["... p99 of the 503", ms(over["busy_p99"]), ""],
        ["... back to normal after", "not in the time" if recovery is None else f"{recovery:.1f} s",
         f"normal: p99 below twice {ms(row['normal']['p99'])} (aim: within 5 s)"],
    ]  # fmt: skip


def shown_overload_index(row: Row) -> list[list[str]]:
    first, *rest = shown_overload(row)
    return [[f"HNSW, 1,000,000 items: {first[0]}", *first[1:]], *rest]


def shown_startup(row: Row) -> list[list[str]]:
    imports = row["imports"]
    return [
        [f"{row['kills']} times kill -9: events acknowledged", f"{row['acknowledged']:,}", ""],
        ["... lost, stored twice", f"{row['lost']}, {row['duplicated']}", "aim: 0, 0"],
        ["... start to /health/ready: median, longest",
         f"{row['starts']['median']:.2f} s, {row['starts']['most']:.2f} s",
         f"aim: below 3 s; imports take {imports['topshelf.serving.server']:.2f} s, "
         f"of which torch {imports['torch']:.2f} s"],
    ]  # fmt: skip


def shown_keys(row: Row) -> list[list[str]]:
    times = ", ".join(f"{name} {1e6 * seconds:.2f}" for name, seconds in row.items())
    return [["check of a key, us", times, f"longest / shortest {max(row.values()) / min(row.values()):.2f}"]]


SHOWN: dict[str, Callable[[Row], list[list[str]]]] = {
    "load": shown_load, "index": shown_index, "reloads": shown_reloads, "overload": shown_overload,
    "overload-index": shown_overload_index,     "startup": shown_startup, "keys": shown_keys,
}  # fmt: skip


def lines_of(stage: str, row: Row) -> list[list[str]]:
    return SHOWN[stage]({name: value for name, value in row.items() if name != "date"})


def figures(content: Row) -> str:
    rows = {name: content["stages"][name] for name in STAGES if name in content["stages"]}
    days = sorted({row["date"] for row in rows.values()})
    about = (
        f"`python -m benchmarks.speed.serving`, {' and '.join(days)}: {content['size']['users']:,} users, "
        f"{content['size']['items']:,} items, d = {DIM}, k = {K}, one server process, "
        f"{content['environment']['cpus']} CPUs that the load shares."
    )
    lines = [line for name, row in rows.items() for line in lines_of(name, row)]
    return f"{about}\n\n{table(('what', 'measured', 'beside it'), lines)}"


def write_page(file: Path) -> None:
    from topshelf.files import write_text

    content, page = json.loads(file.read_text(encoding="utf-8")), ROOT / "docs" / "serving.md"
    before, rest = page.read_text(encoding="utf-8").split(BEGIN)
    write_text(page, f"{before}{BEGIN}\n\n{figures(content)}\n\n{END}{rest.split(END)[1]}")


def main() -> None:
    quick = {"rounds": 1, "minutes": 0.05, "size": QUICK}
    benchmark = Benchmark("benchmarks.speed.serving", __doc__, rounds=3, quick=quick)
    benchmark.parser.set_defaults(size=SIZE)
    add = benchmark.parser.add_argument
    add("--stage", nargs="+", default=list(STAGES), metavar="NAME", help=f"of {' '.join(STAGES)}; default: all")
    add("--minutes", type=float, default=10, help="of the stage reloads; default: 10")
    add("--crowd", type=int, default=1024, help="connections of the overload; default: 1024")
    add("--folder", type=Path, help="where runs are made, and found again; default: a temporary folder")
    add("--page", action="store_true", help="write the tables of FILE into docs/serving.md")
    options = benchmark.parse()
    benchmark.check("--stage", options.stage, list(STAGES))
    if options.page:
        write_page(options.json)
        return
    check_wrk()
    stages: dict[str, Any] = dict(benchmark.held("stages") or {})
    with tempfile.TemporaryDirectory() as temporary:
        runs = Runs(options.folder or Path(temporary), options.size)
        for name in options.stage:
            say(name)
            stages[name] = {**STAGES[name](runs, options), "date": today()}
            command = benchmark.command.replace(f" --folder {options.folder}", "")  # a path of this machine
            benchmark.write(stages=stages, size=options.size, aims=AIM, command=command)
            for line in lines_of(name, stages[name]):
                say(f"  {': '.join(filter(None, line))}")


if __name__ == "__main__":
    main()
