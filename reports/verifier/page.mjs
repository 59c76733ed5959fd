
// ----------------------------------------------------------------------------------------- the page

const WORDS = {
  "ALL HOLD": ["good", said`Signed by the keys you gave, and unchanged since`],
  "INTACT, SIGNER UNKNOWN": ["open", said`Unchanged since it was signed, but by whom is not known`],
  "NOT VALID": ["bad", said`This is not what was signed`],
};
const CLAIMS = {
  AGREES: ["good", said`The privacy loss follows from the ledger.`],
  CONTRADICTED: ["bad", said`The files contradict the privacy claim.`],
  NONE: ["open", said`No differential privacy is claimed.`],
  "NOT SEEN": ["open", said`The privacy loss was not recomputed.`],
};
const TOWARDS = {
  server: said`the server, as it happened`, server_worst_case: said`the server, for a client in every round`,
  third_party: said`someone who sees only models`, gate: said`everyone who sees what left the site`,
};
const NEXT = {
  "ALL HOLD": "",
  "INTACT, SIGNER UNKNOWN": said`Ask trainer and auditor for their public keys and give them above: anybody can have made the keys in this folder.`,
  "NOT VALID": said`Do not rely on it. Ask the person who gave it to you for the folder as it was signed.`,
};
const NEXT_OF_GATE = said`Ask the site’s operator for the gate’s public key and give it above: anybody can have made the key in this folder.`;
const STATES = { fails: said`Does not hold`, holds: said`Holds`, unseen: said`Not looked at here` };

// Decimal point and mark of thousands.
const WRITING = { en: [".", ","], de: [",", "."], fr: [",", "\u202f"] };
let language = navigator.languages.map((one) => one.toLowerCase().split("-")[0]).find((one) => Object.hasOwn(WRITING, one)) ?? "en";

/** A sentence in the chosen language. TEXTS is texts.json: each by its English, with {1}, {2}, … for its values. */
function spoken(sentence) {
  if (!(sentence instanceof Said)) return sentence;
  const { parts, values } = sentence, key = parts.reduce((text, part, i) => `${text}{${i}}${part}`);
  if (/^-?\d[\d.,e+-]*$/.test(key)) return key.replace(/[.,]/g, (mark) => WRITING[language][mark === "." ? 0 : 1]);
  return (TEXTS[key]?.[language] ?? key).replace(/\{(\d)\}/g, (_, place) => spoken(values[place - 1]));
}

const at = (id) => document.getElementById(id);
const element = (tag, text = "", of = "") => Object.assign(document.createElement(tag), { textContent: spoken(text), className: of });
const given = {}, standing = new Map();
let dropped = null, drawn = () => {};

/** Say something at an element; said again when another language is chosen. */
function tell(node, sentence) {
  standing.set(node, sentence);
  node.textContent = spoken(sentence);
}

/** Put something into the result; made again when another language is chosen. */
function draw(make) {
  drawn = () => at("result").replaceChildren(make());
  drawn();
}

function speak(chosen) {
  language = chosen;
  document.documentElement.lang = at("language").value = language;
  standing.forEach((sentence, node) => tell(node, sentence));
  drawn();
}

function table(head, rows) {
  const found = element("table"), [top, body] = [found.createTHead(), found.createTBody()];
  const line = top.insertRow();
  head.forEach((text) => line.append(Object.assign(element("th", text), { scope: "col" })));
  rows.forEach((cells) => cells.forEach((text) => body.rows[body.rows.length - 1].insertCell().append(spoken(text)), body.insertRow()));
  return found;
}

