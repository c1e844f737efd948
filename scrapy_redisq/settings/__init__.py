"""The settings: each declared once (crawl, slots, sinks), checked, and read into one object.

A declaration gives a setting's name, default, check and meaning. Its text in docs/settings.md and
in errors is made from the check; its attribute in `RedisqSettings` has the check's type.
"""
