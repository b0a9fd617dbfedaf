"""Settings, keys and commands of a server."""

from __future__ import annotations

import gc
import io
import json
import logging
import os
import re
import signal
import stat
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from command_line import run_topshelf
from topshelf.client import Client
from topshelf.errors import CheckpointError, ConfigError
from topshelf.serving import read_settings
from topshelf.serving.keys import KeyRing, make_key, remove_key
from topshelf.serving.logs import JsonLines, Together
from topshelf.serving.settings import ServeSettings
from topshelf.settings import Settings

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "serve.toml"


def test_a_file_the_environment_and_the_command_line_override_each_other(tmp_path):
    file = tmp_path / "serve.toml"
    file.write_text('run = "a"\nport = 1\n[limits]\nk = 1\nids = 5\n[batch]\nsize = 7\n')
    variables = {"TOPSHELF_SERVE_PORT": "2", "TOPSHELF_SERVE_LIMITS__K": "2", "TOPSHELF_SERVE_RUN": "b", "PORT": "9"}
    found = read_settings(file, environment=variables, given=["limits.k=3"], named={"run": "c"})
    assert (found.run, found.port, found.limits.k, found.limits.ids, found.batch.size) == ("c", 2, 3, 5, 7)
    assert read_settings(environment={"TOPSHELF_SERVE_HOST": "0.0.0.0"}, named={"run": "x"}).host == "0.0.0.0"


@pytest.mark.parametrize(
    ("variables", "given", "message"),
    [
        ({"TOPSHELF_SERVE_PROT": "2"}, [], "prot is not a setting.*did you mean port"),
        ({"TOPSHELF_SERVE_LIMITS__KK": "2"}, [], "limits.kk is not a setting; accepted here: k, queries"),
        ({}, ["port=70000"], "port: input should be less than or equal to 65535, got 70000"),
        ({}, ["batch.size=0"], "batch.size: input should be greater than or equal to 1, got 0"),
        ({}, ["index.kind=annoy"], "index.kind: input should be 'exact', 'hnsw' or 'sq8', got 'annoy'"),
        ({}, ["keys=3"], "keys: input should be a valid string, got 3"),
    ],
)
def test_what_is_wrong_with_a_setting_is_said(variables, given, message):
    with pytest.raises(ConfigError, match=message):
        read_settings(environment=variables, given=given, named={"run": "x"})


def test_the_run_must_be_named():
    with pytest.raises(ConfigError, match="run must be given"):
        read_settings(environment={})


def test_the_example_has_every_setting_with_its_default():
    text = EXAMPLE.read_text()
    assert ServeSettings.model_validate(tomllib.loads(text)).run == "runs/shop"
    shown = tomllib.loads(re.sub(r"(?m)^# (?=[a-z_]+ = )", "", text))
    ServeSettings.model_validate(shown)
    shows_use = {"run", "variants", "runs", "keys", "attributes", "attributes_item", "titles", "folder", "path", "rate"}

    def compare(values, model):
        assert set(values) == set(type(model).model_fields)
        for name, value in values.items():
            default = getattr(model, name)
            if isinstance(value, dict):
                compare(value, default)
            elif name not in shows_use:
                assert value == (list(default) if isinstance(default, tuple) else default), name

    compare(shown, ServeSettings(run="x"))


def test_every_setting_has_a_description():
    for model in (ServeSettings, *(type(one) for _, one in ServeSettings(run="x") if isinstance(one, Settings))):
        for name, field in model.model_fields.items():
            assert field.description or isinstance(field.default, Settings), name


def test_a_key_is_kept_as_a_hash_and_found_again(tmp_path):
    file = tmp_path / "keys.json"
    keys = {role: make_key(file, role, name=f"for {role}") for role in ("read", "write", "admin")}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    text = file.read_text()
    ring = KeyRing(file)
    for role, key in keys.items():
        assert key.split("_", 2)[2] not in text
        found = ring.find(key)
        assert (found.role, found.name, found.id) == (role, f"for {role}", key[3:11])
    mixed = keys["read"][:11] + keys["admin"][11:]
    for wrong in ("", "x", keys["read"][:-1], keys["read"] + "x", mixed, keys["read"].upper(), "ts__", "\0" * 99):
        assert ring.find(wrong) is None
    assert keys["admin"] != make_key(file, "admin")


def test_a_removed_key_ends_while_the_server_runs(tmp_path, monkeypatch):
    file = tmp_path / "keys.json"
    first, second = make_key(file, "read"), make_key(file, "write")
    ring = KeyRing(file)
    assert ring.find(first)
    remove_key(file, first[3:11])
    monkeypatch.setattr("topshelf.serving.keys._LOOK", 0.0)
    assert ring.find(first) is None
    assert ring.find(second).role == "write"
    with pytest.raises(ConfigError, match="has no key"):
        remove_key(file, first[3:11])


def test_a_broken_file_of_keys_is_refused_at_the_start_and_keeps_the_old_ones_later(tmp_path, monkeypatch):
    file = tmp_path / "keys.json"
    key = make_key(file, "read")
    ring = KeyRing(file)
    content = json.loads(file.read_text())
    content["keys"][0]["role"] = "admin"
    file.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="its checksum does not match"):
        KeyRing(file)
    monkeypatch.setattr("topshelf.serving.keys._LOOK", 0.0)
    assert ring.find(key).role == "read"
    file.unlink()
    assert ring.find(key).role == "read"
    with pytest.raises(ConfigError, match="does not exist; make a key: topshelf serve-key"):
        KeyRing(file)


