"""The one place that touches Scrapy's private names. Checked with Scrapy 2.14.2 to 2.19.

Scrapy tells a scheduler neither when a request has been dealt with nor how it ended, nor which
page a new request comes from. All of it can be read from the engine and the scraper.

``engine``     what is in progress, how pages end, when to wake it
``downloads``  what is being downloaded, for whom, and whether it may begin
``output``     which page a request or an item comes from
``crawl``      the process: its command, its event loop, its end
"""
