// Keyboard: shortcuts of the whole page, and of the view on screen.

const CHORD_MS = 1_200;

/** Whether a key belongs to the field in focus. */
function isTyping(target) {
  return target.isContentEditable || ["INPUT", "TEXTAREA", "SELECT"].includes(target.tagName);
}

/**
 * Listen. `common` and what `current()` gives are maps from a key, or two with a space between, to what it
 * does; the view's own come first. Keys in fields stay there, but for Escape.
 */
export function listen(common, current) {
  let first = null;
  let firstAt = 0;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (document.querySelector("dialog[open]")) return;
    if (isTyping(event.target)) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    const chord = first !== null && event.timeStamp - firstAt < CHORD_MS ? `${first} ${event.key}` : null;
    first = null;
    const bindings = { ...common, ...current() };
    const action = (chord && bindings[chord]) || bindings[event.key];
    if (action) {
      if (action(event) !== false) event.preventDefault();
    } else if (Object.keys(bindings).some((keys) => keys.startsWith(`${event.key} `))) {
      first = event.key;
      firstAt = event.timeStamp;
    }
  });
}

/** Moves the focus along the rows of a container; one of them is in the tab order. */
export class Rows {
  constructor(container, selector = "[data-row]") {
    this.container = container;
    this.selector = selector;
    container.addEventListener("focusin", (event) => {
      const row = event.target.closest(selector);
      if (row) this.#mark(row);
    });
  }

  get all() {
    return [...this.container.querySelectorAll(this.selector)];
  }

  get focused() {
    return document.activeElement?.closest(this.selector) ?? null;
  }

  /** Keep exactly one row in the tab order, after rows came or went. */
  refresh() {
    const rows = this.all;
    if (rows.length && !rows.some((row) => row.tabIndex === 0)) rows[0].tabIndex = 0;
  }

  #mark(row) {
    for (const other of this.all) other.tabIndex = other === row ? 0 : -1;
  }

  move(step) {
    const rows = this.all;
    if (!rows.length) return;
    const at = rows.indexOf(this.focused);
    const next =
      rows[at < 0 ? (step > 0 ? 0 : rows.length - 1) : Math.min(rows.length - 1, Math.max(0, at + step))];
    this.#mark(next);
    next.focus();
    next.scrollIntoView({ block: "nearest" });
  }

  get bindings() {
    const inside = (act) => () => (this.focused ? act() : false);
    return {
      j: () => this.move(1),
      k: () => this.move(-1),
      ArrowDown: inside(() => this.move(1)),
      ArrowUp: inside(() => this.move(-1)),
      Home: inside(() => this.move(-Infinity)),
      End: inside(() => this.move(Infinity)),
    };
  }
}
