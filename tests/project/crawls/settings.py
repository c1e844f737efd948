BOT_NAME = "crawls"
SPIDER_MODULES = ["crawls.spiders"]
ADDONS = {"scrapy_redisq.Addon": 500}
TELNETCONSOLE_ENABLED = False
SPIDER_MIDDLEWARES = {"crawls.gate.Gate": 1_000}
LOG_LEVEL = "INFO"
REMOTE_CONTROL_ENABLED = False
