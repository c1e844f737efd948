"""Which URLs the bookshop has: every page, redirect and dead link, all known beforehand.

Nothing is random: the same number of pages always gives the same shop, so a crawl's result can be
compared with what is there.
"""

from __future__ import annotations

from dataclasses import dataclass, field

BOOKS_PER_LISTING = 20


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_ADJECTIVES = _words(
    "Silent Amber Hidden Broken Distant Gentle Hollow Ivory Lonely Midnight Northern Open Paper "
    "Quiet Restless Scarlet Tidal Unwritten Velvet Winter Copper Drifting Early Forgotten Golden "
    "Humble Inland Jagged Kindred Last Marble Narrow Old Patient Salted Third Upper Vanishing "
    "White Yellow"
)
_NOUNS = _words(
    "Harbour Garden Letter Mountain Orchard River Staircase Theatre Umbrella Village Window "
    "Almanac Bridge Compass Desert Engine Forest Gallery House Island Journey Kitchen Lantern "
    "Mirror Notebook Ocean Piano Quarry Railway Shadow Telescope Uncle Valley Watchmaker "
    "Year Archive Balcony Carousel Diary Estuary Furnace Glacier Hotel Inheritance"
)
_SUBJECTS = _words(
    "Travel Mystery Poetry History Science Fiction Cooking Music Gardening Philosophy Biography "
    "Architecture Sailing Astronomy Drama Painting Folklore Economics Mathematics Letters"
)
_FIRST_NAMES = _words("Ada Bruno Clara Dario Edith Felix Greta Hugo Irma Jonas Karla Ludwig")
_LAST_NAMES = _words("Adler Brandt Castell Dorn Ehlers Falk Gerlach Hein Ilmer Jung Kolb Lorenz")


@dataclass(frozen=True)
class Book:
    """One book. ``price`` is in cents, ``rating`` goes from 1 to 5."""

    number: int
    title: str
    category: int
    author: int
    price: int
    rating: int
    in_stock: bool

    @property
    def path(self) -> str:
        return f"/book/{self.number:04}-{self.title.lower().replace(' ', '-')}"


@dataclass
class Catalogue:
    """A shop of exactly ``size`` pages: home, listings of categories, authors and books.

    ``pages`` are the paths that answer 200, each reachable from "/" by links. ``redirects`` maps
    old paths to where they lead, perhaps by way of another; ``missing`` are paths that are linked
    and answer 404. Every tenth author's page is linked by an old path only, so that a crawl that
    loses redirects loses pages. Raises ValueError for fewer than 50 or more than 100,000 pages.
    """

    size: int = 2000
    books: list[Book] = field(init=False)
    categories: list[list[Book]] = field(init=False, repr=False)
    authors: list[list[Book]] = field(init=False, repr=False)
    pages: dict[str, tuple[str, int, int]] = field(init=False, repr=False)
    redirects: dict[str, str] = field(init=False, repr=False)
    missing: frozenset[str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not 50 <= self.size <= 100_000:
            raise ValueError(f"a shop has 50 to 100,000 pages, not {self.size}")
        category_count = min(len(_SUBJECTS), max(2, self.size // 100))
        book_count = self.size * 88 // 100
        listing_count = sum(
            -(-len(range(category, book_count, category_count)) // BOOKS_PER_LISTING)
            for category in range(category_count)
        )
        author_count = self.size - 1 - listing_count - book_count  # what is left of the pages
        self.books = [_book(n, category_count, author_count) for n in range(book_count)]
        self.categories = [[] for _ in range(category_count)]
        self.authors = [[] for _ in range(author_count)]
        for book in self.books:
            self.categories[book.category].append(book)
            self.authors[book.author].append(book)
        # path -> (kind, number of the thing, number of the page in its listing)
        self.pages = {"/": ("home", 0, 1)}
        for category in range(category_count):
            for page in range(1, self.listing_pages(category) + 1):
                self.pages[self.category_path(category, page)] = ("category", category, page)
        for author in range(author_count):
            self.pages[self.author_path(author)] = ("author", author, 1)
        for book in self.books:
            self.pages[book.path] = ("book", book.number, 1)
        self.redirects = {"/new": "/latest", "/latest": self.books[-1].path}
        for book in self.books[::25]:
            self.redirects[self.old_book_path(book)] = book.path
        for author in range(0, author_count, 10):
            self.redirects[f"/writers/{author}"] = self.author_path(author)
        self.missing = frozenset(self.review_path(book) for book in self.books[::100])

    def listing_pages(self, category: int) -> int:
        return -(-len(self.categories[category]) // BOOKS_PER_LISTING)

    def category_name(self, category: int) -> str:
        return _SUBJECTS[category]

    def category_path(self, category: int, page: int = 1) -> str:
        first = f"/category/{_SUBJECTS[category].lower()}"
        return first if page == 1 else f"{first}/page/{page}"

    def author_name(self, author: int) -> str:
        generation, author = divmod(author, len(_FIRST_NAMES) * len(_LAST_NAMES))
        last, first = divmod(author, len(_FIRST_NAMES))
        suffix = f" {generation + 1}" if generation else ""
        return f"{_FIRST_NAMES[first]} {_LAST_NAMES[last]}{suffix}"

    def author_path(self, author: int) -> str:
        return f"/author/{author}-{self.author_name(author).lower().replace(' ', '-')}"

    def author_link(self, author: int) -> str:
        """The path by which the shop's pages link an author: for every tenth the old one."""
        return f"/writers/{author}" if author % 10 == 0 else self.author_path(author)

    def old_book_path(self, book: Book) -> str:
        return f"/old/book.php-{book.number}"

    def review_path(self, book: Book) -> str:
        return f"/review/{book.number}"

    def related(self, book: Book) -> list[Book]:
        """Four other books, spread over the shop."""
        count = len(self.books)
        steps = (count // 3, count // 2 + 1, 7, 31)
        return [self.books[(book.number + step) % count] for step in steps]


def _book(number: int, category_count: int, author_count: int) -> Book:
    adjective = _ADJECTIVES[number % len(_ADJECTIVES)]
    noun = _NOUNS[number // len(_ADJECTIVES) % len(_NOUNS)]
    return Book(
        number=number,
        title=f"The {adjective} {noun}",
        category=number % category_count,
        author=number % author_count,
        price=799 + number * 37 % 2400,
        rating=1 + number * 7 % 5,
        in_stock=number % 9 != 0,
    )
