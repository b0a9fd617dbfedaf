"""The named datasets of interactions."""

from __future__ import annotations

from dataclasses import dataclass

ADDRESS = "https://raw.githubusercontent.com/Tiny-Snow/IR-Benchmark-Dataset/main/data_iid/{}/proc.zip"
SHIFTED = "https://raw.githubusercontent.com/Tiny-Snow/IR-Benchmark-Dataset/main/data_ood/{}/proc.zip"
CORE_10 = "iterative 10-core, per-user random 80/20 split (seed 0), test items unseen in train dropped"
RECIPE = f"rating >= 3, {CORE_10}"
RESEARCH = "for research; we may not redistribute it, see the source"
MOVIELENS = "GroupLens: research use, no redistribution (grouplens.org/datasets/movielens)"


@dataclass(frozen=True)
class DatasetInfo:
    """What is known of a named dataset. ``sha256`` None: the file cannot be verified."""

    name: str
    title: str
    users: int
    items: int
    interactions: int | None
    train: int | None
    test: int | None
    recipe: str
    licence: str
    address: str | None = None
    sha256: str | None = None


def _paper(
    name: str,
    title: str,
    counts: tuple[int, int, int, int | None, int | None],
    sha256: str | None,
    recipe: str = RECIPE,
    licence: str = RESEARCH,
) -> DatasetInfo:
    return DatasetInfo(name, title, *counts, recipe, licence, ADDRESS.format(name), sha256)


def _shifted(name: str, title: str, counts: tuple[int, int, int, int, int], sha256: str, licence: str) -> DatasetInfo:
    """A test part of another distribution than train."""
    kind = "later events" if name.endswith("temporal") else "items drawn evenly"
    recipe = f"10-core, rating >= 3 where there are ratings; test part of another distribution: {kind}"
    return DatasetInfo(name, title, *counts, recipe, licence, SHIFTED.format(name), sha256)


# Counts and checksums: the files of Tiny-Snow/IR-Benchmark-Dataset as we had them. The counts of Book are the
# SL@K paper's; its file is not available, so its parts and checksum are unknown.
_KNOWN = [
    _paper(
        "amazon2014-health",
        "Amazon 2014 Health",
        (1_974, 1_200, 48_189, 37_784, 10_405),
        "56f9e4b317903b99669b7f8b9ac527a71d30f59e736138a1ae9b8aca4c7e1779",
    ),
    _paper(
        "amazon2014-electronic",
        "Amazon 2014 Electronic",
        (13_455, 8_360, 234_521, 182_398, 52_123),
        "7c67d05b3792aebaa46a7c46af438c574263f9e34e8a4ae67a40de17dc094ee0",
    ),
    _paper(
        "gowalla",
        "Gowalla check-ins",
        (29_858, 40_988, 1_027_464, 810_128, 217_336),
        "6412ab68a7484a2edf762f715b2397a977b40cfedad7efefd1c493608ffc1bdf",
        CORE_10,
    ),
    _paper("amazon2014-book", "Amazon 2014 Book", (135_109, 115_172, 4_042_382, None, None), None),
    _paper(
        "movielens-100k",
        "MovieLens 100K",
        (939, 1_016, 80_393, 63_944, 16_449),
        "4ab66c074eb9b253368b5a488974ac89a1fc59adbf0aa3e59bece5cefcd87028",
        licence=MOVIELENS,
    ),
    _paper(
        "food",
        "Food.com recipes",
        (5_875, 9_852, 233_038, 184_106, 48_932),
        "36ae9d8987c9000d49bb67352cdd37fc68ef6fc70bd678d836ffe819ee9dbb03",
    ),
    _paper(
        "movielens-1m",
        "MovieLens 1M",
        (6_033, 3_123, 834_449, 665_133, 169_316),
        "b0d2b0eb82076da282cd7c00d35caf1d5e0079468b78a5f434a1ef1ba55134c1",
        licence=MOVIELENS,
    ),
    _shifted(
        "amazon2014-electronic-popularity",
        "Amazon 2014 Electronic, test items drawn evenly",
        (13_455, 8_360, 234_521, 187_616, 46_905),
        "fa9c588acd1d8e3998f5ee05b259fcc0066aba1418413eb7034cb6352e49a9eb",
        RESEARCH,
    ),
    _shifted(
        "amazon2014-electronic-temporal",
        "Amazon 2014 Electronic, later events as test",
        (13_455, 8_360, 165_380, 140_712, 24_668),
        "566e9c1ac8beab6870ae5d673abfedda943b36bf671eec19143c347d39338a13",
        RESEARCH,
    ),
    _shifted(
        "gowalla-popularity",
        "Gowalla, test items drawn evenly",
        (29_858, 40_988, 1_027_464, 821_971, 205_493),
        "a7a739e557ae04e4fec119725fbabfdb9c28575a6f863a2060e9de3da456d431",
        RESEARCH,
    ),
    _shifted(
        "food-temporal",
        "Food.com recipes, later events as test",
        (5_875, 9_852, 170_253, 139_822, 30_431),
        "16ac884a45fd8168fe733894c4bf4259a4d03ac3da3d6ddd93e9442d0fd26fa8",
        RESEARCH,
    ),
    _shifted(
        "movielens-1m-temporal",
        "MovieLens 1M, later events as test",
        (6_033, 3_123, 544_490, 500_669, 43_821),
        "509a35cb3440b0f1265e6dca05f952d7f8e0741879bd397e4de95263d4e156ee",
        MOVIELENS,
    ),
    DatasetInfo(
        "synthetic",
        "Generated, works offline",
        1_000,
        800,
        None,
        None,
        None,
        "ten blocks of taste, Zipf popularity, seed 0; split as you choose",
        "none needed",
    ),
]
DATASETS: dict[str, DatasetInfo] = {info.name: info for info in _KNOWN}
