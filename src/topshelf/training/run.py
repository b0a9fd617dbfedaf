"""A whole run: data, fitting, evaluation, and its folder."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import torch

from topshelf import registry
from topshelf.callbacks import Callbacks
from topshelf.config import BaseConfig, class_names, flat
from topshelf.data import through_refit
from topshelf.data.splits import Through
from topshelf.errors import CheckpointError, ConfigError, TopshelfWarning
from topshelf.evaluation import PROTOCOLS, Evaluation
from topshelf.models import Trainable
from topshelf.reprs import lines
from topshelf.terminal import say
from topshelf.training.build import automatic, build_model, resolve
from topshelf.training.folder import RunFolder, peak_mib
from topshelf.training.origin import NO_ORIGIN, Origin, load_origin, save_origin
from topshelf.training.phases import Outcome, Phases
from topshelf.training.race import Race, Settled, settle
from topshelf.training.tasks import Part, Task, check_device, task_class
from topshelf.training.watchers import named_record
from topshelf.world import current, is_launched, launch_name, n_restarts


@dataclass(frozen=True)
class Fitted:
    """A fitted model with its config and data, whose types depend on the task."""

    config: Any
    dataset: Any
    model: Any
    best_epoch: int = 0
    seconds: float = 0.0
    valid_score: float | None = None
    measured: dict[str, Any] | None = None
    is_finished: bool = True
    is_final: bool = True  # whether the model is that of the run's last phase, the refit if there is one
    origin: Origin = NO_ORIGIN

    def __repr__(self) -> str:
        loss = "" if self.model.is_closed_form else f" with {self.config.loss.name}"
        score = None if self.valid_score is None else f"{self.task.metric(self.config)} {self.valid_score:.4f}"
        facts = [
            ("data", str(self.dataset).splitlines()[0]),
            ("validation", score and f"{score} at epoch {self.best_epoch}"),
            ("trained on", f"{self.through}, {self.seconds:,.1f} s"),
            ("unfinished", None if self.is_finished else "the run has not ended; topshelf.resume goes on"),
        ]
        return lines(f"Fitted({self.config.model.name}{loss}, K = {self.config.k}, seed {self.config.seed})", facts)

    @property
    def through(self) -> Through:
        """The parts that the model was trained on."""
        return through_refit(self.config.train.refit) if self.is_final else "train"

    @cached_property
    def task(self) -> Task:
        return task_class(self.config).of(self.dataset, str(_device(self.model)))

    def evaluate(
        self, protocol: str | None = None, cutoffs: tuple[int, ...] | None = None, *, part: Part = "test"
    ) -> Evaluation:
        """Full-ranking evaluation on the test or the validation part; by default as the config says.

        Validation masks train only. With ``train.refit`` the model has seen the validation part, so that part is not
        held out for it; with ``refit = "all"`` it has seen the test part too, and is refused.
        """
        self.check_measured(part)
        return self.task.measure(self.model, part, self.config, protocol=protocol, cutoffs=cutoffs)

    def check_measured(self, part: Part) -> None:
        """Refuse a part that is not there, or that the model has learned from."""
        if part == "test" and not self.task.has("test"):
            raise ConfigError(
                "this run has no test part (data.test_fraction = 0), so there is nothing to evaluate on; its "
                "validation metrics are in metrics.json"
            )
        if self.measured is not None:
            raise ConfigError(
                "this model was refitted on everything, the test part too (train.refit = 'all'); its test metrics, "
                "from before the refit, are in metrics.json"
            )

    @cached_property
    def test(self) -> Evaluation:
        """The evaluation on the test part, as the config says; computed once."""
        return self.evaluate()

    def test_json(self) -> dict[str, Any] | None:
        """The test metrics of this model, or from before a refit on all; None without a test part."""
        if self.measured is not None:
            return self.measured
        return self.test.to_json() if self.task.has("test") else None

    def summary(self) -> dict[str, Any]:
        """The content of metrics.json."""
        test, refit = self.test_json(), self.config.train.refit
        # A refitted model has seen the validation part; report the score that chose the epoch.
        valid = (
            {self.task.metric(self.config): self.valid_score}
            if refit
            else self.evaluate(part="valid").to_json()["mean"]
        )
        return {
            "protocol": test["protocol"] if test else self.config.evaluate.protocol,
            "empty": test and (test.get("empty") or PROTOCOLS[test["protocol"]]),
            "k": self.config.k,
            "model": self.config.model.name,
            "loss": None if self.model.is_closed_form else self.config.loss.name,
            "data": self.dataset.name,
            "seed": self.config.seed,
            "refit": refit,
            "derived": self.model.derived(),
            "test": test and {**test["mean"], **test["extras"]},
            "test_intervals": test and test["interval"],
            "test_users": test and {"evaluated": test["n_evaluated"], "skipped": test["n_skipped"]},
            "valid": valid,
            "best_epoch": self.best_epoch,
            "seconds": round(self.seconds, 3),
            "peak_mib": peak_mib(),
        }


def load_dataset(config: BaseConfig, *, test: bool = True) -> Any:
    """The data that the config describes; without ``test``, that part is empty, and a file of its own is not read.

    Notes on the data are :class:`TopshelfWarning`s.
    """
    return task_class(config).load(config, test=test)


def fit(
    config: BaseConfig,
    dataset: Any = None,
    *,
    out: str | Path | None = None,
    quiet: bool = True,
    callbacks: Sequence[Any] = (),
) -> Fitted:
    """Fit the model of ``config``; with ``out``, in a run folder that can be resumed and evaluated.

    ``callbacks`` are told of every epoch (:mod:`topshelf.callbacks`). Within :func:`topshelf.world.joined` several
    processes train together, each by the same call; the folder is the main one's.
    """
    world, given = current(), config
    config = world.agreed(lambda: resolve(given, keep_auto=True))
    called, quiet = Callbacks(callbacks if world.is_main else ()), quiet or not world.is_main
    if out is not None:
        if world.broadcast(_is_restarted(out)):
            return resume(out, quiet=quiet, callbacks=callbacks)
        world.agreed(lambda: RunFolder(out).check_new() if world.is_main else None)
        _say_of_scripts(config)
    if dataset is None:
        dataset = _loaded(config, quiet)
    given = config
    config, race, begun = world.agreed(lambda: _settled(given, dataset, quiet))
    phases = world.agreed(lambda: _phases(config, dataset, quiet, called))
    world.same(**_identity(config, dataset, begun))
    if out is None or not world.is_main:
        return _finish(phases, dataset, None, begun, is_new=True)
    with RunFolder.create(out, config, _saving(config, dataset, race)) as folder:
        return _finish(phases, dataset, folder, begun, is_new=True)


def _is_restarted(out: str | Path) -> bool:
    """Whether torchrun started the processes again, after they had begun the run in ``out``."""
    return n_restarts() > 0 and launch_name() is not None and RunFolder(out).launch == launch_name()


def check_start(config: BaseConfig | None, out: str | Path) -> None:
    """Refuse a run that several processes would refuse at once: a new one of ``config``, or the one in ``out``."""
    if config is None:
        RunFolder.open(out)
        return
    resolve(config, keep_auto=True)
    RunFolder(out).check_new()


def device_of(config: BaseConfig | None, out: str | Path | None) -> str:
    """The device of a new run, or of the one in ``out``."""
    if config is None and out is not None and is_launched():
        config = RunFolder.open(out).load_config()
    return "cpu" if config is None else config.train.device


def _loaded(config: BaseConfig, quiet: bool) -> Any:
    dataset = current().agreed(lambda: load_dataset(config))
    if dataset.guessed and not quiet:
        columns = ", ".join(f'{what} = "{name}"' for what, name in dataset.guessed)
        say(f"{dataset.name}, columns guessed: {columns}", stderr=True)
    return dataset


def _identity(config: BaseConfig, dataset: Any, state: dict[str, Any] | None) -> dict[str, Any]:
    """What the processes of a run must have in common; nothing for one process."""
    if current().size == 1:
        return {}
    return {
        "version_of_topshelf": metadata.version("topshelf"),
        "version_of_torch": torch.__version__,
        **{f"setting_{name}": value for name, value in flat(config.model_dump(mode="json")).items()},
        "data": task_class(config).fingerprint(dataset),
        "checkpoint": None if state is None else _progress(state),
    }


def _progress(state: dict[str, Any]) -> list[Any]:
    """What two states of one training have in common, whatever the time they took."""
    trained = state["trainer"]
    sums = [float(one.double().sum()) for one in trained["model"].values()]
    return [trained["progress"][name] for name in ("epoch", "step", "loss_sum")] + sums


def refit(
    fitted: Fitted, kind: Literal[True, "all"], *, measured: dict[str, Any] | None = None, quiet: bool = True
) -> Fitted:
    """The same settings trained again, for the epochs that were chosen, on train + validation (True) or on everything.

    The run must not be refitted yet. ``measured`` are the test metrics that a refit on everything keeps, as JSON.
    """
    if fitted.config.train.refit:
        raise ConfigError(
            f"a run that is refitted again must have train.refit = false, got {fitted.config.train.refit!r}"
        )
    if (kind == "all" and fitted.task.has("test")) != (measured is not None):
        raise ConfigError("a refit on everything needs the test metrics from before it, and no other refit takes them")
    train = fitted.config.train.model_copy(update={"refit": kind})
    config = fitted.config.model_copy(update={"train": train})
    names = ("model", "best_epoch", "seconds", "valid_score")
    chosen = Outcome(*(getattr(fitted, name) for name in names))
    outcome = _phases(config, fitted.dataset, quiet, Callbacks(())).run_refit(chosen, measured)
    return Fitted(config, fitted.dataset, **vars(outcome))


def resume(
    out: str | Path, *, quiet: bool = True, allow: Collection[str] = (), callbacks: Sequence[Any] = ()
) -> Fitted:
    """Continue a stopped run; the result is that of an uninterrupted run. A finished run is loaded.

    ``allow``: packages with classes that the folder's config may name (see :func:`load`). ``callbacks``: as in
    :func:`fit`, told of the epochs from here on; a run's folder does not keep them.
    """
    registry.allow(allow)
    world = current()
    called, quiet = Callbacks(callbacks if world.is_main else ()), quiet or not world.is_main
    is_finished = world.agreed(lambda: RunFolder.open(out).is_finished)
    if world.broadcast(is_finished):
        return load(out)
    with ExitStack() as held:
        opened = RunFolder.open(out)
        folder = world.agreed(lambda: held.enter_context(RunFolder.resume(out)) if world.is_main else opened)
        if world.broadcast(folder.is_finished):  # by another process, before the lock was ours
            return load(out)
        config, dataset, state = world.agreed(lambda: _read(folder))
        phases = world.agreed(lambda: _phases(config, dataset, quiet, called))
        world.same(**_identity(config, dataset, state))
        return _finish(phases, dataset, folder if world.is_main else None, state)


def _read(folder: RunFolder) -> tuple[BaseConfig, Any, dict[str, Any] | None]:
    """The config, the data and the checkpoint of a run."""
    config = folder.load_config()
    return config, task_class(config).read(folder, config), folder.load_checkpoint()


def load(out: str | Path, *, allow: Collection[str] = ()) -> Fitted:
    """The model of a run folder; a :class:`TopshelfWarning` says so if its run is not finished.

    A folder may name classes of other packages. They are imported only if you allow it: import their modules first,
    or name the packages in ``allow``; they stay allowed for the rest of the process.
    """
    registry.allow(allow)
    folder = RunFolder.open(out)
    config = folder.load_config()
    dataset, state = task_class(config).read(folder, config), folder.load_model()
    if folder.is_finished:
        folder.load_metrics()  # refused if they are of another model
    task = task_class(config).of(dataset, "cpu")
    outcome = _outcome(folder, build_model(config, *task.sizes()), state)
    model = outcome.model
    _check_seen(folder, config, task, state)
    # Before the last phase ends, a run's model is that of the first phase, which has seen train alone.
    is_final = "refit" in state or folder.is_finished
    known: dict[str, Any] = {"is_finished": folder.is_finished, "is_final": is_final, "origin": load_origin(folder)}
    fitted = Fitted(config, dataset, **vars(outcome), **known)
    model.attach(fitted.task.context(fitted.through))
    folder.say_if_unfinished(outcome.best_epoch)
    return fitted


def load_model(folder: RunFolder, config: BaseConfig, *sizes: int) -> Any:
    """Only the model of a finished run; no data are read or attached. ``sizes`` are those that its class names."""
    folder.load_metrics()  # refused if they are of another model
    return _outcome(folder, build_model(config, *sizes), folder.load_model()).model


def _outcome(folder: RunFolder, model: Trainable, state: dict[str, Any]) -> Outcome:
    try:
        return Outcome.of(model, state)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
        raise CheckpointError(f"{folder.model} does not fit its config, or is damaged: {error}") from None


def _check_seen(folder: RunFolder, config: BaseConfig, task: Task, state: dict[str, Any]) -> None:
    """The model must have seen what the config says: a run's lists and metrics depend on it."""
    refit = config.train.refit
    if folder.run is None or not (folder.is_finished or "refit" in state):
        return  # of an earlier version, or of the first phase
    if state.get("refit") != refit:
        raise CheckpointError(
            f"{folder.model} was fitted with train.refit = {state.get('refit')!r}, and {folder.config.name} says "
            f"{refit!r}; set it back, or train a new run"
        )
    if (state["measured"] is None) == (refit == "all" and task.has("test")):
        raise CheckpointError(f"{folder.model} is damaged: only a model refitted on all has metrics from before that")


