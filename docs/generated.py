"""What ``make docs`` adds to the Markdown: pages made of the code, and links of names.

``<!-- made by make docs: NAME -->`` becomes what a function of ``MADE`` says. A name in back-ticks
becomes a link: of a setting of this package or of Scrapy, a key of meta, a command, a method of
`Frontier`. A ``REDISQ_…`` or a method that there is not is a warning, which ends the build.
"""

from __future__ import annotations

import argparse
import json
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments.lexers import TextLexer
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.ext.intersphinx import InventoryAdapter

from scrapy_redisq import reasons
from scrapy_redisq.commands.options import GLOBAL_OPTIONS
from scrapy_redisq.commands.parser import make_parser
from scrapy_redisq.ops.metrics.families import METRICS

ROOT = Path(__file__).parents[1]
ABOVE = {name: f"/{name.lower()}" for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")}
ABOVE["README.md"] = "/index.md"
"""Files beside docs/ that are pages of the site."""

_LINK = re.compile(r"(!?)\[([^\]]+)\]\((?!https?://|/|#)([^)\s#]+)(#[^)\s]*)?\)")
_MADE = re.compile(r"<!-- made by make docs: (\w+) -->")


# Pages


def whole(docname: str, text: str) -> str:
    """The Markdown of a page: of a file beside docs/ from there, and with what the code knows."""
    if (above := f"{docname.upper()}.md") in ABOVE:
        text = (ROOT / above).read_text("utf-8")
    return _MADE.sub(lambda match: MADE[match[1]](), text)


def read_source(app: Sphinx, docname: str, source: list[str]) -> None:
    """Links that lead out of docs/ lead to pages of the site, or become text."""
    folder = "" if f"{docname.upper()}.md" in ABOVE else f"docs/{posixpath.dirname(docname)}"
    text = whole(docname, source[0])
    if docname == "index":
        text += contents(text)

    def inside(match: re.Match[str]) -> str:
        picture, label, path, anchor = match.groups("")
        path = posixpath.normpath(posixpath.join(folder, path))
        if page := ABOVE.get(path) or (path.startswith("docs/") and path.removeprefix("docs")):
            # The title of a page says more than the name of its file.
            named = path.endswith(".md") and label.rpartition("/")[2] == posixpath.basename(path)
            return f"{picture}[{'' if named else label}]({page}{anchor})"
        return label if label.startswith("`") else f"{label} (`{path}`)"

    source[0] = _LINK.sub(inside, text)


def contents(text: str) -> str:
    """The sidebar: the pages that the index lists, by its headings."""
    found = ""
    for chapter in text.split("\n## ")[1:]:
        pages = re.findall(r"^- \[.*?\]\((.*?)\.md\)", chapter, re.M)
        caption = f":caption: {chapter.partition(chr(10))[0]}\n:hidden:\n\n"
        found += f"\n```{{toctree}}\n{caption}" + "\n".join(pages) + "\n```\n"
    return found


def write_llms_txt(app: Sphinx, exception: Exception | None) -> None:
    """``llms.txt``: the index, for programs that read; its links lead to Markdown, as a whole."""
    if exception:
        return
    for docname in app.env.found_docs:
        text = Path(app.env.doc2path(docname)).read_text("utf-8")
        Path(app.outdir, f"_sources/{docname}.md.txt").write_text(whole(docname, text), "utf-8")
    text = Path(app.srcdir, "index.md").read_text("utf-8")
    text = re.sub(r"\]\((?!\.\./|https?:)([\w/-]+\.md)(#[^)]*)?\)", r"](_sources/\1.txt)", text)
    Path(app.outdir, "llms.txt").write_text(text, "utf-8")


def commands() -> str:
    return "\n".join(_command(make_parser()))


def _command(parser: argparse.ArgumentParser) -> Iterator[str]:
    """A command and those below it, each with its usage, its text and its options."""
    below: dict[str, argparse.ArgumentParser] = {}
    rows = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            below = action.choices
        elif action.dest != "help" and action.help:
            names = ", ".join(action.option_strings) or str(action.metavar)
            if action.option_strings and action.nargs != 0:
                names += f" {action.metavar or action.dest.upper()}"
            text = action.help % {**vars(action), "prog": parser.prog}
            rows.append(f"| `{names}` | {_escaped(text)} |")
    if parser.prog != make_parser().prog:
        yield f"## {parser.prog}\n"
        yield f"```text\n{parser.format_usage().removeprefix('usage: ').strip()}\n```\n"
        yield _escaped(parser.description or "") + "\n"
        if rows:
            yield "\n".join(["| argument | means |", "|---|---|", *rows]) + "\n"
        if examples := (parser.epilog or "").removesuffix(GLOBAL_OPTIONS).strip("\n"):
            yield f"```text\n{examples}\n```\n"
    for one in below.values():
        yield from _command(one)


def _escaped(text: str) -> str:
    return re.sub(r"([*_`\[\]|<])", r"\\\1", text)


def metrics() -> str:
    return _table(
        "metric | type | labels | means",
        (
            (f"`{name}`", kind, ", ".join(f"`{label}`" for label in labels), _escaped(means))
            for name, (kind, means, labels) in METRICS.items()
        ),
    )


def meanings(of: Mapping[Any, str]) -> str:
    """A table of reasons.py, whose texts are Markdown."""
    return _table("name | what happened", ((f"`{name}`", means) for name, means in of.items()))


def keys() -> str:
    """The keys that the head of keys.lua explains."""
    lua = (ROOT / "scrapy_redisq/frontier/lua/shared/keys.lua").read_text("utf-8")
    found = re.findall(r"^--   (\S+) +([a-z]+) +(.+(?:\n-- {20,}.+)*)", lua, re.M)
    return _table(
        "key | type | holds",
        (
            (f"`{key}`", kind, _escaped(re.sub(r"\n-- +", " ", text)).replace("->", "→"))
            for key, kind, text in found
        ),
    )


def _table(head: str, rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, " | ".join("---" for _ in head.split("|")), *map(" | ".join, rows)]
    return "\n".join(f"| {line} |" for line in lines)


def status() -> str:
    """The fields of ``status --json``, of its schema."""
    schema = json.loads((ROOT / "docs/reference/status.schema.json").read_text("utf-8"))
    parts = [("## Fields", schema)]
    parts += [(f"### Fields of {name}", part) for name, part in schema["$defs"].items()]
    lines = []
    for head, part in parts:
        lines += [head, "", "| field | type | means |", "|---|---|---|"]
        for name, field in part["properties"].items():
            kinds = field.get("enum") or field.get("type") or field["$ref"].rpartition("/")[2]
            kind = kinds if isinstance(kinds, str) else ", ".join(kinds)
            lines.append(f"| `{name}` | {kind} | {field['description']} |")
        lines.append("")
    return "\n".join(lines)


MADE: dict[str, Callable[[], str]] = {
    "commands": commands,
    "metrics": metrics,
    "status": status,
    "keys": keys,
    "dead_letters": lambda: meanings(reasons.DEAD_LETTERS),
    "closes": lambda: meanings(reasons.CLOSES),
    "exit_codes": lambda: meanings(reasons.EXIT_CODES),
}


# Names


def link_names(app: Sphinx, doctree: nodes.document) -> None:
    """Settings are defined by the rows of their page; all other names lead to where they are."""
    docname = app.env.docname
    if docname == "reference/settings":
        for table in list(doctree.findall(nodes.table)):
            table.replace_self(_definitions(app, docname, table))
    if docname == "changelog":  # names that are gone
        return
    scrapys = InventoryAdapter(app.env).named_inventory["scrapy"]
    for literal in list(doctree.findall(nodes.literal)):
        if isinstance(literal.parent, (nodes.term, nodes.reference, pending_xref)):
            continue
        if target := _target(literal.astext(), scrapys):
            domain, kind, name = target
            link = pending_xref(
                "", refdomain=domain, reftype=kind, reftarget=name, refdoc=docname, refexplicit=True
            )
            literal.replace_self(link)
            link += literal


def _target(text: str, scrapys: Any) -> tuple[str, str, str] | None:
    if match := re.match(r"(REDISQ_[A-Z_]*[A-Z])\b(?!…)", text):
        return None if match[1] == "REDISQ_DASHBOARD_TOKEN" else ("std", "setting", match[1])
    if (match := re.match(r"([A-Z][A-Z_]+)(?: = .*)?$", text)) and match[1] in scrapys[
        "std:setting"
    ]:
        return "std", "setting", match[1]
    if (match := re.match(r'meta\["(\w+)"\]', text)) and match[1] in scrapys["std:reqmeta"]:
        return "std", "reqmeta", match[1]
    if match := re.match(r"Frontier\.(\w+)\(", text):
        return "py", "meth", f"scrapy_redisq.Frontier.{match[1]}"
    return None


def _definitions(app: Sphinx, docname: str, table: nodes.table) -> nodes.definition_list:
    """The table of settings as a list that has room for its sentences."""
    found = nodes.definition_list()
    (body,) = table.findall(nodes.tbody)
    for row in body.findall(nodes.row):
        name, default, takes, means = (entry[0].children for entry in row)
        setting = name[0].astext()
        anchor = nodes.make_id(setting)
        app.env.domains.standard_domain.note_object("setting", setting, anchor)
        term = nodes.term("", "", *name, nodes.Text(" = "), *default, ids=[anchor])
        limits = nodes.paragraph("", "", nodes.emphasis("", "Takes "), *takes, nodes.Text("."))
        text = nodes.definition("", nodes.paragraph("", "", *means), limits)
        found += nodes.definition_list_item("", term, text)
    return found


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_object_type("setting", "setting")
    app.add_object_type("reqmeta", "reqmeta")
    app.add_lexer("conf", TextLexer)  # redis.conf
    app.connect("source-read", read_source)
    app.connect("doctree-read", link_names)
    app.connect("build-finished", write_llms_txt)
    return {"parallel_read_safe": True}
