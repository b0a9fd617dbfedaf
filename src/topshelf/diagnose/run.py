"""Diagnose a run or a config: train the losses to compare, measure them, and collect the results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from topshelf.config import BaseConfig, RunConfig, assemble
from topshelf.data import Dataset, through_refit
from topshelf.diagnose import measures, states
from topshelf.diagnose.advice import Advice, advise
from topshelf.diagnose.examine import RunDiagnosis, RunPlan, plan_run
from topshelf.diagnose.gradients import Gradients, gradients, has_unit_rows
from topshelf.diagnose.measures import Bound, Estimate, Scores, Weights
from topshelf.diagnose.sample import DRAWS, SAMPLE, Sample
from topshelf.diagnose.states import State, Timing, Vectors
from topshelf.errors import ConfigError, TrainingError, at_least, at_most
from topshelf.models import Model
from topshelf.queries import Context
from topshelf.reprs import brief
from topshelf.training import Fitted, StoppedEarly, load, load_dataset
from topshelf.training.batches import stream
from topshelf.training.build import DRAWN, build_objective, model_class, resolve
from topshelf.training.folder import RunFolder
from topshelf.training.tasks import task_class

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from topshelf.diagnose.tables import Section

EPOCHS, USERS = 20, 1000
COMPARED = ("softmax", "slatk")


@dataclass(frozen=True)
class Diagnosis:
    """The results. ``to_json`` leaves out the raw values per user."""

    target: str
    label: str  # the loss that is diagnosed
    data: str
    n_users: int
    n_items: int
    sampled_users: int
    k: int
    epochs: int
    seed: int
    state: str  # the state of the model that thresholds, scores, weights and hits are of
    estimator: str
    effective_n: int | None
    is_cosine: bool
    two_positives: float  # share of users with two or more training positives
    gradients: list[Gradients]
    estimates: list[Estimate]
    held: Estimate | None  # the thresholds in the loss's own buffer
    scores: Scores
    weights: Weights | None
    bound: Bound
    bounds: dict[str, list[Bound]]  # by loss, after every epoch of the training for this diagnosis
    mean_thresholds: dict[str, float]  # by loss, after that training
    timings: list[Timing]
    small_lambda: float
    failed: dict[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return brief(self)

    @property
    def own_gradients(self) -> Gradients | None:
        return next((one for one in self.gradients if one.label == self.label), None)

    @property
    def advice(self) -> list[Advice]:
        return advise(self)

    @property
    def title(self) -> str:
        return f"What {self.label} does on {self.data}"

    def caption(self) -> str:
        from topshelf.diagnose import tables

        return tables.caption(self)

    def sections(self) -> list[Section]:
        from topshelf.diagnose import tables

        return tables.sections(self)

    def draw(self) -> dict[str, Figure]:
        from topshelf.diagnose import plots  # needs matplotlib

        return plots.draw(self)

    def to_json(self) -> dict[str, Any]:
        return {name: _plain(value) for name, value in {**vars(self), "advice": self.advice}.items()}


def _plain(value: Any) -> Any:
    """Values as JSON; a dataclass may have a form of its own."""
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if hasattr(value, "to_json"):
        return value.to_json()
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


@dataclass(frozen=True)
class Plan:
    """A checked plan: its construction reports every mistake that is detectable before hours of training."""

    name: str
    dataset: Dataset
    kept: Model | None  # of a run folder; None for a config
    entries: list[tuple[str, RunConfig]]  # the loss to diagnose, then those to compare it with
    context: Context
    sample: Sample
    epochs: int

    @property
    def config(self) -> RunConfig:
        return self.entries[0][1]

    @property
    def k(self) -> int:
        return int(self.config.loss.settings.get("k", self.config.k))

    def run(self, say: Callable[[str], None] = lambda _: None) -> Diagnosis:
        """Train, measure, and collect; ``say`` gets progress messages."""
        made, failed = self._train(say)
        own = made[0]
        state = own if self.kept is None else self._kept_state(self.kept)
        vectors = state.vectors()
        estimates, weights = self._thresholds(own, vectors)
        say("measuring gradients")
        grads = [_gradients(one, self.sample, f"{self.epochs}") for one in made]
        if state is not own and set(state.loss.state_dict()) <= {"threshold"}:
            if state.loss.keeps_thresholds:  # a kept model has no loss state; use the exact thresholds
                table = state.loss.threshold
                table[self.sample.rows] = measures.exact(*vectors, self.sample, self.k).to(table.dtype)
            grads.insert(1, _gradients(state, self.sample, "as kept"))
        say("timing steps")
        split = self.dataset.split
        return Diagnosis(
            **self._facts(own, vectors[0]),
            state=f"after {self.epochs} epochs" if state is own else "the kept model of the run",
            gradients=grads,
            estimates=estimates,
            held=self._held(own),
            scores=measures.scores(*vectors, self.sample, self.k, stream(self.config.seed, DRAWS, 1)),
            weights=weights,
            bound=states.bound_of(state, self.sample, self.k, self.epochs),
            bounds={one.label: one.bounds for one in made},
            mean_thresholds={
                one.label: float(measures.exact(*one.vectors(), self.sample, self.k).mean()) for one in made
            },
            timings=states.times(made, self.context.histories, split.n_items, self.config.seed),
            small_lambda=measures.small_lambda_share(split.n_items, self.k),
            failed=failed,
        )

    def _facts(self, own: State, queries: Tensor) -> dict[str, Any]:
        split, counts = self.dataset.split, self.context.histories.counts
        return {
            "target": self.name,
            "label": own.label,
            "data": self.dataset.name,
            "n_users": split.n_users,
            "n_items": split.n_items,
            "sampled_users": self.sample.rows.numel(),
            "k": self.k,
            "epochs": self.epochs,
            "seed": self.config.seed,
            "estimator": self.config.threshold.estimator,
            "effective_n": self.config.negatives.effective_n,
            "is_cosine": has_unit_rows(queries[self.sample.rows]),
            "two_positives": float((counts[counts > 0] > 1).float().mean()),
        }

    def _train(self, say: Callable[[str], None]) -> tuple[list[State], dict[str, str]]:
        """The states of all losses. A loss that fails is left out with a message, except the diagnosed one."""
        made: list[State] = []
        failed: dict[str, str] = {}
        for place, (label, config) in enumerate(self.entries):
            say(f"training {label} for {self.epochs} epochs")
            try:
                made.append(states.trained(label, config, self.context, self.sample, self.k))
            except StoppedEarly:
                raise  # asked to stop: nothing is wrong with this loss
            except (ConfigError, TrainingError) as error:
                if place == 0:
                    raise
                failed[label] = str(error)
                say(f"{label} is left out: {error}")
        return made, failed

    def _kept_state(self, model: Model) -> State:
        model = model.to(self.config.train.device)
        objective = build_objective(self.config, model, self.context)
        return State(f"{self.entries[0][0]}, as kept", self.config, model, objective)

    def _thresholds(self, own: State, vectors: Vectors) -> tuple[list[Estimate], Weights | None]:
        config, generator = self.config, stream(self.config.seed, DRAWS, 0)
        estimates = measures.estimates(*vectors, self.sample, self.k, config.threshold.n or DRAWN, generator)
        if (tau_weight := own.tau_weight) is None:
            return estimates, None
        distance = measures.distances(*vectors, self.sample, estimates[0].exact)
        weights = Weights(tau_weight, distance, measures.weights_of(distance, tau_weight))
        return [self._with_shift(one, own, vectors) for one in estimates], weights

    def _held(self, own: State) -> Estimate | None:
        """The thresholds in the loss's buffer against the exact ones of the newly trained model."""
        buffer, vectors = getattr(own.loss, "threshold", None), own.vectors()
        if not isinstance(buffer, Tensor) or buffer.shape != (own.model.n_queries,):
            return None
        exact = measures.exact(*vectors, self.sample, getattr(own.loss, "k", own.config.k)).cpu().numpy()
        held = buffer.detach()[self.sample.rows].float().cpu().numpy()
        return self._with_shift(
            Estimate(f"the loss's own, after {self.epochs} epochs", None, exact, held), own, vectors
        )

    def _with_shift(self, estimate: Estimate, own: State, vectors: Vectors) -> Estimate:
        """With the change of the weights by its error, if the loss has weights."""
        if own.tau_weight is None:
            return estimate
        distance_of = partial(measures.distances, *vectors, self.sample)
        return replace(estimate, weight_shift=measures.weight_shift(estimate, distance_of, own.tau_weight))


