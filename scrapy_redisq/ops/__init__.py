"""Programs beside the crawls: they look at crawls and servers, or keep workers running.

``autoscale/`` runs the workers of one machine, ``dashboard/`` shows crawls in a browser,
``doctor/`` says what is wrong, ``metrics/`` tells Prometheus and autoscalers, ``migration/`` moves
a crawl of scrapy-redis. These programs know crawls by ``control/`` alone. Nothing but commands
imports them.
"""
