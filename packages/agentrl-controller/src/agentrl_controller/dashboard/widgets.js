// Small parts that several views share.

import { h, setAttribute, setText } from "./dom.js";
import { count, date } from "./format.js";

const STATES = {
  starting: ["Starting", "info", "The worker has not answered its start yet"],
  idle: ["Idle", "quiet", "Waits for its agent"],
  busy: ["Busy", "info", "The environment works on an answer"],
  cancelling: ["Cancelling", "warn", "Its worker has been told to end it"],
  finished: ["Finished", "good", "The environment ended it"],
  cancelled: ["Cancelled", "quiet", "Ended before the environment was done"],
  lost: ["Lost", "bad", "Its worker failed it"],
};

/** The states of a session, for filters. */
export const STATE_NAMES = Object.entries(STATES)
  .slice(0, 4)
  .map(([value, [label]]) => ({ value, label }));

/** A badge that says a state by word and colour. */
export function badge() {
  return h("span", { class: "badge" }, h("i", { "aria-hidden": "true" }), h("span"));
}

export function setBadge(node, label, tone, title = "") {
  setText(node.lastChild, label);
  setAttribute(node, "class", `badge ${tone}`);
  setAttribute(node, "title", title || null);
}

export function setState(node, state) {
  const [label, tone, title] = STATES[state] ?? [state, "quiet", ""];
  setBadge(node, label, tone, title);
}

/** A bar of what is used of a whole. */
export function bar() {
  return h(
    "div",
    { class: "load", role: "meter", "aria-valuemin": "0" },
    h("div", { class: "track" }, h("div", { class: "fill" })),
    h("span"),
  );
}

export function setBar(node, used, whole, what) {
  const share = whole > 0 ? Math.min(1, used / whole) : used > 0 ? 1 : 0;
  node.querySelector(".fill").style.width = `${share * 100}%`;
  setAttribute(node, "aria-valuenow", used);
  setAttribute(node, "aria-valuemax", whole);
  setAttribute(node, "aria-label", `${used} of ${whole} ${what}`);
  setText(node.lastChild, `${count(used)} / ${count(whole)}`);
}

/** A time that ages by itself; the page's clock keeps it up to date. */
export function time() {
  return h("time", { "data-ago": "" });
}

export function setTime(node, at) {
  if (node.dataset.ago === String(at)) return;
  node.dataset.ago = at;
  node.title = date(at);
  node.dateTime = new Date(at * 1000).toISOString();
}

/** The head of a table; the last column may hold buttons. */
export function columns(names, { numbers = [], actions = true } = {}) {
  const cells = names.map((name) =>
    h("th", { scope: "col", class: numbers.includes(name) ? "number" : null }, name),
  );
  if (actions) cells.push(h("th", { scope: "col" }, h("span", { class: "hidden" }, "Actions")));
  return h("thead", {}, h("tr", {}, cells));
}

let fields = 0;

/** A field with its label, and a hint that describes it without being part of its name. */
export function field(label, control, hint, beside = null) {
  const id = `field-${(fields += 1)}`;
  control.id = id;
  if (hint) control.setAttribute("aria-describedby", `${id}-hint`);
  return h(
    "div",
    { class: "field" },
    h("label", { for: id }, label),
    beside ? h("div", { class: "joined" }, control, beside) : control,
    hint ? h("small", { id: `${id}-hint` }, hint) : null,
  );
}
