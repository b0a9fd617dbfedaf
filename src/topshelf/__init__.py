"""topshelf: recommenders trained for the first K places of the list.

Names are imported on first use, so importing one loss does not import everything.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from topshelf.artifact import Artifact
    from topshelf.blending import blend
    from topshelf.config import RunConfig
    from topshelf.data import Interactions, load_split
    from topshelf.errors import CheckpointError, ConfigError, DataError, TopshelfError, TrainingError
    from topshelf.evaluation import Evaluation, compare, evaluate, evaluate_lists
    from topshelf.link_predictor import LinkPredictor
    from topshelf.losses import BPR, SLatK, SoftmaxLoss
    from topshelf.models import EASE, MF, LightGCN, Popularity, XSimGCL
    from topshelf.queries import QuerySet
    from topshelf.ranker import Ranker
    from topshelf.recommender import Recommender
    from topshelf.training import fit, load, resume

    __version__: str

__all__ = [
    "BPR",
    "EASE",
    "MF",
    "Artifact",
    "CheckpointError",
    "ConfigError",
    "DataError",
    "Evaluation",
    "Interactions",
    "LightGCN",
    "LinkPredictor",
    "Popularity",
    "QuerySet",
    "Ranker",
    "Recommender",
    "RunConfig",
    "SLatK",
    "SoftmaxLoss",
    "TopshelfError",
    "TrainingError",
    "XSimGCL",
    "blend",
    "compare",
    "evaluate",
    "evaluate_lists",
    "fit",
    "load",
    "load_split",
    "resume",
]

_HOMES = {
    "artifact": ["Artifact"],
    "blending": ["blend"],
    "config": ["RunConfig"],
    "data": ["Interactions", "load_split"],
    "errors": ["CheckpointError", "ConfigError", "DataError", "TopshelfError", "TrainingError"],
    "evaluation": ["Evaluation", "compare", "evaluate", "evaluate_lists"],
    "link_predictor": ["LinkPredictor"],
    "losses": ["BPR", "SLatK", "SoftmaxLoss"],
    "models": ["EASE", "MF", "LightGCN", "Popularity", "XSimGCL"],
    "queries": ["QuerySet"],
    "ranker": ["Ranker"],
    "recommender": ["Recommender"],
    "training": ["fit", "load", "resume"],
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib import metadata  # slow to import

        return metadata.version("topshelf")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'topshelf' has no attribute {name!r}")
    return getattr(import_module(f"topshelf.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
