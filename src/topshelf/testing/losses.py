"""What every loss promises."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from topshelf.errors import ConfigError
from topshelf.losses import LOSSES, Loss
from topshelf.losses.base import Extras
from topshelf.testing.cases import Case, case, empty_case, misfits
from topshelf.testing.promises import check_is_named, check_training, identical, planted, run_config, same
from topshelf.training import fit


class LossContract:
    """Inherit it and name the loss::

        class TestMyLoss(topshelf.testing.LossContract):
            loss = MyLoss

    settings         of the loss, such as {"tau": 0.2}; its defaults are tested when left out
    is_derivative    False where the gradient is by design not the derivative of the value
    needs_negatives  False where a positive without a negative costs something too
    takes_pairs      False where a call must have ``owner``
    compiles         False where torch.compile cannot trace it as a whole
    """

    loss: type[Loss]
    settings: Mapping[str, Any] = {}
    is_derivative: bool = True
    needs_negatives: bool = True
    takes_pairs: bool = True
    compiles: bool = True

    def make(self, n_queries: int = 10, n_positives: int = 20, **settings: Any) -> Loss:
        """A new loss, so that no state is left over from another call."""
        sizes = {"n_queries": n_queries, "n_items": 12, "n_positives": n_positives}
        given: dict[str, Any] = {key: size for key, size in sizes.items() if key in self.arguments()}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self.loss(**given, **{**self.settings, **settings})

    def arguments(self) -> Mapping[str, Any]:
        return inspect.signature(self.loss.__init__).parameters

    def value(self, given: Case, *, reduction: str = "mean", **settings: Any) -> Tensor:
        loss = self.make(reduction=reduction, **settings)
        return given.run(loss.double() if given.positive.dtype == torch.float64 else loss)

    def value_and_gradients(self, given: Case) -> tuple[Tensor, tuple[Tensor, Tensor], dict[str, Tensor]]:
        """The sum over positives, its gradients by positives and negatives, and the state after it."""
        loss, given = self.make(reduction="sum").double(), given.tracked()
        value = given.run(loss)
        by_positive, by_negative = torch.autograd.grad(value, (given.positive, given.negative), materialize_grads=True)
        return value.detach(), (by_positive, by_negative), loss.state_dict()

    # What it says of itself

    def test_a_run_can_name_it(self) -> None:
        check_is_named(self.loss, Loss, LOSSES)

    def test_what_it_says_of_itself_is_known_to_the_base(self) -> None:
        assert "reduction" in self.arguments(), "its constructor must take reduction, and pass it to the base's"
        loss = self.make()
        known = {"negative", "whole_queries", *Extras._fields}
        assert set(loss.needs) <= known, f"needs must be among {sorted(known)}, got {loss.needs}"
        against = {"negative", "log_partition", "item_vector"} & set(loss.needs)
        assert len(against) == 1, f"needs must have one of negative, log_partition and item_vector, got {loss.needs}"
        assert loss.scope in ("positive", "query", "batch"), (
            f"scope must be positive, query or batch, got {loss.scope!r}"
        )
        assert "log_partition" not in loss.needs or hasattr(loss, "tau"), "a loss of log_partition must have a tau"
        tables = {"k", "threshold"} <= set(vars(loss))
        assert not loss.keeps_thresholds or tables, "a loss that keeps thresholds must have k and a table threshold"

    def test_its_parameters_are_all_in_the_groups_it_hands_out(self) -> None:
        loss = self.make()
        groups = loss.parameter_groups(0.1)
        given = {id(parameter) for group in groups for parameter in group["params"]}
        assert given == {id(one) for one in loss.parameters()}, "parameter_groups must have each of its parameters"
        for group in groups:
            assert group["lr"] > 0, "each group of parameters must have a learning rate above 0"
            assert group["weight_decay"] == 0, "each group of parameters must have a weight decay of 0"

    # Calls that are refused

    def test_a_call_without_what_it_needs_is_refused_by_name(self) -> None:
        given = case(dtype=torch.float32)
        for need in set(self.make().needs) - {"whole_queries"}:
            missing = {"negative": None} if need == "log_partition" else {need: None}
            with pytest.raises(ConfigError, match=rf"{self.loss.__name__} needs .*; pass "):
                given.but(**missing).run(self.make())

    def test_tensors_that_do_not_fit_are_refused_with_what_would_fit_and_what_to_do(self) -> None:
        loss = self.make()
        for changes, message in misfits():
            with pytest.raises(ConfigError, match=message + r".*; (pass|convert it with) "):
                case(dtype=torch.float32).but(**changes).run(loss)

    @pytest.mark.parametrize("index", ["owner", "query", "pair", "negative_item"])
    def test_an_index_out_of_range_or_a_list_is_refused_with_what_to_do(self, index: str) -> None:
        loss, given = self.make(), case(dtype=torch.float32)
        counts = {**loss.index_sizes(), "owner": 4}
        for wrong in (-1, counts.get(index)):
            if wrong is not None:
                changed = getattr(given, index).clone()
                changed.view(-1)[2] = wrong
                with pytest.raises(ConfigError, match=f"{index} must be (from 0 to|>= 0).*, got {wrong}; pass the"):
                    given.but(**{index: changed}).run(loss)
        with pytest.raises(ConfigError, match=f"{index} must be .* of integers, got a list; pass "):
            given.but(**{index: getattr(given, index).tolist()}).run(loss)

    def test_a_log_partition_that_does_not_fit_is_refused(self) -> None:
        if "log_partition" not in self.make().needs:
            pytest.skip("it takes no log_partition")
        given = case(dtype=torch.float32)
        for partition in (torch.zeros(4, 1), torch.zeros(4, dtype=torch.long)):
            with pytest.raises(ConfigError, match=r"log_partition must be \(Q,\) of floating-point numbers, got \(4"):
                self.make()(given.positive, owner=given.owner, query=given.query, log_partition=partition)
        with pytest.raises(ConfigError, match=r"query must be \(Q,\) = \(3,\) of integers, got \(4,\)"):
            self.make()(given.positive, owner=given.owner, query=given.query, log_partition=torch.zeros(3))

    # Gradients

    def test_gradcheck(self) -> None:
        if not self.is_derivative:
            pytest.skip("its gradient is by design not its derivative")
        given, loss = case().tracked(), self.make(reduction="none").double().eval()

        def run(positive: Tensor, negative: Tensor) -> Tensor:
            return given.but(positive=positive, negative=negative).run(loss)

        promise = "the gradient must be the derivative of the value (is_derivative = False where that is by design)"
        assert torch.autograd.gradcheck(run, (given.positive, given.negative), raise_exception=False), promise

    def test_the_gradient_of_a_positives_term_stays_within_its_scope(self) -> None:
        """By the positives of its query (all rows of it) and by those of other queries."""
        given, scope = case(), self.make().scope
        given.positive.requires_grad_()
        each = given.run(self.make(reduction="none").double().eval())
        assert given.owner is not None
        group = given.query[given.owner]
        for i in range(len(each)):
            (gradient,) = torch.autograd.grad(each[i], given.positive, retain_graph=True, materialize_grads=True)
            reached = {"positive": torch.arange(len(each)) == i, "query": group == group[i]}.get(scope)
            promise = f"with scope = {scope!r} the term of positive {i} must not depend on positives out of that scope"
            assert reached is None or (gradient[~reached] == 0).all(), promise

    def test_a_step_raises_positives_and_lowers_negatives(self) -> None:
        _, (by_positive, by_negative), _ = self.value_and_gradients(case())
        assert by_positive.sum() <= 0, "a step down the gradient must raise positives on the whole"
        assert by_negative.sum() >= 0, "a step down the gradient must lower negatives on the whole"

    @pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
    def test_values_and_gradients_stay_finite_at_extreme_scores(self, scale: float) -> None:
        given = case(dtype=torch.float32).tracked(scale)
        temperatures: dict[str, Any] = {name: 0.005 for name in ("tau", "tau1", "tau2") if name in self.arguments()}
        loss = self.make(**temperatures)
        value = given.run(loss)
        value.backward()
        assert value.isfinite(), f"the loss of scores up to {scale} must be finite, got {value}"
        for tensor in (given.positive, given.negative, *loss.parameters()):
            finite = tensor.grad is None or bool(tensor.grad.isfinite().all())
            assert finite, f"the gradients at scores up to {scale} must be finite"
        for name, tensor in loss.state_dict().items():
            assert tensor.isfinite().all(), f"its state must be finite after scores up to {scale}: {name} is not"

    def test_gradients_are_the_same_to_the_last_bit_every_time(self) -> None:
        """Large enough that torch would add in parallel, and unsorted, as a shuffled batch is."""
        given = case(dtype=torch.float32, n_queries=256, n_positives=2048, n_negatives=100)
        assert given.owner is not None
        owner = given.owner[torch.randperm(2048, generator=torch.Generator().manual_seed(1))]
        runs = []
        for _ in range(3):
            now = given.but(owner=owner).tracked()
            now.run(self.make(n_queries=256, n_positives=2048)).backward()
            runs.append([tensor.grad for tensor in (now.positive, now.negative) if tensor.grad is not None])
        promise = "the same call must give the same gradients to the last bit (F.embedding adds in order, indexing not)"
        for other in runs[1:]:
            assert all(torch.equal(a, b) for a, b in zip(runs[0], other, strict=True)), promise

    # Negatives that do not count

    @pytest.mark.parametrize("filler", [100.0, math.inf, -math.inf, math.nan])
    def test_masked_negatives_change_nothing_whatever_they_hold(self, filler: float) -> None:
        given = case()
        wide = torch.cat([given.negative, torch.full((4, 2), filler, dtype=torch.float64)], 1)
        items = torch.cat([given.negative_item, torch.zeros(4, 2, dtype=torch.long)], 1)
        mask = torch.zeros_like(wide, dtype=torch.bool)
        mask[:, 5:] = True
        expected, gradients, state = self.value_and_gradients(given)
        value, others, other_state = self.value_and_gradients(given.but(negative=wide, negative_item=items, mask=mask))
        promise = "masked negatives must change nothing"
        same(value, expected, f"{promise} in the value")
        same(others[0], gradients[0], f"{promise} in the gradients of positives")
        same(others[1], F.pad(gradients[1], (0, 2)), f"{promise} in the gradients of negatives, and have none")
        same(other_state, state, f"{promise} in its state")

    def test_no_negatives_at_all_are_the_same_as_masked_ones(self) -> None:
        given = case()
        masked = self.value_and_gradients(given.but(mask=torch.ones(4, 5, dtype=torch.bool)))
        none = given.but(negative=given.negative[:, :0], negative_item=given.negative_item[:, :0])
        value, gradients, _ = self.value_and_gradients(none)
        same(value, masked[0], "no negatives must cost what masked ones do")
        same(gradients[0], masked[1][0], "no negatives must have the gradients of masked ones")
        assert gradients[1].shape == (4, 0), "the gradient of no negatives must be (Q, 0)"
        assert not self.needs_negatives or value == 0, f"positives without negatives must cost 0, got {value}"

    def test_a_positive_without_negatives_costs_nothing_and_has_a_finite_gradient(self) -> None:
        if not self.needs_negatives:
            pytest.skip("it needs no negatives")
        given = case(dtype=torch.float32, n_queries=2, n_positives=2, n_negatives=1).tracked()
        owner = None if self.takes_pairs else torch.arange(2)
        each = self.value(given.but(owner=owner, mask=torch.tensor([[True], [False]])), reduction="none")
        each.sum().backward()
        assert each[0] == 0, f"a positive whose negatives are all masked must cost 0, got {each[0]}"
        for gradient in (given.negative.grad, given.positive.grad):
            assert gradient is not None, "both positives and negatives must have gradients"
            assert gradient.isfinite().all(), "gradients beside a masked row must be finite"
        assert given.positive.grad is not None
        assert given.positive.grad[0] == 0, "a positive whose negatives are all masked must have no gradient"

    # Values

    def test_order_of_negatives_changes_nothing(self) -> None:
        given = case()
        for order in _orders(5):
            shuffled = given.but(negative=given.negative[:, order], negative_item=given.negative_item[:, order])
            same(self.value(shuffled), self.value(given), "the order of negatives must change nothing")

    def test_order_of_positives_changes_nothing(self) -> None:
        given = case()
        fields = ("positive", "owner", "pair", "item_vector")
        for order in _orders(7):
            shuffled = given.but(**{field: getattr(given, field)[order] for field in fields})
            expected = self.value(given, reduction="none")[order]
            same(self.value(shuffled, reduction="none"), expected, "the order of positives must change nothing")

    def test_a_uniform_log_q_of_zero_changes_nothing(self) -> None:
        given = case()
        zero = torch.zeros(5, dtype=torch.float64)
        same(self.value(given.but(log_q=zero)), self.value(given), "log_q = 0, a uniform draw, must change nothing")

    def test_ragged_form_equals_pair_form(self) -> None:
        if not self.takes_pairs:
            pytest.skip("it needs owner")
        given = case()
        rows = {field: getattr(given, field)[given.owner] for field in ("negative", "query", "negative_item")}
        pairs = given.but(owner=None, query_vector=given.query_vector[given.owner], **rows)
        promise = "positives that share a query must cost what they cost with a row of their own each"
        same(self.value(given, reduction="none"), self.value(pairs, reduction="none"), promise)

    def test_reductions_agree(self) -> None:
        given = case()
        each = self.value(given, reduction="none")
        assert each.shape == given.positive.shape, f"reduction 'none' must give (P,) = (7,), got {tuple(each.shape)}"
        same(self.value(given, reduction="mean"), each.mean(), "reduction 'mean' must be the mean of 'none'")
        same(self.value(given, reduction="sum"), each.sum(), "reduction 'sum' must be the sum of 'none'")

    def test_inputs_are_never_mutated(self) -> None:
        given = case().but(mask=torch.zeros(4, 5, dtype=torch.bool), log_q=torch.zeros(4, 5, dtype=torch.float64))
        copies = {name: tensor.clone() for name, tensor in given.tensors().items()}
        self.value(given)
        identical(given.tensors(), copies, "a call must not change its inputs")

    def test_an_empty_batch_costs_nothing(self) -> None:
        value = self.value(empty_case())
        value.backward()
        assert value == 0, f"a batch without positives must cost 0, got {value}"

    def test_a_single_positive_with_a_single_negative_is_finite(self) -> None:
        given = case(dtype=torch.float32, n_queries=1, n_positives=1, n_negatives=1)
        given.positive.requires_grad_()
        value = self.value(given)
        value.backward()
        assert value.isfinite(), f"one positive with one negative must cost a finite number, got {value}"
        assert given.positive.grad is not None, "a positive must have a gradient"
        assert given.positive.grad.isfinite().all(), "one positive with one negative must have a finite gradient"

    # Number types

    def test_half_precision_scores_are_computed_in_float32(self) -> None:
        given = case(dtype=torch.bfloat16)
        value = self.value(given)
        assert value.dtype == torch.float32, f"the loss of bfloat16 scores must be in float32, got {value.dtype}"
        floats = ("positive", "negative", "query_vector", "item_vector")
        expected = self.value(given.but(**{field: getattr(given, field).float() for field in floats}))
        same(value, expected, "bfloat16 scores must be computed in float32")

    def test_no_digit_of_float64_is_lost(self) -> None:
        """What torch makes of integers is of its default type, float32: such a count would show in the eighth digit."""
        given, loss, other = case(), self.make().double(), self.make().double()
        value = given.run(loss).item()
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            wide = given.run(other).item()
        finally:
            torch.set_default_dtype(default)
        assert wide == pytest.approx(value, rel=1e-13), "float64 scores must be computed in float64 throughout"

    # State

    def test_state_dict_round_trip(self) -> None:
        given, loss, other = case(dtype=torch.float32), self.make().eval(), self.make().eval()
        for tensor in loss.state_dict().values():
            tensor.copy_(torch.rand(tensor.shape, generator=torch.Generator().manual_seed(3)))
        other.load_state_dict(loss.state_dict())
        identical(given.run(other), given.run(loss), "state_dict must hold all of its state")

    def test_evaluation_mode_moves_no_state(self) -> None:
        loss = self.make().eval()
        before = {key: tensor.clone() for key, tensor in loss.state_dict().items()}
        case(dtype=torch.float32).run(loss)
        identical(dict(loss.state_dict()), before, "a call in evaluation mode must leave its state alone")

    # In a run

    def test_it_compiles_without_a_graph_break(self) -> None:
        """Traced and differentiated as a whole; the compiler's own code generation is torch's matter."""
        if not self.compiles:
            pytest.skip("it does not compile")
        given = case(dtype=torch.float32)
        given.positive.requires_grad_()
        compiled: Callable[..., Tensor] = torch.compile(self.make(), fullgraph=True, backend="aot_eager")
        try:
            same(given.run(compiled), given.run(self.make()), "a compiled loss must cost the same")  # type: ignore[arg-type]
        finally:
            torch._dynamo.reset()

    def test_training_lowers_the_loss_or_improves_what_it_stands_for(self) -> None:
        check_training(run_config(loss=(self.loss, self.settings), epochs=5, batch_size=32))

    def test_it_trains_on_pairs_or_says_that_it_needs_whole_users(self) -> None:
        loss, dataset = (self.loss, self.settings), planted()
        if "whole_queries" in self.make().needs:
            with pytest.raises(ConfigError, match="needs all positives of a user in one batch"):
                fit(run_config(loss=loss, order="pair"), dataset)
            return
        model = fit(run_config(loss=loss, epochs=2, order="pair", batch_size=64), dataset).model
        start = fit(run_config(loss=loss, epochs=1, order="pair", learning_rate=1e-12), dataset).model
        for (name, value), first in zip(model.named_parameters(), start.parameters(), strict=True):
            assert value.isfinite().all(), f"training must keep the model's weights finite: {name} is not"
            assert not torch.equal(value, first), f"training must move the model's {name}"


def _orders(n: int) -> tuple[Tensor, Tensor]:
    """Two orders; in the second, nothing stays at its place."""
    return torch.randperm(n, generator=torch.Generator().manual_seed(1)), torch.arange(n).roll(1)
