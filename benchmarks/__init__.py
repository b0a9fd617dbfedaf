"""Numbers of README and docs that no bench gives: ``python -m benchmarks.FOLDER.NAME`` from the repository.

``speed`` measures seconds and memory, ``studies`` answers single questions, ``quality`` measures documents and links
on test parts. Results are in ``results``. The quality of recommendations and next items is measured by plans of
``topshelf bench``; their results are in docs/results.
"""
