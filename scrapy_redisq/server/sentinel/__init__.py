"""The primary that Sentinels name: finding it, following it, and being certain of it.

Each new connection asks which server is the primary, and that server for its ROLE. What the
Sentinels say may be old: one that was cut off from the others names the former primary for as long
as that lasts, and each needs a second or two to hear of a failover. So their answers are compared
by their epoch, which counts failovers, and ``confirm_primary`` wants those of a majority.

``finder`` asks Sentinels, ``pools`` lead to the server that they name, ``server`` is the
`scrapy_redisq.server.server.Server` of them.
"""
