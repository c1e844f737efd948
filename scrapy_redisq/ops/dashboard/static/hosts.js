// The hosts of a crawl: what waits, what limits, what is wrong; ruling one, some or all that match.

import * as api from "./api.js";
import { h } from "./dom.js";
import { ago, duration, number, plural, readAgo } from "./format.js";
import { attempt, badge, button, empty, facts, few, name as named, pager, table } from "./parts.js";

const LIMIT = 50;
const STATES = [
  ["", "Any state"], ["trouble", "In trouble"], ["paused", "Paused"], ["set_aside", "Set aside"],
  ["parked", "Parked"], ["failing", "Failing"], ["limited", "Limited by a person"],
];
const LIMIT_FIELDS = [
  { name: "delay", label: "Delay in seconds", hint: "0: none" },
  { name: "concurrency", label: "Requests at a time", hint: "0: any number" },
  { name: "rate", label: "Rate", hint: "such as 30/m" },
];
const VERBS = { pause: "Pause", resume: "Resume", limit: "Limit", unlimit: "Take the limits of", drop: "Drop the requests of" };
const TEXTS = {
  pause: "Nothing of them is started until they are resumed; the crawl stays open for them.",
  resume: "They go on at once, paused, parked or set aside.",
  limit: "For all workers together, in the place of what the settings say. What is left empty stays as it is.",
  unlimit: "The settings' limits hold again.",
  drop: "Their requests that are queued or delayed are given up: they count as finished, and remain seen.",
};
const ASKED = { limit: true, drop: true }; // also of one host
const PAST = { pause: "paused", resume: "resumed", limit: "limited", unlimit: "without a limit of their own", drop: "dropped" };

const limitText = (host) => [
  host.limit_delay && `${duration(host.limit_delay)} apart`,
  host.rate && `${host.rate < 1 ? `${Number((host.rate * 60).toFixed(2))}/m` : `${Number(host.rate.toFixed(2))}/s`}`,
  host.concurrency && `${host.concurrency} at a time`,
].filter(Boolean).join(", ");

