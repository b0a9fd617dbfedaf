"""Losses for the first K places: pure functions, and modules that add settings and state.

``LOSSES`` names every loss for the command line, the configuration and the contract tests; ``LISTWISE`` names those of
graded lists.
"""

from topshelf.losses.adversarial import AdvInfoNCE, advinfonce_loss
from topshelf.losses.base import Loss
from topshelf.losses.cosine import CCL, DirectAU, ccl_loss, directau_loss
from topshelf.losses.guided import GuidedRec, guidedrec_loss
from topshelf.losses.lambda_loss import (
    LambdaLoss,
    LambdaLossAtK,
    LambdaLossAtKS,
    LambdaLossS,
    LambdaRank,
    LambdaRankS,
    lambda_weights,
    lambdaloss_at_k_loss,
    lambdaloss_loss,
    lambdarank_loss,
)
from topshelf.losses.listwise import ListMLE, ListNet, ListwiseLoss, RankNet, listmle_loss, listnet_loss, ranknet_loss
from topshelf.losses.listwise_ndcg import (
    ApproxNDCG,
    ListwiseLambdaLossAtK,
    ListwiseLambdaRank,
    NeuralNDCG,
    approx_ndcg_loss,
    listwise_lambdaloss_at_k_loss,
    listwise_lambdarank_loss,
    neural_ndcg_loss,
)
from topshelf.losses.listwise_softmax import ListwiseSLatK, ListwiseSoftmax, listwise_slatk_loss, listwise_softmax_loss
from topshelf.losses.pairwise import BPR, bpr_loss
from topshelf.losses.partial_auc import LLPAUC, llpauc_loss
from topshelf.losses.pointwise import BCE, GBCE, bce_loss, gbce_loss
from topshelf.losses.psl import PSL, psl_loss
from topshelf.losses.softmax import BSL, SampledSoftmax, SoftmaxLoss, bsl_loss, sampled_softmax_loss, softmax_loss
from topshelf.losses.sogclr import SogCLR, SogSLatK, sogclr_loss, sogslatk_loss
from topshelf.losses.song import SONG, SONGAtK, song_at_k_loss, song_loss
from topshelf.losses.topk_softmax import SLatK, slatk_loss

__all__ = [
    "BCE",
    "BPR",
    "BSL",
    "CCL",
    "GBCE",
    "LISTWISE",
    "LLPAUC",
    "LOSSES",
    "PSL",
    "SONG",
    "AdvInfoNCE",
    "ApproxNDCG",
    "DirectAU",
    "GuidedRec",
    "LambdaLoss",
    "LambdaLossAtK",
    "LambdaLossAtKS",
    "LambdaLossS",
    "LambdaRank",
    "LambdaRankS",
    "ListMLE",
    "ListNet",
    "ListwiseLambdaLossAtK",
    "ListwiseLambdaRank",
    "ListwiseLoss",
    "ListwiseSLatK",
    "ListwiseSoftmax",
    "Loss",
    "NeuralNDCG",
    "RankNet",
    "SLatK",
    "SONGAtK",
    "SampledSoftmax",
    "SoftmaxLoss",
    "SogCLR",
    "SogSLatK",
    "advinfonce_loss",
    "approx_ndcg_loss",
    "bce_loss",
    "bpr_loss",
    "bsl_loss",
    "ccl_loss",
    "directau_loss",
    "gbce_loss",
    "guidedrec_loss",
    "lambda_weights",
    "lambdaloss_at_k_loss",
    "lambdaloss_loss",
    "lambdarank_loss",
    "listmle_loss",
    "listnet_loss",
    "listwise_lambdaloss_at_k_loss",
    "listwise_lambdarank_loss",
    "listwise_slatk_loss",
    "listwise_softmax_loss",
    "llpauc_loss",
    "neural_ndcg_loss",
    "psl_loss",
    "ranknet_loss",
    "sampled_softmax_loss",
    "slatk_loss",
    "softmax_loss",
    "sogclr_loss",
    "sogslatk_loss",
    "song_at_k_loss",
    "song_loss",
]

LOSSES: dict[str, type[Loss]] = {
    "bpr": BPR,
    "softmax": SoftmaxLoss,
    "slatk": SLatK,
    "bsl": BSL,
    "sampled_softmax": SampledSoftmax,
    "psl": PSL,
    "bce": BCE,
    "gbce": GBCE,
    "ccl": CCL,
    "directau": DirectAU,
    "lambdarank": LambdaRank,
    "lambdaloss": LambdaLoss,
    "lambdaloss_at_k": LambdaLossAtK,
    "lambdarank_s": LambdaRankS,
    "lambdaloss_s": LambdaLossS,
    "lambdaloss_at_k_s": LambdaLossAtKS,
    "song": SONG,
    "song_at_k": SONGAtK,
    "sogclr": SogCLR,
    "sogslatk": SogSLatK,
    "advinfonce": AdvInfoNCE,
    "llpauc": LLPAUC,
    "guidedrec": GuidedRec,
}

LISTWISE: dict[str, type[ListwiseLoss]] = {
    "listnet": ListNet,
    "listmle": ListMLE,
    "ranknet": RankNet,
    "lambdarank": ListwiseLambdaRank,
    "lambdaloss_at_k": ListwiseLambdaLossAtK,
    "approx_ndcg": ApproxNDCG,
    "neural_ndcg": NeuralNDCG,
    "softmax": ListwiseSoftmax,
    "slatk": ListwiseSLatK,
}
