"""The settings: each declared once (``declared``), checked, and read into one object.

A declaration gives a setting's name, default and check. The text of what it takes, in
docs/reference/settings.md and in errors, is the check's, and so is the type of its attribute in
`RedisqSettings`.
"""
