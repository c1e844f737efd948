"""Whole crawls on virtual time: several workers, real Scrapy engines and the real scripts in a real
Redis, in one process whose clock moves only when nobody has anything to do.

``clock``     time, the event loop, and who of the workers may run
``server``    one Redis, and what goes wrong with it
``network``   one server or the masters of a cluster, and how workers reach them
``wire``      one quick connection to the real Redis behind all of them
``site``      a site, its pages, and what must be fetched of it
``spider``    the spider of a plan, its downloads and its sink
``people``    who pauses a crawl or a host, and pushes requests
``plan``      what one seed draws: features of a spider, settings, faults
``workers``   a worker, its settings and its log
``faults``    what goes wrong
``world``     one crawl of a plan, from its first worker to its last
``polite``    how polite a crawl was to its hosts
``fetches``   how often a page was fetched, and how often it may be
``letters``   dead letters, and budgets
``verdict``   what must hold when it is over

Nothing of ``scrapy_redisq`` is changed for it but the clock of the scripts (`server.TIME`).
"""
