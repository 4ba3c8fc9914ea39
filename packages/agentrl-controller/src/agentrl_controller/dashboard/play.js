// Play: be the agent. Start a sample, read what the environment says, answer by text or tool call.

import { ApiError, get, post } from "./api.js";
import { Composer } from "./composer.js";
import { attempt, back, command, empty, toast } from "./dialogs.js";
import { Conversation } from "./conversation.js";
import { h, icon, setText } from "./dom.js";
import { count } from "./format.js";
import { Rows } from "./keys.js";
import { Rewards } from "./rewards.js";
import { cancelSession, Facts, unfold } from "./session.js";
import { badge, field, setState } from "./widgets.js";

/** Choose a task and a sample. */
export function start(page) {
  const task = h("select", { name: "task", required: true });
  const index = h("input", {
    name: "index",
    required: true,
    list: "samples",
    autocomplete: "off",
    spellcheck: "false",
  });
  const samples = h("datalist", { id: "samples" });
  const seed = h("input", { name: "seed", type: "number", step: "1", placeholder: "chosen by the task" });
  const custom = h("textarea", {
    name: "custom",
    rows: "3",
    class: "mono",
    spellcheck: "false",
    placeholder: '{"question": "…"}',
  });
  const hint = h("span");
  const go = h("button", { type: "submit", class: "primary" }, "Start");
  const stop = h("button", { type: "button", hidden: true, onclick: () => waiting?.abort() }, "Stop waiting");
  const dice = h(
    "button",
    {
      type: "button",
      "aria-label": "Some sample",
      title: "Some sample",
      onclick: () => {
        index.value = some(tasks[task.value]);
      },
    },
    icon("dice"),
  );
  let tasks = {};
  let waiting = null;

  const form = h(
    "form",
    {
      class: "panel setup",
      onsubmit: (event) => {
        event.preventDefault();
        begin();
      },
    },
    field("Task", task),
    field("Sample", index, hint, dice),
    samples,
    h(
      "details",
      { class: "fold" },
      h("summary", {}, "A seed, or a sample of your own"),
      field("Seed", seed),
      field(
        "Custom sample",
        custom,
        "JSON that the task understands; it takes the place of the sample above.",
      ),
    ),
    h("div", { class: "buttons" }, stop, go),
  );
  const nothing = empty(
    "No task to play",
    h("p", {}, "Serve one, and it can be played here."),
    command(`agentrl-env serve my_task.py --controller ${new URL("api", document.baseURI)}`),
  );
  task.addEventListener("change", () => choose());

  function choose() {
    const chosen = tasks[task.value];
    if (!chosen) return;
    samples.replaceChildren(...chosen.examples.map((value) => h("option", { value: String(value) })));
    setText(hint, `${count(chosen.num_samples)} samples, such as ${chosen.examples.slice(0, 3).join(", ")}`);
    if (index.value === "" || index.dataset.task !== task.value)
      index.value = String(chosen.examples[0] ?? 0);
    index.dataset.task = task.value;
  }

  async function begin() {
    let body;
    try {
      body = startBody(
        { task: task.value, index: index.value.trim(), seed: seed.value, custom: custom.value.trim() },
        tasks[task.value],
      );
    } catch (error) {
      custom.setCustomValidity(`This is no JSON: ${error.message}`);
      custom.reportValidity();
      custom.addEventListener("input", () => custom.setCustomValidity(""), { once: true });
      return;
    }
    waiting = new AbortController();
    go.disabled = true;
    stop.hidden = false;
    setText(go, "Waiting for a slot…");
    try {
      const response = await post("start_sample", { body, signal: waiting.signal });
      const id = response.headers.get("session_id") ?? response.headers.get("session-id");
      await response.arrayBuffer();
      page.go(`#/play/${id}`);
    } catch (error) {
      if (error.name !== "AbortError")
        toast(error instanceof ApiError ? error.message : "The controller cannot be reached.", { bad: true });
    } finally {
      go.disabled = false;
      stop.hidden = true;
      setText(go, "Start");
    }
  }

  return {
    title: "Play",
    query: { view: "overview" },
    element: [
      h(
        "p",
        { class: "lead" },
        "Be the agent: start a sample, read what the environment says, and answer by hand. It takes a slot like any other session.",
      ),
      nothing,
      form,
    ],
    keys: {},
    render(state) {
      const names = Object.keys(state.tasks).sort();
      tasks = state.tasks;
      nothing.hidden = names.length > 0;
      form.hidden = names.length === 0;
      const known = [...task.options].map((option) => option.value);
      if (names.join("\n") === known.join("\n")) return;
      const wanted = task.value || page.params.get("task");
      task.replaceChildren(...names.map((name) => h("option", { value: name }, name)));
      if (names.includes(wanted)) task.value = wanted;
      choose();
    },
    close: () => waiting?.abort(),
  };
}

