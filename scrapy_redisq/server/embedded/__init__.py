"""The embedded server: one redis-server per folder, shared by every process of this machine.

``REDISQ_URL = "embedded:///path"`` names a folder. It holds the data (an append-only file), the
server's log ``redis.log``, its socket ``redis.sock`` and

============== ==================================================================================
``start.lock`` held exclusively while somebody starts, joins, leaves or stops: nothing else races
``users.lock`` held shared by each user for its life. A leaver that gets it exclusively is the last
``server.lock`` held by the server process itself, from before its first instruction to its death;
               its content: where it listens, and its process id
``watch.lock`` held by the watcher, a process that ends the server when all users were killed
``keep``       exists after ``scrapy redisq server start``: the last to leave does not stop it
============== ==================================================================================

All are ``flock`` locks on files that each user keeps open: by them, not by their names, it judges
who else uses its server and which process that is. So a folder that is deleted, moved or made anew
takes nobody's server away, and ends its own with the last who uses it. The kernel drops a lock with
its process: whoever is killed, and whenever, none stays behind. A server whose users were all
killed is ended by its watcher, a second later, or adopted by a user who comes before; one that was
still reading its data is left to it for ten minutes. ``server.lock`` is the only descriptor that
the server inherits.
It answers "is a server at work on this data?" without a pid file, which could be stale, and without
asking the server, which could be busy: two servers would ruin one append-only file.

Layers, top to bottom; imports point down only::

    share      a process's share in the server: join, leave
    control    what the command line does: start, stop, status
    process    the redis-server of a folder: its options, start, answers and end
    folder     its paths
    locks      the locks above
    watcher    a process of its own, which imports none of these
    binaries   which redis-server and which modules to run
"""

from __future__ import annotations

from scrapy_redisq.server.embedded.control import EmbeddedStatus, start, status, stop
from scrapy_redisq.server.embedded.share import EmbeddedServer

__all__ = ["EmbeddedServer", "EmbeddedStatus", "start", "status", "stop"]
