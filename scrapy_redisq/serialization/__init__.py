"""Requests as bytes, and back: nothing is imported or executed because Redis says so.

::

    serializer       the requests of one spider as entries, and back
    entry_format     the fields of an entry, and their checks; the classes of requests
    values           Python's plain values in msgpack, each with its type
    value_classes    objects of a project's classes
    callbacks        the names of a spider's methods
    meta             which keys of meta are safe; delays and counts of retries in it
    identity         identities of unfiltered requests
    recurrence       intervals of requests that come again
    request_fields   requests as people write and read them, without a spider
"""
