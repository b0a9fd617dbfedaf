"""Lists by engines that already hold the users: :mod:`topshelf.engines.spark` and :mod:`topshelf.engines.ray`.

Both send batches of user ids to their workers, which open the run folder once per process and answer with the rows of
:meth:`topshelf.Recommender.recommend`. The folder must be readable by every worker under the same path.
"""
