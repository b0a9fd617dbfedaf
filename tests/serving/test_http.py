"""The server: routes, keys, limits, refusals, logs, metrics, shutdown."""

from __future__ import annotations

import http.client
import json
import logging
import re
import socket
import threading
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from topshelf.client import Client, ServerError
from topshelf.errors import ConfigError
from topshelf.serving import Engine
from topshelf.serving.app import OPENAPI
from topshelf.serving.guard import Guard
from topshelf.serving.keys import ROLES, make_key
from topshelf.serving.logs import JsonLines
from topshelf.serving.routes import ROUTES
from topshelf.serving.server import check_bind
from topshelf.serving.settings import ServeSettings

from .conftest import running

JSON = {"content-type": "application/json"}
PATHS = [(route.method, route.path, route.role) for route in ROUTES] + [("GET", OPENAPI, "read")]


def ask(client, method, path, body=b"", **headers):
    """Status, headers and content of any request, whatever is wrong with it."""
    connection = http.client.HTTPConnection(client._parts.hostname, client._parts.port, timeout=20)
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, content, {**(JSON if method == "POST" else {}), **names})
    answer = connection.getresponse()
    found = answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    connection.close()
    return found


def wait_for(condition):
    """Until it holds: a line is logged after its answer, and threads take their time."""
    until = time.monotonic() + 10
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)


def refused(client, path, body, **headers):
    status, _, content = ask(client, "POST", path, body, **headers)
    return status, json.loads(content)["error"]


@pytest.fixture(scope="module")
def shared(runs, attributes, tmp_path_factory):
    """One server with events and attributes, for tests that change nothing."""
    path = tmp_path_factory.mktemp("events") / "events.db"
    engine = Engine(runs / "ease", port=0, events={"path": str(path)}, attributes=str(attributes))
    with running(engine) as server, Client(server.url, retries=0) as client:
        client.server = server
        yield client


def test_the_client_gives_what_the_engine_gives(shared):
    engine = shared.server.service.engine
    assert shared.recommend(user="u1", k=3) == engine.recommend(user="u1", k=3)
    assert shared.recommend(history=["i1"], explain=2, filter="price > 3") == engine.recommend(
        history=["i1"], explain=2, filter="price > 3"
    )
    queries = [{"user": "u1", "k": 2}, {"history": ["i5"]}, {"user": "?"}]
    assert shared.recommend_many(queries, k=4, exclude=["i9"]) == engine.recommend_many(
        [engine_query(**{"k": 4, "exclude": ["i9"], **query}) for query in queries]
    )
    assert shared.similar(["i1", "x"], 3) == engine.similar(["i1", "x"], 3)
    assert shared.score(["i1", "x"], user="u2") == engine.score(engine_query(user="u2"), ["i1", "x"])
    assert shared.history("u1") == engine.history("u1")
    assert shared.search("i4") == engine.search("i4")
    assert shared.variants() == engine.states()
    assert shared.is_ready()


def engine_query(**fields):
    from topshelf.serving import Query

    return Query(**fields)


def test_documents_are_ranked(serve):
    client = serve("ranker")
    queries = [{"query": "q", "documents": [{"clicks": 0, "age": 1}, {"clicks": 3, "age": 1}]}]
    (answer,) = client.rank(queries)
    assert (answer.query, [one.document for one in answer.documents]) == ("q", [1, 0])
    with pytest.raises(ServerError, match=r"ranks documents.*status 409"):
        client.recommend(user="u1")


def test_events_are_in_the_next_answer(serve, tmp_path):
    client = serve("ease", events={"path": str(tmp_path / "events.db")})
    first = client.recommend(user="u1").items[0].item
    recorded = client.record([{"user": "u1", "item": first, "id": "e"}])
    assert (recorded.stored, recorded.duplicates) == (1, 0)
    assert client.record([{"user": "u1", "item": first, "id": "e"}]).duplicates == 1
    assert first not in [one.item for one in client.recommend(user="u1", k=50).items]
    stored = client.call("/admin/events", {})
    assert [one["event"] for one in stored["events"]] == ["e"]
    assert client.call("/admin/events", {"after": stored["last"]})["events"] == []
    assert client.forget("u1") == 1
    assert client.recommend(user="u1").items[0].item == first


