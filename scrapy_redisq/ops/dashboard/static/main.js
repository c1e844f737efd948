// The frame of all pages: which one is shown, what keeps it up to date, what is wrong.

import * as api from "./api.js";
import { h, render } from "./dom.js";
import { duration } from "./format.js";
import { badge, closeDialog, confirm, empty, open, problem } from "./parts.js";
import overview from "./overview.js";
import servers from "./servers.js";
import crawl from "./crawl.js";
import hosts from "./hosts.js";
import workers from "./workers.js";
import dead from "./dead.js";
import url from "./url.js";
import memory from "./memory.js";
import log from "./log.js";

const TABS = [
  ["", "Crawl", crawl], ["hosts", "Hosts", hosts], ["workers", "Workers", workers],
  ["dead", "Dead letters", dead], ["url", "URLs", url], ["memory", "Memory", memory], ["log", "Log", log],
];

const page = {
  session: null, view: null, place: "", name: null, tab: "", told: null, seen: 0, trouble: null, missing: false, end: () => {},
};

const LIVE = 6; // seconds: what is older is not called live (it is asked for each two)

// #/crawl/NAME/TAB?query
function read() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [kind, name, tab] = path.split("/").map(decodeURIComponent);
  const known = kind === "crawl" && name;
  return { kind: known ? kind : kind === "servers" ? kind : "", name: known ? name : null,
    tab: known && TABS.some(([at]) => at === tab) ? tab : "", query: Object.fromEntries(new URLSearchParams(query)) };
}

export const link = (name, tab = "", query = null) =>
  `#/crawl/${encodeURIComponent(name)}${tab && `/${tab}`}${query ? `?${new URLSearchParams(query)}` : ""}`;

// What a view gets: the name of the crawl, what was told last, and ways to act. All of it is
// about this crawl, also after another is shown.
function context(query) {
  const { name } = page;
  const timers = [];
  let ended = false;
  return {
    name, session: page.session, query, link,
    get told() { return page.told; },
    canChange: !page.session.read_only,
    get isShown() { return !ended; },
    redraw: () => !ended && draw(),
    // What kept the view from looking; nothing where the page says above that it is cut off.
    problem: (error) => error && !page.trouble && problem(error),
    path: (...parts) => api.path("crawls", name, ...parts),
    // Dialogs of a view that is no longer shown do not open.
    open: (...given) => (ended ? null : open(...given)),
    confirm: (asked) => (ended ? null : confirm({ ...asked, about: [["Crawl", name], ...asked.about] })),
    // Remembers what is looked at in the address, so that it can be passed on and gone back to.
    keep(changes) {
      if (ended) return;
      const kept = Object.entries({ ...query, ...changes }).filter(([, value]) => value !== "" && value !== null && value !== undefined);
      query = Object.fromEntries(kept);
      const base = location.hash.split("?")[0] || "#/";
      history.replaceState(null, "", kept.length ? `${base}?${new URLSearchParams(kept)}` : base);
    },
    // Looks now, and every few seconds; never twice at a time. Returns what looks at once, or right
    // after what is under way.
    every(seconds, look) {
      let isLooking = false;
      let again = false;
      async function now() {
        again = true;
        if (isLooking) return;
        isLooking = true;
        try {
          while (again && !ended) {
            again = false;
            await look();
          }
        } finally {
          isLooking = false;
        }
      }
      now();
      timers.push(setInterval(() => isLooking || document.hidden || page.trouble || now(), seconds * 1000));
      return now;
    },
    end() {
      ended = true;
      timers.forEach(clearInterval);
    },
  };
}

