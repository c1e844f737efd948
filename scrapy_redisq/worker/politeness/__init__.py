"""A worker's part in the limits and the back-off of hosts.

``gate``    each download passes it
``turns``   the worker's allowance for each slot, and downloads that wait for it
``judge``   whether the end of a download means trouble for its slot
``retry_pause``  how long a retry waits, by settings and by Retry-After
"""
