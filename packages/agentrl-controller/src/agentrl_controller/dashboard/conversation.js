// A conversation: who said what, tool calls folded, rewards beside the answers that brought them.

import { h, icon, Keyed, setText } from "./dom.js";
import { bytes, clock, decimal, duration, signed } from "./format.js";

const LONG_LINES = 24;
const LONG_TEXT = 2_400;
const ROLES = { system: "System", user: "Environment", assistant: "Agent", tool: "Tool" };
const KNOWN = new Set([
  "role",
  "content",
  "tool_calls",
  "tool_call_id",
  "name",
  "reasoning",
  "reasoning_content",
]);

/** The messages of a session, appended as they come. */
export class Conversation {
  constructor() {
    this.element = h("div", { class: "conversation", role: "log", "aria-label": "Conversation" });
    this.toolNames = new Map(); // From a call's id to the name of its tool.
    this.keyed = new Keyed(this.element, { create: (entry, key) => this.#entry(entry, key) });
    this.places = new Map();
    this.start = null;
  }

  /** Show entries by number, from the first that is kept. */
  show(entries) {
    const keys = Object.keys(entries).sort((one, other) => one - other);
    this.start = keys.length ? entries[keys[0]].at : null;
    // A conversation of which the beginning was dropped begins anew, with other entries of the same numbers.
    for (const key of keys) {
      const place = `${entries[key].at} ${entries[key].kind}`;
      if (this.places.get(key) !== place) this.keyed.drop(key);
      this.places.set(key, place);
    }
    this.keyed.show(keys, entries);
  }

  get calls() {
    return [...this.element.querySelectorAll("details.call")];
  }

  /** Unfold all tool calls, or fold them where all are unfolded. */
  toggleAll() {
    const open = this.calls.some((call) => !call.open);
    for (const call of this.calls) call.open = open;
  }

  #entry(entry) {
    const messages = entry.messages ?? [];
    const parts = messages.map((message) => this.#message(message, entry));
    if (entry.tools?.length) parts.push(tools(entry.tools));
    if (entry.raw !== undefined)
      parts.push(odd(entry, "Not a message body; shown as it came", long(entry.raw, "mono")));
    if (entry.too_large_bytes) parts.push(odd(entry, `${bytes(entry.too_large_bytes)}: too large to show`));
    const ending =
      entry.finish || entry.reward || Object.keys(entry.metrics ?? {}).length ? [outcome(entry)] : [];
    return h("div", { class: `entry ${entry.kind}` }, parts, ending);
  }

  #message(message, entry) {
    const role = String(message?.role ?? "unknown");
    for (const call of list(message?.tool_calls))
      if (call?.id) this.toolNames.set(call.id, call.function?.name);
    const tool = role === "tool" ? (message.name ?? this.toolNames.get(message.tool_call_id)) : message?.name;
    const who =
      role === "tool" && tool
        ? [h("b", {}, "Tool"), h("code", {}, tool)]
        : [h("b", {}, ROLES[role] ?? role), tool ? h("code", {}, tool) : null];
    const reasoning = message?.reasoning_content ?? message?.reasoning;
    const rest = Object.fromEntries(Object.entries(message ?? {}).filter(([key]) => !KNOWN.has(key)));
    return h(
      "article",
      {
        class: `message ${ROLES[role] ? role : "other"}`,
        "data-row": true,
        tabindex: "-1",
        "aria-label": `${ROLES[role] ?? role}${tool ? `, ${tool}` : ""}`,
      },
      h("header", {}, h("i", { "aria-hidden": "true" }), who, this.#when(entry)),
      reasoning ? fold("Reasoning", long(textOf(reasoning))) : null,
      content(message?.content),
      list(message?.tool_calls).map(toolCall),
      Object.keys(rest).length ? fold("More fields", json(rest)) : null,
    );
  }

  #when(entry) {
    const since = this.start === null ? 0 : entry.at - this.start;
    return h("time", { title: clock(entry.at) }, since > 0 ? `+${duration(since)}` : clock(entry.at));
  }
}

const list = (value) => (Array.isArray(value) ? value : []);
const textOf = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2));

function odd(entry, title, ...body) {
  return h(
    "article",
    { class: "message other", "data-row": true, tabindex: "-1" },
    h(
      "header",
      {},
      h("i", { "aria-hidden": "true" }),
      h("b", {}, entry.kind),
      h("span", { class: "soft" }, title),
    ),
    body,
  );
}

function content(value) {
  if (value === null || value === undefined || value === "") return null;
  if (typeof value === "string") return text(value);
  if (Array.isArray(value)) return value.map(part);
  return json(value);
}

