"""What a worker is made of."""

from __future__ import annotations

from dataclasses import dataclass

from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.dupefilters import BaseDupeFilter

from scrapy_redisq._scrapy.engine import Engine
from scrapy_redisq.frontier.loop import ExchangeLoop
from scrapy_redisq.frontier.shard_session import ShardSession
from scrapy_redisq.serialization.serializer import Serializer
from scrapy_redisq.settings.settings import RedisqSettings
from scrapy_redisq.worker.back_pressure import BackPressure
from scrapy_redisq.worker.connect import WorkerConnection
from scrapy_redisq.worker.in_progress import InProgress
from scrapy_redisq.worker.inbox import Inbox
from scrapy_redisq.worker.kept import KeptRequests
from scrapy_redisq.worker.outbox import Outbox
from scrapy_redisq.worker.politeness.gate import DownloadGate
from scrapy_redisq.worker.politeness.retry_pauses import RetryPauses


@dataclass(frozen=True)
class Parts:
    """Made and put together by `scrapy_redisq.worker.build`.

    ``foreign_filter`` is None with a dupefilter of this package.
    """

    crawler: Crawler
    spider: Spider
    settings: RedisqSettings
    engine: Engine
    session: WorkerConnection
    exchange_loop: ExchangeLoop
    serializer: Serializer
    foreign_filter: BaseDupeFilter | None
    inbox: Inbox[ShardSession]
    in_progress: InProgress
    kept: KeptRequests
    outbox: Outbox
    gate: DownloadGate
    retry_pauses: RetryPauses
    back_pressure: BackPressure