const some = (task) => String(task?.examples[Math.floor(Math.random() * task.examples.length)] ?? 0);

function startBody({ task, index, seed, custom }, known) {
  const extra = {
    ...(seed === "" ? {} : { seed: Number(seed) }),
    ...(custom === "" ? {} : { custom_task: JSON.parse(custom) }),
  };
  if (custom !== "") return { name: task, index: -1, ...extra };
  // A number means a position where all samples have names, so `7` may be either.
  const isName = known?.examples.some((value) => String(value) === index && typeof value === "string");
  return { name: task, index: !isName && /^-?\d+$/.test(index) ? Number(index) : index, ...extra };
}

/** A session played by hand. */
export function play(page) {
  const id = page.name;
  const state = badge();
  const conversation = new Conversation();
  const rows = new Rows(conversation.element);
  const rewards = new Rewards();
  const facts = new Facts();
  const composer = new Composer(send);
  const finish = h(
    "button",
    { type: "button", class: "danger", onclick: () => cancelSession(id) },
    "Give up",
  );
  const again = h("a", { class: "button primary", href: "#/play" }, "Play another");
  let view = null;
  let isNew = true;

  async function send(message) {
    composer.wait(true);
    // The same id again gets the same answer, so a lost connection plays no turn twice.
    const headers = { session_id: id, "X-Request-Id": `play-${id}-${crypto.randomUUID()}` };
    const sent = await attempt(() => interact(headers, message));
    composer.wait(false);
    if (sent) composer.clear();
    await attempt(async () => render(await get(`dashboard/sessions/${id}?first=${view?.first ?? 0}`)));
    if (sent) scrollTo({ top: document.documentElement.scrollHeight });
    composer.focus();
  }

  function render(next) {
    // An answer that was fetched may be newer than the stream's last look.
    if (view && next.num_entries < view.num_entries && next.is_live) return;
    view = next;
    setState(state, next.state);
    conversation.show(next.entries);
    rows.refresh();
    rewards.show(next);
    facts.show(next);
    composer.offer(toolsOf(next.entries), { isOver: !next.is_live, reason: next.reason });
    finish.hidden = !next.is_live;
    again.hidden = next.is_live;
    if (isNew) {
      composer.focus();
      scrollTo({ top: document.documentElement.scrollHeight });
    }
    isNew = false;
  }

  return {
    title: `Play ${id}`,
    heading: [
      back("#/play", "Play"),
      h("h1", { tabindex: "-1" }, "You are the agent"),
      state,
      h("span", { class: "spring" }),
      finish,
      again,
    ],
    query: { view: "session", id },
    element: [
      h(
        "div",
        { class: "beside" },
        h("div", { class: "talk" }, conversation.element, composer.element),
        h("aside", { "aria-label": "About the session" }, rewards.element, facts.element),
      ),
    ],
    keys: {
      ...rows.bindings,
      Enter: () => unfold(rows.focused),
      e: () => conversation.toggleAll(),
      x: () => finish.click(),
    },
    render,
  };
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

function toolsOf(entries) {
  let offered = [];
  for (const key of Object.keys(entries).sort((one, other) => one - other))
    if (entries[key].tools) offered = entries[key].tools;
  return offered;
}
