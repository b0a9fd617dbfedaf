"""The settings of link prediction: what is ranked are pairs of nodes of a graph."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from topshelf.settings import BaseConfig, Component, CutoffSettings, Settings, SourceSettings, TrainSettings


class LinkDataSettings(SourceSettings):
    source: str
    """An edge list (csv, tsv, txt, parquet), a folder or zip of HeaRT's or Planetoid's files, or a named dataset."""
    source_column: str | None = None
    """Column of the edges' first ends; found by the usual names."""
    target_column: str | None = None
    """Column of the edges' second ends; found by the usual names."""
    directed: bool = False
    """true: an edge goes from source to target, and its reverse is another edge."""
    features: str | None = None
    """Features of the nodes: .npy or SciPy's .npz (row i is node i), .parquet with ids, or Planetoid's files."""
    id_column: str | None = None
    """With features in Parquet: the column of node ids; default: id, node or node_id."""
    graph: Literal["cora", "citeseer", "pubmed"] | None = None
    """Which graph of Planetoid's files."""
    valid_fraction: float = Field(0.05, gt=0, lt=1)
    """Share of the edges held out for validation."""
    test_fraction: float = Field(0.1, ge=0, lt=1)
    """Share of the edges held out for the test; 0: no test part."""
    split_seed: int = Field(0, ge=0)
    """Decides which edges are held out, and the negatives they are ranked against. Runs of other seeds share them."""
    valid_negatives: str | None = None
    """A .npy file (E, n, 2) with the pairs that each validation edge is ranked against, as dense node numbers."""
    test_negatives: str | None = None
    """The same for the test edges."""


class LinkNegativesSettings(Settings):
    kind: Literal["auto", "pairs", "per_node", "shared", "hard"] = "auto"
    """auto: pairs for bce, else shared for dot products and cosines, per_node for other scores."""
    n: int | None = Field(None, ge=1)
    """How many for each query; default: 1 for pairs, 50 for per_node and hard, 1000 for shared, or all nodes."""
    pool: int | None = Field(None, ge=1)
    """hard: how many are drawn, of which the n best-scored are kept; default: 10 n."""
    effective_n: int | None = Field(None, ge=1)
    """Number of negatives that a partition sum is scaled to; default: as many as there are."""


class LinkThresholdSettings(Settings):
    estimator: Literal["auto", "exact", "weighted", "sampled"] = "auto"
    """auto: weighted, drawn negatives count as many as they stand for; with all nodes as negatives, all are exact."""
    scope: Literal["batch", "table"] = "batch"
    """batch: made from the scores of each step; table: one per node, renewed in every `every`-th epoch."""
    every: int = Field(5, ge=1)
    """table: epochs between two updates."""


class LinkTrainSettings(TrainSettings):
    batch_size: int = Field(1024, ge=1)
    """Edges per batch; they are taken out of the graph while the batch is learned."""
    anchor: Literal["both", "random", "source"] = "random"
    """Which end of an edge asks for the other: both, one drawn anew in each epoch, or the first."""
    learning_rate: float = Field(0.001, gt=0)
    """Adam's learning rate."""
    validate_every: int = Field(2, ge=1)
    """Epochs between two validations."""
    clip_norm: float | None = Field(1.0, gt=0)
    """Scale gradients down to this norm, all parameters together."""


class LinkEvaluateSettings(CutoffSettings):
    protocol: Literal["heart", "uniform"] = "heart"
    """heart: hard negatives per edge, those given with the data or made by HeaRT's recipe; uniform: drawn evenly."""
    cutoffs: tuple[Annotated[int, Field(ge=1)], ...] = (1, 3, 10, 20, 100)
    """Places to report Hits and NDCG at; K is added."""
    n_negatives: int = Field(500, ge=2)
    """Pairs that each held-out edge is ranked against, half for each end; given ones are taken as they are."""


class LinksConfig(BaseConfig):
    """Links: pairs of nodes of a graph."""

    task: str = "links"
    """What is ranked: links, pairs of nodes of a graph."""
    data: LinkDataSettings
    model: Component = Component(name="gcn")
    loss: Component = Component(name="slatk")
    negatives: LinkNegativesSettings = LinkNegativesSettings()
    threshold: LinkThresholdSettings = LinkThresholdSettings()
    train: LinkTrainSettings = LinkTrainSettings()
    evaluate: LinkEvaluateSettings = LinkEvaluateSettings()
