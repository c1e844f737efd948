"""Sites, and processes that crawl them, one variant each."""
