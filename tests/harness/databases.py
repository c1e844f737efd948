"""Moved to `lab.databases`."""

import sys

from lab import databases

sys.modules[__name__] = databases
