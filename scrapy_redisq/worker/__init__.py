"""A ``scrapy crawl`` process: leases that it holds, requests that it sends, pages in progress.

``worker``       answers Scrapy, its run session, and this package's middlewares and pipelines
``build``        puts it together; ``connect`` opens its server and joins the run, ``origin`` is
                 the worker's own description for that
``leaving``      how it goes, and its last words in the log
``outbox``       takes in requests that Scrapy hands in; ``asked`` is one of them, and what it is
                 known by
``inbox``        leases that wait to be started
``in_progress``  the pages, and their ends; ``page`` is one of them
``feeder``       reads keys that any client of Redis fills
``kept``         requests that cannot be stored, and are held by the page that asked for them
``back_pressure``  who waits while the frontier is as large as it may be
``progress_line``  how far it is, in its own terminal
``report``       its figures for people, and orders of people
``politeness/``  whether a download may begin, and whether its slot is in trouble at the end
"""
