// Asks the server. The token is sent in a header, and kept as long as this tab is open.

import { setClock } from "./format.js";

const KEPT = "redisq-token";
const SILENT = 20_000; // ms without an event after which a stream is taken for dead
const PATIENCE = 60_000; // ms for an answer to what is asked
const PAUSES = [500, 1000, 2000, 4000]; // ms between attempts to begin a stream anew

let asking = null;
let ask = () => Promise.reject(new Error("nobody to ask for the token"));

export class Failed extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

export const path = (...parts) => `/api/${parts.map(encodeURIComponent).join("/")}`;

// `askToken(again)` resolves to what a person types, null if they do not; `again`: the last one was
// wrong. Resolves to what these pages may do.
export async function begin(askToken) {
  ask = askToken;
  const response = await fetch("/api/session");
  if (!response.ok) throw new Failed(response.status, (await told(response)).error);
  return response.json();
}

const token = () => sessionStorage.getItem(KEPT) || "";

// The dashboard prints an address with its token behind #, which is sent to nobody: taken out of the
// address, and kept. Returns whether there was one.
export function takeToken() {
  const [, given] = location.hash.match(/^#token=(.+)$/) || [];
  if (!given) return false;
  sessionStorage.setItem(KEPT, given);
  history.replaceState(null, "", "#/");
  return true;
}

async function told(response) {
  try {
    return await response.json();
  } catch (error) {
    if (error.name === "TimeoutError") throw error;
    return { error: `the dashboard answered ${response.status}` };
  }
}

async function send(url, options = {}) {
  for (;;) {
    const used = token();
    const headers = { ...options.headers, ...(used && { Authorization: `Bearer ${used}` }) };
    const limit = options.within && { signal: AbortSignal.timeout(options.within) };
    const response = await fetch(url, { ...limit, ...options, headers });
    setClock(response.headers.get("Date"));
    if (response.status !== 401) return response;
    if (used !== token()) continue;
    asking ??= ask(Boolean(used)).finally(() => { asking = null; });
    const given = await asking;
    if (given) sessionStorage.setItem(KEPT, given);
  }
}

async function json(url, options) {
  try {
    const response = await send(url, options);
    const body = await told(response);
    if (!response.ok) throw new Failed(response.status, body.error);
    return body;
  } catch (error) {
    if (error.name !== "TimeoutError") throw error;
    throw new Failed(0, "The dashboard does not answer.");
  }
}

const withQuery = (url, query) => {
  const given = Object.entries(query || {}).filter(([, value]) => value !== undefined && value !== null);
  return given.length ? `${url}?${new URLSearchParams(given)}` : url;
};

export const get = (url, query) => json(withQuery(url, query), { within: PATIENCE });

export const post = (url, body) => json(url, {
  method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
});

export async function file(url, query) {
  const response = await send(withQuery(url, query));
  if (!response.ok) throw new Failed(response.status, (await told(response)).error);
  return response.blob();
}

// Server-sent events, read by fetch() because EventSource sends no header. on(event, data) for each,
// state("live" | "cut", error) when it begins, and when it breaks off: then it is begun anew. Rests
// while nobody sees the page. Returns a function that ends it.
export function stream(url, on, state) {
  let ended = false;
  let attempt = 0;
  let controller = null;
  let wake = () => {};
  const seen = () => {
    if (document.hidden) controller?.abort();
    else wake();
  };
  document.addEventListener("visibilitychange", seen);
  window.addEventListener("online", seen);

  const pause = (ms) => new Promise((resolve) => {
    wake = resolve;
    if (ms !== null) setTimeout(resolve, ms);
  });

  async function read() {
    controller = new AbortController();
    let silence = setTimeout(() => controller.abort(), SILENT);
    try {
      const response = await send(url, { signal: controller.signal });
      if (!response.ok) throw new Failed(response.status, (await told(response)).error);
      let text = "";
      const decoder = new TextDecoder();
      const reader = response.body.getReader();
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        clearTimeout(silence);
        silence = setTimeout(() => controller.abort(), SILENT);
        text += decoder.decode(value, { stream: true });
        const events = text.split("\n\n");
        text = events.pop();
        for (const event of events) {
          const [, name, data] = event.match(/^event: (.*)\ndata: (.*)$/) || [];
          if (!name || ended) continue;
          attempt = 0;
          state("live");
          on(name, JSON.parse(data));
        }
      }
    } finally {
      clearTimeout(silence);
    }
  }

  async function run() {
    while (!ended) {
      let error = null;
      try {
        await read();
      } catch (problem) {
        error = problem;
      }
      if (ended) return;
      if (document.hidden) await pause(null);
      else {
        state("cut", error);
        await pause(PAUSES[Math.min(attempt++, PAUSES.length - 1)]);
      }
    }
  }
  run();
  return () => {
    ended = true;
    controller?.abort();
    wake();
    document.removeEventListener("visibilitychange", seen);
    window.removeEventListener("online", seen);
  };
}
