"""topshelf export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from topshelf.cli import completion
from topshelf.cli.options import Allow, RunPath, option
from topshelf.terminal import say

_KINDS = ("parquet", "numpy", "onnx", "faiss", "hub")


def export(
    run: RunPath,
    to: Annotated[str, option("parquet, numpy, onnx, faiss or hub.", tab=completion.choice(*_KINDS))],
    out: Annotated[Path, option("New folder for the files.")],
    k: Annotated[int | None, option("List length of an ONNX model; default: the run's K.")] = None,
    allow: Allow = None,  # noqa: ARG001
) -> None:
    """Write a run as files for other programs: vectors or weights, ids, titles, and a card with its metrics.

    parquet and numpy are tables; onnx is a model that lists the best K items; faiss is an index over the items; hub is
    a folder for huggingface_hub.upload_folder, which is not called. onnx and faiss need topshelf[export].

    Examples:

      topshelf export runs/clicks --to parquet --out vectors

      topshelf export runs/clicks --to onnx --k 50 --out serving
    """
    from topshelf import export as exporting

    exporting.export(run, to, out, k=k)
    say(f"written to {out}: see README.md there")
