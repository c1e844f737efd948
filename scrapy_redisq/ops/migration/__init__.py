"""``scrapy redisq migrate``: from a frontier of scrapy-redis into one of this package.

``plain``         a program of its own that reads pickles, and builds plain values alone
``pickles``       that program, from outside
``requests``      requests of what it has read
``old_frontier``  the keys of scrapy-redis
``migration``     moves requests and what was seen
``new_settings``  settings of scrapy-redis, line by line, with what takes their place
"""