def diagnose(
    target: str | Path | BaseConfig | Fitted,
    *,
    losses: Sequence[str] | None = None,
    users: int = USERS,
    epochs: int = EPOCHS,
    seed: int | None = None,
    dataset: Any = None,
) -> Diagnosis | RunDiagnosis:
    """Measure the loss of a run folder, a TOML file, a config or a fitted model, and compare it with other losses.

    Runs of documents, next items and links are examined as they were kept, group by group; see docs/diagnose.md. The
    rest is said of interactions.

    Every loss of ``losses`` (names, or TOML files with their own settings; default: the run's, softmax and SL@K) is
    trained for ``epochs`` from the same initial values. Gradients, the bound over epochs, the loss's own thresholds and
    times are of that training. Thresholds, scores, weights and hits are of the kept model of a run folder or of a
    fitted model, else of the newly trained model of a config. ``users`` is the size of the sample.
    """
    return plan(target, losses=losses, users=users, epochs=epochs, seed=seed, dataset=dataset).run()


def plan(
    target: str | Path | BaseConfig | Fitted,
    *,
    losses: Sequence[str] | None = None,
    users: int = USERS,
    epochs: int = EPOCHS,
    seed: int | None = None,
    dataset: Any = None,
) -> Plan | RunPlan:
    """The plan of :func:`diagnose`, with the same arguments."""
    at_least("users", users, 1)
    at_least("epochs", epochs, 1)
    name, config, folder = _opened(target)
    if not isinstance(config, RunConfig):  # its task examines it
        if isinstance(target, Fitted):
            raise ConfigError(f"a fitted model of the task {config.task} is diagnosed from its run folder; save it")
        options = {"users": users, "epochs": epochs, "seed": seed, "dataset": dataset}
        return plan_run(name, config, folder, losses, options)
    kept = None
    if folder is not None or isinstance(target, Fitted):
        fitted = target if isinstance(target, Fitted) else load(str(folder))
        kept, dataset = fitted.model, fitted.dataset
    return _plan(name, config, kept, losses, users, epochs, seed, dataset)


