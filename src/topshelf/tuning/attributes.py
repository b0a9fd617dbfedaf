"""What a study's database holds besides Optuna's own records: names of attributes, and checksums over their values."""

from topshelf.files import is_intact, sealed

__all__ = ["is_intact", "sealed"]

# Part of the format: databases of earlier versions have these names.
BUDGET, DATA, VERSION, STUDY = "trials", "data", "format", "study"  # of a study
WORKERS = "worker "  # of a study: the start of a name, one for each process
SLOT, ATTEMPT, FAILURES, ASKED = "ticket", "attempt", "failures", "asked"  # of a queued trial
WORKER, SETTINGS, RESULT, NOTE = "worker", "settings", "result", "note"  # of a trial that has begun
CHECKSUM = "checksum"
