// Shows the description of the API. All text is set as text, never as markup.

const make = (tag, text, ...children) => {
  const node = document.createElement(tag);
  if (text) node.textContent = text;
  node.append(...children);
  return node;
};

const typeOf = (schema) => {
  if (!schema) return "";
  if (schema.$ref) return schema.$ref.split("/").pop();
  const parts = schema.oneOf ?? schema.anyOf ?? schema.allOf;
  if (parts) return parts.map(typeOf).join(" or ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  const type = [schema.type ?? "any"].flat().join(" or ");
  return schema.items ? `${type} of ${typeOf(schema.items)}` : type;
};

const table = (heads, rows) => {
  const head = make("tr", "", ...heads.map((text) => make("th", text)));
  const body = rows.map((row) => make("tr", "", ...row.map((text) => make("td", text))));
  return make("table", "", head, ...body);
};

const fields = (schema, schemas) => {
  const known = schema?.$ref ? schemas[schema.$ref.split("/").pop()] : schema;
  const parts = known?.oneOf?.filter((part) => part.$ref) ?? [];
  if (parts.length === 1) return fields(parts[0], schemas);
  if (!known?.properties) return make("p", typeOf(schema));
  const needed = new Set(known.required ?? []);
  return table(["field", "type", "meaning"], Object.entries(known.properties).map(([name, field]) =>
    [needed.has(name) ? name : `${name}?`, typeOf(field), field.description ?? ""]));
};

const route = (method, path, operation, schemas) => {
  const node = make("details");
  const name = make("span", method.toUpperCase());
  name.className = "method";
  node.append(make("summary", "", name, make("code", path), document.createTextNode(` ${operation.summary ?? ""}`)));
  if (operation.description) node.append(make("p", operation.description));
  if (operation.parameters?.length) {
    node.append(make("h4", "Parameters"), table(["name", "in", "type", "meaning"], operation.parameters.map((one) =>
      [one.required ? one.name : `${one.name}?`, one.in, typeOf(one.schema), one.description ?? ""])));
  }
  for (const [kind, content] of Object.entries(operation.requestBody?.content ?? {})) {
    node.append(make("h4", `Body: ${kind}`), fields(content.schema, schemas));
  }
  for (const [status, answer] of Object.entries(operation.responses ?? {})) {
    node.append(make("h4", `${status}: ${answer.description ?? ""}`));
    for (const [kind, content] of Object.entries(answer.content ?? {})) {
      node.append(make("p", kind), fields(content.schema, schemas));
    }
  }
  node.dataset.text = `${method} ${path} ${operation.summary ?? ""} ${operation.description ?? ""}`.toLowerCase();
  return node;
};

const show = (description) => {
  const main = document.getElementById("routes");
  main.replaceChildren();
  document.getElementById("about").textContent = description.info.description ?? "";
  const groups = new Map();
  for (const [path, item] of Object.entries(description.paths)) {
    for (const method of ["get", "put", "post", "delete"]) {
      const operation = item[method];
      if (!operation) continue;
      const tag = operation.tags?.[0] ?? "other";
      if (!groups.has(tag)) groups.set(tag, []);
      groups.get(tag).push(route(method, path, operation, description.components?.schemas ?? {}));
    }
  }
  for (const [tag, routes] of groups) main.append(make("section", "", make("h2", tag), ...routes));
  document.getElementById("search").addEventListener("input", (event) => {
    const wanted = event.target.value.toLowerCase();
    for (const node of main.querySelectorAll("details")) node.hidden = !node.dataset.text.includes(wanted);
  });
};

fetch("v1/openapi.json").then((answer) => answer.json()).then(show, (error) => {
  document.getElementById("routes").replaceChildren(make("p", `cannot read the description: ${error}`));
});
