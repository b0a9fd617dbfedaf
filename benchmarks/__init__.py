"""Every number in README and docs comes from a script here: ``python -m benchmarks.FOLDER.NAME`` from the repository.

``speed`` measures seconds and memory, ``quality`` measures lists on test parts, ``studies`` answers single questions.
Results are in ``results``.
"""
