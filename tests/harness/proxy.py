"""Moved to `lab.proxy`."""

import sys

from lab import proxy

sys.modules[__name__] = proxy
