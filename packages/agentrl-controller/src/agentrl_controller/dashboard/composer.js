// Where an answer is written: as text, or as a call of one of the tools.

import { h, setText, uniqueId } from "./dom.js";
import { FieldError, SchemaForm } from "./schema_form.js";

const MAX_TABS = 6;

/** The form below a session that is played by hand; `send` gets the agent's message. */
export class Composer {
  constructor(send) {
    this.tabs = h("div", { class: "tabs", role: "tablist", "aria-label": "Answer by" });
    this.body = h("div", { class: "body", role: "tabpanel" });
    this.text = h("textarea", { rows: "3", "aria-label": "Message", placeholder: "Answer as the agent" });
    this.button = h("button", { type: "submit", class: "primary" }, "Send ", h("kbd", {}, "Ctrl ↵"));
    this.form = h(
      "form",
      { class: "composer panel" },
      this.tabs,
      this.body,
      h("div", { class: "buttons" }, this.button),
    );
    this.over = h("p", { class: "over panel", role: "status" });
    this.over.hidden = true;
    this.element = h("div", { class: "dock" }, this.form, this.over);
    this.known = null;
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit(send);
    });
    this.form.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey || event.target.matches("input"))) {
        event.preventDefault();
        this.form.requestSubmit();
      }
    });
  }

  /** Offer what the session's tools are now. */
  offer(tools, { isOver, reason }) {
    this.form.hidden = isOver;
    this.over.hidden = !isOver;
    setText(this.over, reason ? `The session is over: ${reason}` : "The session is over.");
    const known = JSON.stringify(tools);
    if (known === this.known) return;
    this.known = known;
    this.tools = tools.map((tool) => tool?.function).filter(Boolean);
    this.#build();
    this.#choose(this.tools.length ? 1 : 0);
  }

  #build() {
    const names = ["Message", ...this.tools.map((tool) => String(tool.name))];
    if (names.length > MAX_TABS) {
      this.select = h(
        "select",
        { "aria-label": "Answer by", onchange: () => this.#choose(Number(this.select.value)) },
        names.map((name, n) => h("option", { value: String(n) }, name)),
      );
      this.tabs.replaceChildren(this.select);
      this.tabs.removeAttribute("role");
      return;
    }
    this.tabs.replaceChildren(
      ...names.map((name, n) =>
        h(
          "button",
          {
            type: "button",
            role: "tab",
            onclick: () => {
              this.#choose(n);
              this.focus();
            },
            onkeydown: (event) => this.#step(event, n, names.length),
          },
          n ? h("code", {}, name) : name,
        ),
      ),
    );
  }

  #step(event, n, length) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const next = (n + step + length) % length;
    this.#choose(next);
    this.tabs.children[next].focus();
  }

  #choose(n) {
    this.chosen = n;
    [...this.tabs.querySelectorAll("[role=tab]")].forEach((tab, at) => {
      tab.setAttribute("aria-selected", String(at === n));
      tab.tabIndex = at === n ? 0 : -1;
    });
    if (this.select && this.tabs.contains(this.select)) this.select.value = String(n);
    const tool = this.tools[n - 1];
    this.arguments = tool ? new SchemaForm(tool.parameters) : null;
    this.body.setAttribute("aria-label", tool ? `Call ${tool.name}` : "Message");
    this.body.replaceChildren(
      ...(tool
        ? [tool.description ? h("p", { class: "soft" }, tool.description) : "", this.arguments.element]
        : [this.text]),
    );
  }

  #submit(send) {
    if (this.button.disabled) return;
    const tool = this.tools[this.chosen - 1];
    if (!tool) {
      if (this.text.value.trim() === "") this.text.focus();
      else send({ role: "assistant", content: this.text.value });
      return;
    }
    try {
      const given = JSON.stringify(this.arguments.value());
      const call = {
        id: `call_${uniqueId()}`,
        type: "function",
        function: { name: tool.name, arguments: given },
      };
      send({ role: "assistant", content: null, tool_calls: [call] });
    } catch (error) {
      if (!(error instanceof FieldError)) throw error;
    }
  }

  wait(isWaiting) {
    this.button.disabled = isWaiting;
    this.form.setAttribute("aria-busy", String(isWaiting));
    setText(this.button.firstChild, isWaiting ? "The environment works… " : "Send ");
  }

  clear() {
    this.text.value = "";
    this.#choose(this.chosen);
  }

  focus() {
    if (this.arguments?.fields.length) this.arguments.focus();
    else if (!this.arguments) this.text.focus();
    else this.button.focus();
  }
}
