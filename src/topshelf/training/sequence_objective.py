"""The objective of positions of sequences against the catalogue."""

from __future__ import annotations

from topshelf.models.sequence import SequenceModel
from topshelf.queries import Context
from topshelf.settings import SequenceConfig
from topshelf.training.build import build_estimator, build_loss, catalogue_objective
from topshelf.training.heads import PartitionHead
from topshelf.training.objective import CatalogueObjective
from topshelf.training.sequence_batches import SequenceBatches
from topshelf.training.sequence_thresholds import SequenceThresholdHook
