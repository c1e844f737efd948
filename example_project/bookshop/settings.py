"""Settings of the example project. Everything that concerns scrapy-redisq is in the first lines."""

import os

ADDONS = {"scrapy_redisq.Addon": 500}
# REDISQ_URL is left out: an embedded server in .scrapy/redisq, shared by all crawls of this
# project on this machine. For crawls on many machines: REDISQ_URL = "redis://host:6379/0"

# A page seen again has the same URL: its row is written over, not doubled.
ITEM_PIPELINES = {"scrapy_redisq.pipelines.DatabasePipeline": 300}
REDISQ_DATABASE_URL = "sqlite:///bookshop.sqlite"
REDISQ_TABLES = {
    "bookshop.items.Page": {"table": "pages", "key": ["url"]},
    "bookshop.items.Book": {"table": "books", "key": ["url"]},
}

BOT_NAME = "bookshop"
SPIDER_MODULES = ["bookshop.spiders"]
NEWSPIDER_MODULE = "bookshop.spiders"

# The process is named so that the site's log tells the workers apart.
USER_AGENT = f"bookshop-example (pid {os.getpid()})"
DOWNLOADER_MIDDLEWARES = {"bookshop.middlewares.OwnUserAgent": 499}  # 500: Scrapy's
ROBOTSTXT_OBEY = True
CONCURRENT_REQUESTS_PER_DOMAIN = 4
DOWNLOAD_DELAY = 0

# Doors that a crawler beside others on the same machine does not need.
TELNETCONSOLE_ENABLED = False
REMOTE_CONTROL_ENABLED = False
