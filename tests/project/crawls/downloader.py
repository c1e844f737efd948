"""A downloader that is not Scrapy's."""

from scrapy.core.downloader import Downloader


class WithoutSlots(Downloader):
    @property
    def _get_slot(self):
        raise AttributeError
