BOT_NAME = "crawls"
SPIDER_MODULES = ["crawls.spiders"]
ADDONS = {"crawls.constants.Constants": 100, "scrapy_redisq.Addon": 500}
TELNETCONSOLE_ENABLED = False
SPIDER_MIDDLEWARES = {"crawls.gate.Gate": 1_000}
LOG_LEVEL = "INFO"
REMOTE_CONTROL_ENABLED = False
# Scrapy begins so many tasks for each page, however few items it has: with its 100 they would be a
# tenth of all that crawls of small pages do.
CONCURRENT_ITEMS = 16
