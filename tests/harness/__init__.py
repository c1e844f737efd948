"""Real servers, sites and crawls that tests start on free ports and stop again."""
