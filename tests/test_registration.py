"""A new loss and a new model need their file and one line in a registry; nothing else breaks."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from torch import Tensor

import test_docs
import test_measured
from command_line import run_topshelf
from topshelf.config import assemble
from topshelf.losses import LOSSES
from topshelf.losses.base import Loss, Reduction
from topshelf.models import MF, MODELS
from topshelf.training import fit
from topshelf.tuning import space


@pytest.fixture(scope="module")
def generate():
    return test_docs.module(test_docs.ROOT / "docs" / "generate.py")


def scratch_loss(positive: Tensor, negative: Tensor, owner: Tensor | None = None, *, margin: float) -> Tensor:
    r"""A loss of somebody's.

    .. math:: m - s_i

    Shapes: positive s_i (P,); negative s_j (Q, N); owner (P,); returns (P,), unreduced.
    Use when: a test needs it.   Cost: O(PN).   Paper: none.   Relations: :func:`softmax_loss`.
    """
    rivals = negative.mean(1) if owner is None else negative.mean(1)[owner]
    return torch.relu(margin - positive + rivals)


class ScratchLoss(Loss):
    """Module form of :func:`scratch_loss`."""

    formula = staticmethod(scratch_loss)
    ranges: ClassVar = {"loss.margin": (0.5, 1.0)}

    def __init__(self, *, margin: float = 1.0, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        self.margin = margin

    def each(self, positive, negative, owner, extras):
        return scratch_loss(positive, negative, owner, margin=self.margin)


class ScratchModel(MF):
    r"""A model of somebody's.

    .. math:: s_{ui} = q_u^\top v_i

    Use when: a test needs it.   Cost: none.   Paper: none.
    """


@pytest.fixture
def scratch(monkeypatch):
    monkeypatch.setitem(LOSSES, "scratch", ScratchLoss)
    monkeypatch.setitem(MODELS, "scratch_model", ScratchModel)


@pytest.mark.usefixtures("scratch")
def test_a_new_loss_and_a_new_model_are_on_every_generated_page(generate):
    pages = {path.relative_to(test_docs.ROOT / "docs").as_posix(): text for path, text in generate.pages().items()}
    assert "\nScratchLoss(*, margin: float = 1.0, reduction: " in pages["losses/reference.md"]
    assert "\nloss(positive, negative, owner=None)\nscratch_loss(" in pages["losses/reference.md"]
    assert "\nScratchModel(\n" in pages["models/reference.md"]
    assert "[`scratch_model`](reference.md#scratch_model)" in pages["models/README.md"]
    for name in ("losses/reference.md#scratch)", "models/reference.md#scratch_model)"):
        assert name in pages["settings.md"]
    with pytest.raises(AssertionError, match=r"run python docs/generate\.py"):
        test_docs.test_the_generated_pages_are_what_the_code_says(generate, "losses/reference")


@pytest.mark.usefixtures("scratch")
def test_a_new_loss_and_a_new_model_need_no_row_in_what_was_measured(generate):
    test_docs.test_every_loss_has_an_entry_with_its_formula_and_its_sections(generate)
    test_docs.test_every_loss_shows_its_constructor_its_call_and_its_function(generate)
    test_docs.test_equations_and_theorems_are_cited_by_the_numbers_that_the_paper_prints(generate)
    test_docs.test_every_model_has_an_entry_with_its_formula_its_sections_and_its_settings(generate)
    test_docs.test_the_page_that_helps_to_choose_a_model_has_a_line_for_each(generate)
    test_measured.test_the_evenness_of_losses_is_the_committed_result()
    test_measured.test_the_cost_of_models_is_the_committed_result()
    test_measured.test_the_general_settings_are_the_committed_result()


@pytest.mark.usefixtures("scratch")
def test_a_new_loss_and_a_new_model_are_listed_searched_and_trained():
    assert "scratch" in run_topshelf("losses")[0]
    assert "A loss of somebody's." in " ".join(run_topshelf("losses", "scratch")[0].split())
    assert "scratch_model" in run_topshelf("models")[0]
    assert "A model of somebody's." in " ".join(run_topshelf("models", "scratch_model")[0].split())
    config = assemble(data="synthetic", model="scratch_model", loss="scratch", more={"train": {"epochs": 2}})
    assert list(space(config).ranges) == ["loss.margin"]
    fitted = fit(config)
    assert type(fitted.model) is ScratchModel
    assert fitted.valid_score is not None
