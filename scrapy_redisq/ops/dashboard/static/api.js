// Asks the server. The token is sent in a header, and kept as long as this tab is open.

import { setClock } from "./format.js";

const KEPT = "redisq-token";
const EVERY = 2000; // ms between two questions what is new
const SILENT = 20_000; // ms for an answer to that
const PATIENCE = 60_000; // ms for an answer to what is asked

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

// Asks now and again, while somebody sees the page: on(answer), or failed(error). Returns a function
// that ends it.
export function poll(url, on, failed) {
  let ended = false;
  let isAsking = false;
  async function ask() {
    if (ended || isAsking || document.hidden) return;
    isAsking = true;
    try {
      const found = await json(url, { within: SILENT });
      if (!ended) on(found);
    } catch (error) {
      if (!ended) failed(error);
    } finally {
      isAsking = false;
    }
  }
  const timer = setInterval(ask, EVERY);
  document.addEventListener("visibilitychange", ask);
  window.addEventListener("online", ask);
  ask();
  return () => {
    ended = true;
    clearInterval(timer);
    document.removeEventListener("visibilitychange", ask);
    window.removeEventListener("online", ask);
  };
}
