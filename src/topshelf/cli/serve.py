"""topshelf serve, serve-key, serve-events."""

from __future__ import annotations

import gc
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from topshelf.cli import completion
from topshelf.cli.options import Allow, Titles, argument, option
from topshelf.errors import ConfigError
from topshelf.terminal import say

_PACKAGES = ("fastapi", "uvicorn", "orjson", "prometheus_client", "limits")


def serve(
    run: Annotated[Path | None, argument("[RUN]", "Run folder; default: that of the config.", completion.runs)] = None,
    config: Annotated[Path | None, option("TOML file with the server's settings.")] = None,
    host: Annotated[str | None, option("Address to listen on; default: 127.0.0.1.")] = None,
    port: Annotated[int | None, option("Port; default: 8000.")] = None,
    events: Annotated[Path | None, option("SQLite file to store events in.")] = None,
    attributes: Annotated[Path | None, option("Table of item attributes, for filters.")] = None,
    titles: Titles = None,
    keys: Annotated[Path | None, option("File of API keys, made by topshelf serve-key.")] = None,
    set_: Annotated[list[str] | None, option("Override a setting: section.key=value. Repeatable.", "--set")] = None,
    allow: Allow = None,
) -> None:
    """Serve a run over HTTP: lists, similar items, scores, events. Settings: docs/serving.md.

    Examples:

      topshelf serve runs/shop --titles items.csv

      topshelf serve runs/shop --events events.db --attributes items.csv

      topshelf serve --config serve.toml --set batch.size=128
    """
    _check_packages()
    paths = {"run": run, "attributes": attributes, "titles": titles, "keys": keys}
    named: dict[str, Any] = {name: str(path) for name, path in paths.items() if path is not None}
    named |= {name: value for name, value in {"host": host, "port": port, "allow": allow}.items() if value is not None}
    if events is not None:
        named["events"] = {"path": str(events)}
    gc.disable()  # until it serves: to look through all that is loaded, again and again, took a fifth of the start
    try:
        from topshelf.serving import read_settings
        from topshelf.serving.server import serve as serve_settings

        serve_settings(read_settings(config, given=set_ or [], named=named))
    finally:
        gc.enable()


def serve_key(
    file: Annotated[Path, argument("FILE", "File of keys; made where there is none.")],
    role: Annotated[str, option("read, write or admin.", tab=completion.choice("read", "write", "admin"))] = "read",
    name: Annotated[str, option("Who has it; only for you.")] = "",
    rate: Annotated[str | None, option("Its own limit, such as 600/minute.")] = None,
    remove: Annotated[str | None, option("Remove the key with these 8 digits instead of making one.")] = None,
) -> None:
    """Make an API key for topshelf serve. It is printed once; the file has only its hash.

    Examples:

      topshelf serve-key keys.json --role write --name shop

      topshelf serve-key keys.json --remove 1f2e3d4c
    """
    _check_packages()
    from topshelf.serving.keys import make_key, remove_key

    if remove is not None:
        remove_key(file, remove)
        say(f"key {remove} is removed from {file}")
        return
    key = make_key(file, role, name, rate)
    say(f"role {role}, added to {file}; the key is shown only now:", stderr=True)
    say(key)


def serve_events(
    file: Annotated[Path, argument("FILE", "SQLite file of the server's events (events.path).")],
    out: Annotated[Path, option("File to write: .parquet, .csv or .jsonl.", "--out", "-o")],
    after: Annotated[int, option("Only events after this number, which the last export printed.")] = 0,
) -> None:
    """Write stored events as a table for training. The server may run meanwhile.

    Examples:

      topshelf serve-events events.db --out events.parquet
    """
    from topshelf.serving.events import export_events

    rows, last = export_events(file, out, after)
    say(f"{rows:,} events written to {out}; the next export: --after {last}")


def _check_packages() -> None:
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise ConfigError(f"serving needs {', '.join(missing)}: pip install 'topshelf[serve]'")
