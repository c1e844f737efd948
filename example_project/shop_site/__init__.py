"""The web site that the example crawls: a bookshop made up from page numbers, and its server."""

import sys
from pathlib import Path

# `lab`, which serves it, lies beside this project, wherever that is run from.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
