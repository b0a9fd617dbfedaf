"""What every threshold estimator promises."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from topshelf.losses import SLatK
from topshelf.models import MF
from topshelf.queries import Batch, Encoded, QuerySet
from topshelf.ragged import ragged_from_pairs
from topshelf.testing.promises import check_draws, check_is_named, check_training, identical, run_config
from topshelf.training.batches import Batches, stream
from topshelf.training.thresholding import ESTIMATORS, Estimator, ThresholdHook

N_QUERIES, N_ITEMS, K = 25, 60, 5


class Problem:
    """A small factorisation with its lists, and the hook of an estimator; the last query has no positives."""

    def __init__(self, estimator: Estimator, every: int = 1) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            self.model = MF(N_QUERIES, N_ITEMS, dim=6)
            taken = torch.rand(N_QUERIES, N_ITEMS) < 0.15
        taken[:, 0] = True
        taken[-1] = False
        rows, items = taken.nonzero().T
        self.positives = ragged_from_pairs(rows, items, N_QUERIES)
        self.loss = SLatK(N_QUERIES, k=K)
        self.hook = ThresholdHook(self.loss, estimator, QuerySet.known(N_QUERIES), self.positives, every=every)

    def vectors(self) -> tuple[Tensor, Tensor]:
        queries, items = self.model.encode(QuerySet.known(N_QUERIES))
        assert isinstance(queries, Tensor)
        assert isinstance(items, Tensor)
        return queries, items

    def scores(self) -> Tensor:
        queries, items = self.vectors()
        return (queries @ items.T).detach()

    def exact(self) -> Tensor:
        """The K-th best score of each query, by sorting."""
        return torch.tensor([sorted(row, reverse=True)[K - 1] for row in self.scores().tolist()])

    def batches(self, size: int, order: Literal["query", "pair"] = "query", epoch: int = 0) -> Iterator[Batch]:
        return Batches(self.positives, N_ITEMS, order=order, size=size).epoch(stream(epoch))

    def step(self, batch: Batch, seed: int = 0) -> None:
        self.hook.after_step(batch, self.model.encode_batch(batch), stream(seed, 1))

    def followed(self, epochs: int, order: Literal["query", "pair"] = "query") -> Tensor:
        """Thresholds after each epoch on frozen vectors, of the queries that batches hold."""
        rows = []
        for epoch in range(epochs):
            self.hook.begin_epoch(epoch + 1, self.model, stream(epoch, 2))
            if self.hook.estimator.updates == "steps":
                for batch in self.batches(50, order, epoch):
                    self.step(batch, epoch)
            rows.append(self.loss.threshold[:-1].clone())
        return torch.stack(rows)


class EstimatorContract:
    """Inherit it and name the estimator::

        class TestMyEstimator(topshelf.testing.EstimatorContract):
            estimator = MyEstimator

    settings     of the estimator, such as {"n": 60}; its defaults are tested when left out
    epochs       how many it is given, on vectors that do not change, to come near the K-th best scores
    is_accurate  False where it is by design far from them, also with all 60 items drawn
    """

    estimator: type[Estimator]
    settings: Mapping[str, Any] = {}
    epochs: int = 60
    is_accurate: bool = True

    def make(self) -> Estimator:
        return self.estimator(**self.settings)

    def arguments(self, now: float = 0.0) -> dict[str, Any]:
        """Of refresh for all queries, or of follow for a batch, with all thresholds at ``now``."""
        problem = Problem(self.make())
        queries, items = problem.vectors()
        if self.estimator.updates == "epochs":
            level = torch.full((N_QUERIES,), now)
            return {"now": level, "queries": queries, "items": items, "positives": problem.positives, "k": K}
        batch = next(problem.batches(9))
        level = torch.full((batch.query.numel(),), now)
        return {"now": level, "batch": batch, "encoded": Encoded(queries[batch.query], items), "k": K}

    @torch.no_grad()
    def update(self, arguments: dict[str, Any], seed: int = 0) -> Tensor:
        """New thresholds, asked for as the trainer does: positions in the signature, without gradients."""
        estimator = self.make()
        method: Callable[..., Tensor] = estimator.refresh if estimator.updates == "epochs" else estimator.follow
        return method(*arguments.values(), stream(seed))

    def test_a_run_can_name_it(self) -> None:
        check_is_named(self.estimator, Estimator, ESTIMATORS)

    def test_it_has_the_methods_that_it_says(self) -> None:
        cls = self.estimator
        assert cls.updates in ("epochs", "steps"), f"updates must be 'epochs' or 'steps', got {cls.updates!r}"
        assert cls.reads in (None, "kth", "above"), f"reads must be None, 'kth' or 'above', got {cls.reads!r}"
        needed = {"refresh" if cls.updates == "epochs" else "follow"} | ({"read"} if cls.reads else set())
        for method in sorted(needed):
            own = getattr(cls, method) is not getattr(Estimator, method)
            assert own, f"with updates = {cls.updates!r} and reads = {cls.reads!r} it must have {method}"

    def test_it_gives_one_finite_threshold_per_query(self) -> None:
        arguments = self.arguments(0.1)
        thresholds, n = self.update(arguments), len(arguments["now"])
        assert isinstance(thresholds, Tensor), f"it must return a tensor, got {thresholds!r}"
        assert thresholds.shape == (n,), f"thresholds must be ({n},), one per query, got {tuple(thresholds.shape)}"
        assert thresholds.is_floating_point(), f"thresholds must be floating-point numbers, got {thresholds.dtype}"
        assert thresholds.isfinite().all(), "thresholds must be finite, also of queries without positives"

    def test_thresholds_carry_no_gradient(self) -> None:
        thresholds = self.update(self.arguments())
        assert not thresholds.requires_grad, "thresholds must carry no gradient: return a detached tensor"
        problem = Problem(self.make())
        problem.hook.begin_epoch(1, problem.model, stream(0))
        problem.step(next(problem.batches(9)))
        assert not problem.loss.threshold.requires_grad, "the loss's thresholds must carry no gradient"
        assert problem.loss.threshold.isfinite().all(), "the loss's thresholds must be finite"

    def test_it_changes_nothing_that_it_is_given(self) -> None:
        arguments, unused = self.arguments(0.1), self.arguments(0.1)
        self.update(arguments)
        promise = "it must return new thresholds and leave alone what it is given"
        for name, value in arguments.items():
            for one, other in zip(_tensors(value), _tensors(unused[name]), strict=True):
                identical(one, other, f"{promise}: {name}")

    def test_the_same_stream_gives_the_same_whatever_else_is_drawn(self) -> None:
        promise = "the same generator must give the same thresholds, or a run cannot be repeated or resumed"
        check_draws(lambda: self.update(self.arguments(), seed=5), lambda one, other: identical(one, other, promise))

    def test_thresholds_are_refreshed_only_in_epochs_divisible_by_every(self) -> None:
        if self.estimator.updates != "epochs":
            pytest.skip("it follows after every step")
        problem = Problem(self.make(), every=3)
        moved = []
        for epoch in range(1, 8):
            problem.loss.threshold.fill_(9.0)
            problem.hook.begin_epoch(epoch, problem.model, stream(epoch))
            moved.append(bool((problem.loss.threshold != 9.0).any()))
            before = problem.loss.threshold.clone()
            problem.step(next(problem.batches(10)))
            identical(problem.loss.threshold, before, "thresholds must not change at a step")
        promise = "a refresh every 3 epochs must change thresholds in epochs 3 and 6"
        assert moved == [False, False, True, False, False, True, False], promise

    @pytest.mark.parametrize("order", ["query", "pair"])
    def test_only_the_queries_of_the_batch_move_at_a_step(self, order: Literal["query", "pair"]) -> None:
        if self.estimator.updates != "steps":
            pytest.skip("it is refreshed every few epochs")
        problem = Problem(self.make())
        problem.loss.threshold.fill_(0.9)
        problem.hook.begin_epoch(1, problem.model, stream(0))
        assert (problem.loss.threshold == 0.9).all(), "thresholds must not change before the first step"
        batch = next(problem.batches(7, order))
        problem.step(batch)
        moved = (problem.loss.threshold != 0.9).nonzero().squeeze(1).tolist()
        assert moved == sorted(set(batch.query.tolist())), "a step must change the thresholds of the batch's queries"

    @pytest.mark.parametrize("order", ["query", "pair"])
    def test_on_frozen_vectors_thresholds_come_near_the_kth_best_scores(self, order: Literal["query", "pair"]) -> None:
        if not self.is_accurate:
            pytest.skip("it is by design far from the K-th best score")
        problem = Problem(self.make())
        level = problem.followed(self.epochs, order)[-1]
        above = (problem.scores()[:-1] > level.unsqueeze(1)).sum(1)
        off = float((above - K).abs().float().mean())
        promise = f"after {self.epochs} epochs on frozen vectors about K = {K} items must be above a threshold"
        assert off <= 2, f"{promise}; there are {above.tolist()}"

    @pytest.mark.parametrize("negatives", ["catalogue", "shared"])
    @pytest.mark.parametrize("order", ["query", "pair"])
    def test_a_model_learns_with_it(self, negatives: str, order: str) -> None:
        threshold = (self.estimator, {**self.settings, "every": 1})
        config = run_config(threshold=threshold, negatives=negatives, epochs=5, batch_size=32, order=order)
        table = check_training(config).loss.threshold
        assert table.isfinite().all(), "thresholds must stay finite in a run"
        assert (table != 0).any(), "a run must update its thresholds"


def _tensors(value: Any) -> list[Tensor]:
    """The tensors of an argument: a tensor, or a tuple or dataclass that holds some."""
    if isinstance(value, Tensor):
        return [value]
    parts = value if isinstance(value, tuple) else vars(value).values() if is_dataclass(value) else ()
    return [tensor for part in parts for tensor in _tensors(part)]