def test_without_a_file_events_are_refused(serve):
    status, error = refused(serve(), "/events", {"events": [{"user": "u", "item": "i"}]})
    assert (status, error[:27]) == (409, "this server stores no event")


def test_versions_are_changed_over_http(serve, runs):
    client = serve("mf")
    change = client.reload("mf2")
    assert client.recommend(user="u1").version == change.version != change.previous
    assert client.rollback().version == change.previous
    client.reload("mf2", variant="b", share=50)
    assert {client.recommend(user=f"u{n}").variant for n in range(40)} == {"a", "b"}
    assert [one.name for one in client.set_shares({"a": 100})] == ["a"]
    with pytest.raises(ServerError, match="status 422"):
        client.reload("nowhere")
    text = ask(client, "GET", "/metrics")[2].decode()
    assert f'topshelf_served{{variant="a",version="{change.previous}"}} 100.0' in text
    assert 'topshelf_changes_total{kind="reload",result="refused"} 1.0' in text


BAD = [
    (b"", 200),
    (b"{", 400),
    (b"\xff\xfe", 400),
    (b"[]", 422),
    (b"null", 422),
    (b'"x"', 422),
    ({"user": None}, 200),
    ({"user": ""}, 422),
    ({"user": "x" * 600}, 422),
    ({"user": 10**30}, 422),
    ({"user": {"a": 1}}, 422),
    ({"user": "u1", "history": "i1"}, 422),
    ({"user": "u1", "k": 0}, 422),
    ({"user": "u1", "k": 1001}, 422),
    ({"user": "u1", "k": 1.5}, 422),
    ({"user": "u1", "explain": 99}, 422),
    ({"user": "u1", "filter": "price <"}, 422),
    ({"user": "u1", "filter": ""}, 422),
    ({"user": "u1", "nothing": 1}, 422),
    ({"user": "u1", "queries": [{"user": "u2"}]}, 422),
    ({"queries": []}, 422),
    ({"queries": [{"user": "u1"}] * 101}, 422),
    ({"user": "u1", "exclude": ["x"] * 10_001}, 422),
    (b'{"user": "\\ud800"}', 400),
    (b"[" * 100_000, 400),
    (b'{"user": NaN}', 422),
]


@pytest.mark.parametrize(("body", "status"), BAD, ids=lambda value: str(value)[:30])
def test_bodies_are_checked(shared, body, status):
    found, headers, content = ask(shared, "POST", "/recommend", body)
    assert found == status, content
    if status != 200:
        told = json.loads(content)
        assert told["request"] == headers["x-request-id"]
        assert told["error"]
        assert "Traceback" not in told["error"]


@pytest.mark.parametrize(
    ("k", "message"),
    [
        ("x", "k: Input should be a valid integer, got 'x'"),
        (0, "k: Input should be greater than or equal to 1, got 0"),
        ([1], "k: Input should be a valid integer"),
    ],
)
def test_an_error_in_a_body_says_what_was_sent(shared, k, message):
    status, _, content = ask(shared, "POST", "/recommend", {"user": "u1", "k": k})
    assert (status, json.loads(content)["error"]) == (422, message)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["u1", "i1", "a"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
NAMES = sorted({name for route in ROUTES if route.body is not None for name in route.body.model_fields})
POSTS = [route.path for route in ROUTES if route.method == "POST"]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(POSTS),
    st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4).map(lambda body: json.dumps(body).encode())
    | st.binary(max_size=40),
)
def test_no_body_makes_the_server_fail(shared, path, body):
    status, _, content = ask(shared, "POST", path, body)
    assert status in (200, 400, 409, 422), content
    assert b"Traceback" not in content


def test_wrong_paths_methods_and_types(shared):
    assert ask(shared, "GET", "/nothing")[0] == 404
    status, headers, content = ask(shared, "GET", "/recommend")
    assert (status, headers["allow"]) == (405, "POST")
    assert set(json.loads(content)) == {"error", "request"}
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        assert refused(shared, "/recommend", b"{}", content_type=kind)[0] == 415


