// What people did to a crawl, and what was finished last where a history is kept.

import * as api from "./api.js";
import { h } from "./dom.js";
import { clock, number } from "./format.js";
import { badge, empty, table } from "./parts.js";
import { crawled } from "./url.js";

export default function log(ctx) {
  let actions = null;
  let finished = [];
  let failed = null;

  ctx.every(5, async () => {
    try {
      [{ actions }, { finished }, failed] = await Promise.all([
        api.get(ctx.path("actions")), api.get(ctx.path("history"), { limit: 50 }), null]);
    } catch (error) {
      failed = error;
    }
    ctx.redraw();
  });

  const did = [
    { title: "When", class: "nowrap", cell: (action) => clock(action.at) },
    { title: "Who", wide: true, cell: (action) => action.by },
    { title: "What", cell: (action) => action.what },
    { title: "On", class: "address", cell: (action) => action.on || "–" },
    { title: "How many", right: true, cell: (action) => number(action.number) },
  ];
  const ended = [
    { title: "Request", class: "address", cell: (one) => [one.method && one.method !== "GET" ? `${one.method} ` : "", crawled(one.url || "?")] },
    { title: "Outcome", cell: (one) => badge(one.outcome || "done") },
    { title: "Status", right: true, cell: (one) => one.status || "–" },
    { title: "Items", right: true, wide: true, cell: (one) => number(one.items) },
    { title: "Attempts", right: true, wide: true, cell: (one) => number(one.attempts) },
    { title: "Ended", right: true, class: "nowrap", wide: true, cell: (one) => clock(one.ended) },
  ];

  return {
    draw() {
      if (!actions) return failed ? ctx.problem(failed) : h("p", { class: "lead" }, "Looking…");
      return [
        ctx.problem(failed),
        h("section", null, h("h2", null, "What people did"),
          actions.length ? table("What people did", did, actions.slice(0, 200))
            : empty("Nothing yet", "What is done here or by “scrapy redisq” is noted: pauses, limits, pushes, orders to workers.")),
        h("section", null, h("h2", null, "Finished last"),
          finished.length ? table("Finished last", ended, finished)
            : h("p", { class: "lead" }, "No history is kept: REDISQ_HISTORY is the number of finished requests to keep.")),
      ];
    },
  };
}
