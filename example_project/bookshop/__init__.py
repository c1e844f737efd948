"""An ordinary Scrapy project; only ``ADDONS`` in its settings knows of scrapy-redisq."""
