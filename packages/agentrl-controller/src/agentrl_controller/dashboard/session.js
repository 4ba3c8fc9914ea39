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
const MORE = 300;

export function session(page) {
  return new SessionView(page);
}

class SessionView {
  constructor(page) {
    this.page = page;
    this.id = page.name;
    this.title = `Session ${this.id}`;
    this.query = this.queryOf(page.params);
    this.first = 0;
    this.numSeen = 0;
    this.isFollowing = true;
    this.conversation = new Conversation();
    this.rows = new Rows(this.conversation.element);
    this.facts = new Facts();
    this.rewards = new Rewards();
    this.#build();
    this.keys = {
      ...this.rows.bindings,
      Enter: () => unfold(this.rows.focused),
      e: () => this.conversation.toggleAll(),
      x: () => this.cancel.click(),
      Escape: () => page.go("#/sessions"),
    };
    this.onScroll = () => {
      this.isFollowing = isNearEnd();
      this.latest.hidden = this.isFollowing;
    };
    addEventListener("scroll", this.onScroll, { passive: true });
  }

  queryOf(params) {
    const first = params.get("first");
    return { view: "session", id: this.id, ...(first === null ? {} : { first }) };
  }

  #build() {
    const act = (onclick, text, style = "") => h("button", { type: "button", class: style, onclick }, text);
    this.state = badge();
    this.cancel = act(() => cancelSession(this.id), "Cancel session", "danger");
    this.note = h("p", { class: "gap" });
    this.earlier = act(() => this.page.change({ first: String(Math.max(0, this.first - MORE)) }), "");
    this.latest = act(scrollToEnd, [icon("down"), "Latest"], "pill latest");
    this.latest.hidden = true;
    this.heading = [
      back("#/sessions", "Sessions"),
      h("h1", { tabindex: "-1" }, "Session ", h("span", { class: "mono" }, this.id)),
      this.state,
      h("span", { class: "spring" }),
      this.cancel,
    ];
    this.element = h(
      "div",
      { class: "beside" },
      h("div", { class: "talk" }, this.note, this.earlier, this.conversation.element, this.latest),
      h("aside", { "aria-label": "About the session" }, this.rewards.element, this.facts.element),
    );
  }

  render(view) {
    this.first = view.first;
    setState(this.state, view.state);
    this.cancel.hidden = !view.is_live;
    this.cancel.disabled = view.state === "cancelling";
    setText(this.note, noteOf(view));
    this.note.hidden = this.note.textContent === "";
    this.earlier.hidden = view.first === 0;
    setText(this.earlier, `Show earlier: ${count(view.first)} entries are folded away`);
    this.conversation.show(view.entries);
    this.rows.refresh();
    this.facts.show(view);
    this.rewards.show(view);
    if (this.isFollowing && view.is_live && view.num_entries > this.numSeen) scrollToEnd();
    this.numSeen = view.num_entries;
  }

  close() {
    removeEventListener("scroll", this.onScroll);
  }
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

export function scrollToEnd() {
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
