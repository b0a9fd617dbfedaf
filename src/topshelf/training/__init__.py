"""Training: batches, objective, trainer, checkpoints, and runs that can be resumed and reproduced."""

from topshelf.training.phases import StoppedEarly
from topshelf.training.run import Fitted, check_start, device_of, fit, load, load_dataset, refit, resume, save

__all__ = [
    "Fitted",
    "StoppedEarly",
    "check_start",
    "device_of",
    "fit",
    "load",
    "load_dataset",
    "refit",
    "resume",
    "save",
]
