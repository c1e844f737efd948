// The workers of a crawl; letting them finish, letting them go on, stopping them.

import * as api from "./api.js";
import { h } from "./dom.js";
import { ago, bytes, clock, duration, number, plural, rate } from "./format.js";
import { badge, button, empty, few, table } from "./parts.js";

const TEXTS = {
  quiet: "They finish what they hold and claim nothing more, until they are told to work.",
  work: "They claim requests again.",
  stop: "They end as by SIGTERM: what they hold is finished or given back, nothing is lost.",
};

export default function workers(ctx) {
  const before = new Map(); // id -> [time, CPU seconds, share of a core]

  function heard(told) {
    const now = performance.now() / 1000;
    for (const worker of told.workers || []) {
      if (worker.cpu_seconds === null || worker.cpu_seconds === undefined) continue;
      const [at, used, share] = before.get(worker.id) || [now, worker.cpu_seconds, null];
      if (worker.cpu_seconds > used && now > at) before.set(worker.id, [now, worker.cpu_seconds, (worker.cpu_seconds - used) / (now - at)]);
      else if (!before.has(worker.id) || now - at > 60) before.set(worker.id, [now, worker.cpu_seconds, share]);
    }
  }

  // who: the workers that are meant; all: and those that come meanwhile.
  function tell(what, who, all = false) {
    const names = who.map((worker) => `${worker.host || "?"}:${worker.pid} (${worker.id})`);
    const holds = who.reduce((sum, worker) => sum + worker.leased, 0);
    const verb = { quiet: "Quiet", work: "Let work", stop: "Stop" }[what];
    return ctx.confirm({
      title: `${verb} ${all ? "all workers" : plural(who.length, "worker")}`, text: TEXTS[what], action: verb, danger: what === "stop",
      about: [[who.length === 1 ? "Worker" : "Workers", few(names)], ["In progress", plural(holds, "request")]],
      act: () => api.post(ctx.path("workers"), { action: what, ...(all ? { all } : { ids: who.map((worker) => worker.id) }) }),
      done: (told) => `${plural(told.changed, "worker")} told to ${what === "quiet" ? "be quiet" : what}`,
    });
  }

  const stateOf = (worker) => {
    if (!worker.alive) return badge("silent");
    if (worker.told === "stop") return badge("stopping");
    if (worker.quiet) return badge("quiet");
    if (worker.told === "quiet") return badge("quiet", "going quiet");
    return badge("alive");
  };

  const columns = [
    { title: "Worker", class: "name", cell: (worker) => [h("b", null, worker.host || "?"), `:${worker.pid}`, h("span", { class: "from block" }, worker.id)] },
    { title: "State", cell: (worker) => [stateOf(worker), worker.sink ? badge("bad", `sink ${worker.sink}`) : null] },
    { title: "Holds", right: true, cell: (worker) => number(worker.leased) },
    { title: "Pages", right: true, wide: true, class: "wider", cell: (worker) => number(worker.pages) },
    { title: "Pages a minute", right: true, wide: true, cell: (worker) => rate(worker.pages_per_minute) },
    { title: "CPU", right: true, wide: true, cell: (worker) => {
      const share = before.get(worker.id)?.[2];
      return share === null || share === undefined ? duration(worker.cpu_seconds) : `${Math.round(100 * share)} %`;
    } },
    { title: "Memory", right: true, wide: true, cell: (worker) => bytes(worker.rss_bytes) },
    { title: "Heartbeat", right: true, wide: true, cell: (worker) => worker.seen_ago < 2 ? "just now" : `${duration(worker.seen_ago)} ago` },
    { title: "Release", wide: true, class: "wider", cell: (worker) => h("code", { title: `since ${clock(worker.since)}` }, worker.release || "–") },
    { title: "Since", wide: true, class: "wider nowrap", cell: (worker) => ago(worker.since) },
    ctx.canChange && { title: h("span", { class: "hidden" }, "Change"), class: "nowrap", cell: (worker) => worker.alive && [
      worker.quiet || worker.told === "quiet"
        ? button("Work", () => tell("work", [worker]), { label: `Let ${worker.id} work` })
        : button("Quiet", () => tell("quiet", [worker]), { label: `Quiet ${worker.id}` }),
      " ", button("Stop", () => tell("stop", [worker]), { class: "danger quiet", label: `Stop ${worker.id}` })] },
  ].filter(Boolean);

  return {
    heard,
    draw() {
      const told = ctx.told;
      if (!told) return h("p", { class: "lead" }, "Looking…");
      const alive = told.workers.filter((worker) => worker.alive);
      if (!told.workers.length) return empty("No worker", `“scrapy crawl${told.spider ? ` ${told.spider}` : ""}” starts one; as many as you like share this crawl.`);
      return [
        h("div", { class: "toolbar" },
          h("p", { class: "lead" }, `${plural(alive.length, "worker")} alive, ${rate(told.pages_per_minute)} pages a minute together`),
          ctx.canChange && alive.length > 0 && h("div", { class: "bulk", role: "group", "aria-label": "Change all" }, h("span", null, "All:"),
            button("Quiet", () => tell("quiet", alive, true)), button("Work", () => tell("work", alive, true)),
            button("Stop", () => tell("stop", alive, true), { class: "danger quiet" }))),
        table("Workers", columns, told.workers, { key: (worker) => worker.id }),
      ];
    },
  };
}
