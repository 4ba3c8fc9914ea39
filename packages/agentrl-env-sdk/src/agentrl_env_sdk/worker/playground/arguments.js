// A form for a tool's arguments, made from their JSON schema; what has no field of its own is typed as JSON.

import { make } from "./dom.js";

/** A field's schema without the wrapping of optional values. */
function inner(schema, root) {
  if (schema?.$ref?.startsWith("#/")) {
    const path = schema.$ref.slice(2).split("/");
    return { ...schema, ...path.reduce((found, step) => found?.[step], root) };
  }
  const choices = (schema?.anyOf ?? []).filter((choice) => choice.type !== "null");
  return choices.length === 1 ? { ...schema, ...inner(choices[0], root) } : (schema ?? {});
}

function control(name, schema, isRequired) {
  const common = { name, required: isRequired && schema.type !== "string" };
  if (schema.enum || schema.type === "boolean") {
    const values = schema.enum ?? [true, false];
    const options = values.map((value) => make("option", { value: JSON.stringify(value) }, String(value)));
    if (!isRequired) options.unshift(make("option", { value: "" }, "leave out"));
    return make("select", common, options);
  }
  if (schema.type === "integer" || schema.type === "number") {
    return make("input", { ...common, type: "number", step: schema.type === "integer" ? 1 : "any" });
  }
  return make("textarea", { ...common, rows: 1, spellcheck: "false" });
}

/** The value of a field; undefined where it is left out. Throws a SyntaxError for what is no JSON. */
function read(element, schema, isRequired) {
  const text = element.value;
  if (schema.type === "string" && !schema.enum) return text === "" && !isRequired ? undefined : text;
  return text.trim() === "" ? undefined : JSON.parse(text);
}

/** The fields of a tool: an element to show, and a function that returns the arguments. */
export function argumentsOf(parameters) {
  const required = new Set(parameters?.required ?? []);
  const fields = Object.entries(parameters?.properties ?? {}).map(([name, given]) => {
    const schema = inner(given, parameters);
    const element = control(name, schema, required.has(name));
    if (schema.default !== undefined && schema.default !== null) {
      const isText = schema.type === "string" && !schema.enum;
      element.value = isText ? schema.default : JSON.stringify(schema.default);
    }
    const kind = schema.enum ? "" : (schema.type ?? "JSON");
    const note = [kind, required.has(name) ? "" : "optional", schema.description].filter(Boolean).join(", ");
    return { name, schema, element, label: make("label", {}, make("code", {}, name), ` ${note}`, element) };
  });
  return {
    elements: fields.map((field) => field.label),
    values() {
      const found = {};
      for (const { name, schema, element } of fields) {
        const value = read(element, schema, required.has(name));
        if (value !== undefined) found[name] = value;
      }
      return found;
    },
  };
}