/** A part of a multimodal message. Pictures are named, not fetched: the page talks to its controller alone. */
function part(value) {
  if (typeof value?.text === "string") return text(value.text);
  const url = value?.image_url?.url ?? value?.image_url;
  if (typeof url === "string")
    return h("p", { class: "attachment" }, "Image ", h("code", {}, url.slice(0, 200)));
  return json(value);
}

/** Text as it is; JSON in it is set out. */
function text(value) {
  const trimmed = value.trim();
  if (/^[[{]/.test(trimmed)) {
    try {
      return long(JSON.stringify(JSON.parse(trimmed), null, 2), "mono");
    } catch {
      // Only looks like JSON.
    }
  }
  return long(value);
}

const json = (value) => long(JSON.stringify(value, null, 2), "mono");

/** A text whose tail is folded where it is long. */
function long(value, style = "") {
  const block = h("div", { class: `text ${style}` }, value);
  const lines = value.split("\n").length;
  if (lines <= LONG_LINES && value.length <= LONG_TEXT) return block;
  block.classList.add("cut");
  const label = () =>
    setText(
      more,
      block.classList.contains("cut")
        ? `Show all ${lines > LONG_LINES ? `${lines} lines` : `${value.length.toLocaleString("en-US")} characters`}`
        : "Show less",
    );
  const more = h("button", {
    type: "button",
    class: "more",
    onclick: () => {
      block.classList.toggle("cut");
      label();
    },
  });
  label();
  return [block, more];
}

function fold(title, ...body) {
  return h("details", { class: "fold" }, h("summary", {}, title), body);
}

function toolCall(call) {
  const given = call?.function?.arguments;
  const parsed = argumentsOf(given);
  const brief = parsed
    ? Object.entries(parsed).map(([key, value]) => h("span", {}, h("em", {}, key), ` ${short(value)}`))
    : [h("span", { class: "bad" }, String(given).slice(0, 80))];
  const body = parsed
    ? json(parsed)
    : [h("p", { class: "bad" }, "These arguments are no JSON object:"), long(textOf(given ?? ""), "mono")];
  return h(
    "details",
    { class: "call" },
    h(
      "summary",
      {},
      icon("tool"),
      h("code", {}, String(call?.function?.name ?? "?")),
      h("span", { class: "brief" }, brief),
    ),
    body,
    call?.id ? h("small", {}, `Call ${call.id}`) : null,
  );
}

function argumentsOf(given) {
  if (given && typeof given === "object") return given;
  try {
    const parsed = JSON.parse(given);
    return parsed && typeof parsed === "object" && !Array.isArray(parsed) ? parsed : null;
  } catch {
    return null;
  }
}

function short(value) {
  const brief = typeof value === "string" ? value : JSON.stringify(value);
  return brief.length > 60 ? `${brief.slice(0, 59)}…` : brief;
}

function tools(offered) {
  const rows = offered.map((tool) => {
    const { name, description, parameters } = tool?.function ?? {};
    return h(
      "details",
      { class: "call" },
      h(
        "summary",
        {},
        icon("tool"),
        h("code", {}, String(name ?? "?")),
        h("span", { class: "brief" }, String(description ?? "").split("\n")[0]),
      ),
      parameters ? json(parameters) : null,
    );
  });
  return h(
    "details",
    { class: "fold tools" },
    h(
      "summary",
      {},
      `${offered.length} tool${offered.length === 1 ? "" : "s"} offered: ${offered.map((tool) => tool?.function?.name ?? "?").join(", ")}`,
    ),
    rows,
  );
}

/** What an answer brought: its reward, the sum so far, metrics, the end. */
function outcome(entry) {
  const metrics = Object.entries(entry.metrics ?? {}).map(([name, value]) =>
    h(
      "span",
      { class: "metric" },
      h("em", {}, name),
      ` ${typeof value === "object" ? JSON.stringify(value) : decimal(value)}`,
    ),
  );
  const tone = entry.reward > 0 ? "good" : entry.reward < 0 ? "bad" : "quiet";
  return h(
    "p",
    { class: entry.finish ? "outcome end" : "outcome" },
    entry.reward === undefined
      ? null
      : h("span", { class: `reward ${tone}` }, `Reward ${signed(entry.reward)}`),
    entry.reward === undefined
      ? null
      : h("span", { class: "sum" }, h("em", {}, "total"), ` ${decimal(entry.total)}`),
    metrics,
    entry.finish ? h("b", {}, `The environment ended the session: ${entry.status ?? "completed"}`) : null,
  );
}
