"""The frontier on a real server, driven step by step, without Scrapy."""
