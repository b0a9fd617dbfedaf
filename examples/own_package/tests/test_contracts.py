"""The four classes keep what topshelf promises of its own."""

from my_ranking.losses import SquaredHinge
from my_ranking.models import BiasedMF
from my_ranking.negatives import ByPopularity
from my_ranking.thresholds import Smoothed

from topshelf.testing import EstimatorContract, LossContract, ModelContract, NegativesContract


class TestSquaredHinge(LossContract):
    loss = SquaredHinge


class TestBiasedMF(ModelContract):
    model = BiasedMF
    settings = {"dim": 8}
    train = {"weight_decay": 0.02}  # dot products overfit without it


class TestByPopularity(NegativesContract):
    negatives = ByPopularity
    settings = {"n": 20}


class TestSmoothed(EstimatorContract):
    estimator = Smoothed
