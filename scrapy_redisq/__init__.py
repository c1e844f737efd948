"""One frontier in Redis for many ``scrapy crawl`` processes.

Layers, top to bottom; imports point down only::

    addon, commands                          what a user touches
    scheduler, dupefilter                    Scrapy's interfaces
    frontier/                                the protocol: knows Redis, knows no Scrapy
    connection, serializer, settings, errors
"""

__version__ = "0.1.0"