def save(
    fitted: Fitted,
    out: str | Path,
    *,
    replace: bool = False,
    command: Sequence[str] | None = None,
    check: Callable[[Path], object] = lambda _: None,
) -> None:
    """Write a fitted model as a run folder; with ``replace``, in place of the run that is there, all at once.

    ``command`` is what the folder says that it was made by; default: the command line of this process. ``check`` is
    called with the finished folder before it is moved into place; an error leaves everything as it was.
    """
    data = _saving(fitted.config, fitted.dataset)

    def save_all(folder: RunFolder) -> Sequence[Path]:
        return [*data(folder), *save_origin(folder, fitted.origin)]

    with RunFolder.whole(out, fitted.config, save_all, replace=replace, command=command) as folder:
        _keep(folder, fitted)
        check(folder.path)


def _saving(config: BaseConfig, dataset: Any, race: Race | None = None) -> Callable[[RunFolder], Sequence[Path]]:
    def save(folder: RunFolder) -> Sequence[Path]:
        if race is not None:
            folder.save_race(race.to_json())
        return task_class(config).save(folder, dataset)

    return save


def _settled(config: BaseConfig, dataset: Any, quiet: bool) -> Settled[BaseConfig]:
    """The config with a number for a setting that is "auto", chosen on validation."""
    if automatic(config) is None:
        return Settled(config)
    settled = settle(config, _task(config, dataset), quiet=quiet)
    if settled.race is not None and not quiet:
        say(str(settled.race), stderr=True)
    return settled


