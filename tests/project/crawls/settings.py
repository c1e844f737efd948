BOT_NAME = "crawls"
SPIDER_MODULES = ["crawls.spiders"]
ADDONS = {"scrapy_redisq.Addon": 500}
TELNETCONSOLE_ENABLED = False
LOG_LEVEL = "INFO"
REMOTE_CONTROL_ENABLED = False
