"""The pages in a real browser: each button is pressed, and the frontier obeys."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from lab.servers import RedisServer, wait_until
from scrapy_redisq.control import Frontier
from tests.dashboard.browser import chromium, violations
from tests.dashboard.made_up import DEAD, HOSTS, make_up
from tests.dashboard.served import Served
from tests.harness.worker import NAME

MARKUP = '<img src=x onerror="hacked=1">'
FOLIO = "www.folio.example"


class Pages:
    """What a person does on them."""

    def __init__(self, page: Any, served: Served) -> None:
        self.page = page
        self.url = f"http://127.0.0.1:{served.port}"
        self.wrong: list[str] = []
        page.on("pageerror", lambda error: self.wrong.append(str(error)))
        page.on("console", self._said)

    def _said(self, message: Any) -> None:
        # That the dashboard was away is meant to be, and so is a crawl that is not there.
        meant = any(word in message.text for word in ("ERR_", "401", "404"))
        if message.type == "error" and not meant:
            self.wrong.append(message.text)

    def tab(self, name: str) -> None:
        tabs = self.page.get_by_role("navigation", name="This crawl")
        tabs.get_by_role("link", name=name).click()
        self.page.wait_for_selector(".live.up")

    def press(self, name: str, group: str | None = None) -> None:
        where = self.page.get_by_role("group", name=group) if group else self.page
        where.get_by_role("button", name=name, exact=True).first.click()

    def confirm(self, name: str, says: str = "") -> None:
        """In the dialog; then the page says so."""
        self.page.get_by_role("dialog").get_by_role("button", name=name, exact=True).click()
        if says:
            self.says(says)

    def says(self, text: str) -> None:
        self.page.get_by_text(re.compile(text)).first.wait_for()

    def is_accessible(self) -> None:
        assert violations(self.page) == []

    def is_legible_in_the_dark(self) -> None:
        self.page.emulate_media(color_scheme="dark")
        assert violations(self.page, "color-contrast") == []
        self.page.emulate_media(color_scheme="light")


@contextmanager
def opened(url: str, folder: Path) -> Iterator[tuple[Pages, Served, Any]]:
    """The dashboard of a server in a browser."""
    with closing(Served(url)) as served, chromium() as browser:
        context = browser.new_context(viewport={"width": 1440, "height": 900})
        context.set_default_timeout(60_000)
        at = Pages(context.new_page(), served)
        try:
            at.page.goto(served.url)
            at.page.get_by_role("link", name=NAME).wait_for()
            yield at, served, browser
        except BaseException:
            at.page.screenshot(path=str(folder / "failed.png"))
            raise
        assert at.page.evaluate("typeof hacked") == "undefined"
        assert at.wrong == []


@pytest.mark.long(50)
def test_pages(redis_server: RedisServer, frontier: Frontier, tmp_path: Path) -> None:
    """All of them, of a crawl with hosts, workers, limits, dead letters and a past."""
    make_up(frontier, frontier.client)
    frontier.push([{"url": "https://a.example/", "meta": {"download_slot": MARKUP}}])
    with opened(redis_server.url, tmp_path) as (at, served, browser):
        assert "token" not in at.page.url
        look_at_crawls(at)
        rule_hosts(at, frontier)
        steer_workers(at, frontier)
        see_to_dead_letters(at, frontier, tmp_path)
        ask_for_urls(at, frontier)
        dialogs(at, redis_server.url)
        come_back(at, served, frontier)
        fits_a_telephone(at)
        with_a_wrong_clock(browser, served.url)


def look_at_crawls(at: Pages) -> None:
    """All crawls; one of them with its charts, which say in words what they show."""
    at.is_accessible()
    at.page.get_by_role("link", name=NAME).click()
    chart = at.page.get_by_role("img", name=re.compile("Pages a minute"))
    chart.locator("canvas").wait_for()
    most = re.search(r"pages: .* now, at most ([\d,.]+)\.$", chart.get_attribute("aria-label"))
    assert most is not None
    assert float(most[1].replace(",", "")) > 100
    assert chart.locator("canvas").evaluate(
        "canvas => canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height)"
        ".data.some(byte => byte > 0)"
    )
    at.says("4 workers work on")
    at.says("run began")
    at.is_accessible()
    at.is_legible_in_the_dark()


def rule_hosts(at: Pages, frontier: Frontier) -> None:
    """Filter; pause all that match; let one go on; limit one; drop it."""
    at.tab("Hosts")
    at.page.get_by_role("button", name=MARKUP).wait_for()
    at.page.get_by_label("Host", exact=True).fill("folio")
    at.says(r"All that match \(2\)")
    at.is_accessible()
    at.press("Pause", "Change several")
    at.confirm("Pause", "2 hosts paused")
    assert frontier.slot(FOLIO).paused
    assert frontier.slot("shop.folio.example").paused
    at.page.get_by_label(f"Choose {FOLIO}", exact=True).check()
    at.press("Resume", "Change several")
    at.confirm("Resume", "1 host resumed")
    assert not frontier.slot(FOLIO).paused
    at.page.get_by_role("button", name=FOLIO, exact=True).click()
    at.is_accessible()
    at.confirm("Limit…")
    at.page.get_by_label("Rate").fill("30/m")
    at.confirm("Limit", f"{FOLIO} limited")
    assert frontier.slot(FOLIO).limit.rate == 0.5
    at.page.get_by_role("button", name=FOLIO, exact=True).click()
    at.confirm("Drop…")
    at.confirm("Drop", f"requests of {FOLIO} dropped")
    assert frontier.slot(FOLIO).queued == 0


def steer_workers(at: Pages, frontier: Frontier) -> None:
    """All are quiet, all work again, one stops."""

    def told() -> list[str]:
        return sorted(worker["told"] for worker in frontier.status()["workers"])

    at.tab("Workers")
    at.press("Quiet", "Change all")
    at.confirm("Quiet", "4 workers told to be quiet")
    assert told() == ["quiet"] * 4
    at.page.locator(".badge", has_text="quiet").nth(3).wait_for()
    at.is_accessible()
    at.press("Work", "Change all")
    at.confirm("Let work", "4 workers told to work")
    at.page.get_by_role("button", name=re.compile("^Stop .")).first.click()
    at.confirm("Stop", "1 worker told to stop")
    assert told() == ["stop", "work", "work", "work"]


def see_to_dead_letters(at: Pages, frontier: Frontier, folder: Path) -> None:
    """One group; one of it; a file of them; one tried again, the others deleted."""
    at.tab("Dead letters")
    at.page.locator("td.clip", has_text="gzip").first.wait_for()
    at.page.get_by_role("region", name="By status").get_by_role("button", name="500").click()
    at.says("4 of 6 dead letters match")
    at.is_accessible()
    with at.page.expect_download() as download:
        at.press("Export", "All of these")
    download.value.save_as(folder / "dead.jsonl")
    assert (folder / "dead.jsonl").read_text().count("\n") == 4
    at.page.get_by_role("region", name="Dead letters").get_by_role("button").first.click()
    at.is_accessible()
    at.confirm("Try again")
    at.confirm("Try again", "1 dead letter queued again")
    assert len([*frontier.dead()]) == len(DEAD) - 1
    at.says("3 of 5 dead letters match")
    at.press("Delete…", "All of these")
    with at.page.expect_request(f"**/{NAME}/dead") as asked:
        at.confirm("Delete")
    assert asked.value.post_data_json["most"] == 3
    at.says("3 dead letters deleted")
    assert [letter.status for letter in frontier.dead()] == [200, 200]


def ask_for_urls(at: Pages, frontier: Frontier) -> None:
    """Pushed, looked for, with markup in it; what was typed stays when the page is drawn anew.
    Then what is in the log, and takes memory."""
    url = f"https://{HOSTS[0]}/8?{MARKUP}"
    at.tab("URLs")
    at.page.get_by_label("One on each line").fill(f"{url}\nno url")
    at.press("Push")
    at.says("1 new request, 0 duplicates, 1 bad")
    at.page.get_by_label("URL", exact=True).fill(url)
    at.page.get_by_label("Slot").focus()
    at.page.wait_for_timeout(1_000)  # events come, and nothing must happen
    at.press("Look")
    at.says("It waits in its host's queue")
    at.is_accessible()
    assert frontier.url(url)["state"] == "queued"
    for tab, text in (("Log", "all workers"), ("Memory", "Requests that wait")):
        at.tab(tab)
        at.says(text)
        at.is_accessible()
    at.page.get_by_role("link", name="Redis", exact=True).click()
    at.says("Round trip")
    at.page.get_by_role("combobox", name="Crawl").select_option(NAME)
    at.press("Examine")
    at.says(f"The servers and {NAME}, as of")
    at.says("in memory only")
    at.is_accessible()


def come_back(at: Pages, served: Served, frontier: Frontier) -> None:
    """The dashboard ends: the page says so, and goes on with the next, which has another token."""
    at.page.goto(f"{at.url}/#/crawl/{NAME}/hosts")
    at.page.wait_for_selector(".live.up")
    served.close()
    at.page.get_by_role("alert").get_by_text("The dashboard does not answer").wait_for()
    at.page.locator(".live.cut", has_text=re.compile(r"^Cut off, \d+ .* old$")).wait_for()
    at.is_accessible()
    served.start_again()
    at.page.get_by_role("textbox", name="Token").fill("wrong")
    at.confirm("Open", "This token is not the right one")
    at.is_accessible()
    at.page.get_by_role("textbox", name="Token").fill(served.rules.token)
    at.confirm("Open")
    at.page.wait_for_selector(".live.up")
    assert at.page.get_by_role("alert").count() == 0
    at.page.get_by_role("combobox").select_option("paused")
    at.says(r"All that match \(2\)")
    at.press("Resume", "Change several")
    at.confirm("Resume", "2 hosts resumed")
    assert frontier.status()["paused"] == 0


def fits_a_telephone(at: Pages) -> None:
    """No page is wider than a small screen."""
    at.page.set_viewport_size({"width": 400, "height": 800})
    tabs = ("", "/hosts", "/workers", "/dead", "/url", "/memory", "/log")
    for path in ("servers", *(f"crawl/{NAME}{tab}" for tab in tabs)):
        at.page.goto(f"{at.url}/#/{path}")
        at.page.wait_for_selector(".live.up")
        wider = at.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wider <= 0, path
    at.page.goto(f"{at.url}/#/crawl/nothing")
    at.says("There is no crawl of this name")
    assert at.page.get_by_role("alert").count() == 0


def with_a_wrong_clock(browser: Any, url: str) -> None:
    """What is an hour ahead, and elsewhere, does not take what is for an hour old."""
    context = browser.new_context(timezone_id="Asia/Kathmandu")
    context.add_init_script("const now = Date.now; Date.now = () => now() + 3_600_000;")
    page = context.new_page()
    page.goto(url)
    page.get_by_role("link", name=NAME).click()
    page.get_by_role("link", name="Workers").click()
    page.wait_for_selector(".live.up")
    page.get_by_role("columnheader", name="Since").wait_for()
    assert not re.search(r"\b1 h\b", page.inner_text("main"))
    context.close()


def dialogs(at: Pages, redis_url: str) -> None:
    """A dialog is of its crawl, names what it does, and stays with what was typed if that fails."""
    with (
        Frontier.from_url(redis_url, "films") as films,
        Frontier.from_url(redis_url, "news") as news,
    ):
        for frontier in (films, news):
            frontier.push([f"https://{host}.example/{n}" for host in "ab" for n in range(3)])
        goes_with_its_crawl(at, films, news)
        comes_too_late(at)
        keeps_what_was_chosen(at, films)
        drops_no_more_than_it_says(at, films)


def goes_with_its_crawl(at: Pages, films: Frontier, news: Frontier) -> None:
    """Drop on one crawl, and back to the other: nothing is asked any more, nothing dropped."""
    for name in ("news", "films"):
        at.page.goto(f"{at.url}/#/crawl/{name}/hosts")
        at.page.get_by_role("heading", name=name).wait_for()
    at.press("Drop…", "Change several")
    dialog = at.page.get_by_role("dialog")
    dialog.get_by_role("heading", name="Drop the requests of 2 hosts").wait_for()
    found = re.findall(r"films|[ab]\.example|6 queued", dialog.inner_text())
    assert found == ["films", "a.example", "b.example", "6 queued"]
    at.page.go_back()
    at.page.get_by_role("heading", name="news").wait_for()
    dialog.wait_for(state="hidden")
    assert (films.status()["dropped"], news.status()["dropped"]) == (0, 0)


def comes_too_late(at: Pages) -> None:
    """What a host's dialog shows arrives when another crawl is shown: it does not open there."""
    held: list[Any] = []
    # Not append itself: playwright marks the function.
    at.page.route("**/hosts/a.example", lambda route: held.append(route))  # noqa: PLW0108
    at.page.get_by_role("button", name="a.example", exact=True).click()
    wait_until(lambda: held or at.page.wait_for_timeout(20), 20, "the question")
    at.page.goto(f"{at.url}/#/crawl/films/hosts")
    at.page.get_by_role("heading", name="films").wait_for()
    with at.page.expect_response("**/hosts/a.example") as answer:
        held[0].continue_()
    answer.value.finished()
    at.page.get_by_role("button", name="b.example", exact=True).click()
    at.page.get_by_role("dialog").get_by_role("heading").wait_for()
    headings = at.page.get_by_role("dialog").get_by_role("heading", level=2).all_inner_texts()
    assert headings == ["b.example"]
    at.press("Close")


