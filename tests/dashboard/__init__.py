"""The dashboard: what its API tells and does, who may ask it, and its pages in a browser."""
