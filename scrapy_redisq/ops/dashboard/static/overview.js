// All crawls of the server.

import { h } from "./dom.js";
import { ago, bytes, duration, number, plural, rate, share } from "./format.js";
import { badge, empty, facts, progress, sparkline } from "./parts.js";

export default function overview(ctx) {
  function card(crawl) {
    const done = crawl.finished;
    const alive = crawl.workers.filter((worker) => worker.alive).length;
    return h("li", { key: crawl.frontier, class: "card" },
      h("header", null,
        h("h2", null, h("a", { href: ctx.link(crawl.frontier) }, crawl.frontier)), badge(crawl.state),
        h("span", { class: "when" }, crawl.began ? `began ${ago(crawl.began)}` : "")),
      h("div", { class: "pace" },
        h("p", null, h("b", null, rate(crawl.pages_per_minute)), " pages a minute"),
        sparkline(crawl.recent)),
      h("div", { class: "done" }, progress(`Done of ${crawl.frontier}`, done, crawl.created),
        h("p", null, h("b", null, share(done, crawl.created)), ` · ${number(done)} of ${number(crawl.created)} requests`)),
      facts(
        ["Items a minute", rate(crawl.items_per_minute)],
        ["Ends in", crawl.left === null ? "–" : duration(crawl.left)],
        ["Queued", number(crawl.queued + crawl.delayed)],
        ["Dead", crawl.dead ? h("a", { class: "bad", href: ctx.link(crawl.frontier, "dead") }, number(crawl.dead)) : "0"],
        ["Workers", number(alive)],
        ["Run", crawl.run_name || crawl.run?.slice(0, 8) || "–"]),
      !["working", "complete"].includes(crawl.why.reason) && h("p", { class: "why" }, crawl.why.text));
  }

  function summary(told) {
    const used = told.servers.reduce((sum, server) => sum + (server.used || 0), 0);
    const most = told.servers.reduce((sum, server) => sum + (server.most || 0), 0);
    const running = told.crawls.filter((crawl) => crawl.state === "running").length;
    const pages = told.crawls.reduce((sum, crawl) => sum + (crawl.pages_per_minute || 0), 0);
    return h("p", { class: "lead" }, `${plural(told.crawls.length, "crawl")}, ${running} running · ${rate(pages)} pages a minute · Redis uses ${bytes(used)}`,
      most ? ` of ${bytes(most)}` : "");
  }

  return {
    draw() {
      const told = ctx.told;
      if (!told) return [h("h1", null, "Crawls"), h("p", { class: "lead" }, "Looking…")];
      return [
        h("h1", null, "Crawls"),
        summary(told),
        told.not_all && h("p", { class: "notice warn" }, `There may be others: ${told.not_all}`),
        Object.entries(told.problems).map(([name, text]) =>
          h("p", { class: "notice bad", key: `problem ${name}` }, h("b", null, `${name}: `), text)),
        told.crawls.length
          ? h("ul", { class: "cards" }, told.crawls.map(card))
          : empty("No crawl yet", "Start one with “scrapy crawl”, or push requests with “scrapy redisq push”: it appears here."),
      ];
    },
  };
}
