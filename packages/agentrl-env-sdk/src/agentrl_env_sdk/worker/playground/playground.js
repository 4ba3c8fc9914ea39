// The playground: a person plays an episode of the task as its agent, over the worker's own API.

import { argumentsOf } from "./arguments.js";
import { byId, make } from "./dom.js";

const episode = { id: null, turns: 0, earned: 0, status: "", metrics: {} };
let splits = {};

class RefusedError extends Error {}

async function ask(route, body) {
  const headers = { "Content-Type": "application/json" };
  const token = byId("token").value;
  if (token) headers.Authorization = `Bearer ${token}`;
  if (episode.id !== null && body !== undefined) headers["session-id"] = episode.id;
  const options = body === undefined ? { headers } : { method: "POST", headers, body: JSON.stringify(body) };
  const response = await fetch(`/api/${route}`, options);
  const answer = await response.json();
  if (response.status === 401) byId("token-field").hidden = false;
  if (!response.ok) throw new RefusedError(answer.detail);
  return { answer, id: response.headers.get("session_id") };
}

/** Do something that asks the worker; no second thing is done meanwhile. */
async function busy(work) {
  const buttons = [...document.querySelectorAll("button")];
  buttons.forEach((button) => (button.disabled = true));
  byId("fault").textContent = "";
  try {
    await work();
  } catch (error) {
    byId("fault").textContent = error.message;
  } finally {
    buttons.forEach((button) => (button.disabled = false));
  }
}

async function look() {
  const { answer } = await ask("list_workers");
  const [[name, task]] = Object.entries(answer);
  document.title = `${name}: playground`;
  byId("task").textContent = name;
  const { current, capacity } = task.workers["0"];
  byId("load").textContent = `${current} of ${capacity} episodes are being played`;
  splits = task.splits ?? { all: task.indices };
  if (byId("split").options.length === 0) {
    byId("split").replaceChildren(
      ...Object.entries(splits).map(([split, indices]) =>
        make("option", { value: split }, `${split} (${indices.length})`),
      ),
    );
    chooseSplit();
  }
}

function chooseSplit() {
  const indices = splits[byId("split").value] ?? [];
  byId("sample").value = indices[0] ?? "";
  byId("samples").replaceChildren(
    ...indices.slice(0, 500).map((index) => make("option", { value: String(index) })),
  );
}

async function start() {
  if (byId("split").options.length === 0) await look(); // The token has just been given.
  if (episode.id !== null && episode.status === "running") await ask("cancel", {});
  episode.id = null;
  const typed = byId("sample").value;
  const known = Object.values(splits).flat();
  const other = /^\d{1,15}$/.test(typed) ? Number(typed) : typed;
  const index = known.find((each) => String(each) === typed) ?? other;
  const seed = byId("seed").value;
  const { answer, id } = await ask("start_sample", seed === "" ? { index } : { index, seed: Number(seed) });
  Object.assign(episode, { id, turns: 0, earned: 0, status: "", metrics: {} });
  byId("conversation").replaceChildren();
  byId("tools").replaceChildren();
  show(answer);
}

async function send(message) {
  showMessage(message);
  const { answer } = await ask("interact", { messages: [message] });
  episode.turns += 1;
  show(answer);
}

function show(answer) {
  episode.status = answer.status;
  episode.earned += answer.reward;
  episode.metrics = answer.metrics;
  answer.messages.forEach(showMessage);
  if (answer.reward !== 0) {
    byId("conversation").append(make("p", { class: "reward" }, `Reward ${answer.reward}`));
  }
  if (answer.tools !== null) showTools(answer.tools);
  const isOver = answer.finish;
  byId("act").hidden = isOver;
  byId("cancel").hidden = isOver;
  showState();
  byId("conversation").scrollTop = byId("conversation").scrollHeight;
  look().catch(() => {});
}

function showState() {
  const rows = {
    Session: episode.id,
    Status: episode.status,
    Turns: episode.turns,
    Return: Number(episode.earned.toPrecision(12)),
    ...episode.metrics,
  };
  byId("state").replaceChildren(
    ...Object.entries(rows).flatMap(([name, value]) => [
      make("dt", {}, name),
      make("dd", {}, typeof value === "object" ? JSON.stringify(value) : String(value)),
    ]),
  );
}

function showMessage(message) {
  const calls = (message.tool_calls ?? []).map((call) => {
    const given = call.function.arguments;
    return make("pre", {}, `${call.function.name} ${typeof given === "string" ? given : JSON.stringify(given)}`);
  });
  byId("conversation").append(
    make("article", { class: message.role }, make("h3", {}, message.role), contentOf(message.content), calls),
  );
}

function contentOf(content) {
  if (!Array.isArray(content)) return content ? [make("pre", {}, content)] : [];
  return content.map((part) => {
    const url = part.image_url?.url ?? "";
    if (url.startsWith("data:image/")) return make("img", { src: url, alt: "image of the environment" });
    return make("pre", {}, part.text ?? url ?? JSON.stringify(part));
  });
}

function showTools(tools) {
  byId("tools").replaceChildren(...tools.map((tool, n) => toolForm(tool.function, n === 0)));
}

function toolForm({ name, description, parameters }, isOpen) {
  const fields = argumentsOf(parameters);
  const call = (event) => {
    event.preventDefault();
    busy(async () => {
      const text = JSON.stringify(fields.values());
      const made = { id: `call_${episode.turns}`, type: "function", function: { name, arguments: text } };
      await send({ role: "assistant", content: "", tool_calls: [made] });
    });
  };
  const form = make("form", { onsubmit: call }, fields.elements, make("button", {}, `Call ${name}`));
  const about = make("p", { class: "soft" }, description ?? "");
  return make("details", { open: isOpen }, make("summary", {}, make("code", {}, name)), about, form);
}

function listen(id, event, work) {
  byId(id).addEventListener(event, (happened) => {
    happened.preventDefault();
    busy(work);
  });
}

byId("split").addEventListener("change", chooseSplit);
listen("start", "submit", start);
listen("say", "submit", async () => {
  await send({ role: "assistant", content: byId("text").value });
  byId("text").value = "";
});
listen("cancel", "click", async () => {
  await ask("cancel", {});
  episode.status = "cancelled";
  byId("act").hidden = byId("cancel").hidden = true;
  showState();
  await look();
});
busy(look);
