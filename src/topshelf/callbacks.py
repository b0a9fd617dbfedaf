"""What follows a training from outside: your own callbacks, TensorBoard, MLflow. A run always has its own log.jsonl.

>>> from topshelf import Recommender
>>> from topshelf.callbacks import Callback
>>> class Epochs(Callback):
...     def on_epoch_end(self, numbers):
...         print(sorted(numbers)[:2], numbers["epoch"])
>>> recommender = Recommender(k=5, train={"epochs": 1}).fit("synthetic", callbacks=[Epochs()])
['epoch', 'loss'] 1
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from topshelf.errors import ConfigError, TopshelfWarning, TrainingError

_METHODS = ("on_begin", "on_epoch_end", "on_end")


class Callback:
    """Base of callbacks; any object with one of these methods is one. They get copies, and return nothing."""

    def on_begin(self, settings: dict[str, Any]) -> None:
        """The run begins, or goes on: its settings by their whole names, such as ``train.epochs``."""

    def on_epoch_end(self, numbers: dict[str, Any]) -> None:
        """An epoch has ended: a line of log.jsonl, with ``phase`` ("train", "refit"), ``epoch``, ``loss``, ..."""

    def on_end(self, metrics: dict[str, Any] | None) -> None:
        """The run has ended: the content of metrics.json; None if it was stopped or has failed."""


class Callbacks:
    """The callbacks of one run. One that raises ends the training, which can be resumed; at the end it is a note."""

    def __init__(self, callbacks: Sequence[Any] = ()) -> None:
        self._all = list(callbacks) if isinstance(callbacks, list | tuple) else [callbacks]
        for one in self._all:
            if isinstance(one, type) or not any(callable(getattr(one, method, None)) for method in _METHODS):
                raise ConfigError(
                    f"callbacks must be objects with at least one of {', '.join(_METHODS)}, got {one!r}; see "
                    "topshelf.callbacks.Callback"
                )

    def __len__(self) -> int:
        return len(self._all)

    def on_begin(self, settings: Mapping[str, Any]) -> None:
        self._call("on_begin", settings)

    def on_epoch_end(self, numbers: Mapping[str, Any]) -> None:
        self._call("on_epoch_end", numbers)

    def on_end(self, metrics: Mapping[str, Any] | None) -> None:
        """Called for all of them: the run is over, whatever one of them does."""
        for one in self._all:
            try:
                if (method := getattr(one, "on_end", None)) is not None:
                    method(None if metrics is None else dict(metrics))
            except Exception as error:  # noqa: BLE001  it may raise anything
                note = f"{_said('on_end', one, error)}. The run itself is not changed by it"
                warnings.warn(note, TopshelfWarning, stacklevel=3)

    def _call(self, name: str, value: Mapping[str, Any]) -> None:
        for one in self._all:
            try:
                if (method := getattr(one, name, None)) is not None:
                    method(dict(value))
            except Exception as error:
                raise TrainingError(_said(name, one, error)) from error


def _said(name: str, callback: object, error: Exception) -> str:
    return f"{name} of the callback {type(callback).__name__} failed: {type(error).__name__}: {error}"


class TensorBoard(Callback):
    """Writes the numbers of each epoch, and the test metrics, to ``folder`` for ``tensorboard --logdir``."""

    def __init__(self, folder: str | Path) -> None:
        _require("tensorboard")
        self.folder, self._epoch = Path(folder), 0
        self._writer: Any = None

    def _write(self, group: str, numbers: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        if self._writer is None:
            self._writer = SummaryWriter(str(self.folder))
        for name, value in _numbers(numbers).items():
            self._writer.add_scalar(f"{group}/{name}", value, self._epoch)

    def on_epoch_end(self, numbers: dict[str, Any]) -> None:
        self._epoch = numbers["epoch"]
        self._write(numbers["phase"], {name: value for name, value in numbers.items() if name != "epoch"})

    def on_end(self, metrics: dict[str, Any] | None) -> None:
        self._write("test", (metrics or {}).get("test") or {})
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class MLflow(Callback):
    """Writes settings, the numbers of each epoch and the test metrics as one run of an MLflow experiment.

    ``uri`` is the tracking store, by default an SQLite file in the current folder. MLflow takes no "@" in names:
    ``ndcg@20`` is ``ndcg_at_20`` there.
    """

    def __init__(
        self, uri: str = "sqlite:///mlflow.db", *, experiment: str = "topshelf", name: str | None = None
    ) -> None:
        _require("mlflow")
        self.uri, self.experiment, self.name = uri, experiment, name
        self._client: Any = None
        self._run = ""

    def on_begin(self, settings: dict[str, Any]) -> None:
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient(tracking_uri=self.uri)
        known = self._client.get_experiment_by_name(self.experiment)
        owner = self._client.create_experiment(self.experiment) if known is None else known.experiment_id
        self._run = self._client.create_run(owner, run_name=self.name).info.run_id
        for name, value in settings.items():
            self._client.log_param(self._run, name, value)

    def on_epoch_end(self, numbers: dict[str, Any]) -> None:
        for name, value in _numbers(numbers).items():
            if name != "epoch":
                self._log(f"{numbers['phase']}/{name}", value, numbers["epoch"])

    def on_end(self, metrics: dict[str, Any] | None) -> None:
        if self._client is None:  # the beginning failed
            return
        for name, value in _numbers((metrics or {}).get("test") or {}).items():
            self._log(f"test/{name}", value, 0)
        self._client.set_terminated(self._run, "FAILED" if metrics is None else "FINISHED")

    def _log(self, name: str, value: float, step: int) -> None:
        self._client.log_metric(self._run, name.replace("@", "_at_"), value, step=step)


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items() if type(value) in (int, float)}


def _require(package: str) -> None:
    if find_spec(package) is None:
        raise ConfigError(f"this callback needs the package {package}: pip install 'topshelf[{package}]'")
