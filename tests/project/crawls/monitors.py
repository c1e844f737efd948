"""The extension for spidermon of docs/howto/plugins.md, and a monitor for it."""

import re
from pathlib import Path

from spidermon import Monitor, MonitorSuite

TEXT = Path(__file__).parents[3].joinpath("docs/howto/plugins.md").read_text("utf-8")
exec(re.search(r"^# shop/monitors.py\n(.*?)^```", TEXT, re.M | re.S)[1])


class Items(Monitor):
    def test_items(self):
        stats = self.data.stats
        coverage = stats["spidermon_field_coverage/dict/url"]
        self.data.spider.logger.info(
            "monitored: %d items, %.1f", stats["item_scraped_count"], coverage
        )


class Suite(MonitorSuite):
    monitors = [Items]
