"""Sites, servers and processes that tests and benchmarks start on free ports and stop again; the
example's shop is such a site, too."""