export default function hosts(ctx) {
  const asked = { q: ctx.query.q || "", state: ctx.query.state || "", sort: ctx.query.sort || "queued",
    order: ctx.query.order || "desc", offset: Number(ctx.query.offset) || 0 };
  let list = null;
  let counts = {};
  let failed = null;
  let again = null;
  const chosen = new Map(); // host -> what was queued of it when it was listed last

  const refresh = ctx.every(3, async () => {
    const match = { q: asked.q, state: asked.state };
    clearTimeout(again);
    try {
      const found = await api.get(ctx.path("hosts"), { ...asked, limit: LIMIT });
      [list, failed] = [{ ...found, match }, null];
      if (found.counts) counts = found.counts;
      for (const host of found.hosts) if (chosen.has(host.slot)) chosen.set(host.slot, host.queued);
      if (!found.complete) again = setTimeout(() => document.hidden || !ctx.isShown || refresh(), 500);
    } catch (error) {
      failed = error;
    }
    ctx.redraw();
  });

  function ask(changes) {
    Object.assign(asked, { offset: 0 }, changes);
    chosen.clear();
    ctx.keep({ ...asked, sort: asked.sort === "queued" ? null : asked.sort, order: asked.order === "desc" ? null : asked.order, offset: asked.offset || null });
    refresh();
  }

  let typing = null;
  function typed(text) {
    clearTimeout(typing);
    typing = setTimeout(() => ask({ q: text }), 250);
  }

  const sort = {
    by: asked.sort,
    get descending() { return asked.order === "desc"; },
    set(by) {
      const first = by === "slot" || by === "next_start" ? "asc" : "desc";
      const order = by !== asked.sort ? first : asked.order === "asc" ? "desc" : "asc";
      sort.by = by;
      ask({ sort: by, order });
    },
  };

  // of: target, {hosts: […]} or {match: {…}}; names, count and queued of these hosts; isOne.
  async function act(action, of) {
    const who = of.isOne ? of.names[0] : plural(of.count, "host");
    // A crawl that finds hosts has more than were counted: that keeps nobody from pausing all.
    const most = action === "drop" ? of.count : undefined;
    const does = (values) => api.post(ctx.path("hosts"), { action, most, ...of.target, ...values });
    const done = (told) => action === "drop" ? `${plural(told.dropped, "request")} of ${of.isOne ? who : plural(told.changed, "host")} dropped`
      : `${of.isOne ? who : plural(told.changed, "host")} ${PAST[action]}`;
    const told = of.isOne && !ASKED[action] ? await attempt(does, done) : await ctx.confirm({
      title: `${VERBS[action]} ${who}`, text: TEXTS[action], danger: action === "drop", done,
      about: [of.filter && ["All that match", of.filter], [of.count === 1 ? "Host" : "Hosts", few(of.names, of.count)], ["Requests", `${number(of.queued)} queued`]],
      action: action === "unlimit" ? "Take away" : action[0].toUpperCase() + action.slice(1),
      fields: action === "limit" ? LIMIT_FIELDS : [],
      // What is left empty stays as it is.
      act: (values) => does(Object.fromEntries(Object.entries(values).map(([name, value]) => [name, value.trim()]).filter(([, value]) => value))),
    });
    if (told && !of.isOne) chosen.clear();
    refresh();
  }

  function bulk() {
    if (!ctx.canChange || !list?.total) return null;
    const some = chosen.size > 0;
    if (!some && !list.complete) return null; // nobody knows yet how many "all" are
    const count = some ? chosen.size : list.total;
    const { q, state } = list.match;
    const filter = [q && `“${q}”`, state && STATES.find(([name]) => name === state)[1].toLowerCase()].filter(Boolean).join(", ");
    const of = some
      ? { target: { hosts: [...chosen.keys()] }, names: [...chosen.keys()], count, queued: [...chosen.values()].reduce((sum, queued) => sum + queued, 0) }
      // What the list shows: another may have been asked for that is not there yet, or never comes.
      : { target: { match: list.match }, names: list.hosts.map((host) => host.slot), count, queued: list.queued, filter };
    return h("div", { class: "bulk", role: "group", "aria-label": "Change several" },
      h("span", null, some ? `${plural(count, "host")} chosen:` : `${filter ? "All that match" : "All"} (${number(count)}):`),
      ["pause", "resume", "limit", "unlimit", "drop"].map((action) =>
        button({ pause: "Pause", resume: "Resume", limit: "Limit…", unlimit: "No own limit", drop: "Drop…" }[action],
          () => act(action, of), { class: action === "drop" ? "danger quiet" : "" })));
  }

  async function details(host) {
    const found = await attempt(() => api.get(ctx.path("hosts", host.slot)));
    if (!found) return;
    const one = { target: { hosts: [host.slot] }, names: [host.slot || "(none)"], count: 1, queued: found.queued, isOne: true };
    await ctx.open(host.slot, (close) => {
      const does = (action, text, danger) => button(text, () => {
        close();
        act(action, one);
      }, { class: danger ? "danger quiet" : "" });
      return [
        h("p", null, found.states.map((state) => badge(state)), !found.states.length && "Nothing special about it."),
        facts(
          ["Queued", number(found.queued)], ["In progress", number(found.leased)],
          ["Next start", found.next_start === null ? "when it is resumed" : found.next_start <= 0 ? "now" : `in ${duration(found.next_start)}`],
          found.due_for !== null && ["Due for", duration(found.due_for)],
          ["Limit", limitText(found) ? `${limitText(found)} (${found.limit_from})` : "none"],
          ["Delay", found.delay ? `${duration(found.delay)} (${found.delay_from})` : "none"],
          ["Last status", found.status ?? "–"], ["Failures in a row", number(found.failures)],
          found.parked ? ["Parked for", duration(found.parked)] : null,
          found.paused && ["Paused", ago(found.paused)], found.set_aside && ["Set aside", ago(found.set_aside)]),
        found.priorities.length ? table("What waits, by priority", [
          { title: "Priority", cell: (row) => row.priority },
          { title: "Queued", right: true, cell: (row) => number(row.queued) },
        ], found.priorities) : null,
        ctx.canChange && h("div", { class: "buttons" }, does(found.paused ? "resume" : "pause", found.paused ? "Resume" : "Pause"),
          !found.paused && (found.set_aside || found.parked) ? does("resume", "Resume") : null,
          does("limit", "Limit…"), found.ruled ? does("unlimit", "No own limit") : null, does("drop", "Drop…", true)),
      ];
    });
  }

  const columns = [
    ctx.canChange && { title: h("span", { class: "hidden" }, "Choose"), plain: true, class: "check", cell: (host) =>
      h("input", { type: "checkbox", "aria-label": `Choose ${host.slot}`, checked: chosen.has(host.slot), onchange: (event) => {
        if (event.target.checked) chosen.set(host.slot, host.queued);
        else chosen.delete(host.slot);
        ctx.redraw();
      } }) },
    { title: "Host", sort: "slot", class: "name", cell: (host) => h("button", { type: "button", class: "link", onclick: () => details(host) }, host.slot ? named(host.slot) : "(none)") },
    { title: "Queued", sort: "queued", right: true, cell: (host) => number(host.queued) },
    { title: "In progress", sort: "leased", right: true, wide: true, cell: (host) => number(host.leased) },
    { title: "Next start", sort: "next_start", right: true, wide: true, cell: (host) => host.next_start === null ? "–" : host.next_start <= 0.05 ? "now" : duration(host.next_start) },
    { title: "Last status", right: true, wide: true, cell: (host) => host.status ?? "–" },
    { title: "Failures", sort: "failures", right: true, wide: true, cell: (host) => host.failures || "–" },
    { title: "Limit", wide: true, class: "limit", cell: (host) => limitText(host) ? [limitText(host), h("span", { class: "from" }, ` ${host.limit_from}`)]
      : host.delay ? [`${duration(host.delay)} apart`, h("span", { class: "from" }, ` ${host.delay_from}`)] : "–" },
    { title: "State", cell: (host) => host.states.map((state) => badge(state)) },
  ].filter(Boolean);

  return {
    draw() {
      return [
        h("form", { class: "toolbar", role: "search", onsubmit: (event) => event.preventDefault() },
          h("label", null, h("span", null, "Host"), h("input", { type: "search", value: asked.q, placeholder: "part of its name", oninput: (event) => typed(event.target.value) })),
          h("label", null, h("span", null, "State"), h("select", { value: asked.state, onchange: (event) => ask({ state: event.target.value }) },
            STATES.map(([state, text]) => h("option", { value: state }, counts[state] ? `${text} (${number(counts[state])})` : text)))),
          bulk()),
        ctx.problem(failed),
        !list ? !failed && h("p", { class: "lead" }, "Looking…")
          : list.hosts.length
            ? [table("Hosts", columns, list.hosts, { key: (host) => host.slot, sort, selected: (host) => chosen.has(host.slot) }),
              h("p", { class: "lead" }, list.complete ? list.age > 10 && `This was ${readAgo(list.age)}.` : `Reading: ${number(list.known)} hosts so far…`),
              pager(list.total, asked.offset, LIMIT, (offset) => ask({ offset }))]
            : asked.q || asked.state ? empty("No host matches", "Another part of a name, or another state?")
              : !list.complete ? h("p", { class: "lead" }, "Looking…")
                : empty("No host has requests", "Hosts are listed while they have requests that wait or are in progress, or when a person has ruled them."),
      ];
    },
  };
}