def _say_of_scripts(config: BaseConfig) -> None:
    if scripted := [name for name in class_names(config).values() if name.startswith("__main__:")]:
        warnings.warn(
            f"{scripted[0]} is a class of this script: its run folder opens only in this script. Put the class into a "
            "module of its own to open it elsewhere",
            TopshelfWarning,
            stacklevel=3,
        )


def _phases(config: BaseConfig, dataset: Any, quiet: bool, callbacks: Callbacks) -> Phases:
    task = _task(config, dataset)

    def measure(outcome: Outcome) -> dict[str, Any]:
        return Fitted(config, dataset, **vars(outcome)).test.to_json()

    return Phases(config, task, quiet=quiet, measure=measure, callbacks=callbacks, world=current())


def _task(config: BaseConfig, dataset: Any) -> Task:
    """The task of a config on its data; settings that do not fit them are refused."""
    check_device(config.train.device)
    task = task_class(config).of(dataset, config.train.device)
    task.check(config, dataset.name)
    return task


def _finish(
    phases: Phases, dataset: Any, folder: RunFolder | None, state: dict[str, Any] | None, *, is_new: bool = False
) -> Fitted:
    """Run the phases from a state; that of a new run was left by a race, and its epochs are told too."""
    metrics: dict[str, Any] | None = None
    try:
        phases.callbacks.on_begin(flat(phases.config.model_dump(mode="json", exclude_none=True)))
        for record in state["trainer"]["progress"]["history"] if is_new and state is not None else ():
            phases.callbacks.on_epoch_end(named_record(record, "train", phases.task.metric(phases.config)))
        outcome = phases.run(folder, state)
        fitted = Fitted(phases.config, dataset, **vars(outcome))
        if folder is not None:
            metrics = _keep(folder, fitted)
        elif len(phases.callbacks):
            metrics = fitted.summary()
    finally:
        phases.callbacks.on_end(metrics)
    return fitted


def _keep(folder: RunFolder, fitted: Fitted) -> dict[str, Any]:
    names = ("model", "best_epoch", "seconds", "valid_score", "measured")
    state = Outcome(*(getattr(fitted, name) for name in names)).state_dict()
    # What the model has seen is in its file, so that it is known even if no other file is written.
    folder.save_model({**state, "refit": fitted.config.train.refit})
    if (answers := fitted.task.answers(fitted.model, fitted.through)) is not None:
        folder.save_artifact(answers)
    summary = fitted.summary()
    folder.save_metrics(summary)
    return summary


def _device(model: Trainable) -> torch.device:
    return next((tensor.device for tensor in model.state_dict().values()), torch.device("cpu"))
