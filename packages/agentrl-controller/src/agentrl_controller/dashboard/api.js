// Requests to the controller: the token, errors, and the stream of changes.

const TOKEN = "agentrl-token";
const QUIET_MS = 15_000;
const MAX_WAIT_MS = 15_000;

/** What the controller answered instead of what was asked for. */
export class ApiError extends Error {
  constructor(message, { status = 0, code = "" } = {}) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

let askForToken = null;
let asking = null;

/** Set who asks people for the token; it resolves to one, or to null where they would not say. */
export function onTokenNeeded(ask) {
  askForToken = ask;
}

/** Ask again for a token, since the one given is good for too little. */
export const forgetToken = () => sessionStorage.removeItem(TOKEN);

/** One dialog, however many requests were refused. */
function ask(wasRefused) {
  asking ??= askForToken(wasRefused)
    .then((token) => {
      if (token !== null) sessionStorage.setItem(TOKEN, token);
      return token;
    })
    .finally(() => {
      asking = null;
    });
  return asking;
}

/** A request; asks for the token where one is needed. Throws ApiError, or TypeError without a connection. */
export async function call(path, { method = "GET", body, headers = {}, signal } = {}) {
  const url = new URL(`api/${path}`, document.baseURI);
  while (true) {
    const token = sessionStorage.getItem(TOKEN);
    const response = await fetch(url, {
      method,
      signal,
      cache: "no-store",
      redirect: "error",
      headers: {
        ...headers,
        ...(token ? { Authorization: `Bearer ${token}` } : {}),
        ...(body === undefined ? {} : { "Content-Type": "application/json" }),
      },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
    if (response.ok) return response;
    const error = await errorOf(response);
    if (error.status !== 401) throw error;
    // Another request may have brought a good token meanwhile.
    if (token === sessionStorage.getItem(TOKEN) && (await ask(token !== null)) === null) throw error;
    signal?.throwIfAborted();
  }
}

async function errorOf(response) {
  const body = await response.json().catch(() => ({}));
  const message =
    typeof body.message === "string" ? body.message : `${response.status} ${response.statusText}`;
  return new ApiError(message, { status: response.status, code: body.code });
}

export const get = async (path, options) => (await call(path, options)).json();
export const post = (path, options) => call(path, { method: "POST", ...options });

/**
 * One view of the controller, kept up to date. The state has the view's plain values, and its tables as
 * objects of rows by id. It connects again by itself, and says how it stands.
 */
export class Feed {
  constructor({ onStatus }) {
    this.onStatus = onStatus;
    this.skewS = 0;
    this.lastAt = null;
  }

  /** Server time, in seconds. */
  now() {
    return Date.now() / 1000 + this.skewS;
  }

  /** Follow a view instead of the one before. */
  open(query, { onState, onRefused }) {
    this.close();
    this.controller = new AbortController();
    this.#run(new URLSearchParams(query), { onState, onRefused }, this.controller.signal);
  }

  close() {
    this.controller?.abort();
    this.retry = null;
  }

  async #run(query, { onState, onRefused }, signal) {
    let waitMs = 1_000;
    while (!signal.aborted) {
      try {
        const state = {};
        for await (const message of this.#messages(query, signal)) {
          if (message.error !== undefined)
            throw new ApiError(message.error, { status: 400, code: message.code });
          waitMs = 1_000;
          this.skewS = message.now - Date.now() / 1000;
          apply(state, message);
          this.onStatus({ status: "live" });
          onState(state);
        }
      } catch (error) {
        if (signal.aborted) return;
        if (error instanceof ApiError && error.status >= 400 && error.status < 500) {
          this.onStatus({ status: error.status === 401 ? "locked" : "live" });
          onRefused(error);
          return;
        }
        if (!(error instanceof ApiError || error instanceof TypeError || error.name === "AbortError"))
          console.error(error);
      }
      if (signal.aborted) return;
      this.onStatus({ status: "lost", since: this.lastAt, retryMs: waitMs });
      await this.#pause(waitMs, signal);
      waitMs = Math.min(waitMs * 2, MAX_WAIT_MS);
    }
  }

  #pause(ms, signal) {
    return new Promise((resolve) => {
      this.retry = resolve;
      setTimeout(resolve, ms);
      signal.addEventListener("abort", resolve, { once: true });
    });
  }

  async *#messages(query, signal) {
    // A connection that nothing comes through, not even a ping, is dead although nobody says so.
    const stalled = new AbortController();
    let timer;
    const alive = () => {
      clearTimeout(timer);
      timer = setTimeout(() => stalled.abort(), QUIET_MS);
      this.lastAt = Date.now() / 1000;
    };
    try {
      const response = await call(`dashboard/events?${query}`, {
        signal: AbortSignal.any([signal, stalled.signal]),
      });
      alive();
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (let part = await reader.read(); !part.done; part = await reader.read()) {
        alive();
        text += part.value;
        const blocks = text.split("\n\n");
        text = blocks.pop();
        for (const block of blocks) if (block.startsWith("data: ")) yield JSON.parse(block.slice(6));
      }
    } finally {
      clearTimeout(timer);
    }
  }
}

/** Bring a state up to date: plain values, rows that came or changed, rows that went. */
export function apply(state, { set = {}, rows = {}, gone = {} }) {
  Object.assign(state, set);
  for (const [name, table] of Object.entries(rows)) state[name] = Object.assign(state[name] ?? {}, table);
  for (const [name, keys] of Object.entries(gone)) for (const key of keys) delete state[name][key];
}
