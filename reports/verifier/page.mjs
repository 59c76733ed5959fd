
// ----------------------------------------------------------------------------------------- the page

const WORDS = {
  "ALL HOLD": ["good", "Signed by the keys you gave, and unchanged since"],
  "INTACT, SIGNER UNKNOWN": ["open", "Unchanged since it was signed, but by whom is not known"],
  "NOT VALID": ["bad", "This is not what was signed"],
};
const CLAIMS = {
  AGREES: ["good", "The privacy loss follows from the ledger"],
  CONTRADICTED: ["bad", "The files contradict the privacy claim"],
  NONE: ["open", "No differential privacy is claimed"],
  "NOT SEEN": ["open", "The privacy loss was not recomputed"],
};
const TOWARDS = {
  server: "the server, as it happened", server_worst_case: "the server, for a client in every round",
  third_party: "someone who sees only models",
};
const NEXT = {
  "ALL HOLD": "",
  "INTACT, SIGNER UNKNOWN": "Ask trainer and auditor for their public keys and give them above: anybody can have made the keys in this folder.",
  "NOT VALID": "Do not rely on it. Ask the person who gave it to you for the folder as it was signed.",
};

const element = (tag, text = "", of = "") => Object.assign(document.createElement(tag), { textContent: text, className: of });
const at = (id) => document.getElementById(id);
const given = {};
let dropped = null;

function table(head, rows) {
  const found = element("table"), [top, body] = [found.createTHead(), found.createTBody()];
  const line = top.insertRow();
  head.forEach((text) => line.append(Object.assign(element("th", text), { scope: "col" })));
  rows.forEach((cells) => cells.forEach((text) => body.rows[body.rows.length - 1].insertCell().append(text), body.insertRow()));
  return found;
}

function show(result) {
  const [tone, headline] = WORDS[result.outcome], [colour, claim] = CLAIMS[result.claim];
  const out = element("div"), verdict = element("section", "", "verdict");
  verdict.append(element("h2", headline, tone), element("p", result.outcome === "NOT VALID" ? NEXT[result.outcome] : `${claim}. ${NEXT[result.outcome]}`, result.outcome === "NOT VALID" ? "" : colour));
  const level = result.level ? `, level ${result.level} of 4: ${LEVELS[result.level].join(". ")}` : "";
  verdict.append(element("p", `Run ${result.run ?? "unknown"}. The auditor’s own verdict is ${result.verdict ?? "not known"}${level}`));
  out.append(verdict);
  if (result.statement && result.outcome !== "NOT VALID") verdict.append(element("blockquote", result.statement));
  if (result.views.length && result.outcome !== "NOT VALID") {
    const told = (epsilon) => (Number.isFinite(epsilon) && epsilon !== null ? printed(epsilon) : "none holds");
    const rows = result.views.map((view) => [TOWARDS[view.key] ?? view.key, told(view.claimed), told(view.costs), String(view.delta)]);
    const section = element("section");
    section.append(element("h3", "Privacy loss"), table(["against", "ε claimed", "ε recomputed here", "δ"], rows));
    out.append(section);
  }
  for (const [state, title] of [["fails", "Does not hold"], ["holds", "Holds"], ["unseen", "Not looked at here"]]) {
    const lines = result.lines.filter((line) => line.state === state);
    if (!lines.length) continue;
    const section = element("section", "", state), list = element("ul");
    lines.forEach(({ what, why }) => {
      const item = element("li", what);
      if (state === "holds" && why) item.append(element("code", why));
      list.append(item);
    });
    section.append(element("h3", `${title} (${lines.length})`), list);
    out.append(section);
  }
  at("result").replaceChildren(out);
  at("result").focus();
}

async function judge() {
  if (!dropped) return;
  at("result").replaceChildren(element("p", "Reading …"));
  try {
    show(await verify(dropped, given));
  } catch (error) {
    at("result").replaceChildren(element("p", `The folder cannot be read: ${error.message}`, "bad"));
  }
}

const asFile = (file) => ({ size: file.size, slice: async (start, end) => new Uint8Array(await file.slice(start, end).arrayBuffer()) });

function folderOf(pairs) {
  const files = new Map(), refused = [];
  for (const [name, file] of pairs) PLAIN_NAME.test(name) ? files.set(name, asFile(file)) : refused.push({ name, why: "has a name with unusual characters" });
  return new Folder(files, refused);
}

async function entriesOf(directory, prefix = "") {
  const reader = directory.createReader(), found = [];
  for (;;) {
    const some = await new Promise((done, failed) => reader.readEntries(done, failed));
    if (!some.length) return found;
    for (const entry of some) {
      if (entry.isDirectory) found.push(...(await entriesOf(entry, `${prefix}${entry.name}/`)));
      else found.push([prefix + entry.name, await new Promise((done, failed) => entry.file(done, failed))]);
    }
  }
}

function start() {
  at("folder").addEventListener("change", async ({ target }) => {
    dropped = folderOf([...target.files].map((file) => [file.webkitRelativePath.split("/").slice(1).join("/"), file]));
    await judge();
  });
  const zone = at("drop");
  zone.addEventListener("dragover", (event) => (event.preventDefault(), zone.classList.add("over")));
  zone.addEventListener("dragleave", () => zone.classList.remove("over"));
  zone.addEventListener("drop", async (event) => {
    event.preventDefault();
    zone.classList.remove("over");
    const entry = event.dataTransfer.items[0]?.webkitGetAsEntry();
    if (!entry?.isDirectory) return at("result").replaceChildren(element("p", "Drop the run’s folder, not a file of it.", "bad"));
    dropped = folderOf(await entriesOf(entry));
    await judge();
  });
  for (const role of ["trainer", "auditor"])
    at(role).addEventListener("change", async ({ target }) => {
      try {
        given[role] = await target.files[0].text();
        at(`${role}-is`).textContent = (await readKey(given[role])).fingerprint;
      } catch (error) {
        delete given[role];
        at(`${role}-is`).textContent = `This file ${error instanceof Refused ? error.message : "cannot be read"}.`;
      }
      await judge();
    });
}

if (typeof document !== "undefined") start();
