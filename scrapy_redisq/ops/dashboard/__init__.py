"""The dashboard: pages in a browser, and the JSON behind them, for all frontiers of a server.

``app``        the routes, and what is set up and closed with them
``guard``      who may ask and change what; headers of every answer
``crawls``     the frontiers, each opened once, looked at in threads
``shared``     one look for all who ask at the same time; long lists, read in portions
``lists``      hosts and dead letters sorted, grouped, filtered, in pages
``reads``      what GET answers
``changes``    what POST does
``streams``    server-sent events, for programs
``redis_servers``  what the Redis servers say of themselves
``static/``    the pages: HTML, CSS and JavaScript as they are served

It asks Redis nothing while nobody looks, and once however many do.
"""
