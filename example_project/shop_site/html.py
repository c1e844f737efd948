"""The bookshop's pages as HTML, written when they are asked for."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from shop_site.catalogue import BOOKS_PER_LISTING, Book, Catalogue

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 16px/1.5 sans-serif; max-width: 46em; margin: 2em auto; padding: 0 1em }}
nav a {{ margin-right: 1em }} .price {{ font-weight: bold }}
</style></head>
<body><nav class="breadcrumb">{breadcrumb}</nav>
<h1>{title}</h1>
{body}
</body></html>
"""


def render(shop: Catalogue, path: str) -> bytes:
    """The page at ``path``; KeyError if there is none."""
    kind, number, page = shop.pages[path]
    if kind == "home":
        text = _home(shop)
    elif kind == "category":
        text = _category(shop, number, page)
    elif kind == "author":
        text = _author(shop, number)
    else:
        text = _book(shop, shop.books[number])
    return text.encode()


def _link(kind: str, path: str, text: str) -> str:
    return f'<a class="{kind}" href="{path}">{escape(text)}</a>'


def _list(links: Iterable[str]) -> str:
    return "<ul>\n" + "\n".join(f"<li>{link}</li>" for link in links) + "\n</ul>"


def _books(books: Iterable[Book]) -> str:
    return _list(_link("book", book.path, book.title) for book in books)


def _page(title: str, breadcrumb: Iterable[str], body: str) -> str:
    trail = " ".join((_link("home", "/", "Bookshop"), *breadcrumb))
    return _PAGE.format(title=escape(title), breadcrumb=trail, body=body)


def _home(shop: Catalogue) -> str:
    categories = _list(
        _link("category", shop.category_path(n), shop.category_name(n))
        for n in range(len(shop.categories))
    )
    newest = _link("book", "/new", "The newest book")
    return _page("Bookshop", (), f"<p>{newest}</p>\n<h2>Categories</h2>\n{categories}")


def _category(shop: Catalogue, category: int, page: int) -> str:
    first = (page - 1) * BOOKS_PER_LISTING
    parts = [_books(shop.categories[category][first : first + BOOKS_PER_LISTING])]
    last_page = shop.listing_pages(category)
    if page > 1:
        parts.append(_link("category", shop.category_path(category, page - 1), "previous page"))
    parts.append(f"<span>page {page} of {last_page}</span>")
    if page < last_page:
        parts.append(_link("category", shop.category_path(category, page + 1), "next page"))
    name = shop.category_name(category)
    return _page(name, (_link("category", shop.category_path(category), name),), "\n".join(parts))


def _author(shop: Catalogue, author: int) -> str:
    name = shop.author_name(author)
    return _page(
        name, (_link("author", shop.author_link(author), name),), _books(shop.authors[author])
    )


def _book(shop: Catalogue, book: Book) -> str:
    shelf = shop.categories[book.category]
    place = book.number // len(shop.categories)  # books are dealt to the categories in turn
    category = _link(
        "category",
        shop.category_path(book.category, 1 + place // BOOKS_PER_LISTING),
        shop.category_name(book.category),
    )
    author = _link("author", shop.author_link(book.author), shop.author_name(book.author))
    neighbours = [
        _link("book", shelf[at].path, word)
        for at, word in ((place - 1, "previous book"), (place + 1, "next book"))
        if 0 <= at < len(shelf)
    ]
    # Related books that once had another address are still linked by it, as on real sites.
    related = [
        _link(
            "book",
            old if (old := shop.old_book_path(other)) in shop.redirects else other.path,
            other.title,
        )
        for other in shop.related(book)
    ]
    stock = "in stock" if book.in_stock else "sold out"
    parts = [
        f"<p>by {author}</p>",
        f'<p class="price">{book.price // 100}.{book.price % 100:02} EUR</p>',
        f'<p class="rating" data-stars="{book.rating}">{"*" * book.rating}</p>',
        f'<p class="stock">{stock}</p>',
        f"<p>{' '.join(neighbours)}</p>",
        "<h2>Related books</h2>",
        _list(related),
    ]
    if (review := shop.review_path(book)) in shop.missing:
        parts.append(_link("review", review, "Review of the week"))
    return _page(book.title, (category,), "\n".join(parts))