def test_every_answer_has_the_headers_of_safety_and_a_request_id(shared):
    for method, path, body in (("GET", "/health/live", b""), ("POST", "/recommend", b"{}"), ("GET", "/x", b"")):
        _, headers, _ = ask(shared, method, path, body, x_request_id="abc-1.2_3")
        assert headers["x-request-id"] == "abc-1.2_3"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert headers["content-security-policy"].startswith("default-src 'none'")
        assert "server" not in headers
        assert "access-control-allow-origin" not in headers
    first, second = (ask(shared, "GET", "/health/live", x_request_id="a b")[1]["x-request-id"] for _ in range(2))
    assert re.fullmatch("[0-9a-f]{8}-[0-9a-f]+", first)
    assert first != second


def test_other_hosts_are_refused_without_keys(shared):
    assert ask(shared, "GET", "/model", host="evil.example")[0] == 403
    assert ask(shared, "GET", "/model", host="localhost:99")[0] == 200
    assert ask(shared, "GET", "/model", host="[::1]:99")[0] == 200


def test_cors_is_off_unless_origins_are_named(serve):
    client = serve(cors_origins=["https://shop.example"])
    asks = {"origin": "https://shop.example", "access_control_request_method": "POST"}
    status, headers, _ = ask(client, "OPTIONS", "/recommend", **asks)
    assert (status, headers["access-control-allow-origin"]) == (200, "https://shop.example")
    other = ask(client, "OPTIONS", "/recommend", **{**asks, "origin": "https://evil.example"})[1]
    assert "access-control-allow-origin" not in other


@pytest.fixture(scope="module")
def locked(runs, tmp_path_factory):
    """A server with keys, and a key of each role."""
    folder = tmp_path_factory.mktemp("keys")
    keys = {role: make_key(folder / "keys.json", role) for role in ROLES}
    settings = {"keys": str(folder / "keys.json"), "events": {"path": str(folder / "events.db")}}
    with running(Engine(runs / "mf", port=0, **settings)) as server, Client(server.url, retries=0) as client:
        client.keys, client.file = keys, folder / "keys.json"
        yield client


@pytest.mark.parametrize(("method", "path", "role"), PATHS)
def test_every_route_needs_its_role(locked, method, path, role):
    wrong = locked.keys["admin"][:-1] + ("a" if locked.keys["admin"][-1] != "a" else "b")
    assert ask(locked, method, path)[0] == (401 if role else 200)
    for text in (
        "",
        "x",
        "Bearer",
        f"Bearer {wrong}",
        f"Basic {locked.keys['admin']}",
        "Bearer \xff",
        "Bearer " + "x" * 5000,
    ):
        assert ask(locked, method, path, authorization=text)[0] == (401 if role else 200)
    for name, key in locked.keys.items():
        is_enough = role is None or ROLES.index(name) >= ROLES.index(role)
        for headers in ({"authorization": f"Bearer {key}"}, {"x_api_key": key}):
            status = ask(locked, method, path, b"{" if method == "POST" else b"", **headers)[0]
            assert status == ((400 if method == "POST" else 200) if is_enough else 403)


def test_with_keys_a_path_that_is_not_there_needs_one_too(locked):
    assert ask(locked, "GET", "/nothing")[0] == 401
    assert ask(locked, "GET", "/nothing", authorization=f"Bearer {locked.keys['read']}")[0] == 404


def test_limits_of_a_key(serve, tmp_path):
    keys = tmp_path / "keys.json"
    slow, free = make_key(keys, "read", rate="3/hour"), make_key(keys, "read")
    client = serve(keys=str(keys))
    statuses = [ask(client, "GET", "/model", authorization=f"Bearer {slow}") for _ in range(5)]
    assert [status for status, _, _ in statuses] == [200, 200, 200, 429, 429]
    assert 0 < int(statuses[-1][1]["retry-after"]) <= 3600
    assert ask(client, "GET", "/model", authorization=f"Bearer {free}")[0] == 200


