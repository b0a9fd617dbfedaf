from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from topshelf.config import make_config
from topshelf.data import generate, make_split
from topshelf.errors import ConfigError
from topshelf.queries import Context
from topshelf.training.build import build_model, build_trainer, resolve


def trainer(scores, **train):
    """A trainer whose validation answers with ``scores``, one after another, and remembers the weights it saw."""
    config = resolve(make_config({"k": 3, "train": {"batch_size": 16, "learning_rate": 0.05, **train}}))
    split = make_split(generate(40, 25, interactions_per_user=6, seed=0), seed=0)
    torch.manual_seed(0)
    model, positives = build_model(config, 40, 25), split.train.ragged()
    seen = []

    def validate(model):
        seen.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
        return scores[len(seen) - 1]

    return build_trainer(config, model, Context(positives, 25), validate if scores else None), seen


@pytest.mark.parametrize(
    ("scores", "patience", "stops_at", "best"),
    [
        ([0.1, 0.3, 0.2, 0.2, 0.4], 2, 4, 2),
        ([0.1, 0.3, 0.2, 0.2, 0.4], 3, 5, 5),
        ([0.1, 0.3, 0.2, 0.2, 0.4], 0, 5, 5),
        ([0.5, 0.5, 0.5, 0.5, 0.5], 4, 5, 1),
        ([0.5, 0.5, 0.5, 0.5, 0.5], 3, 4, 1),
    ],
)
def test_patience_counts_validations_without_a_better_score(scores, patience, stops_at, best):
    trained, _ = trainer(scores, epochs=5, validate_every=1, patience=patience)
    trained.run()
    assert trained.progress.epoch == stops_at
    assert trained.progress.best_epoch == best


def test_the_last_epoch_is_validated_though_it_is_not_due():
    trained, seen = trainer([0.1, 0.2, 0.9], epochs=5, validate_every=2)
    trained.run()
    assert len(seen) == 3
    assert [record["epoch"] for record in trained.progress.history if "valid" in record] == [2, 4, 5]
    assert trained.progress.best_epoch == 5


def test_the_weights_of_the_best_epoch_are_given_back():
    trained, seen = trainer([0.1, 0.9, 0.2], epochs=3, validate_every=1)
    trained.run()
    for name, tensor in trained.model.state_dict().items():
        assert_close(tensor, seen[1][name], rtol=0, atol=0)
    assert not torch.equal(seen[1]["item_vectors"], seen[2]["item_vectors"])


def test_without_validation_the_last_weights_stay_and_every_epoch_is_trained():
    trained, _ = trainer([], epochs=4)
    trained.run()
    assert trained.progress.epoch == 4
    assert trained.best_weights is None


def test_the_callers_random_state_is_left_alone():
    trained, _ = trainer([], epochs=2)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    trained.run()
    assert_close(torch.rand(3), expected, rtol=0, atol=0)


def test_the_learning_rate_falls_after_every_so_many_epochs():
    rates = []

    class Watch:
        def on_step(self, one):
            rates.append(one.optimizer.param_groups[0]["lr"])

        def on_epoch(self, one, record):
            pass

        def wants_to_stop(self):
            return False

    trained, _ = trainer([], epochs=5, batch_size=64, decay_every=2, decay_factor=0.1)
    trained.run(Watch())
    assert rates == pytest.approx([0.05, 0.05, 0.005, 0.005, 0.0005])


def test_gradients_are_scaled_to_the_norm_that_is_asked_for():
    seen = {}
    for name, clip in (("whole", None), ("clipped", 1e-3)):
        trained, _ = trainer([], epochs=1, batch_size=64, clip_norm=clip)
        trained.run()
        seen[name] = torch.cat([one.grad.flatten() for one in trained.model.parameters()])
    assert seen["whole"].norm() > 1e-3
    assert_close(seen["clipped"], seen["whole"] * (1e-3 / seen["whole"].norm()), rtol=1e-3, atol=1e-9)


def test_clipping_does_not_go_with_sparse_gradients():
    with pytest.raises(ConfigError, match=r"train.clip_norm does not go with train.optimizer = 'row_adam'"):
        trainer([], optimizer="row_adam", clip_norm=1.0)