@pytest.mark.parametrize(
    ("role", "rate", "message"), [("root", None, "--role must be one of"), ("read", "fast", "--rate must be")]
)
def test_what_is_wrong_with_a_key_is_said(tmp_path, role, rate, message):
    with pytest.raises(ConfigError, match=message):
        make_key(tmp_path / "keys.json", role, rate=rate)
    assert not (tmp_path / "keys.json").exists()


def test_keys_are_made_and_removed_by_a_command(tmp_path):
    file = tmp_path / "keys.json"
    key, said = run_topshelf("serve-key", file, "--role", "write", "--rate", "5/minute")
    assert "shown only now" in said
    found = KeyRing(file).find(key.strip())
    assert (found.role, str(found.rate)) == ("write", "5 per 1 minute")
    run_topshelf("serve-key", file, "--remove", key[3:11])
    assert KeyRing(file).find(key.strip()) is None


def test_events_are_exported_by_a_command(tmp_path):
    from topshelf.serving import Event
    from topshelf.serving.events import EventStore

    store = EventStore(tmp_path / "events.db")
    store.record([Event(user="u", item="i")])
    said, _ = run_topshelf("serve-events", tmp_path / "events.db", "--out", tmp_path / "events.csv")
    store.close()
    assert "1 events written" in said
    assert "--after 1" in said
    _, said = run_topshelf("serve-events", tmp_path / "nothing.db", "--out", tmp_path / "e.csv", code=2)
    assert "does not exist" in said


def test_without_its_packages_serving_says_how_to_install_them(monkeypatch, tmp_path):
    monkeypatch.setattr(
        sys.modules["topshelf.cli.serve"], "find_spec", lambda name: None if name == "uvicorn" else True
    )
    _, said = run_topshelf("serve", tmp_path, code=2)
    assert "serving needs uvicorn: pip install 'topshelf[serve]'" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{runs}/nowhere"], "does not exist; a run folder is what topshelf train --out makes"),
        (["{runs}/mf", "--host", "0.0.0.0"], "is open to other machines, and there are no keys"),
        (["{runs}/mf", "--keys", "{runs}/no.json"], "does not exist; make a key"),
        (["{runs}/mf", "--set", "batch.sizes=3"], "batch.sizes is not a setting"),
        ([], "run must be given"),
    ],
)
def test_a_server_that_cannot_start_says_why(runs, arguments, message):
    logger = logging.getLogger("topshelf.serving")
    before = logger.handlers, logger.propagate, logger.level
    _, said = run_topshelf("serve", *(one.format(runs=runs) for one in arguments), code=2)
    assert message in said
    assert (logger.handlers, logger.propagate, logger.level) == before
    assert gc.isenabled()


def test_the_command_serves_until_it_is_told_to_stop(runs, tmp_path):
    """The whole process: ready, answers, SIGTERM, what was taken is stored, exit code 0."""
    command = [sys.executable, "-m", "topshelf", "serve", str(runs / "mf"), "--events", str(tmp_path / "events.db")]
    command += ["--port", "0"]
    variables = {**os.environ, "TOPSHELF_SERVE_PORT": "1"}
    process = subprocess.Popen(command, env=variables, stderr=subprocess.PIPE, text=True)
    try:
        ready = json.loads(process.stderr.readline())
        assert ready["event"] == "ready"
        with Client(ready["url"]) as client:
            assert client.recommend(user="u1", k=3).items
            assert client.record([{"user": "u1", "item": "i1"}]).stored == 1
        process.send_signal(signal.SIGTERM)
        lines = [json.loads(line) for line in process.stderr.read().splitlines()]
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.stderr.close()
        process.wait()
    assert sorted(one["event"] for one in lines) == ["draining", "request", "request", "stopped"]
    assert not (tmp_path / "events.db-wal").exists()  # it was closed in order


def test_checking_a_key_takes_the_same_time_whatever_is_wrong_with_it(tmp_path):
    file = tmp_path / "keys.json"
    key = make_key(file, "read")
    ring = KeyRing(file)
    texts = {
        "right": key,
        "another secret": key[:-1] + "x",
        "no such key": "ts_00000000" + key[11:],
        "no form": "x" * len(key),
    }

    def seconds(text):
        began = time.perf_counter()
        for _ in range(200):
            ring.find(text)
        return time.perf_counter() - began

    best = {name: min(seconds(text) for _ in range(15)) for name, text in texts.items()}
    assert max(best.values()) < 2 * min(best.values()), best


def test_lines_of_requests_are_written_together_and_others_at_once():
    stream = io.StringIO()
    handler = Together(stream)
    handler.setFormatter(JsonLines())
    logger = logging.Logger("test")
    logger.addHandler(handler)
    handler.acquire()  # so that the thread that writes waits
    try:
        for n in range(3):
            logger.info("request", extra={"fields": {"n": n}})
        assert stream.getvalue() == ""
        logger.warning("reload")
    finally:
        handler.release()
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["request"] * 3 + ["reload"]
    logger.info("request")
    until = time.monotonic() + 10
    while len(stream.getvalue().splitlines()) < 5 and time.monotonic() < until:
        time.sleep(0.01)
    assert len(stream.getvalue().splitlines()) == 5
