// The Redis servers, as they describe themselves, and what doctor says of them.

import * as api from "./api.js";
import { h } from "./dom.js";
import { ago, bytes, clock, duration, now as clockNow, number, plural, share } from "./format.js";
import { badge, empty, facts, problem, progress, table } from "./parts.js";

const LEVELS = ["problem", "warning", "note"]; // the worst first; the rest is well

function server(one) {
  if (one.away) return h("section", { class: "panel", key: one.address }, h("h2", null, one.address, " ", badge("bad", "away")), h("p", { class: "notice bad" }, one.away));
  return h("section", { class: "panel", key: one.address },
    h("h2", null, one.address, " ", badge(one.refuses ? "bad" : "alive", one.refuses ? "takes no writes" : "up")),
    one.refuses && h("p", { class: "notice bad" }, one.refuses),
    one.most ? h("div", { class: "done" }, progress("Memory", one.used, one.most), h("p", null, `${bytes(one.used)} of ${bytes(one.most)} (${share(one.used, one.most)})`)) : null,
    facts(
      ["Version", one.valkey_version ? `Valkey ${one.valkey_version}` : one.version || "–"], ["Role", one.role === "master" ? `primary, ${one.replicas} replicas` : one.role || "–"],
      ["Memory", bytes(one.used)], ["Most so far", bytes(one.peak)], ["maxmemory", one.most ? bytes(one.most) : "none"], ["Policy", one.policy || "–"],
      ["Fragmentation", one.fragmentation ?? "–"], ["Round trip", one.latency < 0.001 ? `${Math.round(one.latency * 1e6)} µs` : duration(one.latency)],
      ["Commands a second", number(one.commands_per_second)], ["Clients", number(one.clients)],
      ["Append-only file", one.aof === null ? "–" : one.aof ? "on" : "off"], ["Last snapshot", one.last_save ? ago(one.last_save) : "–"],
      ["Changes since", number(one.changes_since_save)], ["Evicted keys", number(one.evicted)], ["Up for", duration(one.uptime)]),
    h("h3", null, "Slow runs of our scripts"),
    one.slow.length ? table("Slow runs of our scripts", [
      { title: "Script", cell: (run) => h("code", null, run.script) },
      { title: "Took", right: true, cell: (run) => duration(run.seconds) },
      { title: "Shard", wide: true, cell: (run) => h("code", null, run.key) },
      { title: "When", right: true, class: "nowrap", cell: (run) => clock(run.at) },
    ], one.slow.slice(0, 20)) : h("p", { class: "lead" }, "None in the server's slow log."));
}

const finding = (line) => h("li", null, badge(line.level), h("div", null,
  h("p", { class: "what" }, line.what), line.why && h("p", { class: "lead" }, line.why), line.set && h("p", null, "→ ", line.set)));

// The findings of each part, and what is well of it in a word.
function part(about, lines) {
  const found = LEVELS.flatMap((level) => lines.filter((line) => line.level === level));
  const fine = lines.filter((line) => line.level === "ok");
  return h("section", { key: about }, h("h3", null, about),
    found.length ? h("ul", { class: "findings" }, found.map(finding)) : null,
    fine.length ? h("details", null, h("summary", null, found.length ? `${number(fine.length)} more looked at, and well` : `All is well (${number(fine.length)} looked at)`),
      h("ul", { class: "well" }, fine.map((line) => h("li", null, line.what)))) : null);
}

function report(told) {
  const parts = new Map(told.lines.map((line) => [line.about, []]));
  told.lines.forEach((line) => parts.get(line.about).push(line));
  const bad = LEVELS.filter((level) => told.counts[level]).map((level) => plural(told.counts[level], level));
  return [
    h("p", { class: "lead", role: "status" }, bad.length ? `${bad.join(", ")}; ` : "", `${number(told.counts.ok)} well. `,
      told.frontier ? `The servers and ${told.frontier}, as of ${clock(told.at)}.` : `The servers, as of ${clock(told.at)}.`),
    [...parts].map(([about, lines]) => part(about, lines)),
  ];
}

export default function servers(ctx) {
  let crawl = "";
  let told = null;
  let failed = null;
  let isLooking = false;

  async function examine() {
    [isLooking, failed] = [true, null];
    ctx.redraw();
    try {
      told = await api.get(crawl ? api.path("crawls", crawl, "doctor") : "/api/doctor");
      told.at = clockNow() / 1000 - told.age;
    } catch (error) {
      failed = error;
    }
    isLooking = false;
    ctx.redraw();
  }

  const doctor = (crawls) => h("section", { class: "panel", key: "doctor", "aria-label": "Doctor" },
    h("h2", null, "Doctor"),
    h("p", { class: "lead" }, "Looks for what makes a crawl slow, lossy or rude: servers, rights, a crawl, settings. It changes nothing."),
    h("form", { class: "toolbar", onsubmit: (event) => {
      event.preventDefault();
      if (!isLooking) examine();
    } },
    h("label", null, h("span", null, "Crawl"), h("select", { value: crawl, onchange: (event) => { crawl = event.target.value; } },
      h("option", { value: "" }, "None"), crawls.map((one) => h("option", { value: one.frontier }, one.frontier)))),
    h("button", { type: "submit", class: "primary", disabled: isLooking }, isLooking ? "Looking…" : "Examine")),
    failed && problem(failed), told && report(told));

  return {
    draw() {
      const now = ctx.told;
      return [h("h1", null, "Redis"),
        !now ? h("p", { class: "lead" }, "Looking…") : now.servers.length ? now.servers.map(server) : empty("No server"),
        now && doctor(now.crawls)];
    },
  };
}
