"""The models that rank documents, by name."""

from topshelf.models.boosting import CatBoostRanker, LambdaMART, XGBoostRanker
from topshelf.models.list_base import ListModel
from topshelf.models.list_networks import LinearRanker, MLPRanker, TransformerRanker

__all__ = [
    "LIST_MODELS",
    "CatBoostRanker",
    "LambdaMART",
    "LinearRanker",
    "ListModel",
    "MLPRanker",
    "TransformerRanker",
    "XGBoostRanker",
]

LIST_MODELS: dict[str, type[ListModel]] = {
    "transformer": TransformerRanker,
    "mlp": MLPRanker,
    "linear_ranker": LinearRanker,
    "lambdamart": LambdaMART,
    "xgboost": XGBoostRanker,
    "catboost": CatBoostRanker,
}