def test_open_metrics(serve, tmp_path):
    make_key(tmp_path / "keys.json", "read")
    assert ask(serve(keys=str(tmp_path / "keys.json"), open_metrics=True), "GET", "/metrics")[0] == 200


def test_a_body_that_is_too_long_is_refused_with_and_without_its_length(serve):
    client = serve(limits={"body_kib": 1})
    assert refused(client, "/recommend", b" " * 1025)[0] == 413
    assert ask(client, "POST", "/recommend", b"{}" + b" " * 1000)[0] == 200
    connection = socket.create_connection((client._parts.hostname, client._parts.port), timeout=20)
    connection.sendall(b"POST /recommend HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
                       b"transfer-encoding: chunked\r\n\r\n" + b"400\r\n" + b" " * 1024 + b"\r\n")  # fmt: skip
    connection.sendall(b"400\r\n" + b" " * 1024 + b"\r\n")
    assert connection.recv(100).startswith(b"HTTP/1.1 413")
    connection.close()


def test_a_body_that_does_not_come_is_refused(serve):
    client = serve(limits={"timeout_s": 0.2})
    connection = socket.create_connection((client._parts.hostname, client._parts.port), timeout=20)
    connection.sendall(b"POST /recommend HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
                       b"content-length: 50\r\n\r\n{")  # fmt: skip
    assert connection.recv(100).startswith(b"HTTP/1.1 408")
    connection.close()


class Slow:
    """Answers of a server that wait while they are held."""

    def __init__(self, server, monkeypatch):
        self.free, self.entered = threading.Event(), threading.Event()
        batcher = server.service.lists
        work = batcher._work
        monkeypatch.setattr(batcher, "_work", lambda asked: (self.entered.set(), self.free.wait(20), work(asked))[2])


def in_threads(n, call):
    results = [None] * n

    def run(at):
        results[at] = call(at)

    threads = [threading.Thread(target=run, args=(at,)) for at in range(n)]
    for thread in threads:
        thread.start()
    return threads, results


def test_a_full_queue_is_503_with_retry_after_at_once_and_passes(serve, monkeypatch):
    client = serve(batch={"queue": 3, "size": 1})
    slow = Slow(client.server, monkeypatch)
    threads, results = in_threads(12, lambda at: ask(client, "POST", "/recommend", {"user": f"u{at}"}))
    slow.entered.wait(10)
    wait_for(lambda: sum(one is not None for one in results) >= 9)
    early = [one for one in results if one is not None]
    assert [status for status, _, _ in early] == [503] * 9  # three wait, and the others know at once
    assert all(headers["retry-after"] == "1" for _, headers, _ in early)
    assert ask(client, "GET", "/health/ready")[0] == ask(client, "GET", "/metrics")[0] == 200
    slow.free.set()
    for thread in threads:
        thread.join()
    assert sorted(status for status, _, _ in results) == [200] * 3 + [503] * 9
    assert ask(client, "POST", "/recommend", {"user": "u1"})[0] == 200
    assert 'topshelf_refused_total{reason="overload"}' in ask(client, "GET", "/metrics")[2].decode()


def test_what_is_refused_at_once_has_all_headers_and_leaves_its_connection_as_it_was(serve, monkeypatch, caplog):
    client = serve()
    guard = client.server.config.loaded_app
    connection = http.client.HTTPConnection(client._parts.hostname, client._parts.port, timeout=20)

    def post(body, **headers):
        connection.request("POST", "/recommend?x=1", body, {**JSON, **headers})
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, json.loads(answer.read())

    _, usual, _ = post(b"{}")
    with monkeypatch.context() as busy, caplog.at_level(logging.INFO):
        busy.setattr(guard, "is_full", lambda _path: True)
        status, headers, told = post(b" " * 70_000, **{"x-request-id": "mine"})
        assert (status, told) == (503, {"error": "the server is busy; try again", "request": "mine"})
        assert set(headers) == {*usual, "retry-after"}
        again = post(b"{}", **{"x-request-id": "not an id"})[2]["request"]
        assert re.fullmatch("[0-9a-f]{8}-[0-9a-f]+", again)
        assert ask(client, "GET", "/health/ready")[0] == ask(client, "GET", "/metrics")[0] == 200
        assert ask(client, "POST", "/recommend", b"{}", connection="close")[0] == 503
    status, _, told = post(b"{}")
    assert (status, told["answers"][0]["fallback"]) == (200, "no_history")
    connection.close()
    assert 'topshelf_requests_total{route="/recommend",status="503"} 3.0' in ask(client, "GET", "/metrics")[2].decode()
    assert [record.fields["requests"] for record in caplog.records if record.msg == "shed"] == [1]


