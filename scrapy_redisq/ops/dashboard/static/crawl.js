// One crawl: why it goes as it goes, its figures, and charts of its past.

import * as api from "./api.js";
import { chart, columns, level, perMinute } from "./charts.js";
import { h } from "./dom.js";
import { bytes, clock, duration, now as clockNow, number, rate, share } from "./format.js";
import { button, empty, facts, figure, figures, progress, table } from "./parts.js";

const RANGES = { hour: [10, 3600], day: [120, 86400], month: [1800, 31 * 86400] };
const BAD = new Set(["corrupt", "redis_full", "redis_refuses", "redis_away", "shard_away", "sink_away", "no_workers"]);
const FINE = new Set(["working", "complete"]);
const KINDS = {
  began: "run began", completed: "run completed", release: "new release", configuration: "new configuration",
};

export default function crawl(ctx) {
  let range = RANGES[ctx.query.range] ? ctx.query.range : "hour";
  let series = null;
  let failed = null;

  const refresh = ctx.every(10, async () => {
    const asked = range;
    try {
      const found = await api.get(ctx.path("series"), { resolution: RANGES[asked][0] });
      if (asked === range) [series, failed] = [found, null];
    } catch (error) {
      failed = error;
    }
    ctx.redraw();
  });

  function choose(name) {
    range = name;
    series = null;
    ctx.keep({ range: name === "hour" ? null : name });
    refresh();
  }

  function why(told) {
    const text = told.why;
    return h("section", { class: `notice ${BAD.has(text.reason) ? "bad" : FINE.has(text.reason) ? "good" : "warn"}`, "aria-label": "Why it goes as it goes" },
      h("p", null, text.text), text.also.map((line) => h("p", { class: "also" }, line)));
  }

  function numbers(told) {
    return figures(
      h("div", { class: "figure wide" }, h("dt", null, "Done"), h("dd", null,
        h("span", { class: "value" }, share(told.finished, told.created)),
        progress("Done", told.finished, told.created),
        h("span", { class: "note" }, `${number(told.finished)} of ${number(told.created)}`))),
      figure("Pages a minute", rate(told.pages_per_minute), `${number(told.pages)} in all`),
      figure("Items a minute", rate(told.items_per_minute), `${number(told.items)} in all`),
      figure("Ends in", told.left === null ? "–" : duration(told.left), told.left === null && told.state === "running" ? "not in sight" : ""),
      figure("Queued", number(told.queued), told.delayed ? `${number(told.delayed)} delayed` : ""),
      figure("In progress", number(told.leased), `${number(told.workers.filter((w) => w.alive).length)} workers`),
      figure("Dead", number(told.dead), told.errors ? `${number(told.errors)} errors` : "", told.dead ? "bad" : ""),
      figure("URLs seen", number(told.seen), `${number(told.duplicates)} duplicates`));
  }

  function charts() {
    const span = RANGES[range][1];
    const now = clockNow() / 1000;
    const first = series.samples[0]?.at ?? now;
    const from = Math.max(now - span, Math.min(first, now - 300));
    const shown = { ...series, samples: series.samples.filter((sample) => sample.at >= from) };
    const common = { range: [from, now], marks: series.marks };
    const of = (picks) => ({ ...common, data: columns(shown, picks) });
    return h("div", { class: "charts" },
      chart({ title: "Pages a minute", lines: [{ label: "pages", colour: "blue", area: true }], ...of([perMinute("pages")]) }),
      chart({ title: "Items a minute", lines: [{ label: "items", colour: "green", area: true }], ...of([perMinute("items")]) }),
      chart({ title: "Queue", show: number, lines: [{ label: "queued", colour: "blue", area: true }, { label: "delayed", colour: "amber" }], ...of([level("queued"), level("delayed")]) }),
      chart({ title: "In progress", show: number, lines: [{ label: "requests", colour: "green", area: true }, { label: "workers", colour: "violet" }], ...of([level("leased"), level("workers")]) }),
      chart({ title: "Trouble a minute", lines: [{ label: "errors", colour: "red", area: true }, { label: "retries", colour: "amber" }], ...of([perMinute("errors"), perMinute("retried")]) }),
      range === "hour"
        ? chart({ title: "Duplicates a minute", lines: [{ label: "duplicates", colour: "violet", area: true }], ...of([perMinute("duplicates")]) })
        : chart({ title: "Redis memory", show: bytes, lines: [{ label: "used", colour: "violet", area: true }], ...of([level("memory")]) }));
  }

  function past() {
    const chooser = h("div", { class: "choice", role: "group", "aria-label": "How far back" },
      Object.keys(RANGES).map((name) => button(name[0].toUpperCase() + name.slice(1), () => choose(name), { pressed: String(name === range) })));
    return h("section", { class: "past" }, h("header", null, h("h2", null, "The last"), chooser),
      ctx.problem(failed),
      !series ? !failed && h("p", { class: "lead" }, "Looking…")
        : series.samples.length ? charts() : empty("Nothing yet", "Workers keep a sample every ten seconds: the first appear soon after a crawl starts."),
      series?.marks.length ? [h("h2", null, "What happened"), table("What happened", [
        { title: "When", class: "nowrap", cell: (mark) => clock(mark.at) },
        { title: "What", cell: (mark) => `${KINDS[mark.kind] || mark.kind}${mark.what ? ` ${mark.what}` : ""}` },
        { title: "Worker", wide: true, cell: (mark) => h("code", null, mark.worker || "–") },
      ], series.marks.slice(-12).reverse())] : null);
  }

  function details(told) {
    const filter = told.dupefilter;
    return h("section", null, h("h2", null, "This run"), facts(
      ["Run", told.run_name || told.run || "–"], ["Began", clock(told.began)], ["Spider", told.spider || "–"],
      ["Order", told.scheduling ? `${told.scheduling}, ${told.order}` : "–"],
      ["Dupefilter", filter ? `${filter.kind}${filter.backend !== filter.kind ? ` (${filter.backend})` : ""}` : "–"],
      filter?.capacity && ["Room for", `${number(filter.capacity)} URLs`],
      ["Shards", number(told.shards)],
      ...Object.entries(told.feeds).map(([key, lines]) => [`Lines in ${key}`, lines === null ? "–" : number(lines)]),
      ["Retries of dead workers", number(told.reclaimed)]));
  }

  function stats(told) {
    const title = "Scrapy's stats of all workers";
    const found = Object.entries(told.stats);
    return found.length ? h("section", null, h("h2", null, title), table(title, [
      { title: "Stat", cell: ([name]) => h("code", null, name) },
      { title: "Value", right: true, cell: ([, value]) => number(value) },
    ], found)) : null;
  }

  return {
    draw() {
      const told = ctx.told;
      if (!told) return h("p", { class: "lead" }, "Looking…");
      if (told.state === "absent") {
        return empty("This crawl is gone", "It was reset. When it begins again, it appears here.");
      }
      return [why(told), numbers(told), past(), details(told), stats(told)];
    },
  };
}
