"""The sections of a run's settings, frozen and checked. Each task has its own config class.

Run-level settings are the models below. The settings of a loss or a model are its constructor's keyword arguments:
the constructor is the schema, so a hyper-parameter is spelled once.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pydantic
from pydantic import BaseModel, ConfigDict, Field


class Settings(BaseModel):
    """Base of every section: frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Component(BaseModel):
    """A loss or a model: its name, and its constructor's settings. None is a setting left out, as in a file."""

    model_config = ConfigDict(frozen=True, extra="allow")
    name: str

    @pydantic.model_validator(mode="before")
    @classmethod
    def _without_unset(cls, values: Any) -> Any:
        return {key: one for key, one in values.items() if one is not None} if isinstance(values, dict) else values

    @property
    def settings(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class SourceSettings(Settings):
    source: str
    """A file, a folder, or the name of a dataset (`topshelf data list`)."""


class DataSettings(SourceSettings):
    source: str = "movielens-100k"
    """A file, a folder, or the name of a dataset (`topshelf data list`)."""
    user: str | None = None
    """Column of the users; guessed from the common names."""
    item: str | None = None
    """Column of the items; guessed from the common names."""
    weight: str | None = None
    """Column of ratings or weights; guessed from the common names."""
    timestamp: str | None = None
    """Column of times; guessed from the common names."""
    dates: Literal["day-first", "month-first"] | None = None
    """Order of day and month in dates such as 12/01/2020, where the values do not show it."""
    min_rating: float | None = None
    """Lowest rating that counts as a positive."""
    core: int = Field(0, ge=0)
    """Drop users and items with fewer interactions, until none is left."""
    split: Literal["auto", "ratio", "last", "time"] = "auto"
    """auto: time where there are timestamps, else ratio."""
    test_fraction: float = Field(0.2, ge=0, lt=1)
    """Share of interactions held out for the test; 0: no test part."""
    valid_fraction: float = Field(0.1, gt=0, lt=1)
    """Share of train held out for validation."""
    last_n: int = Field(1, ge=1)
    """With split = "last": how many of each user's latest interactions are the test."""
    split_seed: int = Field(0, ge=0)
    """With split = "ratio": decides the test part. Runs that differ in seed alone share it."""
    noise: float = Field(0.0, ge=0)
    """False positives added to train, as a share of each user's positives."""
    measured_users: int | None = Field(None, ge=1)
    """Validate and test on so many users, drawn at random by split_seed; default: all."""


class OpenSettings(Settings):
    """A section with the further settings of its class; they are checked against its constructor."""

    model_config = ConfigDict(extra="allow")

    @property
    def more(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class NegativesSettings(OpenSettings):
    kind: str = "auto"
    """auto: the exact catalogue where the loss takes a log-partition, else per_query; or shared, in_batch, mixed."""
    n: int | None = Field(None, ge=1)
    """How many to draw, for shared and per_query; default: paper_n, with auto the loss's own number (BPR: 1)."""
    effective_n: int | None = Field(None, ge=1)
    """Number of negatives that the partition is scaled to; default: paper_n for the catalogue, n for samples."""
    paper_n: int = Field(1000, ge=1)
    """The paper's N, the default of n and effective_n: 1000, and 200 as shipped for MovieLens-100K."""
    prior: float = Field(0.0, ge=-2, le=2)
    """Exponent of an item's weight as a negative, (training count + 1)^prior; below 0, popular items count less."""


class ThresholdSettings(OpenSettings):
    estimator: str = "exact"
    """How the top-K thresholds are estimated: exact, sampled, iid, weighted, regression, incremental."""
    every: int = Field(5, ge=1)
    """exact, sampled, iid, weighted: epochs between two updates (the paper's T_beta)."""
    n: int | None = Field(None, ge=1)
    """sampled, iid, weighted, regression, and incremental without the exact catalogue: items drawn for an estimate."""
    rate: float | None = Field(None, gt=0)
    """regression (0.1), incremental (0.5): size of a step."""


class TrainSettings(Settings):
    epochs: int = Field(200, ge=1)
    """Maximum number of epochs."""
    order: Literal["query", "pair"] = "query"
    """Batches of queries with all their positives, or of shuffled (query, positive) pairs as in the paper."""
    batch_size: int = Field(2048, ge=1)
    """Queries, or pairs, per batch."""
    optimizer: Literal["adam", "row_adam"] = "adam"
    """adam: dense; row_adam: only the users of a batch, and with mf and drawn negatives its items, for large tables."""
    learning_rate: float = Field(0.1, gt=0)
    """Adam's learning rate."""
    weight_decay: float = Field(0.0, ge=0)
    """L2 penalty, added to the gradient."""
    decay_every: int | None = Field(None, ge=1)
    """Multiply the learning rate by decay_factor after every so many epochs; default: never."""
    decay_factor: float = Field(0.1, gt=0, le=1)
    """With decay_every: what the learning rate is multiplied by."""
    clip_norm: float | None = Field(None, gt=0)
    """Scale gradients down to this norm, all parameters together; default: never."""
    epoch_steps: int | None = Field(None, ge=1)
    """End every epoch after so many steps; each epoch draws its batches anew. Default: all batches."""
    validate_every: int = Field(5, ge=1)
    """Epochs between two validations."""
    patience: int = Field(10, ge=0)
    """Stop after this many validations without a better NDCG@K; 0: never."""
    race_epochs: int = Field(20, ge=1)
    """Epochs of each value where a setting of the loss is "auto", chosen by a race on validation."""
    refit: bool | Literal["all"] = False
    """Train again for the chosen epochs: true, on train + validation; all, on every interaction, after the test."""
    checkpoint_seconds: float = Field(30.0, ge=0)
    """Minimum seconds between two checkpoints, and ten times what the last one took; 0: after every epoch."""
    device: str = "cpu"
    """Where to train."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """bfloat16: gradients over the whole catalogue by bfloat16 products (float32 where logits exceed 40)."""
    workspace_mib: int = Field(512, ge=1)
    """Memory for one block of scores."""
    shard_items: bool = False
    """With several processes: each keeps a slice of the tables of items, for catalogues larger than its memory."""


class CutoffSettings(Settings):
    protocol: str
    """The rules of the evaluation, named beside every number."""
    cutoffs: tuple[Annotated[int, Field(ge=1)], ...] = (5, 10, 20, 50)
    """Lengths of the lists to report; K is added, and those longer than the catalogue are left out."""


class EvaluateSettings(CutoffSettings):
    protocol: Literal["standard", "paper"] = "standard"
    """standard: train and valid masked, users with nothing to find left out; paper: train masked, they count as 0."""
    auc: bool = True
    """Also report the AUC, which needs every score."""


class BaseConfig(Settings):
    """Everything that decides a run's numbers: what the configs of all tasks share."""

    task: str
    """What is ranked: interactions, ranking, sequences or links."""
    seed: int = Field(0, ge=0)
    """Decides the validation part, initial values, batches and draws; the test part depends on data.split_seed."""
    k: int = Field(20, ge=1)
    """Length of the recommended list: the K of SL@K and of the NDCG@K that chooses the epoch."""
    data: SourceSettings
    model: Component
    loss: Component
    train: TrainSettings = TrainSettings()
    evaluate: CutoffSettings

    @property
    def cutoffs(self) -> tuple[int, ...]:
        return tuple(sorted({*self.evaluate.cutoffs, self.k}))


class CatalogueConfig(BaseConfig):
    """A task whose losses compare positives with negatives of a catalogue."""

    negatives: NegativesSettings = NegativesSettings()
    threshold: ThresholdSettings = ThresholdSettings()


class RunConfig(CatalogueConfig):
    """Interactions: users and the items of the whole catalogue."""

    task: str = "interactions"
    """What is ranked: interactions, the items of the whole catalogue per user."""
    data: DataSettings = DataSettings()
    model: Component = Component(name="mf")
    loss: Component = Component(name="slatk")
    evaluate: EvaluateSettings = EvaluateSettings()