function go() {
  if (api.takeToken()) closeDialog(); // which may ask for it
  const wanted = read();
  const place = `${wanted.kind}/${wanted.name}/${wanted.tab}`;
  if (place === page.place && page.view) return;
  const isSame = page.view && wanted.name === page.name && wanted.kind === page.kind;
  page.context?.end();
  closeDialog();
  const hadPage = Boolean(page.place);
  Object.assign(page, { place, kind: wanted.kind, name: wanted.name, tab: wanted.tab });
  if (!isSame) {
    page.end();
    Object.assign(page, { told: null, trouble: null, missing: false });
    page.end = api.poll(page.name ? api.path("crawls", page.name) : "/api/crawls", heard, failed);
  }
  const make = page.name ? TABS.find(([tab]) => tab === page.tab)[2] : page.kind === "servers" ? servers : overview;
  page.context = context(wanted.query);
  page.view = make(page.context);
  document.title = [page.tab && TABS.find(([tab]) => tab === page.tab)[1], page.name, "scrapy-redisq"].filter(Boolean).join(" · ");
  draw();
  document.querySelector(".tabs [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
  if (hadPage) document.getElementById("main").focus({ preventScroll: true });
  scrollTo(0, 0);
}

function heard(data) {
  Object.assign(page, { told: data, seen: Date.now() - 1000 * data.age, trouble: null, missing: false });
  page.view.heard?.(data);
  draw();
}

function failed(error) {
  page.missing = error.status === 404;
  if (page.missing) Object.assign(page, { told: null, trouble: null });
  else page.trouble = error.status ? error.message : "The dashboard does not answer. Trying again…";
  draw();
}

function draw() {
  render(document.getElementById("app"),
    h("a", { class: "skip", href: "#main", onclick: (event) => {
      event.preventDefault();
      document.getElementById("main").focus();
    } }, "Skip to content"),
    top(),
    page.trouble && h("p", { class: "trouble", role: "alert", key: "trouble" },
      h("b", null, page.told ? "What you see is not up to date. " : ""), page.trouble),
    h("main", { id: "main", tabindex: "-1", key: "main" }, page.name && heading(),
      page.missing ? empty("There is no crawl of this name", "It was reset, or has not begun. When it begins, it appears here.")
        : h("div", { key: page.place, class: "view" }, page.view.draw())));
}

function top() {
  const entry = (href, text, isHere) => h("a", { href, "aria-current": isHere ? "page" : null }, text);
  return h("header", { class: "top", key: "top" },
    h("a", { class: "brand", href: "#/" }, "scrapy-redisq"),
    h("nav", { "aria-label": "All" }, entry("#/", "Crawls", page.kind === "" ), entry("#/servers", "Redis", page.kind === "servers")),
    page.session.read_only && h("span", { class: "badge idle" }, "read-only"),
    h("span", { class: `live ${freshness()[0]}` }, freshness()[1]));
}

// What the page may call itself, and how old what it shows is unless that is of now.
function freshness() {
  const age = Math.max(0, Date.now() - page.seen) / 1000;
  const old = page.told ? `${duration(Math.ceil(age))} old` : "";
  if (page.missing) return ["", "Not there"];
  if (page.trouble) return ["cut", page.told ? `Cut off, ${old}` : "Not connected"];
  if (!page.told) return ["", "Connecting…"];
  return age > LIVE ? ["late", old] : ["up", "Live"];
}

function heading() {
  const status = page.told;
  return h("div", { class: "heading", key: "heading" },
    h("p", { class: "path" }, h("a", { href: "#/" }, "Crawls"), " / "),
    h("h1", null, page.name), status && badge(status.state),
    h("nav", { class: "tabs", "aria-label": "This crawl" }, TABS.map(([tab, text]) => {
      const count = status && { hosts: status.why.slots, workers: status.workers.length, dead: status.dead }[tab];
      return h("a", { href: link(page.name, tab), "aria-current": tab === page.tab ? "page" : null }, text,
        count ? h("span", { class: "count" }, count.toLocaleString("en")) : null);
    })));
}

const askToken = (again) => open("Token", (close) => h("form", { onsubmit: (event) => {
  event.preventDefault();
  close(new FormData(event.target).get("token").trim());
} },
h("p", null, again ? "This token is not the right one. " : "", "It is in the file that “scrapy redisq dashboard” names when it starts, in its --token-file, or in REDISQ_DASHBOARD_TOKEN."),
h("label", null, "Token", h("input", { name: "token", type: "password", autocomplete: "off", required: true, autofocus: true })),
h("div", { class: "buttons" }, h("button", { type: "submit", class: "primary" }, "Open"))));

async function start() {
  for (;;) {
    try {
      page.session = await api.begin(askToken);
      break;
    } catch (error) {
      render(document.getElementById("app"), h("p", { class: "trouble", role: "alert" }, error.message));
      await new Promise((resolve) => setTimeout(resolve, 2000));
    }
  }
  addEventListener("hashchange", go);
  go();
  let shown = "";
  setInterval(() => { // its age grows while nothing comes
    const now = freshness().join();
    if (!document.hidden && now !== shown) draw();
    shown = now;
  }, 1000);
}

start();
