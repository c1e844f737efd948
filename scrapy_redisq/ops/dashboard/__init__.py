"""The dashboard: views in a browser, and the JSON behind them, for all frontiers of a server.

``app``        the routes, and what is set up and closed with them
``guard``      the rules for questions and changes; headers of every answer
``crawls``     the frontiers, each opened once, looked at in threads
``shared``     one look for all who ask at the same time; long lists, read in portions
``lists``      hosts and dead letters sorted, grouped, filtered, a portion at a time
``reads``      answers of GET
``changes``    changes by POST
``streams``    server-sent events, for programs
``redis_servers``  INFO of the Redis servers
``static/``    the views: HTML, CSS and JavaScript as they are served

It asks Redis nothing while nobody looks, and once however many do.
"""
