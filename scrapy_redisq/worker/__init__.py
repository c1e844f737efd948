"""One ``scrapy crawl`` process: what it holds, what it sends, what becomes of its pages."""
