// One session: its conversation as it grows, its rewards, its facts; cancel.

import { post } from "./api.js";
import { attempt, back, confirm } from "./dialogs.js";
import { Conversation } from "./conversation.js";
import { h, icon, setAttribute, setText } from "./dom.js";
import { count, date, decimal, long } from "./format.js";
import { Rows } from "./keys.js";
import { Rewards } from "./rewards.js";
import { badge, setState, setTime, time } from "./widgets.js";

const NEAR_END = 80;

export function session(page) {
  const id = page.name;
  const state = badge();
  const cancel = h(
    "button",
    { type: "button", class: "danger", onclick: () => cancelSession(id) },
    "Cancel session",
  );
  const conversation = new Conversation();
  const facts = new Facts();
  const rewards = new Rewards();
  const rows = new Rows(conversation.element);
  const note = h("p", { class: "gap" });
  const earlier = h("button", {
    type: "button",
    onclick: () => page.change({ first: String(Math.max(0, first - 300)) }),
  });
  const latest = h(
    "button",
    { type: "button", class: "pill latest", onclick: () => scrollToEnd() },
    icon("down"),
    "Latest",
  );
  latest.hidden = true;
  let first = 0;
  let isFollowing = true;
  const onScroll = () => {
    isFollowing = isNearEnd();
    latest.hidden = isFollowing;
  };
  addEventListener("scroll", onScroll, { passive: true });
  return {
    title: `Session ${id}`,
    heading: [
      back("#/sessions", "Sessions"),
      h("h1", { tabindex: "-1" }, "Session ", h("span", { class: "mono" }, id)),
      state,
      h("span", { class: "spring" }),
      cancel,
    ],
    query: queryOf(id, page.params),
    queryOf: (params) => queryOf(id, params),
    element: [
      h(
        "div",
        { class: "beside" },
        h("div", { class: "talk" }, note, earlier, conversation.element, latest),
        h("aside", { "aria-label": "About the session" }, rewards.element, facts.element),
      ),
    ],
    keys: {
      ...rows.bindings,
      Enter: () => unfold(rows.focused),
      e: () => conversation.toggleAll(),
      x: () => cancel.click(),
      Escape: () => page.go("#/sessions"),
    },
    render(view) {
      first = view.first;
      setState(state, view.state);
      cancel.hidden = !view.is_live;
      cancel.disabled = view.state === "cancelling";
      setText(note, noteOf(view));
      note.hidden = note.textContent === "";
      earlier.hidden = first === 0;
      setText(earlier, `Show earlier: ${count(first)} entries are folded away`);
      conversation.show(view.entries);
      rows.refresh();
      facts.show(view);
      rewards.show(view);
      if (isFollowing && view.is_live && view.num_entries > 3) scrollToEnd();
    },
    close: () => removeEventListener("scroll", onScroll),
  };
}

function queryOf(id, params) {
  const first = params.get("first");
  return { view: "session", id, ...(first === null ? {} : { first }) };
}

function noteOf(view) {
  if (view.num_entries === 0)
    return view.num_exchanges ? "What was said is no longer kept." : "Nothing has been said yet.";
  return view.is_whole ? "" : "The beginning is no longer kept.";
}

function isNearEnd() {
  const page = document.documentElement;
  return page.scrollHeight - page.scrollTop - page.clientHeight < NEAR_END;
}

function scrollToEnd() {
  scrollTo({ top: document.documentElement.scrollHeight });
}

/** Unfold what a message holds; left to the browser where something inside it has the focus. */
export function unfold(message) {
  if (message === null || message !== document.activeElement) return false;
  const folds = [...message.querySelectorAll("details")];
  const open = folds.some((fold) => !fold.open);
  for (const fold of folds) fold.open = open;
  return undefined;
}

export async function cancelSession(id) {
  const yes = await confirm({
    title: "Cancel this session?",
    text: "Its agent is told at once, and its slot comes free. What it has earned so far is not scored.",
    action: "Cancel session",
  });
  return yes && attempt(() => post("cancel", { headers: { session_id: id } }), "The session is cancelled.");
}

/** What is known of a session beside its conversation. */
export class Facts {
  constructor() {
    this.used = time();
    this.values = {};
    this.element = h("dl", { class: "facts panel" });
    for (const [key, label] of [
      ["task", "Task"],
      ["index", "Sample"],
      ["worker", "Worker"],
      ["client", "Client"],
      ["turns", "Turns"],
      ["started", "Started"],
      ["age", "Lasted"],
      ["used", "Last used"],
      ["custom", "Custom sample"],
      ["reason", "Reason"],
    ]) {
      const value = h("dd", {}, key === "used" ? this.used : null);
      this.values[key] = value;
      this.element.append(h("div", {}, h("dt", {}, label), value));
    }
  }

  show(view) {
    const end = view.is_live ? null : view.last_used;
    setTime(this.used, view.last_used);
    this.#put("task", view.task);
    this.#put("index", view.index);
    this.#put("worker", `${view.worker} at ${view.worker_address}`);
    this.#put("client", view.client);
    this.#put("turns", count(view.num_exchanges));
    this.#put("started", date(view.started));
    this.#put("age", end === null ? null : long(end - view.started));
    this.#put("custom", view.custom_task);
    this.#put("reason", view.reason);
  }

  #put(key, value) {
    const isThere = value !== null && value !== undefined && value !== "";
    setAttribute(this.values[key].parentNode, "hidden", !isThere);
    if (isThere) setText(this.values[key], typeof value === "number" ? decimal(value) : value);
  }
}
