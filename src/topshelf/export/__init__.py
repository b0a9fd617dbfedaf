"""A finished run as files that other programs read: vectors, ids, titles, a card with its metrics.

>>> from topshelf.export import export
>>> export("runs/clicks", "numpy", "exported")  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from importlib.util import find_spec
from pathlib import Path

from topshelf import files
from topshelf.errors import ConfigError, at_least, one_of, whole
from topshelf.export.card import write_card
from topshelf.export.contents import Contents, read_run
from topshelf.export.formats import write_faiss, write_hub, write_numpy, write_parquet
from topshelf.export.onnx_graph import write_onnx

# Each writes its files into a folder and says what they hold.
KINDS: dict[str, Callable[[Contents, Path], dict[str, str]]] = {
    "parquet": write_parquet,
    "numpy": write_numpy,
    "onnx": write_onnx,
    "faiss": write_faiss,
    "hub": write_hub,
}
_PACKAGES = {"onnx": "onnx", "faiss": "faiss"}


def export(run: str | Path, kind: str, out: str | Path, *, k: int | None = None, allow: Collection[str] = ()) -> Path:
    """Write a finished run of recommendations or next items as ``kind`` into the new folder ``out``.

    ``kind``: parquet, numpy, onnx, faiss or hub. ``k`` is the length of the lists of an ONNX model, by default the
    run's. ``allow`` as in :func:`topshelf.load`. Nothing is uploaded.
    """
    check_kind(kind)
    contents = read_run(run, k=None if k is None else at_least("k", whole("k", k), 1), allow=allow)
    with files.new_folder(out) as folder:
        write_card(contents, kind, folder, KINDS[kind](contents, folder))
    return Path(out)


def check_kind(kind: str) -> None:
    """Refuse an unknown kind, and one whose package is not installed."""
    one_of("--to", kind, KINDS)
    package = _PACKAGES.get(kind)
    if package is not None and find_spec(package) is None:
        raise ConfigError(
            f"--to {kind} needs the package {package}, which is not installed: pip install 'topshelf[export]'"
        )
