"""The contract suites: what topshelf promises of every loss, model, source of negatives and threshold estimator.

Inherit one in a test file, name your class, and pytest holds it to the same promises as topshelf's own::

    class TestMyLoss(topshelf.testing.LossContract):
        loss = MyLoss

Needs pytest: ``pip install pytest``.
"""

try:
    import pytest
except ImportError as error:
    raise ImportError("topshelf.testing needs pytest: pip install pytest") from error

# So that a broken promise shows the values that were compared, as in a test file.
pytest.register_assert_rewrite(
    *(
        f"{__name__}.{name}"
        for name in ("promises", "losses", "models", "list_models", "links", "negatives", "estimators", "sequences")
    )
)

from topshelf.testing.estimators import EstimatorContract  # noqa: E402
from topshelf.testing.links import LinkModelContract  # noqa: E402
from topshelf.testing.list_models import ListModelContract  # noqa: E402
from topshelf.testing.losses import LossContract  # noqa: E402
from topshelf.testing.models import ModelContract  # noqa: E402
from topshelf.testing.negatives import NegativesContract  # noqa: E402
from topshelf.testing.sequences import SequenceModelContract  # noqa: E402

__all__ = [
    "EstimatorContract",
    "LinkModelContract",
    "ListModelContract",
    "LossContract",
    "ModelContract",
    "NegativesContract",
    "SequenceModelContract",
]
