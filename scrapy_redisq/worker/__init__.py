"""One ``scrapy crawl`` process: what it holds, what it sends, what becomes of its pages.

``worker``       answers Scrapy, its run session, and this package's middlewares and pipelines
``build``        what it needs to start; ``connect`` opens its server and joins the run, ``origin``
                 is what the worker says of itself then
``leaving``      how it goes, and what it says then
``outbox``       what becomes of a request that Scrapy hands in
``inbox``        leases that wait to be started
``in_progress``  what becomes of the requests in progress; ``page`` is one of them
``kept``         requests that cannot be stored, and are held by the page that asked for them
``back_pressure``  who waits while the frontier is as large as it may be
``progress``     how far it is, in its own terminal
``report``       what it costs and does, for people, and what these have told it
``politeness/``  whether a download may begin, and what its end says of its slot
"""
