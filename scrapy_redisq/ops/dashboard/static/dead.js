// Dead letters: grouped, one with all that is known of it; tried again, deleted, written to a file.

import * as api from "./api.js";
import { h } from "./dom.js";
import { ago, clock, number, plural, readAgo } from "./format.js";
import { attempt, button, empty, facts, pager, shareOf, table } from "./parts.js";
import { crawled } from "./url.js";

const LIMIT = 50;
const GROUPS = [["reason", "Reason"], ["error", "Exception"], ["status", "Status"], ["slot", "Host"]];
const NONE = { error: "no exception", status: "no answer", slot: "no host", reason: "none" };
const PAST = { requeue: "queued again", purge: "deleted" };

const first = (text) => text.trim().split("\n")[0];

export default function dead(ctx) {
  const match = Object.fromEntries(GROUPS.map(([name]) => [name, ctx.query[name]]).filter(([, value]) => value !== undefined));
  let offset = Number(ctx.query.offset) || 0;
  let list = null;
  let failed = null;
  let again = null;

  const refresh = ctx.every(4, async () => {
    const used = { ...match };
    clearTimeout(again);
    try {
      const found = await api.get(ctx.path("dead"), { ...used, offset, limit: LIMIT });
      [list, failed] = [{ ...found, match: used }, null];
      if (!found.complete) again = setTimeout(() => document.hidden || !ctx.isShown || refresh(), 500);
    } catch (error) {
      failed = error;
    }
    ctx.redraw();
  });

  function ask(name, value) {
    if (value === undefined) delete match[name];
    else match[name] = String(value);
    offset = 0;
    ctx.keep({ ...Object.fromEntries(GROUPS.map(([group]) => [group, null])), ...match, offset: null });
    refresh();
  }

  // What the list shows: another may have been asked for that is not there yet, or never comes.
  const matched = () => ({ most: list.total, match: { ...list.match, ...(list.match.status !== undefined && { status: Number(list.match.status) }) } });

  const matching = () => GROUPS.filter(([name]) => name in list.match).map(([name, title]) => [title, list.match[name] || NONE[name]]);

  // about: [name, value], which dead letters are meant.
  async function act(action, target, count, about) {
    const text = { requeue: "To the front of their queues, past the dupefilter, with retries counted anew.",
      purge: "They cannot be tried again then. Export them first, if in doubt." }[action];
    const verb = action === "requeue" ? "Try again" : "Delete";
    await ctx.confirm({
      title: `${verb}: ${plural(count, "dead letter")}`, about, text, action: verb, danger: action === "purge",
      act: () => api.post(ctx.path("dead"), { action, ...target }), done: (told) => `${plural(told.changed, "dead letter")} ${PAST[action]}`,
    });
    refresh();
  }

  async function save() {
    const found = await attempt(() => api.file(ctx.path("dead", "export"), list.match));
    if (!found) return;
    const address = URL.createObjectURL(found);
    const anchor = Object.assign(document.createElement("a"), { href: address, download: `${ctx.name}-dead.jsonl` });
    anchor.click();
    setTimeout(() => URL.revokeObjectURL(address), 60_000);
  }

  async function details(summary) {
    const letter = await attempt(() => api.get(ctx.path("dead", summary.id)));
    if (!letter) return;
    const target = { ids: [letter.id] };
    const about = [["Request", letter.request?.url || letter.id]];
    await ctx.open(`Dead letter ${letter.id}`, (close) => [
      letter.request ? h("p", { class: "address" }, letter.request.method === "GET" ? "" : `${letter.request.method} `, crawled(letter.request.url))
        : h("p", { class: "notice warn" }, letter.undecodable || "It holds no request that could be tried again."),
      facts(["Reason", letter.reason], ["Given up", clock(letter.at)], letter.claimed && ["Begun", clock(letter.claimed)],
        letter.error && ["Exception", letter.error], letter.status && ["Status", letter.status], ["Host", letter.slot || "–"],
        ["Worker", letter.worker || "–"], ["Workers that died with it", letter.deliveries], ["Priority", letter.priority]),
      letter.detail && [h("h3", null, "What happened"), h("pre", { tabindex: "0" }, letter.detail)],
      letter.request && [h("h3", null, "The request"), h("pre", { tabindex: "0" }, JSON.stringify(letter.request, null, 2))],
      ctx.canChange && h("div", { class: "buttons" },
        letter.request && button("Try again", () => { close(); act("requeue", target, 1, about); }, { class: "primary" }),
        button("Delete…", () => { close(); act("purge", target, 1, about); }, { class: "danger quiet" })),
    ]);
  }

  function facets() {
    return h("div", { class: "facets" }, GROUPS.map(([name, title]) => {
      const values = list.groups[name];
      const most = Math.max(...values.map((value) => value.count), 1);
      return h("section", { class: "facet", key: name, "aria-label": `By ${title.toLowerCase()}` }, h("h2", null, title),
        h("ul", null, values.map(({ value, count }) => {
          const isOn = match[name] === String(value);
          return h("li", { key: String(value) }, h("button", { type: "button", "aria-pressed": String(isOn), onclick: () => ask(name, isOn ? undefined : value) },
            h("span", { class: "of" }, value || NONE[name]), h("span", { class: "n" }, number(count)),
            shareOf(count / most)));
        })));
    }));
  }

  const columns = [
    { title: "Request", class: "address", cell: (letter) => h("button", { type: "button", class: "link", onclick: () => details(letter) },
      letter.request?.url || letter.undecodable || letter.id) },
    { title: "Reason", cell: (letter) => letter.reason },
    { title: "What happened", wide: true, class: "clip", cell: (letter) => (letter.error || !letter.status ? first(letter.detail) || letter.error : `status ${letter.status}`) || "–" },
    { title: "When", class: "nowrap", right: true, cell: (letter) => ago(letter.at) },
  ];

  return {
    draw() {
      if (!list) return failed ? ctx.problem(failed) : h("p", { class: "lead" }, "Looking…");
      const isFiltered = Object.keys(list.match).length > 0;
      if (!list.known) return empty("No dead letters", list.complete ? "Requests that fail for good are kept here, with what happened." : "Looking…");
      return [
        ctx.problem(failed), facets(),
        h("div", { class: "toolbar" },
          h("p", { class: "lead" }, isFiltered ? `${number(list.total)} of ${plural(list.known, "dead letter")} match` : plural(list.known, "dead letter"),
            list.age > 10 && `, ${readAgo(list.age)}`),
          isFiltered && button("Show all", () => { GROUPS.forEach(([name]) => delete match[name]); ask("reason", undefined); }),
          list.total > 0 && list.complete && h("div", { class: "bulk", role: "group", "aria-label": "All of these" }, h("span", null, `${isFiltered ? "All that match" : "All"} (${number(list.total)}):`),
            ctx.canChange && button("Try again", () => act("requeue", matched(), list.total, matching())),
            button("Export", save),
            ctx.canChange && button("Delete…", () => act("purge", matched(), list.total, matching()), { class: "danger quiet" }))),
        list.letters.length ? table("Dead letters", columns, list.letters, { key: (letter) => letter.id }) : empty("None matches any more"),
        pager(list.total, offset, LIMIT, (to) => { offset = to; ctx.keep({ offset: to || null }); refresh(); }),
      ];
    },
  };
}
