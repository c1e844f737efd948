// What became of a URL; fetching it again, forgetting it; pushing new ones.

import * as api from "./api.js";
import { h } from "./dom.js";
import { clock, duration, number, plural } from "./format.js";
import { attempt, badge, button, facts, problem } from "./parts.js";

// A link to a crawled page, which must not learn where it was clicked; other schemes are text.
export const crawled = (address) => /^https?:\/\//i.test(address)
  ? h("a", { href: address, rel: "noreferrer noopener", target: "_blank" }, address) : address;

const SAYS = {
  queued: "It waits in its host's queue.",
  delayed: "It waits for its time.",
  leased: "A worker has it.",
  dead: "It was given up.",
  done: "It was fetched.",
  seen: "It was met, and is neither waiting nor given up: most likely it was fetched.",
  unknown: "It was never met.",
};

export default function url(ctx) {
  let asked = ctx.query.url || "";
  let slot = ctx.query.slot || "";
  let found = null;
  let shown = null; // what was asked for when that was found
  let failed = null;
  let busy = false;
  let pushed = null;

  async function look() {
    if (!asked) return;
    busy = true;
    ctx.redraw();
    const wanted = { url: asked, slot: slot || undefined };
    try {
      [found, failed, shown] = [await api.get(ctx.path("url"), wanted), null, wanted];
    } catch (error) {
      [found, failed] = [null, error];
    }
    busy = false;
    ctx.redraw();
  }
  if (asked) look();

  function submitted(event) {
    event.preventDefault();
    const form = new FormData(event.target);
    [asked, slot] = [form.get("url").trim(), form.get("slot").trim()];
    ctx.keep({ url: asked, slot });
    look();
  }

  async function fetchAgain() {
    const told = await attempt(() => api.post(ctx.path("url"), { action: "fetch", ...shown }), (said) =>
      ({ waits: "It will be fetched anyway", requeued: "It is tried again", pushed: "It was pushed as a new request" })[said.how]);
    if (told) look();
  }

  async function forget() {
    const { url: address, slot: of } = shown;
    const told = await ctx.confirm({
      title: "Forget this URL", action: "Forget", text: "It counts as never seen: the next link to it is followed.",
      about: [["URL", address]], act: () => api.post(ctx.path("url"), { action: "forget", url: address, slot: of }),
      done: (said) => said.forgotten ? "Forgotten: the next link to it is followed" : "It was not known",
    });
    if (told) look();
  }

  function result() {
    const certainly = found.certain ? "" : " The filter is not quite certain: it takes a few URLs for seen that are not.";
    return h("section", { class: "result", "aria-label": "What became of it" },
      h("p", { class: "address" }, badge(found.state), " ", crawled(found.url)),
      h("p", null, SAYS[found.state] + certainly),
      facts(["Host", found.slot || "–"], ["Seen", found.seen === null ? "not known" : found.seen ? "yes" : "no"],
        found.worker && ["Worker", found.worker], found.since && ["Since", clock(found.since)],
        found.due && ["Due", `${clock(found.due)}, in ${duration(found.due_in)}`],
        found.before !== null && ["Before it in its queue", number(found.before)],
        found.priority !== null && ["Priority", found.priority],
        found.reason && ["Reason", found.reason], found.status && ["Status", found.status], found.at && ["When", clock(found.at)],
        found.items !== undefined && ["Items", number(found.items)], found.attempts !== undefined && ["Attempts", number(found.attempts)],
        found.deliveries ? ["Workers that died with it", number(found.deliveries)] : null),
      found.detail && h("pre", { tabindex: "0" }, found.detail),
      found.looked_through ? null : h("p", { class: "notice warn" }, `Not all of the host's requests were looked at (${number(found.looked_at)} were): it may be among the others.`),
      ctx.canChange && h("div", { class: "buttons" }, button("Fetch it again", fetchAgain, { class: "primary" }), button("Forget it…", forget),
        found.letter && h("a", { class: "button", href: ctx.link(ctx.name, "dead") }, "Dead letters")));
  }

  async function push(event) {
    event.preventDefault();
    const form = event.target;
    const lines = new FormData(form).get("urls").split("\n").map((line) => line.trim()).filter(Boolean);
    if (!lines.length) return;
    pushed = await attempt(() => api.post(ctx.path("push"), { requests: lines }), (told) => `${plural(told.accepted, "request")} pushed`);
    if (pushed && !pushed.errors.length) form.reset();
    ctx.redraw();
  }

  return {
    draw() {
      return [
        h("section", { class: "panel" }, h("h2", null, "What became of a URL?"),
          h("form", { class: "toolbar", onsubmit: submitted },
            h("label", { class: "grow" }, h("span", null, "URL"), h("input", { name: "url", type: "url", value: asked, required: true, placeholder: "https://…", autocomplete: "off" })),
            h("label", null, h("span", null, "Slot, if not its host"), h("input", { name: "slot", value: slot, autocomplete: "off" })),
            h("button", { type: "submit", class: "primary", disabled: busy }, busy ? "Looking…" : "Look")),
          failed && problem(failed), found && result()),
        ctx.canChange && h("section", { class: "panel" }, h("h2", null, "Push URLs"),
          h("form", { class: "stack", onsubmit: push },
            h("label", null, h("span", null, "One on each line"), h("textarea", { name: "urls", rows: "5", spellcheck: "false" })),
            h("div", { class: "buttons" }, h("button", { type: "submit", class: "primary" }, "Push"))),
          pushed && [h("p", { role: "status" }, `${plural(pushed.accepted, "new request")}, ${plural(pushed.duplicates, "duplicate")}${pushed.errors.length ? `, ${pushed.errors.length} bad` : ""}.`),
            pushed.errors.length ? h("ul", { class: "errors" }, pushed.errors.map(([n, text]) => h("li", null, `line ${n}: ${text}`))) : null]),
      ];
    },
  };
}
