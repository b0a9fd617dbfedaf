"""Scores and weights of the kept model of a run of interactions; nothing is trained."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from topshelf.diagnose import measures
from topshelf.diagnose.measures import Scores, Weights
from topshelf.diagnose.sample import DRAWS, SAMPLE, Sample
from topshelf.errors import ConfigError
from topshelf.queries import QuerySet
from topshelf.training import Fitted
from topshelf.training.batches import stream

USERS = 500


@dataclass(frozen=True, eq=False)
class Kept:
    """What the plots of scores and weights are drawn from. ``weights`` is None for a loss without."""

    k: int
    sampled_users: int
    scores: Scores
    weights: Weights | None


@torch.no_grad()
def kept_scores(fitted: Fitted, users: int = USERS) -> Kept:
    """The scores of ``users`` sampled users, and the weights of their positives at exact thresholds.

    Refused for a model whose users have no vectors of their own: its scores are made from histories.
    """
    config, model = fitted.config, fitted.model
    k = min(int(config.loss.settings.get("k", config.k)), model.n_items)
    queries, items = model.encode(QuerySet.known(model.n_queries, config.train.device))
    if not isinstance(queries, Tensor) or queries.layout != torch.strided:
        raise ConfigError(f"{config.model.name} has no vector per user: its scores are made from histories")
    histories = fitted.task.context(fitted.through).histories
    sample = Sample.draw(histories, model.n_items, users, stream(config.seed, SAMPLE))
    if not sample.rows.numel():
        raise ConfigError("no user has both a positive and a negative item")
    scores = measures.scores(queries, items, sample, k, stream(config.seed, DRAWS, 1))
    return Kept(k, sample.rows.numel(), scores, _weights(fitted, queries, items, sample, scores))


def _weights(fitted: Fitted, queries: Tensor, items: Tensor, sample: Sample, scores: Scores) -> Weights | None:
    settings = fitted.config.loss.settings
    tau_weight = settings.get("tau_weight")
    if fitted.model.is_closed_form or tau_weight is None or settings.get("weight", "sigmoid") != "sigmoid":
        return None
    distance = measures.distances(queries, items, sample, scores.threshold)
    return Weights(float(tau_weight), distance, measures.weights_of(distance, float(tau_weight)))