def keeps_what_was_chosen(at: Pages, films: Frontier) -> None:
    """A limit with a comma is explained; what was typed and chosen is still there, and corrected
    it holds."""
    at.page.get_by_label("Choose a.example").check()
    at.press("Limit…", "Change several")
    at.page.get_by_label("Delay").fill("1,5")
    at.page.get_by_label("Rate").fill("30/m")
    at.confirm("Limit")
    told = at.page.get_by_role("dialog").get_by_role("alert")
    told.get_by_text("delay '1,5': takes seconds from 0 to 86,400, such as 1.5").wait_for()
    assert "400" in at.wrong.pop()
    at.is_accessible()
    assert at.page.get_by_label("Rate").input_value() == "30/m"
    at.page.get_by_label("Delay").fill("1.5")
    assert at.page.get_by_label("Choose a.example").is_checked()
    at.confirm("Limit", "1 host limited")
    assert (films.slot("a.example").limit.delay, films.slot("b.example").limit.delay) == (1.5, 0)
    at.says(r"All \(2\):")


def drops_no_more_than_it_says(at: Pages, films: Frontier) -> None:
    """A host is found while the dialog asks: it is not dropped unseen, but paused with all."""
    for action, number in (("Pause", 2), ("Drop…", 3)):
        at.says(rf"All \({number}\):")
        at.press(action, "Change several")
        films.push([f"https://found-{number}.example/"])
        at.confirm(action.rstrip("…"))
    told = at.page.get_by_role("dialog").get_by_role("alert")
    told.get_by_text("4 match by now, not 3: look again").wait_for()
    assert "400" in at.wrong.pop()
    assert films.status()["dropped"] == 0
    assert films.slot("found-2.example").paused
