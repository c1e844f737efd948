"""The one place that touches Scrapy's private names. Checked with Scrapy 2.14.2 to 2.19.

Scrapy does not tell a scheduler when a request has ended and how, nor which page a new request
comes from. All of it can be read from the engine and the scraper.

``engine``     requests in progress, how pages end, when to wake it
``downloads``  downloads, which page asked for each, and whether one may begin
``output``     which page a request or an item comes from
``crawl``      the process: its command, its event loop, its end
"""
