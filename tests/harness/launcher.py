"""Moved to `lab.launcher`."""

import sys

from lab import launcher

sys.modules[__name__] = launcher
