"""topshelf links."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from topshelf.cli import lists, show
from topshelf.cli.options import Allow, ListFile, RunPath, option
from topshelf.errors import ConfigError


def links(
    run: RunPath,
    node: Annotated[list[str] | None, option("Node id. Repeatable.")] = None,
    pairs: Annotated[Path | None, option("File of pairs to score, read like an edge list.")] = None,
    k: Annotated[int | None, option("List length; default: the run's K.")] = None,
    keep_known: Annotated[bool, option("Include links that are in the data.", "--keep-known")] = False,
    out: ListFile = None,
    allow: Allow = None,  # noqa: ARG001
) -> None:
    """List the best new links of a node, or score given pairs, with a run of task links.

    With --out alone, every node gets a list. In a directed graph the node is the source.

    Examples:

      topshelf links runs/friends --node 42 --k 10

      topshelf links runs/friends --pairs candidates.csv --out scores.parquet

      topshelf links runs/friends --out lists.parquet
    """
    if node is None and pairs is None and out is None:
        raise ConfigError("give --node ID (may be given again), --pairs FILE, or --out FILE for the lists of all nodes")
    if pairs is not None and (node is not None or k is not None or keep_known):
        raise ConfigError("--pairs FILE scores the pairs of a file: leave out --node, --k and --keep-known")
    lists.check(out)
    from topshelf.link_predictor import LinkPredictor

    predictor = LinkPredictor.load(run)
    if pairs is not None:
        from topshelf.data.edges import read_edges

        table = predictor.score(read_edges(pairs).frame)
    else:
        nodes = None if node is None else show.ids("--node", predictor.data.nodes, node)
        table = predictor.recommend(nodes, k, filter_known=not keep_known)
    lists.give(table, out)
