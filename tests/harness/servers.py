"""Moved to `lab.servers`."""

import sys

from lab import servers

sys.modules[__name__] = servers
