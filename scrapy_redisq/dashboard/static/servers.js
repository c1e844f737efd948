// The Redis servers, as they describe themselves.

import { h } from "./dom.js";
import { ago, bytes, clock, duration, number, share } from "./format.js";
import { badge, empty, facts, progress, table } from "./parts.js";

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

export default function servers(ctx) {
  return {
    draw() {
      const told = ctx.told;
      return [h("h1", null, "Redis"),
        !told ? h("p", { class: "lead" }, "Looking…") : told.servers.length ? told.servers.map(server) : empty("No server")];
    },
  };
}
