// What speaks to people outside the page's flow: questions, the token, short notices.

import { h, icon } from "./dom.js";

/** Show a dialog; resolves to the value that closed it, null where it was dismissed. */
function show(content, { label }) {
  return new Promise((resolve) => {
    const dialog = h("dialog", { "aria-label": label }, content);
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.outcome ?? null);
    });
    dialog.addEventListener("click", (event) => {
      if (event.target === dialog) dialog.close();
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

function finish(node, outcome) {
  const dialog = node.closest("dialog");
  dialog.outcome = outcome;
  dialog.close();
}

/** Ask before something that cannot be undone. */
export async function confirm({ title, text, action, danger = true }) {
  const yes = h(
    "button",
    {
      type: "button",
      class: danger ? "danger solid" : "primary",
      autofocus: true,
      onclick: () => finish(yes, true),
    },
    action,
  );
  const no = h("button", { type: "button", onclick: () => finish(no, null) }, "Keep");
  return (
    (await show([h("h2", {}, title), h("p", {}, text), h("div", { class: "buttons" }, no, yes)], {
      label: title,
    })) === true
  );
}

/** Ask for the token. */
export function token(wasRefused) {
  const field = h("input", {
    type: "password",
    id: "token",
    name: "token",
    autocomplete: "off",
    spellcheck: "false",
    required: true,
    autofocus: true,
    "aria-describedby": "token-note",
  });
  const form = h(
    "form",
    {
      onsubmit: (event) => {
        event.preventDefault();
        if (field.value) finish(form, field.value);
      },
    },
    h("h2", {}, "This controller asks for a token"),
    h(
      "p",
      { id: "token-note" },
      wasRefused ? h("strong", { class: "bad" }, "That token was refused. ") : null,
      "It was given to the controller by ",
      h("code", {}, "--token"),
      " or ",
      h("code", {}, "AGENTRL_TOKEN"),
      ". This tab keeps it until it is closed.",
    ),
    h("div", { class: "field" }, h("label", { for: "token" }, "Token"), field),
    h("div", { class: "buttons" }, h("button", { type: "submit", class: "primary" }, "Unlock")),
  );
  return show(form, { label: "Token" });
}

const SHORTCUTS = [
  ["Go to overview, workers, sessions, play", ["g o", "g w", "g s", "g p"]],
  ["Search", ["/"]],
  ["Next and previous row or message", ["j", "k"]],
  ["Open, or unfold", ["Enter"]],
  ["Back, or leave a field", ["Esc"]],
  ["Next and previous page", ["n", "p"]],
  ["Let newer sessions into the list", ["r"]],
  ["Drain or resume the worker in focus", ["d"]],
  ["Cancel the session on screen", ["x"]],
  ["Unfold or fold all tool calls", ["e"]],
  ["Send, while playing", ["Ctrl Enter"]],
  ["Theme: system, light, dark", ["t"]],
  ["This list", ["?"]],
];

/** The list of shortcuts. */
export function shortcuts() {
  const rows = SHORTCUTS.map(([what, keys]) =>
    h(
      "div",
      {},
      h("dt", {}, what),
      h(
        "dd",
        {},
        keys.map((key) => h("kbd", {}, key)),
      ),
    ),
  );
  const close = h("button", { type: "button", autofocus: true, onclick: () => finish(close, null) }, "Close");
  return show(
    [
      h("h2", {}, "Keyboard shortcuts"),
      h("dl", { class: "shortcuts" }, rows),
      h("div", { class: "buttons" }, close),
    ],
    { label: "Keyboard shortcuts" },
  );
}

/** A notice that goes by itself. */
export function toast(text, { bad = false } = {}) {
  const close = h(
    "button",
    { type: "button", class: "ghost", "aria-label": "Dismiss", onclick: () => notice.remove() },
    "×",
  );
  const notice = h("div", { class: bad ? "toast bad" : "toast" }, h("span", {}, text), close);
  document.getElementById("toasts").append(notice);
  setTimeout(() => notice.remove(), bad ? 12_000 : 4_000);
}

/** Do something, and say so where it failed. Returns whether it was done. */
export async function attempt(work, done) {
  try {
    await work();
    if (done) toast(done);
    return true;
  } catch (error) {
    toast(error instanceof TypeError ? "The controller cannot be reached." : error.message, { bad: true });
    return false;
  }
}

/** A panel in place of content that is not there. */
export function empty(title, ...body) {
  return h("div", { class: "empty" }, h("h2", {}, title), ...body);
}

/** A command to copy. */
export function command(text) {
  const copy = h("button", { type: "button", class: "ghost" }, "Copy");
  copy.addEventListener("click", () => attempt(() => navigator.clipboard.writeText(text), "Copied."));
  copy.hidden = !navigator.clipboard; // Pages over plain HTTP from elsewhere have none.
  return h("div", { class: "command" }, h("code", {}, text), copy);
}

/** A link back. */
export function back(href, text) {
  return h("a", { class: "back", href }, icon("left"), text);
}