def test_too_many_requests_at_once_are_503(serve, monkeypatch):
    client = serve(limits={"in_flight": 2})
    slow = Slow(client.server, monkeypatch)
    threads, results = in_threads(2, lambda at: ask(client, "POST", "/recommend", {"user": f"u{at}"}))
    wait_for(lambda: client.server.service.lists.waiting >= 2)
    assert ask(client, "POST", "/recommend", {})[0] == 503
    assert ask(client, "GET", "/health/live")[0] == 200
    slow.free.set()
    for thread in threads:
        thread.join()
    assert [one[0] for one in results] == [200, 200]


def test_an_answer_that_takes_too_long_is_503(serve, monkeypatch):
    client = serve(limits={"timeout_s": 0.2})
    slow = Slow(client.server, monkeypatch)
    assert refused(client, "/recommend", {"user": "u1"}) == (503, "the request took too long")
    slow.free.set()
    assert ask(client, "POST", "/recommend", {"user": "u1"})[0] == 200


@pytest.mark.parametrize("path", ["/recommend", "/history"])
def test_a_failure_inside_is_500_with_an_id_and_without_details(serve, monkeypatch, caplog, path):
    client = serve()

    def failing(_asked):
        raise RuntimeError("secret of u1")

    monkeypatch.setattr(client.server.service.lists, "_work", failing)
    monkeypatch.setattr(client.server.service.others, "_work", failing)
    with caplog.at_level(logging.ERROR, "topshelf.serving"):
        status, headers, content = ask(client, "POST", path, {"user": "u1"})
        wait_for(lambda: caplog.records)
    assert status == 500
    assert json.loads(content) == {
        "error": "the server failed; its log has the request id", "request": headers["x-request-id"],
    }  # fmt: skip
    lines = [JsonLines().format(record) for record in caplog.records]
    (failure,) = [json.loads(line) for line in lines if "failed" in line]
    assert failure["error"] == "RuntimeError"
    assert failure["at"][-1].endswith("failing")
    assert failure["request"] == headers["x-request-id"]
    assert "secret" not in "".join(lines)


def test_no_personal_data_is_logged(serve, tmp_path, caplog):
    client = serve("ease", events={"path": str(tmp_path / "events.db")})
    with caplog.at_level(logging.DEBUG, "topshelf.serving"):
        client.recommend(user="u11", history=["i12"])
        client.record([{"user": "anna@example.org", "item": "i13", "id": "order-1"}])
        client.history("u11")
        ask(client, "GET", "/anna@example.org?user=u11")
        ask(client, "POST", "/recommend", {"user": "anna@example.org", "k": 0})
        wait_for(lambda: len(caplog.records) >= 5)
    lines = [JsonLines().format(record) for record in caplog.records if record.name == "topshelf.serving"]
    requests = [json.loads(line) for line in lines if '"request"' in line]
    assert [one["status"] for one in requests] == [200, 200, 200, 404, 422]
    assert set(requests[0]) == {"time", "level", "event", "request", "route", "status", "ms"}
    assert requests[3]["route"] == "other"
    assert not re.search(r"anna|u11|i12|i13|order-1|127\.0\.0\.1", "".join(lines))


