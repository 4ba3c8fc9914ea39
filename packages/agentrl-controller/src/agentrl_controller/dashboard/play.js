// Play: be the agent of one session. Read what the environment says, answer by text or tool call.

import { get, post } from "./api.js";
import { Composer } from "./composer.js";
import { attempt, back } from "./dialogs.js";
import { Conversation } from "./conversation.js";
import { h, uniqueId } from "./dom.js";
import { Rows } from "./keys.js";
import { Rewards } from "./rewards.js";
import { cancelSession, Facts, scrollToEnd, unfold } from "./session.js";
import { badge, setState } from "./widgets.js";

export function play(page) {
  return new Play(page.name);
}

class Play {
  constructor(id) {
    this.id = id;
    this.title = `Play ${id}`;
    this.query = { view: "session", id };
    this.view = null;
    this.conversation = new Conversation();
    this.rows = new Rows(this.conversation.element);
    this.composer = new Composer((message) => this.#send(message));
    this.rewards = new Rewards();
    this.facts = new Facts();
    this.#build();
    this.keys = {
      ...this.rows.bindings,
      Enter: () => unfold(this.rows.focused),
      e: () => this.conversation.toggleAll(),
      x: () => this.finish.click(),
    };
  }

  #build() {
    const giveUp = { type: "button", class: "danger", onclick: () => cancelSession(this.id) };
    this.state = badge();
    this.finish = h("button", giveUp, "Give up");
    this.again = h("a", { class: "button primary", href: "#/play" }, "Play another");
    this.heading = [
      back("#/play", "Play"),
      h("h1", { tabindex: "-1" }, "You are the agent"),
      this.state,
      h("span", { class: "spring" }),
      this.finish,
      this.again,
    ];
    const talk = h("div", { class: "talk" }, this.conversation.element, this.composer.element);
    const about = { "aria-label": "About the session" };
    this.element = h(
      "div",
      { class: "beside" },
      talk,
      h("aside", about, this.rewards.element, this.facts.element),
    );
  }

  render(next) {
    // An answer that was fetched may be newer than the stream's last look.
    if (this.view && next.num_entries < this.view.num_entries && next.is_live) return;
    const isNew = this.view === null;
    this.view = next;
    setState(this.state, next.state);
    this.conversation.show(next.entries);
    this.rows.refresh();
    this.rewards.show(next);
    this.facts.show(next);
    this.composer.offer(toolsOf(next.entries), { isOver: !next.is_live, reason: next.reason });
    this.finish.hidden = !next.is_live;
    this.again.hidden = next.is_live;
    if (!isNew) return;
    this.composer.focus();
    scrollToEnd();
  }

  async #send(message) {
    this.composer.wait(true);
    // The same id again gets the same answer, so a lost connection plays no turn twice.
    const headers = { session_id: this.id, "X-Request-Id": `play-${this.id}-${uniqueId()}` };
    const isSent = await attempt(() => interact(headers, message));
    this.composer.wait(false);
    if (isSent) this.composer.clear();
    await attempt(async () =>
      this.render(await get(`dashboard/sessions/${this.id}?first=${this.view.first}`)),
    );
    if (isSent) scrollToEnd();
    this.composer.focus();
  }
}

async function interact(headers, message) {
  const options = { headers, body: { messages: [message] } };
  try {
    return await (await post("interact", options)).json();
  } catch (error) {
    if (!(error instanceof TypeError)) throw error;
    return (await post("interact", options)).json();
  }
}

/** The tools that were offered last. */
function toolsOf(entries) {
  const keys = Object.keys(entries).sort((one, other) => other - one);
  return entries[keys.find((key) => entries[key].tools)]?.tools ?? [];
}
