// What of a crawl takes how much of Redis' memory, and how long that will do.

import * as api from "./api.js";
import { h } from "./dom.js";
import { bytes, duration, number, share } from "./format.js";
import { figure, figures, table } from "./parts.js";

const PARTS = {
  queues: "Requests that wait", leases: "Requests in progress", seen: "URLs seen", dead: "Dead letters",
  slots: "State of hosts", series: "The past", history: "History", run: "The run itself",
};

export default function memory(ctx) {
  let found = null;
  let failed = null;

  ctx.every(15, async () => {
    try {
      [found, failed] = [await api.get(ctx.path("memory")), null];
    } catch (error) {
      failed = error;
    }
    ctx.redraw();
  });

  function parts() {
    const rows = Object.entries(found.parts).sort(([, a], [, b]) => b.bytes - a.bytes);
    return table("Memory by part", [
      { title: "Part", cell: ([name]) => PARTS[name] || name },
      { title: "Memory", right: true, cell: ([, part]) => bytes(part.bytes) },
      { title: "Share", right: true, cell: ([, part]) => share(part.bytes, found.bytes) },
      { title: h("span", { class: "hidden" }, "As a bar"), class: "bar", wide: true, cell: ([name, part]) =>
        h("progress", { max: "1", value: String(found.bytes ? part.bytes / found.bytes : 0), "aria-label": PARTS[name] || name }) },
      { title: "Keys", right: true, wide: true, cell: ([, part]) => number(part.keys) },
    ], rows, { key: ([name]) => name });
  }

  return {
    draw() {
      if (!found) return failed ? ctx.problem(failed) : h("p", { class: "lead" }, "Measuring…");
      return [
        ctx.problem(failed),
        found.problem && h("p", { class: "notice warn" }, found.problem),
        figures(
          figure("This crawl", bytes(found.bytes)),
          figure("A request that waits", bytes(found.bytes_per_request)),
          figure("A URL that was seen", bytes(found.bytes_per_url)),
          figure("Redis uses", bytes(found.used_bytes), found.most_bytes ? `of ${bytes(found.most_bytes)}` : "no maxmemory"),
          figure("Grows by", found.bytes_per_hour === null ? "–" : `${bytes(found.bytes_per_hour)}/h`),
          figure("Full in", found.full_in === null ? "–" : duration(found.full_in), found.room_requests === null ? "" : `room for ${number(found.room_requests)} requests`, found.full_in !== null && found.full_in < 86400 ? "bad" : "")),
        found.parts && parts(),
      ];
    },
  };
}
