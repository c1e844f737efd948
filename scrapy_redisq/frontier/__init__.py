"""The frontier protocol: everything about Redis, nothing about Scrapy.

``lua/``           the scripts; ``shared/keys.lua`` documents all keys
``scripts``        loads them; ``calls`` (of workers) and ``admin`` (of people) have input and
                   reply of each; ``names`` how keys are called, and slots in them
``operations``     the parts of an exchange and of its reply; ``exchange`` as its script has both
``terms``          on which a worker takes part in a run, and the calls between it and its session
``run_session``    one worker in a run: joining, coming back, the end, leaving; ``runs`` the steps
                   of that over all shards, ``listener`` hears news of workers and commands
``shard_session``  the worker's part in one shard, without any network: its leases, the next
                   exchange and when that is due (``pace``)
``outgoing``       in it, the operations to send: in order, in numbered exchanges
``resend``         and requests to send again, should the shard lose the end of its log
``shard_task``     the asyncio task that exchanges with one shard: which errors it outlasts, see
                   ``passing_errors``; ``round_trips`` counts how long exchanges take
``feed_lines``     lines of a feed, which any client of Redis fills
``seen``           the dupefilters
``config``         the configuration of all workers; ``growth`` how large the frontier may become,
                   and how full its servers are
``limits``         the limits of a slot; ``shards`` which shard keeps it

Words of the protocol alone; the others are in ``docs/explanation/glossary.md``:

generation   a dupefilter, called after the run that began it, with which later runs may go on;
             with REDISQ_SEEN_TTL there are two
log prefix   the first n scripts of Redis' log; whatever n is, they leave a correct frontier
record       an entry with the slot and the priority that it came from
fenced       a worker that was reaped: it has to join again, under another id
stale        the finish of a lease that the worker no longer holds: counted, and nothing else
foreign      written into the frontier's keys by another program
safe         a request that its shard can no longer lose with the end of its log
post         links of a finished page to other shards, beside it until they are safe (outbox)
paused       a slot of which nothing is started until a person says so
seal         shard 0's number on a shard that has nothing left; adding to it asks shard 0 first
trash        dupefilters that wait to be deleted, bit by bit
"""
