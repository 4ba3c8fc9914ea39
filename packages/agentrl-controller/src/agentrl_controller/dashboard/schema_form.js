// A form for the arguments of a tool, made from its JSON schema. What has no field of its own is typed as JSON.

import { h } from "./dom.js";
import { field } from "./widgets.js";

/** An argument that cannot be sent as it stands; the field is marked. */
export class FieldError extends Error {}

export class SchemaForm {
  constructor(schema) {
    const required = new Set(schema?.required ?? []);
    this.fields = Object.entries(schema?.properties ?? {}).map(
      ([name, property]) => new Field(name, property, required.has(name)),
    );
    // Tools that take what they do not name get the rest as JSON.
    this.isOpen =
      this.fields.length === 0 &&
      schema?.additionalProperties !== false &&
      schema !== undefined &&
      Object.keys(schema).length > 0 &&
      schema.properties === undefined;
    this.whole = this.isOpen ? new Field("arguments", { type: "object" }, false) : null;
    const fields = this.whole ? [this.whole] : this.fields;
    this.element = h(
      "div",
      { class: "schema" },
      fields.length
        ? fields.map((each) => each.element)
        : h("p", { class: "soft" }, "It takes no arguments."),
    );
  }

  /** The arguments as an object. Throws FieldError. */
  value() {
    if (this.whole) return this.whole.value() ?? {};
    const pairs = this.fields.map((each) => [each.name, each.value()]);
    return Object.fromEntries(pairs.filter(([, value]) => value !== undefined));
  }

  focus() {
    (this.whole ?? this.fields[0])?.control.focus();
  }
}

/** A schema without the wrappings: an optional value is its own kind, or null. */
function unwrap(property) {
  const choices = (property?.anyOf ?? property?.oneOf ?? []).filter((choice) => choice?.type !== "null");
  if (choices.length === 1) return { ...property, ...choices[0] };
  if (Array.isArray(property?.type)) {
    const kinds = property.type.filter((kind) => kind !== "null");
    return { ...property, type: kinds.length === 1 ? kinds[0] : undefined };
  }
  return property ?? {};
}

class Field {
  constructor(name, property, isRequired) {
    this.name = name;
    this.schema = unwrap(property);
    this.isRequired = isRequired;
    this.control = this.#control();
    this.control.required = isRequired && this.kind !== "string"; // An empty text is a text.
    this.control.name = name;
    const given = this.schema.default;
    if (given !== undefined && given !== null) this.#fill(given);
    this.control.addEventListener("input", () => this.control.setCustomValidity(""));
    this.element = field(
      [h("code", {}, name), ` ${this.#kindText()}`, isRequired ? h("em", {}, "required") : null],
      this.control,
      this.schema.description,
    );
  }

  get kind() {
    if (Array.isArray(this.schema.enum)) return "enum";
    const { type } = this.schema;
    return ["string", "integer", "number", "boolean"].includes(type) ? type : "json";
  }

  #kindText() {
    if (this.kind === "json") return this.schema.type ? `${this.schema.type}, as JSON` : "JSON";
    return this.kind === "enum" ? "" : this.kind;
  }

  #control() {
    const blank = this.isRequired ? [] : [h("option", { value: "" }, "Leave out")];
    switch (this.kind) {
      case "enum":
        return h(
          "select",
          {},
          blank,
          this.schema.enum.map((value, n) =>
            h("option", { value: String(n) }, typeof value === "string" ? value : JSON.stringify(value)),
          ),
        );
      case "boolean":
        return h(
          "select",
          {},
          blank,
          h("option", { value: "true" }, "true"),
          h("option", { value: "false" }, "false"),
        );
      case "integer":
      case "number":
        return h("input", {
          type: "number",
          step: this.kind === "integer" ? "1" : "any",
          min: this.schema.minimum,
          max: this.schema.maximum,
          autocomplete: "off",
        });
      case "string":
        return h("textarea", { rows: "1", spellcheck: "false", maxlength: this.schema.maxLength });
      default:
        return h("textarea", {
          rows: "3",
          class: "mono",
          spellcheck: "false",
          placeholder: this.schema.type === "array" ? "[]" : this.schema.type === "object" ? "{}" : "null",
        });
    }
  }

  #fill(given) {
    if (this.kind === "enum") this.control.value = String(this.schema.enum.indexOf(given));
    else this.control.value = this.kind === "json" ? JSON.stringify(given) : String(given);
  }

  /** The value; undefined leaves it out. Throws FieldError. */
  value() {
    const given = this.control.value;
    this.control.setCustomValidity("");
    if (!this.control.checkValidity()) throw this.#refuse(this.control.validationMessage);
    if (given === "" && !(this.kind === "string" && this.isRequired)) return undefined;
    switch (this.kind) {
      case "enum":
        return this.schema.enum[Number(given)];
      case "boolean":
        return given === "true";
      case "integer":
      case "number":
        return Number(given);
      case "string":
        return given;
      default:
        return this.#parse(given);
    }
  }

  #parse(given) {
    try {
      return JSON.parse(given);
    } catch (error) {
      throw this.#refuse(`This is no JSON: ${error.message}`);
    }
  }

  #refuse(message) {
    this.control.setCustomValidity(message);
    this.control.reportValidity();
    return new FieldError(`${this.name}: ${message}`);
  }
}
