"""Losses for the first K places: pure functions, and modules that add settings and state.

``LOSSES`` names every loss for the command line, the configuration and the contract tests.
"""

from topshelf.losses.base import Loss
from topshelf.losses.pairwise import BPR, bpr_loss
from topshelf.losses.softmax import SoftmaxLoss, softmax_loss
from topshelf.losses.topk_softmax import SLatK, slatk_loss

__all__ = ["BPR", "LOSSES", "Loss", "SLatK", "SoftmaxLoss", "bpr_loss", "slatk_loss", "softmax_loss"]

LOSSES: dict[str, type[Loss]] = {"bpr": BPR, "softmax": SoftmaxLoss, "slatk": SLatK}
