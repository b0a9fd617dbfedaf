"""The named datasets of documents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from topshelf.data.local_datasets import LocalDataset

MSLR = "Microsoft's terms for MSLR-WEB: research use"
_MICROSOFT = "https://www.microsoft.com/en-us/research/project/mslr/"
_ISTELLA = "https://istella.ai/data/letor-dataset/"


@dataclass(frozen=True)
class RankingInfo(LocalDataset):
    """Documents of queries. ``queries``, ``documents``: of all parts."""

    folder: ClassVar[str] = "ltr"
    features: int
    queries: int
    documents: int
    grades: str
    folds: int


_KNOWN = [
    RankingInfo(
        "mq2008",
        "LETOR 4.0 MQ2008",
        ("mq2008.zip", "MQ2008"),
        46,
        784,
        15_211,
        "0 to 2",
        5,
        recipe="folds by the rotation of S1 to S5: three parts train, one validation, one test",
        address="https://www.microsoft.com/en-us/research/project/letor-learning-rank-information-retrieval/",
        sha256="95fc1b653abb221496a414df7cab3a744ecfe6b526c296fa05d01b109b0226b8",
    ),
    RankingInfo(
        "ohsumed",
        "LETOR 2.0 OHSUMED, fold 1",
        ("ohsumed-fold1.zip", "OHSUMED"),
        25,
        106,
        16_140,
        "0 to 2",
        1,
        recipe="train, validation and test as given in fold 1",
        address="https://github.com/marcosfpr/ranklibpp",
        sha256="2f04ea89b3658cbff052c9f3f0b51af44438221bea78d15d56da307015638a6d",
    ),
    RankingInfo(
        "yandex-imat2009",
        "Yandex web ranking of 2009",
        ("yandex-imat2009.zip",),
        50,
        3_334,
        59_061,
        "0 to 4",
        1,
        recipe="train and test as given, validation by query from train; grades from raw labels by 0.07, 0.14, 0.41, "
        "0.61",
        address="https://github.com/spbsu-ml-community/jmll",
        sha256="961aa2632c33031c9ea695d1800abffd2eb596a2f3e2e85347b04008afdfd4c1",
    ),
    RankingInfo(
        "web10k-sample",
        "MSLR-WEB10K fold 1, first 5,000 lines of train and test",
        ("mslr-web10k-fold1-head.zip",),
        136,
        86,
        10_000,
        "0 to 4",
        1,
        recipe="train and test as given, validation by query from train",
        licence=MSLR,
        address="https://pypi.org/project/rankeval/0.8.2",
        sha256="9b9a2d20de5baef90059c9184b7fa9c23f0b861d11afa88ff7736f619c19e9b3",
    ),
    RankingInfo(
        "web30k-sample",
        "MSLR-WEB30K fold 1, a sample",
        ("mslr-web30k-fold1-sample.zip",),
        136,
        89,
        9_122,
        "0 to 4",
        1,
        recipe="train, validation and test as given",
        licence=MSLR,
        address="https://github.com/chang-li/OnlineLambdaMart",
        sha256="08384f2743db77e03842499abb024c7b7c7a130c327ba1b356070574a044d128",
    ),
    RankingInfo(
        "web10k",
        "MSLR-WEB10K, complete",
        ("MSLR-WEB10K.zip", "MSLR-WEB10K"),
        136,
        10_000,
        1_200_192,
        "0 to 4",
        5,
        recipe="Fold1 to Fold5, each with train.txt, vali.txt and test.txt",
        licence=MSLR,
        address=_MICROSOFT,
    ),
    RankingInfo(
        "web30k",
        "MSLR-WEB30K, complete",
        ("MSLR-WEB30K.zip", "MSLR-WEB30K"),
        136,
        31_531,
        3_771_125,
        "0 to 4",
        5,
        recipe="Fold1 to Fold5, each with train.txt, vali.txt and test.txt",
        licence=MSLR,
        address=_MICROSOFT,
    ),
    RankingInfo(
        "istella",
        "Istella LETOR, complete",
        ("istella-letor", "istella-letor.zip", "istella"),
        220,
        33_018,
        10_454_629,
        "0 to 4",
        1,
        recipe="a folder with train.txt and test.txt (the download is a tar.gz: unpack it), validation by query from "
        "train",
        licence="Istella's licence: research use",
        address=_ISTELLA,
    ),
]
RANKING_DATASETS: dict[str, RankingInfo] = {info.name: info for info in _KNOWN}
