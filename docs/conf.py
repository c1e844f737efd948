"""The site that ``make docs`` builds of these Markdown files, which also read well without it."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import scrapy_redisq  # noqa: E402

project = "scrapy-redisq"
author = "the scrapy-redisq developers"
project_copyright = author
release = scrapy_redisq.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.intersphinx", "generated"]
exclude_patterns = ["_build"]
nitpicky = True
smartquotes = False
default_role = "code"
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_class_signature = "separated"

# Of a build of Scrapy's documentation, and of Python's: the site is built without the network.
intersphinx_mapping = {
    "scrapy": ("https://docs.scrapy.org/en/latest/", "inventories/scrapy.inv"),
    "python": ("https://docs.python.org/3/", "inventories/python.inv"),
}

html_theme = "furo"
html_title = f"{project} {release}"
html_show_sourcelink = False
html_show_sphinx = False
