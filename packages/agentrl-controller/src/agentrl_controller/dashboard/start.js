// Before play: choose a task and a sample, and wait for a slot.

import { ApiError, post } from "./api.js";
import { command, empty, toast } from "./dialogs.js";
import { h, icon, setText } from "./dom.js";
import { count } from "./format.js";
import { field } from "./widgets.js";

export function start(page) {
  return new Start(page);
}

class Start {
  constructor(page) {
    this.page = page;
    this.title = "Play";
    this.query = { view: "overview" };
    this.keys = {};
    this.tasks = {};
    this.#build();
    this.nothing = empty(
      "No task to play",
      h("p", {}, "Serve one, and it can be played here."),
      command(`agentrl-env serve my_task.py --controller ${new URL("api", document.baseURI)}`),
    );
    const lead = "Be the agent: start a sample, read what the environment says, and answer by hand.";
    this.element = [
      h("p", { class: "lead" }, `${lead} It takes a slot like any other session.`),
      this.nothing,
      this.form,
    ];
  }

  #build() {
    const plain = { autocomplete: "off", spellcheck: "false" };
    this.task = h("select", { name: "task", required: true, onchange: () => this.#choose() });
    this.index = h("input", { name: "index", required: true, list: "samples", ...plain });
    this.samples = h("datalist", { id: "samples" });
    this.hint = h("span");
    this.seed = h("input", { name: "seed", type: "number", step: "1", placeholder: "chosen by the task" });
    this.custom = h("textarea", { class: "mono", rows: "3", placeholder: '{"question": "…"}', ...plain });
    this.go = h("button", { type: "submit", class: "primary" }, "Start");
    this.stop = h("button", { type: "button", onclick: () => this.close() }, "Stop waiting");
    this.stop.hidden = true;
    const named = { "aria-label": "Some sample", title: "Some sample" };
    const dice = h("button", { type: "button", onclick: () => this.#roll(), ...named }, icon("dice"));
    const own = "JSON that the task understands; it takes the place of the sample above.";
    this.form = h(
      "form",
      { class: "panel setup" },
      field("Task", this.task),
      field("Sample", this.index, this.hint, dice),
      this.samples,
      h(
        "details",
        { class: "fold" },
        h("summary", {}, "A seed, or a sample of your own"),
        field("Seed", this.seed),
        field("Custom sample", this.custom, own),
      ),
      h("div", { class: "buttons" }, this.stop, this.go),
    );
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#begin();
    });
  }

  render({ tasks }) {
    const names = Object.keys(tasks).sort();
    this.tasks = tasks;
    this.nothing.hidden = names.length > 0;
    this.form.hidden = names.length === 0;
    const known = [...this.task.options].map((option) => option.value);
    if (names.join("\n") === known.join("\n")) return;
    const wanted = this.task.value || this.page.params.get("task");
    this.task.replaceChildren(...names.map((name) => h("option", { value: name }, name)));
    if (names.includes(wanted)) this.task.value = wanted;
    this.#choose();
  }

  #choose() {
    const chosen = this.tasks[this.task.value];
    if (!chosen) return;
    const { examples, num_samples: number } = chosen;
    this.samples.replaceChildren(...examples.map((value) => h("option", { value: String(value) })));
    setText(this.hint, `${count(number)} samples, such as ${examples.slice(0, 3).join(", ")}`);
    const isOfAnother = this.index.dataset.task !== this.task.value;
    if (this.index.value === "" || isOfAnother) this.index.value = String(examples[0] ?? 0);
    this.index.dataset.task = this.task.value;
  }

  #roll() {
    const { examples } = this.tasks[this.task.value];
    this.index.value = String(examples[Math.floor(Math.random() * examples.length)] ?? 0);
  }

  async #begin() {
    const body = this.#body();
    if (body === null) return;
    this.waiting = new AbortController();
    this.#wait(true);
    try {
      const response = await post("start_sample", { body, signal: this.waiting.signal });
      const id = response.headers.get("session_id") ?? response.headers.get("session-id");
      await response.arrayBuffer();
      this.page.go(`#/play/${id}`);
    } catch (error) {
      const text = error instanceof ApiError ? error.message : "The controller cannot be reached.";
      if (error.name !== "AbortError") toast(text, { bad: true });
    } finally {
      this.#wait(false);
    }
  }

  #wait(isWaiting) {
    this.go.disabled = isWaiting;
    this.stop.hidden = !isWaiting;
    setText(this.go, isWaiting ? "Waiting for a slot…" : "Start");
  }

  /** What to start; null where the custom sample is no JSON, which its field then says. */
  #body() {
    const name = this.task.value;
    const seed = this.seed.value === "" ? {} : { seed: Number(this.seed.value) };
    const custom = this.custom.value.trim();
    if (custom === "") return { name, index: this.#chosenIndex(), ...seed };
    try {
      return { name, index: -1, custom_task: JSON.parse(custom), ...seed };
    } catch (error) {
      this.custom.setCustomValidity(`This is no JSON: ${error.message}`);
      this.custom.reportValidity();
      this.custom.addEventListener("input", () => this.custom.setCustomValidity(""), { once: true });
      return null;
    }
  }

  #chosenIndex() {
    const given = this.index.value.trim();
    // Samples may have names that look like numbers.
    const isName = this.tasks[this.task.value].examples.some((value) => value === given);
    return !isName && /^-?\d+$/.test(given) ? Number(given) : given;
  }

  close() {
    this.waiting?.abort();
  }
}
