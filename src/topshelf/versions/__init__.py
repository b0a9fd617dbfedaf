"""What becomes of a run later: updated with new interactions, without some people, compared with an older version."""

from topshelf.versions.changes import Changes, changes
from topshelf.versions.forget import Forgotten, forget
from topshelf.versions.search import Found, search_run
from topshelf.versions.update import next_name, update

__all__ = ["Changes", "Forgotten", "Found", "changes", "forget", "next_name", "search_run", "update"]
