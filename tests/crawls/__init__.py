"""Scrapy at work: real sites, and `scrapy crawl` processes where nothing else shows it."""
