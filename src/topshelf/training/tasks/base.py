"""Tasks: what is ranked and what counts as relevant. The phases of a run depend on the task alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch

from topshelf.config import BaseConfig, Component
from topshelf.data.splits import Through
from topshelf.errors import ConfigError, at_most
from topshelf.evaluation import Evaluation
from topshelf.training.build import build_model
from topshelf.training.examination import Examination
from topshelf.training.folder import RunFolder
from topshelf.training.objective import Objective
from topshelf.world import ALONE, World

Part = Literal["valid", "test"]


class Task:
    """A task with its data. ``through`` is what a model may see: "train", "valid" (train too) or "all".

    The data are any object with a ``name``, ``warn()``, which says what was left out when they were read, and
    ``guessed``, the columns of their file that the user did not name.
    """

    name: ClassVar[str]
    units: ClassVar[str] = "users"  # what a metric is a mean over
    validated: ClassVar[str] = "users with nothing to find left out"  # what to say beside a validation metric
    device: str
    world: World = ALONE  # the processes that divide a validation among them

    @classmethod
    def load(cls, config: Any, *, test: bool = True) -> Any:
        """The data that the config describes; without ``test``, that part is empty, and a file of its own is not read.

        Notes on the data are :class:`topshelf.errors.TopshelfWarning`s.
        """
        raise NotImplementedError

    @classmethod
    def of(cls, data: Any, device: str) -> Task:
        """The task of these data."""
        raise NotImplementedError

    @classmethod
    def save(cls, folder: RunFolder, data: Any) -> Sequence[Path]:
        """Write what a run must keep of its data; returns the files, whose checksums the folder keeps."""
        raise NotImplementedError

    @classmethod
    def read(cls, folder: RunFolder, config: Any) -> Any:
        """The data of a run folder, checked, because compiled code trusts every index in it."""
        raise NotImplementedError

    @property
    def n_items(self) -> int | None:
        """The size of the catalogue; None where every query has a list of its own."""
        return None

    def sizes(self) -> tuple[int, ...]:
        """What a model's constructor is given, in the order of ``Trainable.sizes``."""
        raise NotImplementedError

    def has(self, part: Part) -> bool:
        """Whether a held-out part has anything to measure."""
        raise NotImplementedError

    def context(self, through: Through) -> Any:
        """The data that a model learns from and that its results depend on."""
        raise NotImplementedError

    def model(self, config: BaseConfig) -> Any:
        """A new model of the config, on the task's device."""
        return build_model(config, *self.sizes()).to(self.device)

    def objective(self, config: Any, model: Any, through: Through) -> Objective:
        """What training minimises, with its batches and hooks."""
        raise NotImplementedError

    def metric(self, config: BaseConfig) -> str:
        """The name of what :meth:`validate` returns."""
        return f"ndcg@{config.k}"

    def validate(self, model: Any, k: int) -> float:
        """The metric on the validation part that chooses epochs and settings."""
        raise NotImplementedError

    def measure(
        self,
        model: Any,
        part: Part,
        config: Any,
        *,
        protocol: str | None = None,
        cutoffs: Sequence[int] | None = None,
    ) -> Evaluation:
        """The metrics of a held-out part; by default as the config says."""
        raise NotImplementedError

    def answers(self, model: Any, through: Through) -> dict[str, Any] | None:  # noqa: ARG002
        """The content of a run's artifact; None for a task that has none."""
        return None

    def lines(self, through: Through) -> list[str]:
        """What a person should know of the data that a model has learned from, a sentence each."""
        raise NotImplementedError

    def usage(self, out: str) -> str:
        """The command that uses the run in the folder ``out``, and what for."""
        raise NotImplementedError

    @classmethod
    def for_tuning(cls, data: Any) -> Any:
        """The data without their test part; refused if there is nothing to validate on."""
        raise NotImplementedError

    @classmethod
    def save_parts(cls, path: Path, data: Any) -> None:
        """Write data for tuning into one file, which all processes of a study read."""
        raise NotImplementedError

    @classmethod
    def load_parts(cls, path: Path, config: Any) -> Any:
        """Read what :meth:`save_parts` wrote, and check it. KeyError, ValueError and their like become one message."""
        raise NotImplementedError

    @classmethod
    def fingerprint(cls, data: Any) -> str:
        """Equal for equal train and validation parts, so that the processes of a study can compare their data."""
        raise NotImplementedError

    def examine(self, model: Any, config: Any, part: Part, through: Through, *, n: int) -> Examination:
        """A fitted model on a held-out part, for a diagnosis. It has learned ``through``; ``n`` queries are sampled."""
        raise NotImplementedError

    def references(
        self, names: Sequence[str], part: Part, config: BaseConfig, through: Through
    ) -> dict[str, Evaluation]:
        """Models without settings to choose, fitted in closed form on what the model has learned from."""
        found = {}
        for name in names:
            model = build_model(config.model_copy(update={"model": Component(name=name)}), *self.sizes())
            model.fit(self.context(through))
            found[name] = self.measure(model.to(self.device), part, config)
        return found

    def check(self, config: BaseConfig, name: str) -> None:
        """Refuse settings that do not fit the data called ``name``, before training begins."""
        self.check_sizes(config, name)

    def check_sizes(self, config: BaseConfig, name: str) -> None:
        """Refuse a K above the number of items."""
        if (n_items := self.n_items) is not None:
            for setting, k in (("k", config.k), ("loss.k", config.loss.settings.get("k", 1))):
                at_most(setting, k, n_items, f"{name} has {n_items} items")

    def cutoffs(self, config: BaseConfig) -> tuple[int, ...]:
        """The config's cut-offs, without those larger than the catalogue."""
        return tuple(k for k in config.cutoffs if self.n_items is None or k <= self.n_items)


def check_device(name: str) -> None:
    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"train.device must be a device of this machine, such as cpu, got {name!r}: {reason}"
        ) from None