function show(result) {
  const [tone, headline] = WORDS[result.outcome], [colour, claim] = CLAIMS[result.claim], broken = result.outcome === "NOT VALID";
  const out = element("div"), verdict = element("section", "", "verdict"), next = result.unknown?.includes("gate") && !broken ? NEXT_OF_GATE : NEXT[result.outcome];
  if (result.unprotected) verdict.append(element("h2", UNPROTECTED.get(result.unprotected), "bad"), element("p", WHY));
  verdict.append(element("h2", headline, tone), element("p", broken ? next : `${spoken(claim)} ${spoken(next)}`, broken ? "" : colour));
  const run = result.run ?? said`unknown`, word = VERDICTS.get(result.verdict) ?? result.verdict ?? said`not known`, [name, meaning] = LEVELS[result.level] ?? [];
  if (result.signers.gate) verdict.append(element("p", said`The ledger of a gate at a site’s door.`), element("code", result.signers.gate));
  else verdict.append(element("p", name ? said`Run ${run}. The auditor’s own verdict is ${word}, level ${result.level} of 4 (${name}). ${meaning}` : said`Run ${run}. The auditor’s own verdict is ${word}.`));
  out.append(verdict);
  if (result.statement && !broken) {
    // What was signed is quoted, in the language that it was signed in.
    verdict.append(element("p", said`The claim as it was signed:`), Object.assign(element("blockquote", result.statement), { lang: "en" }));
  }
  if (result.views.length && !broken) {
    const told = (epsilon) => (Number.isFinite(epsilon) && epsilon !== null ? figure(printed(epsilon)) : said`none holds`);
    const rows = result.views.map((view) => [TOWARDS[view.key] ?? view.key, told(view.claimed), told(view.costs), figure(String(view.delta))]);
    const section = element("section");
    section.append(element("h3", said`Privacy loss`), table([said`against`, said`ε claimed`, said`ε recomputed here`, "δ"], rows));
    out.append(section);
  }
  for (const [state, title] of Object.entries(STATES)) {
    const lines = result.lines.filter((line) => line.state === state);
    if (!lines.length) continue;
    const section = element("section", "", state), list = element("ul");
    lines.forEach(({ what, why }) => {
      const item = element("li", what);
      if (state === "holds" && why) item.append(element("code", why));
      list.append(item);
    });
    section.append(element("h3", said`${title} (${lines.length})`), list);
    out.append(section);
  }
  return out;
}

async function judge() {
  if (!dropped) return;
  draw(() => element("p", said`Reading …`));
  try {
    const result = await verify(dropped, given);
    draw(() => show(result));
    at("result").focus();
  } catch (error) {
    draw(() => element("p", said`The folder cannot be read: ${error.message}`, "bad"));
  }
}

const asFile = (file) => ({ size: file.size, slice: async (start, end) => new Uint8Array(await file.slice(start, end).arrayBuffer()) });

function folderOf(pairs) {
  const files = new Map(), refused = [], folders = pairs.filter(([, file]) => !file).map(([name]) => name);
  for (const [name, file] of pairs.filter(([, file]) => file)) PLAIN_NAME.test(name) ? files.set(name, asFile(file)) : refused.push({ name, why: said`has a name with unusual characters` });
  return new Folder(files, refused, folders);
}

/** Names of files, each with the file, and of the folders directly in the one dropped, each with null. */
async function entriesOf(directory, prefix = "") {
  const reader = directory.createReader(), found = [];
  for (;;) {
    const some = await new Promise((done, failed) => reader.readEntries(done, failed));
    if (!some.length) return found;
    for (const entry of some) {
      if (entry.isDirectory && !prefix) found.push([entry.name, null]);
      if (entry.isDirectory) for (const one of await entriesOf(entry, `${prefix}${entry.name}/`)) found.push(one);
      else found.push([prefix + entry.name, await new Promise((done, failed) => entry.file(done, failed))]);
    }
  }
}

function start() {
  for (const node of document.querySelectorAll("[data-said]")) standing.set(node, new Said([node.textContent.trim().replace(/\s+/g, " ")], []));
  speak(language);
  at("language").addEventListener("change", ({ target }) => speak(target.value));
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
    if (!entry?.isDirectory) return draw(() => element("p", said`Drop the run’s folder, not a file of it.`, "bad"));
    dropped = folderOf(await entriesOf(entry));
    await judge();
  });
  for (const role of ["trainer", "auditor", "gate"])
    at(role).addEventListener("change", async ({ target }) => {
      try {
        given[role] = await target.files[0].text();
        tell(at(`${role}-is`), (await readKey(given[role])).fingerprint);
      } catch (error) {
        delete given[role];
        tell(at(`${role}-is`), said`This file ${error instanceof Refused ? error.said : said`cannot be read`}.`);
      }
      await judge();
    });
}

if (typeof document !== "undefined") start();
