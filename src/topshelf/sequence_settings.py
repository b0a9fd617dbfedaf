"""The settings of the sequences task: which item comes next."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from topshelf.settings import (
    CatalogueConfig,
    Component,
    CutoffSettings,
    SourceSettings,
    ThresholdSettings,
    TrainSettings,
)


class SequenceDataSettings(SourceSettings):
    source: str = "sequences.txt"
    """A file (a table of interactions with times, or text with one user per line), or a named dataset."""
    format: Literal["auto", "table", "lines"] = "auto"
    """lines: `user item item ...`, oldest first; auto: by the first lines of the file."""
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
    order: Literal["time", "file"] = "time"
    """file: rows without times are in order already."""
    min_rating: float | None = None
    """Lowest rating that counts; rows below it are left out of the sequences."""
    core: int = Field(0, ge=0)
    """Drop users and items with fewer different items and users, until none is left."""
    split: Literal["last", "time"] = "last"
    """last: each user's last event is the test, the one before it validation; time: one moment cuts all users."""
    test_fraction: float = Field(0.1, gt=0, lt=1)
    """With split = "time": share of the events held out for the test."""
    valid_fraction: float = Field(0.1, gt=0, lt=1)
    """With split = "time": share of the other events held out for validation."""
    exclude_seen: bool = True
    """Leave items that the user had before out of the ranking, as most of the field does."""
    targets: Literal["first", "each"] = "first"
    """With split = "time": what is asked of each user, the first held-out event or each of them."""


class SequenceThresholdSettings(ThresholdSettings):
    of: Literal["position", "user", "batch"] = "position"
    """What has a threshold: each position, each user (the mean of its positions), or the step's own positions."""


class SequenceTrainSettings(TrainSettings):
    epochs: int = Field(100, ge=1)
    """Maximum number of epochs."""
    batch_size: int = Field(128, ge=1)
    """Sequences per batch; of models that see a user's items as a set, users."""
    learning_rate: float = Field(0.001, gt=0)
    """Adam's learning rate."""
    validate_every: int = Field(2, ge=1)
    """Epochs between two validations."""
    patience: int = Field(5, ge=0)
    """Stop after this many validations without a better NDCG@K; 0: never."""


class SequenceEvaluateSettings(CutoffSettings):
    protocol: Literal["next-item"] = "next-item"
    """The next item, ranked over the whole catalogue; data.exclude_seen says what is left out."""
    auc: bool = False
    """Also report the AUC, which needs every score."""


class SequenceConfig(CatalogueConfig):
    """Next items: what comes after a sequence of items."""

    task: str = "sequences"
    """What is ranked: the items of the whole catalogue that may come next."""
    data: SequenceDataSettings = SequenceDataSettings()
    model: Component = Component(name="sasrec")
    loss: Component = Component(name="slatk")
    threshold: SequenceThresholdSettings = SequenceThresholdSettings()
    train: SequenceTrainSettings = SequenceTrainSettings()
    evaluate: SequenceEvaluateSettings = SequenceEvaluateSettings()
