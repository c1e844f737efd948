"""Own database servers, each in a temporary folder, on a free port; SQLite files beside them.

All have the same surface, so that a test can run on each of them: ``url`` of the current database,
``fresh()`` for a new one, ``query()``, and ways to take the database away and bring it back.
"""
