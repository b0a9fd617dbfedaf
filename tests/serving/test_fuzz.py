"""Requests made from the server's own description, and reloads under load over HTTP."""

from __future__ import annotations

import http.client
import json
import logging
import os
import random
import threading
from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from topshelf.client import Client, ServerError
from topshelf.serving import Engine
from topshelf.serving.app import OPENAPI
from topshelf.serving.routes import ROUTES

from .conftest import running

CASES = 150  # per route and mode
SETTINGS = settings(
    max_examples=CASES, deadline=None, database=None, phases=[Phase.generate],
    suppress_health_check=list(HealthCheck), derandomize=True,
)  # fmt: skip


def resident():
    with open("/proc/self/statm") as file:  # noqa: PTH123
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of schemathesis and what it imports
def test_requests_from_the_description_never_make_the_server_fail(runs, attributes, tmp_path, caplog):
    schemathesis = pytest.importorskip("schemathesis")
    from schemathesis.specs.openapi import checks

    as_told = [checks.status_code_conformance, checks.response_schema_conformance, checks.content_type_conformance]
    counted: Counter[int] = Counter()
    events = {"path": str(tmp_path / "events.db")}
    more = {"attributes": str(attributes), "check": {"queries": 2}}
    engine = Engine(runs / "ease", port=0, events=events, **more)
    with running(engine) as server, Client(server.url) as client, caplog.at_level(logging.ERROR):
        schema = schemathesis.openapi.from_dict(client.call(OPENAPI))
        for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):
            for route in ROUTES:
                if mode is schemathesis.GenerationMode.NEGATIVE and route.body is None:
                    continue  # there is nothing to get wrong
                strategy = schema[route.path][route.method].as_strategy(generation_mode=mode)

                @SETTINGS
                @given(strategy)
                def ask(case):
                    response = case.call(base_url=server.url, timeout=120)
                    counted[response.status_code] += 1
                    assert response.status_code < 500, (case.body, response.content)
                    assert b"Traceback" not in response.content
                    case.validate_response(response, checks=as_told)

                ask()
    assert sum(counted.values()) >= 2000, counted
    assert not [record for record in caplog.records if record.name == "topshelf.serving"]


def bodies(seed, n):
    """Bodies that are nearly right: JSON of known fields with something in it changed, cut or repeated."""
    chosen = random.Random(seed)
    fields = [
        {"user": "u1", "k": 3},
        {"queries": [{"user": "u2"}, {"history": ["i1", "i2"]}]},
        {"items": ["i1"], "k": 2},
    ]
    fields += [
        {"user": "u1", "items": ["i3"]},
        {"text": "i"},
        {"events": [{"user": "u1", "item": "i1"}]},
        {"user": "u3"},
    ]
    for _ in range(n):
        text = bytearray(json.dumps(chosen.choice(fields)).encode())
        for _ in range(chosen.randrange(4)):
            at = chosen.randrange(len(text) + 1)
            text[at : at + chosen.randrange(3)] = chosen.randbytes(chosen.randrange(3)) or text[: chosen.randrange(9)]
        yield bytes(text)


@pytest.mark.slow
def test_mutated_bodies_never_make_the_server_fail_and_leave_nothing_behind(runs, tmp_path, caplog):
    engine = Engine(runs / "ease", port=0, events={"path": str(tmp_path / "events.db")})
    paths = [route.path for route in ROUTES if route.method == "POST" and not route.path.startswith("/admin")]
    sizes, counted = [], Counter()
    with running(engine) as server, caplog.at_level(logging.ERROR):
        connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=60)
        for seed in range(3):
            for at, body in enumerate(bodies(seed, 3000)):
                connection.request("POST", paths[at % len(paths)], body, {"content-type": "application/json"})
                answer = connection.getresponse()
                content = answer.read()
                counted[answer.status] += 1
                assert answer.status < 500, (paths[at % len(paths)], body, content)
                assert b"Traceback" not in content
            sizes.append(resident())
        connection.close()
    assert min(counted[200], counted[400], counted[422]) > 100, counted
    assert sizes[2] < 1.05 * sizes[1]
    assert not [record for record in caplog.records if record.name == "topshelf.serving"]


def load(url, known, stop, wrong, seen):
    """Ask without a pause; whatever version an answer names, its list must be that version's."""
    with Client(url, retries=0, timeout=60) as client:
        while not stop.is_set():
            try:
                answers = client.recommend_many([{"user": f"u{n}"} for n in range(10)])
            except ServerError as error:
                wrong.append(error)
                continue
            for one in answers:
                seen[one.version] += 1
                if [some.item for some in one.items] != known[one.version][one.user]:
                    wrong.append(one)


def reloaded(runs, times, n_clients):
    known: dict[str, dict] = {}
    for name in ("mf", "mf2"):
        with Engine(runs / name) as engine:
            for n in range(10):
                answer = engine.recommend(user=f"u{n}")
                known.setdefault(answer.version, {})[answer.user] = [one.item for one in answer.items]
    stop, wrong, seen = threading.Event(), [], Counter()
    patient = {"budget_ms": 60_000}  # a slow machine refuses requests for being busy, which is another matter
    with running(Engine(runs / "mf", port=0, batch=patient)) as server, Client(server.url, timeout=60) as admin:
        threads = [threading.Thread(target=load, args=(server.url, known, stop, wrong, seen)) for _ in range(n_clients)]
        for thread in threads:
            thread.start()
        for n in range(times):
            admin.reload(("mf2", "mf")[n % 2])
            if n % 3 == 2:
                admin.rollback()
                admin.rollback()
        stop.set()
        for thread in threads:
            thread.join()
    return wrong, seen


def test_no_request_fails_or_mixes_versions_while_they_are_reloaded(runs):
    wrong, seen = reloaded(runs, 3, 3)
    assert not wrong
    assert len(seen) == 2


@pytest.mark.slow
def test_many_reloads_under_load_fail_nothing_and_keep_the_memory(runs):
    reloaded(runs, 20, 4)
    before = resident()
    wrong, seen = reloaded(runs, 60, 4)
    assert not wrong
    assert len(seen) == 2
    assert resident() < 1.1 * before