def _plan(
    name: str,
    config: RunConfig,
    kept: Model | None,
    losses: Sequence[str] | None,
    users: int,
    epochs: int,
    seed: int | None,
    dataset: Dataset | None,
) -> Plan:
    if model_class(config).is_closed_form:
        raise ConfigError(f"{config.model.name} is fitted in closed form: it has no loss to diagnose")
    if seed is not None:
        config = config.model_copy(update={"seed": seed})
    config = resolve(config)
    entries = states.entries(config, COMPARED if losses is None else losses)
    dataset = dataset or load_dataset(config)
    n_items = dataset.split.n_items
    for label, one in entries:
        at_most(f"k of {label}", one.loss.settings.get("k", one.k), n_items, f"{dataset.name} has {n_items} items")
    context = task_class(config).of(dataset, config.train.device).context(through_refit(config.train.refit))
    sample = Sample.draw(context.histories, n_items, users, stream(config.seed, SAMPLE))
    if not sample.rows.numel():
        raise ConfigError(f"{dataset.name} has no user with both a positive and a negative item")
    shortened = [(label, states.short(one, epochs)) for label, one in entries]
    return Plan(name, dataset, kept, shortened, context, sample, epochs)


def _opened(target: str | Path | BaseConfig | Fitted) -> tuple[str, BaseConfig, Path | None]:
    """The name and the config of a target, and the folder of a run."""
    if isinstance(target, Fitted):
        return "a fitted model", target.config, None
    if isinstance(target, BaseConfig):
        return f"{target.loss.name} on {target.data.source}", target, None
    path = Path(target)
    if path.suffix == ".toml" and not path.is_dir():
        return str(target), assemble(file=path), None
    if not path.exists():
        raise ConfigError(f"{target} is neither a run folder (topshelf train --out makes one) nor a TOML file")
    if not (path / "config.toml").is_file():
        raise ConfigError(f"{target} is not a run folder: it has no config.toml")
    return str(target), RunFolder.open(path).load_config(), path


def _gradients(state: State, sample: Sample, epochs: str) -> Gradients:
    return gradients(
        state.loss,
        *state.vectors(),
        sample,
        label=state.label,
        epochs=epochs,
        effective_n=state.config.negatives.effective_n,
        log_weight=state.log_weight,
    )
