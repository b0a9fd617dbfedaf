"""The tasks by name. ``config.task`` names one; its data, batches, objective and evaluation are in one file each."""

from topshelf.config import BaseConfig
from topshelf.errors import one_of
from topshelf.training.tasks.base import Part, Task, check_device
from topshelf.training.tasks.interactions import InteractionsTask
from topshelf.training.tasks.links import LinksTask
from topshelf.training.tasks.ranking import RankingTask
from topshelf.training.tasks.sequences import SequencesTask

__all__ = [
    "TASKS",
    "InteractionsTask",
    "LinksTask",
    "Part",
    "RankingTask",
    "SequencesTask",
    "Task",
    "check_device",
    "task_class",
]

TASKS: dict[str, type[Task]] = {
    "interactions": InteractionsTask,
    "ranking": RankingTask,
    "sequences": SequencesTask,
    "links": LinksTask,
}


def task_class(config: BaseConfig) -> type[Task]:
    return TASKS[one_of("task", config.task, TASKS)]
