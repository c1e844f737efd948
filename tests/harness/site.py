"""Moved to `lab.site`."""

import sys

from lab import site

sys.modules[__name__] = site
