// The worker's API, read from its own description, with a form to try each route.

import { byId, make } from "./dom.js";

let components = {};

/** A schema as a text that people read. */
function words(schema, depth = 0) {
  if (!schema || Object.keys(schema).length === 0) return "anything";
  if (schema.$ref) {
    const name = schema.$ref.split("/").pop();
    return depth > 1 ? name : words(components[name], depth);
  }
  if (schema.anyOf) return schema.anyOf.map((choice) => words(choice, depth + 1)).join(" | ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.type === "array") return `[${words(schema.items, depth + 1)}, ...]`;
  if (schema.properties) return fieldsOf(schema, depth);
  return schema.title === undefined || schema.type ? schema.type : "anything";
}

function fieldsOf(schema, depth) {
  const required = new Set(schema.required ?? []);
  const indent = "  ".repeat(depth + 1);
  const lines = Object.entries(schema.properties).map(
    ([name, field]) => `${indent}${name}${required.has(name) ? "" : "?"}: ${words(field, depth + 1)}`,
  );
  return `{\n${lines.join("\n")}\n${"  ".repeat(depth)}}`;
}

function jsonOf(content) {
  return content?.content?.["application/json"]?.schema;
}

async function attempt(event, method, path, output) {
  event.preventDefault();
  const headers = {};
  let query = "";
  let body;
  for (const field of event.target.elements) {
    if (!field.name || field.value === "") continue;
    if (field.dataset.in === "header") headers[field.name] = field.value;
    else if (field.dataset.in === "query") query += `&${field.name}=${encodeURIComponent(field.value)}`;
    else body = field.value;
  }
  if (byId("token").value) headers.Authorization = `Bearer ${byId("token").value}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const response = await fetch(path + query.replace("&", "?"), { method, headers, body });
  const named = response.headers.get("session_id");
  const text = await response.text();
  output.textContent = `HTTP ${response.status}${named ? `, session_id: ${named}` : ""}\n${text}`;
}

function routeElement(path, method, route) {
  const output = make("pre", { "aria-live": "polite" });
  const body = jsonOf(route.requestBody);
  const parameters = (route.parameters ?? []).map((parameter) =>
    make(
      "label",
      {},
      make("code", {}, parameter.name),
      ` ${[parameter.in, parameter.description].filter(Boolean).join(": ")}`,
      make("input", { name: parameter.name, "data-in": parameter.in, autocomplete: "off" }),
    ),
  );
  const field = body
    ? make("label", {}, "Body", make("textarea", { name: "body", rows: 3, spellcheck: "false" }, "{}"))
    : null;
  const answers = jsonOf(route.responses?.["200"]);
  return make(
    "details",
    {},
    make("summary", {}, make("code", {}, `${method.toUpperCase()} ${path}`), ` ${route.description ?? ""}`),
    body ? [make("h3", {}, "Takes"), make("pre", {}, words(body))] : [],
    answers ? [make("h3", {}, "Answers"), make("pre", {}, words(answers))] : [],
    make(
      "form",
      { onsubmit: (event) => attempt(event, method.toUpperCase(), path, output) },
      parameters,
      field,
      make("button", {}, "Try it"),
    ),
    output,
  );
}

const description = await (await fetch("/openapi.json")).json();
components = description.components?.schemas ?? {};
byId("title").textContent = description.info.title;
document.title = description.info.title;
byId("routes").replaceChildren(
  ...Object.entries(description.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, route]) => routeElement(path, method, route)),
  ),
);
