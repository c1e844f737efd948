"""Operations that a worker sends to one shard: in order, in numbered exchanges."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping

from msgspec import Struct

from scrapy_redisq.frontier.exchange import Cargo
from scrapy_redisq.frontier.operations import (
    Delivered,
    DownloadResult,
    Enqueue,
    Finish,
    Lease,
    Operation,
)

MAX_OPERATIONS = 300
"""Enqueues and finishes in one exchange, so that the script takes about a millisecond."""

MAX_BYTES = 4_000_000
"""Size of the entries in one exchange; one larger entry still goes alone."""


class Batch(Struct):
    """The cargo of one exchange. It is kept until it is answered, as it may be sent again."""

    operations: list[Operation]
    cargo: Cargo
    tally: Counter[str]
    download_results: list[DownloadResult]
    begun: list[int]
    is_again: bool = False
    """It was sent before."""

    @property
    def ends(self) -> int:
        """Leases that end with it."""
        return sum(isinstance(operation, Finish) for operation in self.operations)


def _size(operation: Operation) -> int:
    """Bytes of the requests that are sent with it."""
    if isinstance(operation, Delivered):
        return 0
    links = operation.links if isinstance(operation, Finish) else ()
    return len(operation.entry) + sum(len(link.entry) for link in links)


def _added(operation: Operation) -> int:
    """Bytes of the request that it adds."""
    return len(operation.entry) if isinstance(operation, Enqueue) else 0


class Outgoing:
    """Operations from when they are handed in until they are acknowledged, in their order. So no
    prefix of them ends a page without its requests.

    ``acked`` is the number of the last exchange that was answered, ``in_flight`` the batch of the
    next number, once that was made: until it is answered nothing else is sent under its number.
    ``bytes`` of the requests that operations add.
    """

    def __init__(self) -> None:
        self.acked = 0
        self.in_flight: Batch | None = None
        self.bytes = 0
        self.tally: Counter[str] = Counter()
        self.download_results: list[DownloadResult] = []
        self._unsent: deque[Operation] = deque()

    def __len__(self) -> int:
        return len(self._unsent) + len(self.flying)

    def __iter__(self) -> Iterator[Operation]:
        yield from self.flying
        yield from self._unsent

    @property
    def flying(self) -> list[Operation]:
        """Operations that are on their way."""
        return self.in_flight.operations if self.in_flight else []

    @property
    def has_more(self) -> bool:
        """Operations wait behind the batch."""
        return bool(self._unsent)

    def append(self, operation: Operation) -> None:
        self._unsent.append(operation)
        self.bytes += _added(operation)

    def put_first(self, operations: list[Operation]) -> None:
        """Have ``operations`` sent before all that waits."""
        self._unsent.extendleft(reversed(operations))
        self.bytes += sum(map(_added, operations))

    def batch(self, held: Mapping[str, Lease], begun: list[int]) -> Batch:
        """The batch that is on its way, or else the next one."""
        if self.in_flight is None:
            operations = self._take()
            self.in_flight = Batch(
                operations,
                Cargo(operations, held),
                self.tally,
                self.download_results,
                begun,
            )
            self.tally, self.download_results = Counter(), []
        else:
            self.in_flight.is_again = True
        return self.in_flight

    def _take(self) -> list[Operation]:
        taken: list[Operation] = []
        size = 0
        while self._unsent and len(taken) < MAX_OPERATIONS:
            size += _size(self._unsent[0])
            if taken and size > MAX_BYTES:
                break
            taken.append(self._unsent.popleft())
        return taken

    def answered(self) -> Batch | None:
        """The batch was applied; -> it."""
        batch, self.in_flight = self.in_flight, None
        if batch is not None:
            self.acked += 1
            self.bytes -= sum(map(_added, batch.operations))
        return batch

    def begin_anew(self) -> None:
        """The numbers begin again; what was not answered is sent again. Results of downloads are
        not, which are of use only while they are new, nor counts that may have been added."""
        self.acked = 0
        if self.in_flight is not None:
            self._unsent.extendleft(reversed(self.in_flight.operations))
            if not self.in_flight.is_again:
                self.tally.update(self.in_flight.tally)  # not +=, which drops what is below 0
            self.in_flight = None
