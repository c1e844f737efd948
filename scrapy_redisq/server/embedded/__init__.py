"""The embedded server: one redis-server per folder, shared by every process of this machine.

``REDISQ_URL = "embedded:///path"`` names a folder. It holds the data (an append-only file), the
server's log ``redis.log``, its socket ``redis.sock`` and

============== ==================================================================================
``start.lock`` held exclusively while somebody starts, joins, leaves or stops: nothing else races
``users.lock`` held shared by each user for its life; exclusively by the keeper that ends the server
``server.lock`` held by the server process itself, from before its first instruction to its death
``keep``       exists after ``scrapy redisq server start``: the last to leave does not stop it
============== ==================================================================================

The locks are ``flock`` locks on files that each user keeps open: by them, not by their names, a
user judges who else uses its server. So a folder that is deleted, moved or made anew takes nobody's
server away. The kernel drops a lock with its process, however that ends. ``server.lock`` answers
"is a server at work on this data?" without asking the server, which could be busy: two servers
would ruin one append-only file.

The server is the child of a keeper, a small process of its own. The last user to leave stops the
server. The keeper does so where no user could: all were killed, or nobody can reach the server any
more, because its socket or its folder is gone.

Layers, top to bottom; imports point down only::

    share      a process's share in the server: join, leave
    control    what the command line does: start, stop, status
    process    the redis-server of a folder: its options, start, answers and end
    folder     its paths
    locks      the locks above
    keeper     a process of its own, which imports none of these
    binaries   which redis-server and which modules to run
"""

from __future__ import annotations

from scrapy_redisq.server.embedded.control import EmbeddedStatus, start, status, stop
from scrapy_redisq.server.embedded.share import EmbeddedServer

__all__ = ["EmbeddedServer", "EmbeddedStatus", "start", "status", "stop"]
