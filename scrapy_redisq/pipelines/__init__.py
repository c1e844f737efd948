"""Item pipelines: where items are written before their page is finished in the frontier."""
