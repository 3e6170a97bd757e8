// The page of the API, drawn from its OpenAPI description.
import { ask, byId, make, status } from "./common.js";

const named = (reference, api) => reference.split("/").slice(1).reduce((place, key) => place[key], api);

// Two levels deep: more nobody reads in a line.
function typeOf(schema, api, depth = 0) {
  if (!schema) return "";
  if (schema.$ref) return typeOf(named(schema.$ref, api), api, depth);
  if (schema.anyOf) return schema.anyOf.map((one) => typeOf(one, api, depth)).join(" or ");
  if (schema.type === "array") return `list of ${typeOf(schema.items, api, depth)}`;
  if (schema.format === "binary") return "file";
  if (schema.type === "object" && schema.properties) {
    const parts = Object.entries(schema.properties).map(([name, one]) => (depth ? name : `${name}: ${typeOf(one, api, 1)}`));
    return `{ ${parts.join(", ")} }`;
  }
  return schema.enum ? schema.enum.join(" | ") : schema.type === "null" ? "nothing" : schema.type;
}

function example(method, path) {
  const base = `curl ${location.origin}${path}`;
  if (path === "/api/predict") return `${base} -F images=@photo.jpg`;
  const bodies = { "/api/labels": '{"file": "a.jpg", "label": "cat"}', "/api/labels/skip": '{"file": "a.jpg"}',
    "/api/labels/undo": '{"file": "a.jpg"}', "/api/training": "{}", "/api/session": '{"token": "..."}' };
  if (method === "post") return `${base} --json '${bodies[path]}'`;
  return method === "get" ? `${base}${path === "/api/images" ? "?file=a.jpg" : ""}` : `${base} -X ${method.toUpperCase()}`;
}

function call(method, path, entry, api) {
  const rows = (entry.parameters ?? []).map((one) => [one.name, typeOf(one.schema, api),
    [one.description ?? one.schema.description, one.required ? "required" : `default ${one.schema.default}`].filter(Boolean).join("; ")]);
  for (const [kind, one] of Object.entries(entry.requestBody?.content ?? {})) rows.push(["body", kind, typeOf(one.schema, api)]);
  const good = Object.entries(entry.responses).find(([code]) => code.startsWith("2"));
  const schema = good?.[1].content?.["application/json"]?.schema;
  rows.push(["answer", good?.[0] ?? "", schema ? typeOf(schema, api) : Object.keys(good?.[1].content ?? {}).join(", ")]);
  const table = make("table", {}, ...rows.map((cells) => make("tr", {}, ...cells.map((text) => make("td", { textContent: text ?? "" })))));
  const card = make("article", { className: "card call" },
    make("h2", {}, make("span", { className: "verb", textContent: method.toUpperCase() }), make("code", { textContent: path })),
    make("p", { textContent: entry.description ?? entry.summary ?? "" }), table, make("pre", { textContent: example(method, path) }));
  if (method === "get" && !entry.parameters?.some((one) => one.required)) {
    const output = make("pre", { hidden: true });
    const button = make("button", { type: "button", textContent: "Try" });
    button.addEventListener("click", async () => {
      output.hidden = false;
      output.textContent = await ask(path, { patience: 0 }).then((found) => JSON.stringify(found, null, 1), (error) => error.message);
    });
    card.append(make("p", {}), button, output);
  }
  return card;
}

await status();
const api = await ask("/api/openapi.json");
for (const [path, methods] of Object.entries(api.paths)) {
  for (const [method, entry] of Object.entries(methods)) byId("calls").append(call(method, path, entry, api));
}