def test_metrics_count_what_happened(serve):
    client = serve("mf")
    client.recommend_many([{"user": "u1"}, {"user": "nobody"}, {"user": "u2"}])
    ask(client, "POST", "/recommend", {"k": 0})
    text = ask(client, "GET", "/metrics")[2].decode()
    version = client.variants()[0].version
    assert f'topshelf_answers_total{{source="model",variant="a",version="{version}"}} 2.0' in text
    assert f'topshelf_answers_total{{source="popular",variant="a",version="{version}"}} 1.0' in text
    assert 'topshelf_requests_total{route="/recommend",status="200"} 1.0' in text
    assert 'topshelf_requests_total{route="/recommend",status="422"} 1.0' in text
    assert 'topshelf_request_seconds_count{route="/recommend"} 2.0' in text
    assert "topshelf_batch_queries_sum 3.0" in text
    assert "topshelf_in_flight_requests 1.0" in text


def test_the_description_is_complete(shared):
    described = shared.call(OPENAPI)
    assert set(described["paths"]) == {route.path for route in ROUTES}
    for route in ROUTES:
        told = described["paths"][route.path][route.method.lower()]
        assert told["summary"]
        if route.body is not None:
            name = told["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
            schema = described["components"]["schemas"][name]
            assert schema["examples"]
            for example in schema["examples"]:
                route.body.model_validate(example)
            assert all("description" in one for one in schema["properties"].values())
            assert {"400", "413", "415", "422"} <= set(told["responses"])
        if route.role is not None:
            assert told["security"] == [{"key": []}]
            assert {"401", "403"} <= set(told["responses"])
        if route.answer is not None:
            assert told["responses"]["200"]["content"]["application/json"]["example"]
    text = json.dumps(described)
    for name in re.findall(r'"#/components/schemas/(\w+)"', text):
        assert name in described["components"]["schemas"]


def test_requests_in_hand_are_finished_when_the_server_stops(runs, monkeypatch):
    with running(Engine(runs / "mf", port=0)) as server, Client(server.url, retries=0) as client:
        client.server = server
        slow = Slow(server, monkeypatch)
        threads, results = in_threads(3, lambda at: ask(client, "POST", "/recommend", {"user": f"u{at}"}))
        wait_for(lambda: server.service.lists.waiting >= 3)
        server.should_exit = True
        time.sleep(0.3)
        slow.free.set()
        for thread in threads:
            thread.join()
    assert [one[0] for one in results] == [200] * 3


def test_a_draining_server_is_not_ready_but_answers(serve):
    client = serve(drain_s=60)
    client.server.handle_exit(15, None)
    assert ask(client, "GET", "/health/ready")[0] == 503
    assert ask(client, "POST", "/recommend", {"user": "u1"})[0] == 200
    assert not client.is_ready()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "shop.example"])
def test_a_public_address_needs_keys(host):
    with pytest.raises(ConfigError, match="is open to other machines, and there are no keys"):
        check_bind(ServeSettings(run="x", host=host))
    check_bind(ServeSettings(run="x", host=host, open=True))
    check_bind(ServeSettings(run="x", host=host, keys="keys.json"))


def test_the_client_tries_again_when_the_server_was_too_busy(serve, monkeypatch):
    client = serve()
    busy = iter([True, True, False])
    guard = guard_of(client.server)
    monkeypatch.setattr(guard, "is_full", lambda _path: next(busy))
    waits = []
    monkeypatch.setattr("topshelf.client.time.sleep", waits.append)
    with Client(client.server.url, retries=2) as patient:
        assert patient.recommend(user="u1").items
    assert waits == [1.0, 1.0]


def guard_of(server):
    assert isinstance(server.config.app, Guard)
    return server.config.app


def test_the_client_opens_a_connection_again_that_the_server_has_closed(serve):
    client = serve()
    assert client.variants()
    client.server.config.timeout_keep_alive = 0
    client.variants()
    time.sleep(0.1)
    assert client.variants()  # without retries


def test_a_server_that_is_not_there_is_said_to_be_so():
    with pytest.raises(ServerError, match=r"127\.0\.0\.1:9 cannot be reached"):
        Client("http://127.0.0.1:9", retries=0).variants()
    for url in ("127.0.0.1:8000", "ftp://x", "http://"):
        with pytest.raises(ConfigError, match="url must be like"):
            Client(url)
