"""What becomes of a run later: updated with new interactions, without some people, compared with an older version."""

from topshelf.versions.comparing import Changes, changes
from topshelf.versions.forgetting import Forgotten, forget
from topshelf.versions.searching import Found, search_run
from topshelf.versions.updating import next_name, update

__all__ = ["Changes", "Forgotten", "Found", "changes", "forget", "next_name", "search_run", "update"]
