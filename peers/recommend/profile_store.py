"""The profiles of users in a cloud of recommenders: the categories of each, in words, beside their clicks.

Profiles in a log replace the kept ones; a log without profiles is completed by the kept ones.
"""

from __future__ import annotations

from collections.abc import Collection

from mdl.peers.recommend.databases import Database
from mdl.recommend.profiles import Told

_TABLE = """CREATE TABLE IF NOT EXISTS profiles (
    person TEXT, feature TEXT, category TEXT NOT NULL, PRIMARY KEY (person, feature)) {end}"""


class ProfileStore:
    """Reads and writes the profiles; see the module. One thread at a time uses it. Raises MdlError."""

    def __init__(self, database: Database) -> None:
        self._database = database
        with database.transaction():
            database.execute(_TABLE.format(end=database.table_end))

    def read(self, users: Collection[str]) -> dict[str, dict[str, str]]:
        """Return the known categories of these users."""
        told: dict[str, dict[str, str]] = {}
        wanted = frozenset(users)
        with self._database.guarded():
            for user, feature, category in self._database.execute(
                "SELECT person, feature, category FROM profiles ORDER BY person, feature"
            ):
                if user in wanted:
                    told.setdefault(user, {})[feature] = category
        return told

    def keep(self, users: tuple[str, ...], told: Told) -> None:
        """Replace the profiles of these users; write the changes in one transaction."""
        kept = self.read(users)
        changed = [user for user in users if told.get(user, {}) != kept.get(user, {})]
        if not changed:
            return
        rows = [(user, *category) for user in changed for category in told.get(user, {}).items()]
        with self._database.transaction():
            self._database.execute_many("DELETE FROM profiles WHERE person = ?", [(user,) for user in changed])
            self._database.execute_many("INSERT INTO profiles VALUES (?, ?, ?)", rows)
