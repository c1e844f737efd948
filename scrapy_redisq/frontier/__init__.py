"""The frontier protocol: everything about Redis, nothing about Scrapy.

``lua/``           the scripts; ``shared/keys.lua`` documents all keys
``scripts``        loads them; ``calls`` (of workers) and ``admin`` (of people) have input and
                   reply of each; ``names`` how keys are called
``operations``     the parts of an exchange and of its reply; ``exchange`` as its script has both
``terms``          on which a worker takes part in a run, and the calls between it and its session
``run_session``    one worker in a run: joining, coming back, the end, leaving; ``runs`` the steps
                   of that over all shards, ``listener`` hears news of workers and commands
``shard_session``  the worker's part in one shard, without any network: its leases, the next
                   exchange and when that is due (``pace``)
``outgoing``       in it, the operations to send: in order, in numbered exchanges
``resend``         and requests to send again, should the shard lose the end of its log
``shard_task``     the asyncio task that exchanges with one shard: ``trouble`` has the errors that
                   pass by themselves, ``round_trips`` counts how long exchanges take
``feed_lines``     lines of a feed, which any client of Redis fills
``seen``           the dupefilters, ``bitmap_layout`` the shape of one
``config``         the configuration of all workers; ``growth`` how large the frontier may become
``limits``         the limits of a slot; ``slot_names`` how slots are called and which shard keeps
                   them

The words of the protocol, in brackets the word of the trade:

frontier     all state of one crawl, under one name
shard        one part of a frontier: one hash tag, one hash slot of a Redis Cluster
slot         Scrapy's download slot of a request, mostly its host: the unit of fairness and limits
run          from the first request until all are finished; shard 0 keeps its state
generation   a dupefilter, called after the run that began it, with which later runs may go on;
             with REDISQ_SEEN_TTL there are two
worker       one crawl process; a producer adds requests, and claims none
log prefix   the first n scripts of Redis' log; whatever n is, they leave a correct frontier
entry        one serialised request, and how often a worker died with it (delivery count)
record       an entry with the slot and the priority that it came from
claim        to take an entry out of its queue; the worker that has claimed it holds a lease
lease        an entry that a worker holds, by an id that is never used again (fencing token)
finish       the end of a lease: done, dead, released, backed off (released, and the try counts)
             or retried (a new request takes its place)
release      to give a lease back, to the front of its queue and without penalty (nack)
reap         to take the leases of a worker that gave no sign of life (visibility timeout)
fenced       a worker that was reaped: it has to join again, under another id
stale        the finish of a lease that the worker no longer holds: counted, and nothing else
suspect      an entry with which several workers died (poison message)
dead letter  a request that is given up, with the reason
foreign      written into the frontier's keys by another program
identity     of an unfiltered request, in place of a fingerprint (idempotency key)
kept         a request that cannot be stored: it stays in the process of the worker whose page asked
             for it, and the page is not finished before it is over
safe         a request that its shard can no longer lose with the end of its log
post         links of a finished page to other shards, beside it until they are safe (outbox)
turn         the right to start requests of a slot with a delay or a rate: of one worker at a time,
             for about a second (lock with a time limit)
token        the right to download one request of a slot with a concurrency (permit)
parked       a slot of which nothing is started for a while, because it failed (circuit breaker)
set aside    a slot that failed too often; a run may end without it (a breaker that stays open)
paused       a slot of which nothing is started until a person says so
seal         shard 0's number on a shard that has nothing left; adding to it asks shard 0 first
trash        dupefilters that wait to be deleted, bit by bit
"""
