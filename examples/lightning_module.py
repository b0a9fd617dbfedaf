"""SL@K in a Lightning module around your own model; the thresholds are saved in Lightning's checkpoints.

    pip install pytorch-lightning && python examples/lightning_module.py

The lines marked with SL@K are all that the loss asks for. Any other loss goes in the same places.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from topshelf.data import Split, generate, make_split
from topshelf.evaluation import ndcg
from topshelf.losses import SLatK

K = 10


class TwoTower(nn.Module):
    """Stands for your model: anything that gives a vector per user and a vector per item."""

    def __init__(self, n_users: int, n_items: int, dim: int = 32) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(n_users, dim), nn.Embedding(n_items, dim)
        self.tower = nn.Linear(dim, dim)

    def users(self, index: Tensor | None = None) -> Tensor:
        rows = self.user.weight if index is None else self.user(index)
        return F.normalize(rows + self.tower(rows), dim=1)

    def items(self) -> Tensor:
        return F.normalize(self.item.weight, dim=1)


class Ranker(pl.LightningModule):
    def __init__(self, n_users: int, n_items: int, learning_rate: float = 0.02, refresh_epochs: int = 5) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.learning_rate, self.refresh_epochs = learning_rate, refresh_epochs
        self.model = TwoTower(n_users, n_items)
        self.loss = SLatK(n_users, k=K, tau=0.2, tau_weight=1.0)  # SL@K: a submodule, so its table is in the checkpoint

    def training_step(self, batch: tuple[Tensor, Tensor, Tensor, Tensor]) -> Tensor:
        user, item, negatives, is_positive = batch  # (B,), (B,), (N,), (B, N)
        u, v = self.model.users(user), self.model.items()
        positive = (u * v[item]).sum(1)
        return self.loss(positive, u @ v[negatives].T, query=user, mask=is_positive)  # SL@K

    def on_train_epoch_start(self) -> None:
        self.loss.begin_epoch(self.current_epoch + 1)  # for losses whose parts train in turn; SL@K has none

    def on_train_epoch_end(self) -> None:
        if (self.current_epoch + 1) % self.refresh_epochs == 0:  # SL@K: the thresholds follow the scores
            with torch.no_grad():
                scores = self.model.users() @ self.model.items().T
                self.loss.threshold.copy_(scores.topk(self.loss.k).values[:, -1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        groups = [{"params": list(self.model.parameters())}, *self.loss.parameter_groups(self.learning_rate)]
        return torch.optim.Adam(groups, lr=self.learning_rate)


class Pairs:
    """Shuffled (user, item) pairs with negatives for the whole batch; a DataLoader works as well."""

    def __init__(self, split: Split, batch_size: int = 512, n_negatives: int = 100) -> None:
        train = split.train.ragged()
        self.user, self.item = train.owner(), train.indices
        self.batch_size, self.n_negatives = batch_size, n_negatives
        self.is_positive = torch.zeros(split.n_users, split.n_items, dtype=torch.bool)
        self.is_positive[self.user, self.item] = True

    def __len__(self) -> int:
        return -(-len(self.user) // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        for batch in torch.randperm(len(self.user)).split(self.batch_size):
            user, negatives = self.user[batch], torch.randperm(self.is_positive.size(1))[: self.n_negatives]
            yield user, self.item[batch], negatives, self.is_positive[user][:, negatives]


def trainer(epochs: int) -> pl.Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return pl.Trainer(max_epochs=epochs, accelerator="cpu", enable_checkpointing=False, **quiet)


def main(epochs: int = 20) -> tuple[float, Tensor, Tensor]:
    pl.seed_everything(0, verbose=False)
    split = make_split(generate(400, 200, seed=0), kind="ratio", seed=0)
    ranker, pairs = Ranker(split.n_users, split.n_items), Pairs(split)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ranker.ckpt"
        first = trainer(epochs // 2)
        first.fit(ranker, pairs)
        first.save_checkpoint(path)
        restored = Ranker.load_from_checkpoint(path, weights_only=True)  # SL@K: the thresholds too
        thresholds = restored.loss.threshold.clone()
        trainer(epochs).fit(restored, pairs, ckpt_path=path, weights_only=True)  # continues where the first one stopped

    with torch.no_grad():
        score = ndcg(restored.model.users(), restored.model.items(), split.valid.ragged(), split.train.ragged(), K)
    print(f"validation NDCG@{K}: {score:.4f}")
    return score, ranker.loss.threshold, thresholds


if __name__ == "__main__":
    main()
