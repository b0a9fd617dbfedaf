"""The settings of the ranking task: documents of queries, with features and grades."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from topshelf.settings import BaseConfig, Component, CutoffSettings, SourceSettings, TrainSettings


class RankingDataSettings(SourceSettings):
    source: str = "mq2008"
    """A file of documents (SVMlight text, CSV, Parquet), a folder or zip of parts or folds, or a named dataset."""
    valid: str | None = None
    """A file for validation; source is then the file for training."""
    test: str | None = None
    """A file for the test; source is then the file for training."""
    query: str | None = None
    """Column of the queries, in CSV and Parquet; guessed from the common names."""
    grade: str | None = None
    """Column of the grades, in CSV and Parquet; guessed from the common names."""
    features: tuple[str, ...] | None = None
    """Columns of the features, in CSV and Parquet; default: all other columns of numbers."""
    n_features: int | None = Field(None, ge=1)
    """Number of features of SVMlight text whose lines leave out zeros; default: the highest index."""
    fold: int = Field(1, ge=1)
    """Which fold, where the source has several."""
    valid_fraction: float = Field(0.2, gt=0, lt=1)
    """Share of the training queries held out for validation, where the source has no such part."""
    test_fraction: float = Field(0.2, ge=0, lt=1)
    """Share of the queries held out for the test, where the source has no such part; 0: no test part."""
    split_seed: int = Field(0, ge=0)
    """Decides the test part where it is drawn. Runs that differ in seed alone share it."""


class RankingTrainSettings(TrainSettings):
    epochs: int = Field(100, ge=1)
    """Maximum number of epochs."""
    batch_size: int = Field(32, ge=1)
    """Queries per batch."""
    slate: int | None = Field(None, ge=2)
    """Documents per query in a step: longer lists are cut to a random part with the relevant ones; default: all."""
    learning_rate: float = Field(0.001, gt=0)
    """Adam's learning rate."""
    validate_every: int = Field(1, ge=1)
    """Epochs between two validations."""


class RankingEvaluateSettings(CutoffSettings):
    protocol: Literal["standard"] = "standard"
    """Every query's whole list is ranked; equal scores keep the order of the file."""
    cutoffs: tuple[Annotated[int, Field(ge=1)], ...] = (1, 3, 5, 10)
    """Places to report; K is added."""
    empty: Literal["skip", "zero", "one"] = "skip"
    """Queries without relevant documents: left out and counted, worth 0, or worth 1 (as allRank and LightGBM do)."""
    gain: Literal["exponential", "linear"] = "exponential"
    """Of NDCG: 2^grade - 1, or the grade itself."""


class RankingConfig(BaseConfig):
    """Ranking: the documents of a query, by their features."""

    task: str = "ranking"
    """What is ranked: the documents of each query."""
    k: int = Field(10, ge=1)
    """Places that matter: the K of SL@K and of the NDCG@K that chooses the epoch."""
    data: RankingDataSettings = RankingDataSettings()
    model: Component = Component(name="transformer")
    loss: Component = Component(name="slatk")
    train: RankingTrainSettings = RankingTrainSettings()
    evaluate: RankingEvaluateSettings = RankingEvaluateSettings()
