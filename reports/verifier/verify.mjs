// A second verifier of run directories: it knows docs/format.md and nothing of the package.
//
// `node verify.mjs RUN_DIR [--trainer-key PUB] [--auditor-key PUB] [--json]`, or the page verify.html,
// which holds this text. Of a gate's ledger: `node verify.mjs GATE_DIR [--gate-key PUB] [--gate-anchor FILE]`.
// It imports only what a browser or Node has. Every file may be hostile: nothing is executed, nothing is
// fetched, and whatever cannot be read is said.
//
// Order of reading: bytes and digests, documents (JSON, YAML), signatures, the ledger, what it costs
// (RDP, then privacy loss distributions), private evidence, the judgement, the command line.

// ---------------------------------------------------------------------------------- bytes, digests

const UTF8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
const bytesOf = (text) => new TextEncoder().encode(text);
const hex = (bytes) => Array.from(bytes, (b) => b.toString(16).padStart(2, "0")).join("");
const PIECE = 1 << 22;

/** A sentence that keeps what it was made of, so that the page can say it in other languages; as text it is English. */
class Said {
  constructor(parts, values) {
    Object.assign(this, { parts, values });
  }
  toString() {
    return this.parts.map((part, i) => part + (this.values[i] ?? "")).join("");
  }
  toJSON() {
    return this.toString();
  }
}
const said = (parts, ...values) => new Said(parts, values.map((value) => (value instanceof Said ? value : typeof value === "object" ? JSON.stringify(value) : String(value))));
/** A number as it is printed, not a name: languages write its point and commas in their own way. */
const figure = (text) => new Said([text], []);

/** What a file of the run is not: the sentence names what would be right. */
class Refused extends Error {
  constructor(sentence) {
    super(sentence);
    this.said = sentence;
  }
}
const refuse = (sentence) => {
  throw new Refused(sentence);
};

function base64(text, where) {
  if (!text || text.length % 4 || !/^[A-Za-z0-9+/]*={0,2}$/.test(text)) refuse(said`${where} is not base64`);
  return Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
}

const toBase64 = (bytes) => {
  let text = "";
  for (let i = 0; i < bytes.length; i += 8192) text += String.fromCharCode(...bytes.subarray(i, i + 8192));
  return btoa(text);
};

/** SHA-256 of content that comes in pieces, so that no file has to be in memory whole (FIPS 180-4). */
class Sha256 {
  static K = Uint32Array.from({ length: 64 }, (_, i) => fraction(Math.cbrt, i));
  constructor() {
    this.state = Uint32Array.from({ length: 8 }, (_, i) => fraction(Math.sqrt, i));
    this.rest = new Uint8Array(64);
    this.words = new Uint32Array(64);
    this.size = 0;
  }

  update(bytes) {
    let at = 0;
    const filled = this.size % 64;
    this.size += bytes.length;
    if (filled) {
      at = Math.min(64 - filled, bytes.length);
      this.rest.set(bytes.subarray(0, at), filled);
      if (filled + at < 64) return this;
      this.block(this.rest, 0);
    }
    for (; at + 64 <= bytes.length; at += 64) this.block(bytes, at);
    this.rest.set(bytes.subarray(at));
    return this;
  }

  block(bytes, at) {
    const { words: w, state } = this, { K } = Sha256;
    for (let i = 0; i < 16; i++, at += 4) w[i] = (bytes[at] << 24) | (bytes[at + 1] << 16) | (bytes[at + 2] << 8) | bytes[at + 3];
    for (let i = 16; i < 64; i++) {
      const x = w[i - 15], y = w[i - 2];
      w[i] = w[i - 16] + w[i - 7] + (((x >>> 7) | (x << 25)) ^ ((x >>> 18) | (x << 14)) ^ (x >>> 3)) + (((y >>> 17) | (y << 15)) ^ ((y >>> 19) | (y << 13)) ^ (y >>> 10));
    }
    let [a, b, c, d, e, f, g, h] = state;
    for (let i = 0; i < 64; i++) {
      const one = (h + (((e >>> 6) | (e << 26)) ^ ((e >>> 11) | (e << 21)) ^ ((e >>> 25) | (e << 7))) + ((e & f) ^ (~e & g)) + K[i] + w[i]) | 0;
      const two = ((((a >>> 2) | (a << 30)) ^ ((a >>> 13) | (a << 19)) ^ ((a >>> 22) | (a << 10))) + ((a & b) ^ (a & c) ^ (b & c))) | 0;
      [h, g, f, e, d, c, b, a] = [g, f, e, (d + one) | 0, c, b, a, (one + two) | 0];
    }
    [a, b, c, d, e, f, g, h].forEach((value, i) => (state[i] += value));
  }

  digest() {
    const bits = this.size * 8, end = new Uint8Array(((this.size % 64 < 56 ? 56 : 120) - (this.size % 64)) + 8);
    end[0] = 128;
    new DataView(end.buffer).setUint32(end.length - 8, Math.floor(bits / 2 ** 32));
    new DataView(end.buffer).setUint32(end.length - 4, bits >>> 0);
    this.update(end);
    const found = new Uint8Array(32);
    this.state.forEach((word, i) => new DataView(found.buffer).setUint32(4 * i, word));
    return found;
  }
}

/** First 32 bits of the fraction of a root of the i-th prime, from which FIPS 180-4 takes its constants. */
function fraction(root, i) {
  let prime = 1;
  for (let found = -1; found < i; ) {
    prime++;
    let whole = true;
    for (let d = 2; d * d <= prime; d++) whole &&= prime % d > 0;
    if (whole) found++;
  }
  return Math.floor((root(prime) % 1) * 2 ** 32);
}

const sha256 = (bytes) => hex(new Sha256().update(bytes).digest());

function hmac(key, bytes) {
  const pad = (value) => Uint8Array.from({ length: 64 }, (_, i) => (key[i] ?? 0) ^ value);
  return hex(new Sha256().update(pad(0x5c)).update(new Sha256().update(pad(0x36)).update(bytes).digest()).digest());
}

/** Greatest and least of numbers, of which there may be more than a call has arguments. */
const greatest = (values, found = -Infinity) => {
  for (const value of values) found = Math.max(found, value);
  return found;
};
const smallest = (values) => -greatest(Array.from(values, (value) => -value));

// What is read whole, an array of evidence, and what is hashed in pieces: larger files are refused.
const MOST_READ = 1 << 26, MOST_EVIDENCE = 1 << 30, MOST_HASHED = 2 ** 33;

/** Names that a shell takes literally. */
const PLAIN_NAME = /^[A-Za-z0-9._+][A-Za-z0-9._+@=,-]*(\/[A-Za-z0-9._+][A-Za-z0-9._+@=,-]*)*$/;

function decoded(bytes) {
  try {
    return UTF8.decode(bytes);
  } catch (error) {
    throw error instanceof TypeError ? new Refused(said`is not UTF-8 text`) : error;
  }
}

/** A run directory: names of its plain files, what else lies there, and their bytes. */
export class Folder {
  /**
   * @param files Map from name ("evidence/salt") to {size, slice(start, end) -> Promise<Uint8Array>}.
   * @param folders Names of the folders that lie directly in it; those of files are added.
   */
  constructor(files, refused = [], folders = []) {
    Object.assign(this, { files, refused, folders: new Set(folders), digests: new Map() });
    for (const name of files.keys()) if (name.includes("/")) this.folders.add(name.split("/", 1)[0]);
  }

  has = (name) => this.files.has(name);
  /** Whether a file or a folder of this name lies there; a folder may be empty. */
  holds = (name) => this.files.has(name) || this.folders.has(name);

  async read(name, most = MOST_READ) {
    const file = this.files.get(name) ?? refuse(said`is missing`);
    if (file.size > most) refuse(said`is larger than the accepted ${most} bytes`);
    const found = await file.slice(0, file.size);
    if (found.length !== file.size) refuse(said`changed while it was read`);
    return found;
  }

  async text(name, most) {
    return decoded(await this.read(name, most));
  }

  async sha256(name) {
    if (!this.digests.has(name)) {
      const file = this.files.get(name) ?? refuse(said`is missing`), sum = new Sha256();
      if (file.size > MOST_HASHED) refuse(said`is larger than the accepted ${MOST_HASHED} bytes`);
      for (let at = 0; at < file.size; at += PIECE) sum.update(await file.slice(at, Math.min(file.size, at + PIECE)));
      this.digests.set(name, hex(sum.digest()));
    }
    return this.digests.get(name);
  }
}

// ------------------------------------------------------------------------------------- JSON, YAML

const DEEPEST = 32, MOST_VALUES = 1 << 22;
/** What is no JSON object has no fields, and what is no list no members. */
const mapping = (value) => (value !== null && typeof value === "object" && !Array.isArray(value) ? value : {});
const sequence = (value) => (Array.isArray(value) ? value : []);
const CANONICAL = new WeakMap(); // Of each outermost object or list: its members in canonical form.

/** Strict JSON: no key twice, no number that is not finite, 32 levels and four million values at most. */
export function parseJson(text) {
  let at = 0, values = 0;
  const fail = (what = said`is not valid JSON`) => refuse(what);
  const space = () => {
    while (" \t\n\r".includes(text[at]) && at < text.length) at++;
  };
  const expect = (mark) => (text.startsWith(mark, at) ? (at += mark.length) : fail());
  const string = () => {
    const start = at;
    for (let escapes = 1; escapes % 2; ) {
      at = text.indexOf('"', at + 1);
      if (at < 0) fail();
      for (escapes = 0; text[at - 1 - escapes] === "\\"; ) escapes++;
    }
    let value;
    try {
      value = JSON.parse(text.slice(start, ++at));
    } catch {
      fail();
    }
    return value.isWellFormed?.() === false ? fail(said`has text that is no Unicode`) : value;
  };
  const number = () => {
    const form = /-?(?:0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?/y;
    form.lastIndex = at;
    const found = form.exec(text) ?? fail();
    at = form.lastIndex;
    const value = Number(found[0]), whole = !found[1] && !found[2];
    if (!Number.isFinite(value)) fail(said`has a number that is not finite`);
    if (whole && found[0].length > 20) fail(said`has an integer of more than 20 digits`);
    return [value, whole ? String(BigInt(found[0])) : spelled(value)];
  };
  // Each value comes with its canonical spelling.
  const value = (depth) => {
    if (depth > DEEPEST) fail(said`is nested deeper than ${DEEPEST} levels`);
    if (++values > MOST_VALUES) fail(said`has more than ${MOST_VALUES} values`);
    space();
    const mark = text[at];
    if (mark === '"') {
      const found = string();
      return [found, JSON.stringify(found)];
    }
    for (const [word, meaning] of [["true", true], ["false", false], ["null", null]])
      if (text.startsWith(word, at)) return (at += word.length), [meaning, word];
    if (mark !== "{" && mark !== "[") return number();
    const [close, object] = mark === "{" ? ["}", Object.create(null)] : ["]", []], members = [];
    at++;
    space();
    if (text[at] === close) at++;
    else
      for (;;) {
        let key = null;
        if (mark === "{") {
          space();
          key = text[at] === '"' ? string() : fail();
          if (key in object) fail(said`has the key ${JSON.stringify(key.slice(0, 60))} twice`);
          space();
          expect(":");
        }
        const [member, spelling] = value(depth + 1);
        key === null ? object.push(member) : (object[key] = member);
        members.push([key, spelling]);
        space();
        if (text[at] === close) break;
        expect(",");
      }
    if (members.length) at++;
    const spelling = spelledOf(object, members);
    if (!depth) CANONICAL.set(object, members);
    return [object, spelling];
  };
  const [found] = value(0);
  space();
  return at === text.length ? found : fail();
}

/** A file that is a JSON object. */
async function readObject(folder, name) {
  const found = parseJson(await folder.text(name));
  return mapping(found) === found ? found : refuse(said`is no JSON object`);
}

/** The one spelling of an object or list that is a whole text: keys by code point, no spaces. */
export const canonical = (object, leftOut = null) => spelledOf(object, CANONICAL.get(object), leftOut);

function spelledOf(object, members, leftOut = null) {
  if (Array.isArray(object)) return `[${members.map(([, spelling]) => spelling).join(",")}]`;
  const kept = members.filter(([key]) => key !== leftOut).sort(([a], [b]) => byCodePoint(a, b));
  return `{${kept.map(([key, spelling]) => `${JSON.stringify(key)}:${spelling}`).join(",")}}`;
}

function byCodePoint(a, b) {
  let i = 0;
  while (i < a.length && a[i] === b[i]) i++;
  return (a.codePointAt(i) ?? -1) - (b.codePointAt(i) ?? -1);
}

/** A float as canonical JSON has it: fewest digits that read back, 0.0001 to 1e16 without exponent. */
function spelled(value) {
  if (value === 0) return Object.is(value, -0) ? "-0.0" : "0.0";
  const [mantissa, power] = Math.abs(value).toExponential().split("e"), exponent = Number(power);
  const digits = mantissa.replace(".", ""), sign = value < 0 ? "-" : "";
  if (exponent < -4 || exponent >= 16) return `${sign}${mantissa}e${exponent < 0 ? "-" : "+"}${String(Math.abs(exponent)).padStart(2, "0")}`;
  if (exponent < 0) return `${sign}0.${"0".repeat(-exponent - 1)}${digits}`;
  return `${sign}${digits.slice(0, exponent + 1).padEnd(exponent + 1, "0")}.${digits.slice(exponent + 1) || "0"}`;
}

/** The YAML of a spec: one key a line, sections and items of lists indented by two spaces, values in one line. */
export function parseSpec(text) {
  const root = Object.create(null), open = [root];
  let begun = null; // The section that the line before began, with its key: it may be a list.
  text.split("\n").forEach((line, index) => {
    if (!line.trim() || line.trimStart().startsWith("#")) return;
    const item = /^((?: {2})*)- (.*)$/.exec(line);
    if (item) {
      const depth = item[1].length / 2;
      if (begun?.depth === depth) open[depth] = begun.parent[begun.key] = [];
      begun = null;
      if (depth >= open.length || !Array.isArray(open[depth])) refuse(said`line ${index + 1} is in no form of a spec`);
      open.length = depth + 1;
      open[depth].push(flow(item[2]));
      return;
    }
    const found = /^((?: {2})*)("(?:[^"\\]|\\.)*"|[^\s:"][^:"]*):(?: (.*))?$/.exec(line) ?? refuse(said`line ${index + 1} is in no form of a spec`);
    const depth = found[1].length / 2, key = found[2].startsWith('"') ? flow(found[2]) : found[2];
    if (depth >= open.length) refuse(said`line ${index + 1} is indented too far`);
    open.length = depth + 1;
    if (Array.isArray(open[depth])) refuse(said`line ${index + 1} is in no form of a spec`);
    if (key in open[depth]) refuse(said`has the key ${key} twice`);
    begun = found[3] === undefined ? { depth: depth + 1, parent: open[depth], key } : null;
    if (begun) open.push((open[depth][key] = Object.create(null)));
    else open[depth][key] = flow(found[3]);
  });
  return root;
}

/** A value in one line of YAML: null, booleans, numbers, text, [lists] and {mappings}. */
function flow(text) {
  let at = 0;
  const fail = () => refuse(said`${JSON.stringify(text.slice(0, 40))} is no value of a spec`);
  const space = () => {
    while (text[at] === " ") at++;
  };
  const value = (depth, ends) => {
    if (depth > DEEPEST) fail();
    if (text[at] === '"') {
      const form = /"(?:[^"\\]|\\.)*"/y;
      form.lastIndex = at;
      const found = form.exec(text) ?? fail();
      at = form.lastIndex;
      const escaped = found[0].replace(/\\x([0-9a-f]{2})/g, "\\u00$1").replace(/\\U([0-9a-f]{8})/g, (_, code) => String.fromCodePoint(parseInt(code, 16)));
      return JSON.parse(escaped);
    }
    if (text[at] === "[" || text[at] === "{") {
      const [close, found] = text[at] === "[" ? ["]", []] : ["}", Object.create(null)];
      at++;
      for (let first = true; ; first = false) {
        space();
        if (text[at] === close) return at++, found;
        if (!first) text[at] === "," ? at++ : fail();
        space();
        if (close === "]") found.push(value(depth + 1, ",]"));
        else {
          const key = value(depth + 1, ":");
          text[at] === ":" ? at++ : fail();
          space();
          found[key] = value(depth + 1, ",}");
        }
      }
    }
    const start = at;
    while (at < text.length && !ends.includes(text[at])) at++;
    const word = text.slice(start, at).trim();
    if (!word) fail();
    if (word === "null") return null;
    if (word === "true" || word === "false") return word === "true";
    return /^[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$/.test(word) ? Number(word) : word;
  };
  const found = value(0, "");
  return at === text.length ? found : fail();
}

// ------------------------------------------------------------------------------------- signatures

const PAYLOAD_TYPE = "application/vnd.in-toto+json";
const ADDRESS = "https://dpfedadamw.org/attestation/";
const typeNames = (type, ...earlier) => [`urn:dpfedadamw:attestation:${type}`, `${ADDRESS}${type.replace(":", "/")}`, ...earlier];
const ENVELOPES = {
  "training.attestation.json": { role: "trainer", types: typeNames("training:v2", `${ADDRESS}training/v1`) },
  "attestation.json": { role: "auditor", types: typeNames("run:v2", `${ADDRESS}run/v1`) },
  "attestation-public.json": { role: "auditor", types: typeNames("public:v1") },
};
const TRAINED = ["spec.yaml", "ledger.jsonl", "metrics.jsonl", "model.safetensors", "model.json", "trainer.pub"];
const PUBLISHED = ["model.safetensors", "model.json", "metrics.jsonl", "report-public.json", "report-public.pdf", "report-public.html", "VERIFY-public.md", "trainer.pub", "auditor.pub"];
// With these, where a run has them, the files that everybody may see.
const PUBLIC_TOO = ["model.sig", "trainer.rotations.json", "auditor.rotations.json", "intent.json", "intent.json.tsr", "intent.json.tlog", "challenge.json"];
const JUDGED = [...TRAINED, "audit.json", "report.json", "report.pdf", "auditor.pub", "training.attestation.json"];
// What was announced of a run: who signed it is stated in it, and it has no number.
const ANNOUNCED = Object.fromEntries(
  Object.entries({ "intent.json": "trainer", "challenge.json": "auditor", "draw.json": "auditor" }).map(([name, role]) => [name, { role, types: typeNames(`${name.replace(".json", "")}:v1`), counted: false }]),
);
const MOST_ANNOUNCED = 1 << 24, MOST_SUBJECTS = 100000;
const HALF_ORDER = 0x7fffffff800000007fffffffffffffffde737d56d38bcf4279dce5617e3192a8n;

/** A public key: PEM of an uncompressed P-256 SubjectPublicKeyInfo, with its fingerprint. */
export async function readKey(pem) {
  const found = /^\s*-----BEGIN PUBLIC KEY-----\r?\n([A-Za-z0-9+/=\r\n]+)-----END PUBLIC KEY-----\s*$/.exec(pem) ?? refuse(said`is no PEM of a public key`);
  const der = base64(found[1].replace(/\s/g, ""), said`the key`);
  const fingerprint = `SHA256:${toBase64(new Sha256().update(der).digest()).replace(/=+$/, "")}`;
  try {
    const key = await crypto.subtle.importKey("spki", der, { name: "ECDSA", namedCurve: "P-256" }, false, ["verify"]);
    return { key, fingerprint };
  } catch {
    return refuse(said`is no key of ECDSA on P-256`);
  }
}

/** (r, s) of a DER signature as two numbers. */
function parseSignature(der) {
  const numbers = [];
  let at = 2;
  if (der[0] !== 0x30 || der[1] !== der.length - 2) refuse(said`its signature is no DER`);
  while (at < der.length) {
    const size = der[at + 1], content = der.subarray(at + 2, at + 2 + size);
    const minimal = size > 0 && size < 34 && content.length === size && content[0] < 128 && !(size > 1 && content[0] === 0 && content[1] < 128);
    if (der[at] !== 2 || !minimal) refuse(said`its signature is no DER`);
    numbers.push(BigInt(`0x${hex(content)}`));
    at += 2 + size;
  }
  return numbers.length === 2 ? numbers : refuse(said`its signature is no DER`);
}

/** Read an envelope, check its signature by `key`, and return its statement. */
async function openEnvelope(text, { role, types, counted = role !== null }, key) {
  const document = parseJson(text);
  const signed = document?.signatures?.[0], payload = base64(String(document?.payload), said`its payload`), signature = base64(String(signed?.sig), said`its signature`);
  const layout = `{\n"payloadType": "${PAYLOAD_TYPE}",\n"payload": "${toBase64(payload)}",\n"signatures": [{\n"keyid": ${JSON.stringify(signed?.keyid)},\n"sig": "${toBase64(signature)}"\n}]\n}\n`;
  if (layout !== text) refuse(said`is not laid out as envelopes are; it was changed`);
  const [r, s] = parseSignature(signature);
  const raw = Uint8Array.from((r.toString(16).padStart(64, "0") + s.toString(16).padStart(64, "0")).match(/../g), (pair) => parseInt(pair, 16));
  const head = bytesOf(`DSSEv1 ${PAYLOAD_TYPE.length} ${PAYLOAD_TYPE} ${payload.length} `);
  const content = new Uint8Array(head.length + payload.length);
  content.set(head);
  content.set(payload, head.length);
  const holds = await crypto.subtle.verify({ name: "ECDSA", hash: "SHA-256" }, key.key, raw, content);
  if (!holds) refuse(said`the signature is not by the key ${key.fingerprint}, or the content was changed`);
  let statement;
  try {
    statement = parseJson(UTF8.decode(payload));
  } catch {
    refuse(said`its payload is no JSON`);
  }
  if (mapping(statement) !== statement) refuse(said`its payload is no JSON`);
  if (statement._type !== "https://in-toto.io/Statement/v1" || !types.includes(statement.predicateType)) refuse(said`is not of the type ${types[0]}`);
  const numbered = !/\/(training|run)\/v1$/.test(statement.predicateType);
  if (numbered && s > HALF_ORDER) refuse(said`the signature was rewritten; only its form with the lower s is accepted`);
  if (signed.keyid !== key.fingerprint) refuse(said`its keyid names another key than the one that signed`);
  const predicate = mapping(statement.predicate);
  if (role && predicate.role !== role) refuse(role === "trainer" ? said`was not signed in the role of the trainer` : said`was not signed in the role of the auditor`);
  if (counted && numbered && !isWhole(predicate.sequence, 1)) refuse(said`has no sequence number`);
  const subjects = new Map(), listed = sequence(statement.subject);
  if (listed.length > MOST_SUBJECTS) refuse(said`names more than ${MOST_SUBJECTS} files`);
  for (const entry of listed.map(mapping)) {
    const [kind, digest, ...more] = Object.entries(mapping(entry.digest)).flat();
    if (typeof entry.name !== "string" || more.length || !["sha256", "hmacSha256"].includes(kind) || !/^[0-9a-f]{64}$/.test(digest)) refuse(said`a subject lacks a name or one known digest`);
    if (subjects.has(entry.name)) refuse(said`names ${entry.name} twice`);
    subjects.set(entry.name, [kind, digest]);
  }
  return subjects.size ? { subjects, predicate, numbered } : refuse(said`covers no file`);
}

/** Read an envelope that states the key that signed it. */
async function openAnnounced(text, kind) {
  const payload = parseJson(decoded(base64(String(mapping(parseJson(text)).payload), said`its payload`)));
  const key = await readKey(String(mapping(mapping(payload).predicate).public_key)), found = await openEnvelope(text, kind, key), { created, nonce } = found.predicate;
  if (!isText(created, TIME) || Number.isNaN(Date.parse(created))) refuse(said`has no time in UTC`);
  if (kind.role === "auditor" && !isText(nonce, HEX)) refuse(said`has no nonce`);
  return { ...found, signer: key.fingerprint, digest: hex(new Sha256().update(bytesOf(text)).digest()) };
}

// ---------------------------------------------------------------------------------------- ledger

const HEX = /^[0-9a-f]{64}$/;
const TIME = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$/;
const RUN = /^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$/;
const isWhole = (value, least = 0) => Number.isSafeInteger(value) && value >= least;
const isPositive = (value, most = 1e300) => typeof value === "number" && value > 0 && value <= most;
const isText = (value, form) => typeof value === "string" && form.test(value);
const isList = (value, of) => Array.isArray(value) && value.every((each) => of(each));
/** Whether batches of a client's records, or of its people, are what is noised; else whole updates are. */
const sampled = ({ unit }) => unit === "record" || unit === "person";
const near = (a, b, share = 1e-9) => Math.abs(a - b) <= share * Math.max(Math.abs(a), Math.abs(b));

const KINDS = ["header", "query", "bounds", "spend", "round", "resume", "claim"];
/** What each kind of line must have, for each unit. */
const FIELDS = {
  header: {
    format: (v) => v === 1, run: (v) => isText(v, RUN), spec_sha256: (v) => isText(v, HEX), unit: (v) => ["record", "person", "client", "none"].includes(v),
    clients: (v) => isWhole(v, 1), clients_per_round: (v) => isWhole(v, 1), records: (v) => isList(v, (each) => isWhole(each)), parameters: (v) => isWhole(v, 1),
    randomness: (v) => ["release", "reproducible"].includes(v),
  },
  spend: {
    round: (v) => isWhole(v), attempt: (v) => isWhole(v, 1), sampling: (v) => typeof v === "string", sampling_rate: (v) => isPositive(v, 1),
    clipping_norm: (v) => isPositive(v), noise_multiplier: (v) => isPositive(v),
  },
  "spend of a record": { client: (v) => isWhole(v), records: (v) => isWhole(v, 1), expected_batch_size: (v) => isPositive(v), steps: (v) => isWhole(v, 1), queries_per_step: (v) => isWhole(v, 1) },
  "spend of a client": { clients: (v) => isList(v, (each) => isWhole(each)) && new Set(v).size === v.length, expected_clients: (v) => isPositive(v), noise_added_by: (v) => ["server", "clients"].includes(v) },
  round: { round: (v) => isWhole(v), clients: (v) => isList(v, (each) => isWhole(each)), steps: (v) => isList(v, (each) => isWhole(each)), queries: (v) => isList(v, (each) => isWhole(each)) },
  resume: { round: (v) => isWhole(v) },
  query: {
    client: (v) => isWhole(v), attempt: (v) => isWhole(v, 1), records: (v) => isWhole(v), columns: (v) => isList(v, (each) => typeof each === "string") && v.length > 0,
    bins: (v) => isList(v, (each) => isWhole(each, 1)), sensitivity: (v) => isPositive(v), noise_multiplier: (v) => isPositive(v),
  },
  bounds: { columns: (v) => isList(v, (each) => each !== null && typeof each === "object"), noised_sha256: (v) => isText(v, HEX) },
  claim: { delta: (v, header) => header?.unit === "none" || isPositive(v, 1) },
};

/** Read lines: each in canonical form, with the digest of the one before; `take` reads what it says. */
function chained(lines, faults, take) {
  let previous = "0".repeat(64);
  for (const [index, line] of lines.entries()) {
    const where = said`line ${index + 1}`;
    try {
      if (line.length > 1 << 20) refuse(said`is longer than a MiB`);
      const entry = parseJson(line);
      if (entry === null || typeof entry !== "object" || Array.isArray(entry)) refuse(said`is no JSON object`);
      if (entry.previous !== previous) faults.push(said`${where} does not name the digest of the line before: broken chain`);
      if (entry.digest !== sha256(bytesOf(canonical(entry, "digest")))) faults.push(said`${where} does not match its own digest: it was changed`);
      else if (canonical(entry) !== line) faults.push(said`${where} is not in canonical form`);
      take(entry, index + 1);
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      faults.push(said`${where} ${error.said}`);
    }
    previous = sha256(bytesOf(line));
  }
}

const fits = (entry, needed, header) => {
  for (const [name, fit] of Object.entries(needed)) if (!fit(entry[name], header)) refuse(said`${entry.kind}: ${name} is missing or out of range`);
};

/** Read a ledger: chain, canonical form, order of lines, and what each line must have. */
export function readLedger(text) {
  const faults = [], entries = [], lines = text.split("\n");
  if (!text.endsWith("\n")) faults.push(said`does not end with a complete line`);
  let header = null;
  if (lines.at(-1) === "") lines.pop();
  chained(lines, faults, (entry, line) => {
    if (!KINDS.includes(entry.kind)) refuse(said`is of an unknown kind`);
    fits(entry, { ...FIELDS[entry.kind], ...(entry.kind === "spend" ? FIELDS[entry.unit === "client" ? "spend of a client" : "spend of a record"] : {}) }, header);
    header ??= entry.kind === "header" ? entry : null;
    entries.push({ ...entry, line });
  });
  const of = (kind) => entries.filter((entry) => entry.kind === kind);
  const ledger = { faults, entries, header, spends: of("spend"), rounds: of("round"), resumes: of("resume"), queries: of("query"), bounds: of("bounds"), claim: of("claim").at(-1) ?? null };
  if (!header) refuse(said`has no header that can be read`);
  if (!ledger.claim) refuse(said`has no claim that can be read; the run did not finish`);
  for (const fault of orderFaults(ledger)) faults.push(fault);
  return ledger;
}

/** Members of a list by what they have in common, in order. */
function grouped(members, by) {
  const found = new Map();
  for (const member of members) found.get(by(member))?.push(member) ?? found.set(by(member), [member]);
  return found;
}

// What all steps of a file of a recorded loop have in common.
const CHARGE = ["attempt", "records", "sampling", "sampling_rate", "rate_stated", "expected_batch_size", "clipping_norm", "noise_multiplier"];

function orderFaults({ entries, header, spends, queries, bounds }) {
  const faults = [], kinds = entries.map((entry) => entry.kind);
  if (kinds[0] !== "header" || kinds.lastIndexOf("header") !== 0) faults.push(said`the header is not the one first line`);
  if (kinds.indexOf("claim") !== kinds.length - 1) faults.push(said`the claim is not the one last line`);
  if (header.records.length !== header.clients || header.clients_per_round > header.clients) faults.push(said`the header's clients and records do not fit`);
  const recorded = header.producer != null;
  if (queries.length || bounds.length) {
    // Each client's histograms are charged once, then their bounds are read off, then rounds begin.
    if (header.unit !== "record" || recorded) faults.push(said`bounds of columns are learnt where single records are not what is protected`);
    if (queries.length !== header.clients || new Set(queries.map((query) => query.client)).size !== header.clients || queries.some((query) => query.client >= header.clients)) faults.push(said`not every client is charged once for its histograms of columns`);
    const answer = bounds[0]?.line;
    if (bounds.length !== 1 || queries.some((query) => query.line > answer) || entries.some((entry) => ["spend", "round"].includes(entry.kind) && entry.line < answer)) faults.push(said`bounds of columns are not learnt once, after their charges and before the first round`);
  }
  let next = 0;
  const charges = grouped(spends, (spend) => spend.round);
  const running = new Map(), before = new Map(), ended = new Map();
  for (const entry of entries) {
    const where = said`line ${entry.line}`;
    if (entry.kind === "resume") {
      if (entry.round !== next && entry.round !== next - 1) faults.push(said`${where} goes on at round ${entry.round}, ${next} was next`);
      next = entry.round;
      for (const [round, attempt] of running) before.set(round, attempt);
      running.clear();
    } else if (entry.kind === "round") {
      const { clients, dropped = [] } = entry, asked = [...clients, ...dropped];
      if (entry.round !== next) faults.push(said`${where}: round ${entry.round} ends where ${next} should`);
      next = entry.round + 1;
      ended.set(entry.round, entry.line);
      if (new Set(asked).size !== asked.length || clients.length !== entry.steps.length || clients.length !== entry.queries.length) faults.push(said`${where}: clients, steps and queries do not have one entry a client`);
      if (asked.some((client) => client >= header.clients)) faults.push(said`${where} names a client that does not exist`);
      if (header.client_sampling === "fixed-size" && !recorded && sampled(header) && asked.length !== header.clients_per_round) faults.push(said`${where} does not have ${header.clients_per_round} clients`);
      const charged = (charges.get(entry.round) ?? []).filter((spend) => spend.line < entry.line);
      if (recorded) {
        // A recorded loop is charged step by step, and several steps end together.
        if (charged.length !== entry.steps[0] || charged.length !== entry.queries[0] || clients.join() !== "0") faults.push(said`${where}: its steps are not those that were charged`);
        if (new Set(charged.map((spend) => JSON.stringify(CHARGE.map((name) => spend[name])))).size > 1) faults.push(said`${where}: its steps are charged differently`);
      } else if (header.unit === "none" ? charged.length : asked.length || header.unit === "client") {
        const last = greatest(charged.map((spend) => spend.attempt), 0), paid = charged.filter((spend) => spend.attempt === last).flatMap((spend) => spend.clients ?? [spend.client]);
        if (header.unit === "none") faults.push(said`${where} was charged although the run claims no privacy`);
        else if (paid.length !== new Set(paid).size || paid.length !== asked.length || new Set([...paid, ...asked]).size !== paid.length) faults.push(said`${where}: the clients charged are not the clients that took part`);
      }
      if (before.has(entry.round) && !running.has(entry.round) && (asked.length || header.unit === "client")) faults.push(said`${where}: round ${entry.round} was cut off, and was not charged again`);
      const byClient = new Map(charged.map((spend) => [spend.client, spend]));
      for (const [i, client] of clients.entries()) {
        const paid = byClient.get(client);
        if (sampled(header) && !recorded && paid && (entry.queries[i] > paid.steps * paid.queries_per_step || entry.steps[i] > paid.steps)) faults.push(said`${where}: client ${client} made more queries than were charged`);
      }
    } else if (entry.kind === "spend") {
      if (ended.has(entry.round) && !before.size) faults.push(said`${where} is charged after its round had ended`);
      if (entry.attempt <= (before.get(entry.round) ?? 0) || entry.attempt > 1 + (before.get(entry.round) ?? 0)) faults.push(said`${where} is charged to attempt ${entry.attempt}, which no cut explains`);
      if ((entry.unit === "client") !== (header.unit === "client") && !recorded) faults.push(said`${where} charges another unit than the header's`);
      running.set(entry.round, entry.attempt);
      if (recorded && (entry.client !== 0 || entry.steps !== 1 || entry.queries_per_step !== 1)) faults.push(said`${where} is no charge of one step`);
    }
  }
  if (recorded && spends.some((spend) => !ended.has(spend.round))) faults.push(said`a step was charged and never recorded`);
  return faults;
}

// ------------------------------------------------------------------- what it costs: normal numbers

/** erfc to 14 digits: Taylor's series of erf up to 2, then the continued fraction. */
function erfc(x) {
  const a = Math.abs(x);
  let value = 0;
  if (a < 2) {
    let term = a, sum = a;
    for (let n = 1; term > 1e-18 * sum; n++) sum += term *= (2 * a * a) / (2 * n + 1);
    value = 1 - (2 / Math.sqrt(Math.PI)) * Math.exp(-a * a) * sum;
  } else if (a < 27) {
    let below = 0;
    for (let n = 70; n > 0; n--) below = n / 2 / (a + below);
    value = Math.exp(-a * a) / Math.sqrt(Math.PI) / (a + below);
  }
  return x < 0 ? 2 - value : value;
}

const ndtr = (x) => 0.5 * erfc(-x * Math.SQRT1_2);

/** How many standard deviations out a normal number lies with this chance, on one side. */
function quantile(chance) {
  let [low, high] = [0, 40];
  for (let i = 0; i < 80; i++) ndtr(-(low + high) / 2) > chance ? (low = (low + high) / 2) : (high = (low + high) / 2);
  return high;
}

const logSum = (logs) => {
  let most = -Infinity, sum = 0;
  for (const x of logs) most = Math.max(most, x);
  for (const x of logs) sum += Math.exp(x - most);
  return most === -Infinity ? most : most + Math.log(sum);
};
const logAdd = (a, b) => (a > b ? a + Math.log1p(Math.exp(b - a)) : b === -Infinity ? a : b + Math.log1p(Math.exp(a - b)));

// ----------------------------------------------------------------------- what it costs: Rényi orders

const ORDERS = [...Array(62).keys()].map((i) => i + 2).concat(128, 256, 512, 1024);

/** Rényi divergences of one query on a Poisson sample (Mironov, Talwar & Zhang 2019, whole orders). */
function renyi({ rate, sigma }) {
  return ORDERS.map((order) => {
    if (rate >= 1) return order / (2 * sigma ** 2);
    let binomial = 0;
    const logs = [];
    for (let k = 0; k <= order; k++) {
      logs.push(binomial + k * Math.log(rate) + (order - k) * Math.log1p(-rate) + (k * k - k) / (2 * sigma ** 2));
      binomial += Math.log((order - k) / (k + 1));
    }
    return Math.max(0, logSum(logs)) / (order - 1);
  });
}

/** ε of a history by the conversion of Canonne, Kamath & Steinke (2020, proposition 12), and its order. */
export function epsilonByRenyi(history, delta) {
  const total = ORDERS.map(() => 0);
  for (const kind of history) renyi(kind).forEach((value, i) => (total[i] += value * kind.steps * (kind.rounds ?? 1)));
  let best = [Infinity, ORDERS[0]];
  ORDERS.forEach((a, i) => {
    const epsilon = -Math.expm1(-total[i]) <= delta ** 2 ? 0 : total[i] + Math.log1p(-1 / a) - (Math.log(delta) + Math.log(a)) / (a - 1);
    if (epsilon < best[0]) best = [epsilon, a];
  });
  return [Math.max(0, best[0]), best[1]];
}

// ------------------------------------------------------------ what it costs: privacy loss distributions

const TAIL = 1e-5, LONGEST = 1 << 21, MOST_KINDS = 256;
const TILTS = Array.from({ length: 80 }, (_, i) => 1e-3 * 3e6 ** (i / 79));

/** Charges of more kinds than are composed here, each by Fourier transforms of its own. */
class TooMany extends Error {}

/** Fourier transform in place of 2^n complex numbers; the sign of the exponent says which way. */
function transform(re, im, sign) {
  const n = re.length;
  for (let i = 1, j = 0; i < n; i++) {
    let bit = n >> 1;
    for (; j & bit; bit >>= 1) j ^= bit;
    j ^= bit;
    if (i < j) [re[i], re[j], im[i], im[j]] = [re[j], re[i], im[j], im[i]];
  }
  for (let size = 2; size <= n; size <<= 1) {
    const half = size >> 1, cos = new Float64Array(half), sin = new Float64Array(half);
    for (let k = 0; k < half; k++) [cos[k], sin[k]] = [Math.cos((2 * Math.PI * k) / size), sign * Math.sin((2 * Math.PI * k) / size)];
    for (let start = 0; start < n; start += size)
      for (let k = 0, a = start, b = start + half; k < half; k++, a++, b++) {
        const x = re[b] * cos[k] - im[b] * sin[k], y = re[b] * sin[k] + im[b] * cos[k];
        [re[b], im[b], re[a], im[a]] = [re[a] - x, im[a] - y, re[a] + x, im[a] + y];
      }
  }
}

/** Least and greatest loss of a query, but for outputs of chance `tail`. */
function reach({ rate, sigma }, remove, tail) {
  const far = quantile(tail / 2) * sigma;
  const loss = (x) => logAdd(rate < 1 ? Math.log1p(-rate) : -Infinity, Math.log(rate) + (2 * x - 1) / (2 * sigma ** 2));
  return remove ? [loss(-far), loss(far + 1)] : [-loss(far + 1), -loss(-far)];
}

/** Masses of growing losses at first·width, (first+1)·width, … that dominate the query's own. */
function discretise(kind, remove, width, tail) {
  const { rate, sigma } = kind;
  if (kind.fixed && rate < 1) return fixedSize(kind, width, tail);
  const [low, high] = reach(kind, remove, tail), first = Math.floor(low / width), count = Math.ceil(high / width) - first + 1;
  const masses = new Float64Array(count), ends = cells(kind, remove, first, count, width);
  spread(masses, 0, ends, first, width);
  masses[0] += ends.upper[0];
  return { first, masses, infinite: ends.upper[count] };
}

/** Mass under both neighbours of each cell between grid points; the first lies below all, the last above. */
function cells({ rate, sigma }, remove, first, count, width) {
  const upper = new Float64Array(count + 1), lower = new Float64Array(count + 1);
  // Output at which the loss of removing a record is as given.
  const output = (loss) => {
    const inner = loss + Math.log1p(-(1 - rate) * Math.exp(-loss)) - Math.log(rate);
    return Number.isNaN(inner) ? -Infinity : sigma ** 2 * inner + 0.5;
  };
  const between = (a, b) => Math.max(0, a > 0 ? ndtr(-a) - ndtr(-b) : ndtr(b) - ndtr(a));
  let before = remove ? -Infinity : Infinity;
  for (let i = 0; i <= count; i++) {
    const after = i === count ? (remove ? Infinity : -Infinity) : output((remove ? 1 : -1) * (first + i) * width);
    const [a, b] = remove ? [before, after] : [after, before];
    const without = between(a / sigma, b / sigma), mixture = (1 - rate) * without + rate * between((a - 1) / sigma, (b - 1) / sigma);
    [upper[i], lower[i]] = remove ? [mixture, without] : [without, mixture];
    before = after;
  }
  return { upper, lower };
}

/** Split each inner cell between its two ends so that both masses stay (Doroshenko et al. 2022). */
function spread(masses, at, { upper, lower }, first, width) {
  for (let i = 1; i < upper.length - 1; i++) {
    const scaled = lower[i] * Math.exp(Math.min((first + i - 1) * width, 700));
    const toHigh = Math.min(Math.max((upper[i] - scaled) / -Math.expm1(-width), 0), upper[i]);
    masses[at + i] += toHigh;
    masses[at + i - 1] += upper[i] - toHigh;
  }
}

/** A sample of fixed size where one record is replaced: the subsampling operator of Dong, Roth & Su (2022). */
function fixedSize({ rate, sigma }, width, tail) {
  const kind = { rate, sigma }, high = reach(kind, true, tail)[1], low = reach(kind, false, tail)[0];
  const first = Math.min(-1, Math.floor(low / width)), last = Math.max(1, Math.ceil(high / width));
  const masses = new Float64Array(last - first + 1), gains = cells(kind, true, 0, last + 1, width), drops = cells(kind, false, first, 1 - first, width);
  spread(masses, -first, gains, 0, width);
  spread(masses, 0, drops, first, width);
  masses[0] += drops.upper[0];
  masses[-first] += (1 - rate) * (1 - 2 * ndtr(-0.5 / sigma));
  return { first, masses, infinite: gains.upper[last + 1] };
}

/**
 * ε of a history at δ, from above: losses composed on a grid by Fourier transforms.
 *
 * @param history Kinds of queries {rate, sigma, fixed, steps, rounds, share}: of `rounds` rounds, each in which one
 *   takes part with chance `share` makes `steps` queries. Without the last two, it is `steps` queries.
 * @param finer How many times as narrow the grid's cells are as what decides most claims.
 */
export function epsilonByLosses(history, delta, finer = 1) {
  const kinds = history.filter((kind) => kind.steps > 0 && (kind.rounds ?? 1) > 0);
  if (!kinds.length) return 0;
  if (kinds.length > MOST_KINDS) throw new TooMany();
  const total = kinds.reduce((sum, kind) => sum + kind.steps * (kind.rounds ?? 1), 0), tail = (delta * TAIL) / total, charge = delta * TAIL;
  const [rough, order] = epsilonByRenyi(kinds, delta), scale = Math.max(rough, 1e-2);
  let width = Math.min(Math.sqrt((8 * 2e-4 * scale) / (total * order)), scale / 100) / finer;
  for (const kind of kinds) for (const remove of [true, false]) width = Math.max(width, (2 * (reach(kind, remove, tail)[1] - reach(kind, remove, tail)[0])) / LONGEST);
  for (let tries = 0; Number.isFinite(width) && tries < 64; tries++) {
    const sides = [true, false].map((remove) => composed(kinds, remove, width, tail, charge));
    const longest = Math.max(...sides.map((side) => side.length));
    if (longest <= LONGEST) return Math.max(...sides.map((side) => side.epsilon(delta)));
    width *= (1.5 * longest) / LONGEST;
  }
  return Infinity;
}

function composed(kinds, remove, width, tail, charge) {
  const singles = kinds.map((kind) => discretise(kind, remove, width, tail));
  const moments = (sign) =>
    TILTS.map((tilt) =>
      kinds.reduce((sum, { steps, rounds = 1, share = 1 }, i) => {
        const { first, masses } = singles[i], logs = [];
        for (let j = 0; j < masses.length; j++) if (masses[j] > 0) logs.push(Math.log(masses[j]) + sign * tilt * (first + j) * width);
        return sum + rounds * logAdd(share < 1 ? Math.log1p(-share) : -Infinity, Math.log(share) + steps * logSum(logs));
      }, 0),
    );
  // Chernoff: beyond these cells lies at most `charge` on either side.
  const bound = (sign) => Math.ceil(Math.min(...moments(sign).map((moment, i) => (moment - Math.log(charge)) / TILTS[i])) / width) + 1;
  const high = bound(1), first = -bound(-1), length = Math.max(high - first + 1, ...singles.map((single) => single.masses.length)) + 2;
  return { length, epsilon: (delta) => (length > LONGEST ? Infinity : epsilonOf(product(kinds, singles, length), first, high, width, 2 * charge, delta)) };
}

/** The composition's masses on a circle of at least `length` points, and the chance of an infinite loss. */
function product(kinds, singles, length) {
  const size = 2 ** Math.ceil(Math.log2(length)), re = new Float64Array(size).fill(1), im = new Float64Array(size);
  let finite = 0;
  kinds.forEach(({ steps, rounds = 1, share = 1 }, index) => {
    const { first, masses, infinite } = singles[index], x = new Float64Array(size), y = new Float64Array(size);
    for (let j = 0; j < masses.length; j++) x[(((first + j) % size) + size) % size] += masses[j];
    transform(x, y, -1);
    for (let k = 0; k < size; k++) {
      let [a, b] = power(x[k], y[k], steps);
      if (share < 1 || rounds > 1) [a, b] = power(1 - share + share * a, share * b, rounds);
      [re[k], im[k]] = [re[k] * a - im[k] * b, re[k] * b + im[k] * a];
    }
    finite += rounds * Math.log1p(share * Math.expm1(steps * Math.log1p(-infinite)));
  });
  transform(re, im, 1);
  return { masses: re.map((value) => Math.max(0, value / size)), size, infinite: -Math.expm1(finite) };
}

function power(x, y, n) {
  const size = Math.hypot(x, y) ** n, angle = n * Math.atan2(y, x);
  return n === 1 ? [x, y] : [size * Math.cos(angle), size * Math.sin(angle)];
}

/** Least ε ≥ 0 with δ(ε) ≤ δ; between two grid points δ is linear in e^ε, so that the crossing is exact. */
function epsilonOf({ masses, size, infinite }, first, high, width, charge, delta) {
  const lost = infinite + charge, count = Math.min(high - first + 1, size);
  if (lost >= delta) return Infinity;
  const mass = (cell) => masses[(((first + cell) % size) + size) % size];
  // From the greatest loss down: the mass above a point, and that mass weighted by e^(point - loss).
  let above = 0, weighted = 0, found = 0;
  for (let cell = count - 1; cell >= 0 && first + cell >= 0; cell--) {
    [above, weighted] = [above + mass(cell), weighted * Math.exp(-width) + mass(cell)];
    // δ at one cell lower, where the mass of that cell itself gains nothing.
    const point = first + cell, lower = lost + above - weighted * Math.exp(-width);
    if (lower > delta || point === 0) {
      if (lower <= delta) return 0;
      found = point * width + Math.log((above - (delta - lost)) / weighted);
      return Math.max(0, Math.min(point * width, Math.max((point - 1) * width, found)));
    }
  }
  return found;
}

// --------------------------------------------------------------------------- the claim on a ledger

/** Whether a claim lies below what is recomputed, which is an upper bound: closer by it on a finer grid. */
const below = (claimed, costs) => [1, 4, 16].every((finer) => claimed < costs(finer) * (1 - 1e-3) - 1e-6);
const above = (claimed, costs) => claimed > costs * 1.05 + 0.01;
const shown = (value) => (value === null || value === undefined ? said`no finite ε` : figure(Number(value).toPrecision(4)));

/** Join equal kinds of queries; those of several lines become one with their number of steps. */
function merged(history) {
  const kinds = new Map();
  for (const kind of history) {
    const key = [kind.rate, kind.sigma, Boolean(kind.fixed)].join();
    kinds.set(key, { ...kind, steps: kind.steps + (kinds.get(key)?.steps ?? 0) });
  }
  return [...kinds.entries()].sort(([a], [b]) => (a < b ? -1 : 1)).map(([, kind]) => kind);
}

/** What a charge costs one record of the client: several queries on one batch are one of more precision. */
export function costOf({ sampling, noise_multiplier, queries_per_step = 1, expected_batch_size, records, steps, sampling_rate, rate_stated }) {
  const sigma = noise_multiplier / Math.sqrt(queries_per_step);
  if (sampling === "poisson") return { rate: Math.min(1, Math.max(sampling_rate ?? 0, rate_stated ? sampling_rate : expected_batch_size / records)), sigma, steps };
  if (sampling === "fixed-size") {
    const rate = Math.min(1, Math.max(sampling_rate ?? 0, expected_batch_size / records));
    return { rate, sigma: sigma / 2, steps, fixed: rate < 1 };
  }
  if (sampling === "shuffled") return { rate: 1, sigma: sigma / 2, steps: Math.ceil(steps / Math.ceil(records / expected_batch_size)) };
  return refuse(said`the sampler ${sampling} has no accounting here`);
}

/** What histograms of columns cost a record in addition to the rounds: a Gaussian query of all records for each column. */
function histogramsOf(queries) {
  const found = new Map();
  for (const { client, columns, noise_multiplier, sensitivity } of queries) {
    const sigma = noise_multiplier / Math.max(1, sensitivity), by = found.get(sigma) ?? found.set(sigma, new Map()).get(sigma);
    by.set(client, (by.get(client) ?? 0) + columns.length);
  }
  return [...found].map(([sigma, by]) => ({ rate: 1, sigma, steps: greatest(by.values()) }));
}

/** The ε that a view of the claim promises, by the accountant that it names; null without one. */
const stated = (view) => (view?.epsilon === null || view?.epsilon === undefined ? null : view.epsilon[view.accountant ?? Object.keys(view.epsilon)[0]]);

/** Privacy losses that a ledger's charges amount to, by the claim's views, each with what is claimed. */
function viewsOf({ header, spends, rounds, claim, queries }) {
  const known = new Map(), composed = new Map(), delta = claim.delta, people = header.unit === "person" ? header.clients_per_person : 1;
  const epsilon = (history, mixture, certain = []) => (finer) => {
    const kinds = [...merged(history).map((kind) => ({ ...kind, ...mixture })), ...certain], key = JSON.stringify([finer, kinds]);
    if (!known.has(key)) {
      composed.set(finer, (composed.get(finer) ?? 0) + kinds.length);
      if (composed.get(finer) > MOST_KINDS) throw new TooMany();
      known.set(key, epsilonByLosses(kinds, delta, finer));
    }
    return known.get(key);
  };
  const dearest = (histories) => {
    // The quick bound of Rényi orders ranks the clients; the dearest few are composed exactly.
    const bounds = Array.from(histories.values(), (history) => [epsilonByRenyi(history, delta)[0], history]);
    const ranked = bounds.sort(([a], [b]) => (a === b ? 0 : b - a)).map(([, history]) => history);
    // A person may be at several clients, whose histories then compose.
    if (people > 1) return epsilon(ranked.slice(0, people).flat());
    return (finer) => Math.max(0, ...ranked.slice(0, 8).map((history) => epsilon(history)(finer)));
  };
  if (header.producer != null) {
    return [{ key: "server", towards: "anyone who sees its models", claimed: stated(claim.server), costs: epsilon(spends.map(costOf)), accountant: claim.server?.accountant }];
  }
  if (header.unit === "client") {
    const third = { key: "third_party", claimed: stated(claim.third_party), costs: epsilon(spends.map((spend) => ({ rate: spend.sampling_rate, sigma: spend.noise_multiplier, steps: 1 }))) };
    if (header.noise_added_by === "server") return [third, { key: "server", claimed: stated(claim.server), costs: null }];
    const sums = new Map();
    for (const spend of spends) for (const client of spend.clients) sums.set(client, (sums.get(client) ?? 0) + spend.clients.length / spend.noise_multiplier ** 2);
    const most = greatest(sums.values());
    return [third, { key: "server", claimed: stated(claim.server), costs: epsilon([{ rate: 1, sigma: 1 / Math.sqrt(most), steps: 1 }]) }];
  }
  const histograms = histogramsOf(queries), byClient = grouped(spends, (spend) => spend.client);
  byClient.forEach((history, client) => byClient.set(client, merged([...history.map(costOf), ...histograms])));
  const fewest = smallest(header.records.filter((records) => records > 0)), paid = spends.map(costOf);
  const most = costOf({
    ...header, steps: header.local_steps, records: fewest, expected_batch_size: Math.min(header.expected_batch_size, fewest), rate_stated: header.sampling_rate != null,
    queries_per_step: spends.reduce((found, spend) => Math.max(found, spend.queries_per_step), 1),
  });
  const rate = greatest(paid.map((kind) => kind.rate), most.rate), steps = greatest(paid.map((kind) => kind.steps), most.steps);
  const kind = { rate, sigma: most.sigma, steps, fixed: rate < 1 && Boolean(most.fixed) };
  const limit = header.max_epsilon ?? Infinity, server = dearest(byClient), all = (times) => epsilon([{ ...kind, steps: steps * times * people }, ...histograms]), whole = all(header.rounds);
  // A round that was run again is there again: third parties saw what came of it each time.
  const seen = Math.max(header.rounds, rounds.length);
  const mixture = people > 1 ? all(seen) : epsilon([kind], { rounds: seen, share: header.clients_per_round / header.clients }, histograms);
  return [
    { key: "server", claimed: stated(claim.server), costs: server },
    { key: "server_worst_case", claimed: stated(claim.server_worst_case), costs: (finer) => Math.max(server(finer), Math.min(limit, whole(finer))) },
    { key: "third_party", claimed: stated(claim.third_party), costs: (finer) => Math.min(limit, mixture(finer)) },
  ];
}

/** Spec against header against charges: each pair of numbers that must be one number. */
export function promiseFaults(spec, { header, spends, rounds, claim, queries }) {
  const faults = [], privacy = spec.privacy ?? {}, sampling = privacy.sampling ?? {};
  const plain = (value) => (typeof value === "number" ? figure(String(value)) : value);
  const same = (what, a, b) => (typeof a === "number" && typeof b === "number" ? near(a, b) : a === b) || faults.push(said`${what}: ${plain(a)} here, ${plain(b)} there`);
  // The law of records' batches, its neighbours, and a δ at which no record is published outright.
  const lawOfRecords = () => {
    if ((header.sampling === "poisson" ? "add-remove" : "replace-one") !== header.adjacency) faults.push(said`${header.sampling} batches have no accounting under ${header.adjacency}`);
    const worst = greatest(header.records);
    if (header.delta * worst >= 1) faults.push(said`δ is not below 1/${worst}, the records of a client`);
  };
  if (header.unit !== "none") same(said`δ of header and claim`, header.delta, claim?.delta);
  if (header.producer != null) {
    lawOfRecords();
    for (const spend of spends) if (spend.records !== header.records[0] || spend.sampling !== header.sampling) faults.push(said`${said`line ${spend.line}`}: records or sampling are not the header’s`);
    return faults;
  }
  same(said`privacy.unit of spec and header`, privacy.unit, header.unit);
  if (header.unit === "none") return claim?.view_headline === "none" ? faults : [...faults, said`a run without privacy claims some`];
  for (const name of ["clipping_norm", "noise_multiplier", "delta", "adjacency"]) same(said`privacy.${name} of spec and header`, privacy[name], header[name]);
  const federation = spec.federation ?? {}, kinds = { poisson: "poisson", fixed: "fixed-size", shuffled: "shuffled" };
  for (const name of ["rounds", "clients_per_round", "local_steps"]) same(said`federation.${name} of spec and header`, federation[name], header[name]);
  same(said`federation.${"client_sampling"} of spec and header`, kinds[federation.client_sampling], header.client_sampling);
  same(said`federation.${"max_epsilon"} of spec and header`, federation.max_epsilon ?? null, header.max_epsilon ?? null);
  same(said`data.clients of spec and header`, spec.data?.clients, header.clients);
  const beyond = [...spends, ...rounds].find(({ round }) => !(round < header.rounds));
  if (beyond) faults.push(said`${said`line ${beyond.line}`}: the header has ${header.rounds} rounds, and this is number ${beyond.round + 1}`);
  if (header.max_epsilon != null) {
    const key = header.unit === "client" ? "third_party" : "server", claimed = stated(claim?.[key]);
    if (claimed > header.max_epsilon * (1 + 1e-9)) faults.push(said`ε (${VIEWS.get(key)}) is claimed ${shown(claimed)}, above the max_epsilon of ${shown(header.max_epsilon)}`);
  }
  if (header.unit === "client") {
    same(said`privacy.${"noise_added_by"} of spec and header`, privacy.noise_added_by, header.noise_added_by);
    if (header.adjacency !== "add-remove" || header.client_sampling !== "poisson") faults.push(said`only Poisson draws of clients have this accounting, under add-remove`);
    if (header.delta * header.clients >= 1) faults.push(said`δ is not below 1/${header.clients}, one over the number of clients`);
  }
  if (header.unit === "person") {
    same(said`records_per_person of spec and header`, privacy.records_per_person, header.records_per_person);
    same(said`clients_per_person of spec and header`, spec.federation?.clients_per_person, header.clients_per_person);
  }
  if (sampled(header)) {
    const batch = sampling.expected_batch_size ?? sampling.batch_size, rate = sampling.rate ?? (sampling.reference_size ? batch / sampling.reference_size : null);
    same(said`batch size of spec and header`, batch, header.expected_batch_size);
    same(said`sampling of spec and header`, kinds[sampling.kind], header.sampling);
    same(said`sampling rate of spec and header`, rate, header.sampling_rate ?? null);
    if (rate !== null && header.sampling !== "poisson") faults.push(said`a sampling rate is stated for batches that are not Poisson draws`);
    lawOfRecords();
  }
  const learnt = (Array.isArray(spec.data?.columns) ? spec.data.columns : []).filter((column) => column?.learn_quantiles?.length);
  if (learnt.length || queries.length || header.column_queries != null) {
    const names = learnt.map((column) => column.name).join(), bins = learnt.map((column) => column.learn_bins).join(), declared = header.column_queries ?? {};
    for (const [where, named] of [[said`the header`, declared], ...queries.map((query) => [said`line ${query.line}`, query])]) {
      if (String(named.columns) !== names || String(named.bins) !== bins) faults.push(said`${where}: histograms of other columns or cells than the spec's`);
      if (!near(named.noise_multiplier ?? 0, spec.data?.column_noise_multiplier ?? -1)) faults.push(said`${where}: noise on histograms is not the spec's column_noise_multiplier`);
    }
    if (learnt.length && queries.length !== header.clients) faults.push(said`bounds of columns are learnt, and not every client is charged for it`);
    for (const query of queries) {
      if (query.sensitivity !== 1) faults.push(said`${said`line ${query.line}`}: a record moves a histogram by 1, and another number is named`);
      if (query.records !== header.records[query.client]) faults.push(said`${said`line ${query.line}`}: records of client ${query.client} differ from the header's`);
    }
  }
  for (const spend of spends) {
    const where = said`line ${spend.line}`;
    for (const name of ["clipping_norm", ...(sampled(header) ? ["sampling"] : []), ...(header.adaptation ? [] : ["noise_multiplier"])]) if (typeof spend[name] === "number" ? !near(spend[name], header[name]) : spend[name] !== header[name]) faults.push(said`${where}: ${name} differs from the header's`);
    if (header.unit === "client") {
      if (spend.sampling !== header.client_sampling || !near(spend.sampling_rate, header.clients_per_round / header.clients)) faults.push(said`${where}: clients are not drawn as the header says`);
      if (spend.noise_added_by !== header.noise_added_by || spend.expected_clients !== header.clients_per_round) faults.push(said`${where}: noise or divisor are not the header's`);
      continue;
    }
    if (spend.records !== header.records[spend.client]) faults.push(said`${where}: records of client ${spend.client} differ from the header's`);
    if (!near(spend.expected_batch_size, header.expected_batch_size)) faults.push(said`${where}: expected_batch_size differs from the header's`);
    if (!header.adaptation && spend.steps !== header.local_steps) faults.push(said`${where}: steps differ from local_steps`);
    const due = header.sampling === "shuffled" ? 1 : (header.sampling_rate ?? header.expected_batch_size / spend.records);
    if (!near(due, spend.sampling_rate)) faults.push(said`${where}: sampling_rate is not the ${shown(due)} of its sampler`);
    if ((spend.rate_stated ?? false) !== (header.sampling_rate != null)) faults.push(said`${where}: whether the rate is stated differs from the header`);
  }
  return faults;
}

/** ε as sentences print it: rounded up to two decimals, or to three digits below 0.1. */
export function printed(epsilon) {
  if (epsilon === 0) return "0";
  const places = epsilon >= 1000 ? 0 : epsilon >= 0.1 ? 2 : 2 - Math.floor(Math.log10(epsilon));
  const exact = spelled(epsilon).includes("e") ? epsilon.toFixed(20) : spelled(epsilon), [whole, rest = ""] = exact.split(".");
  let up = BigInt(whole + rest.padEnd(places, "0").slice(0, places));
  if (/[1-9]/.test(rest.slice(places))) up += 1n;
  const digits = String(up).padStart(places + 1, "0"), point = digits.length - places;
  const before = digits.slice(0, point);
  return `${epsilon >= 1000 ? before.replace(/\B(?=(\d{3})+$)/g, ",") : before}${places ? `.${digits.slice(point)}` : ""}`;
}

/** The keys of the views that an attestation must state, in this order. */
function viewsDue({ header, claim }, spec) {
  if (header.unit === "none") return [];
  if (header.producer != null) return ["third_party"];
  if (header.unit === "client") return header.noise_added_by === "server" ? ["third_party", "trusted_server"] : ["third_party"];
  return "tuning" in claim || mapping(mapping(spec).tune).selection === "private" ? ["third_party"] : ["server_worst_case", "third_party"];
}

/** What the signed sentence says that the signed numbers do not: it is quoted to the reader. */
function sentenceFaults(stated) {
  const sentence = String(stated.statement), leading = mapping(sequence(stated.views).find((view) => mapping(view).key === "third_party"));
  if (stated.unit === "none") return sentence === "no differential privacy" ? [] : [said`its sentence has another ε than its numbers`];
  const begins = typeof leading.epsilon === "number" ? /^Claimed: (Against|Towards) [^ε\d()]+, training is (?=\(ε = )/ : /^Claimed: the run has no finite ε (against|towards) [^ε\d()]+\.$/;
  const named = [...sentence.matchAll(/ε = |epsilon/gi)].length, due = typeof leading.epsilon === "number" ? 1 : 0;
  return begins.test(sentence) && named === due && (!due || sentence.includes(`(ε = ${printed(leading.epsilon)}, δ = `)) ? [] : [said`its sentence has another ε than its numbers`];
}

/** What an attestation says of the run, held against the ledger's claim. */
function attestedFaults({ predicate }, { header, claim }, spec) {
  const stated = mapping(predicate.claims), faults = sentenceFaults(stated), views = sequence(stated.views).map(mapping);
  if (predicate.run !== header.run) faults.push(said`speaks of another run than the ledger, ${header.run}`);
  if (stated.unit !== header.unit) faults.push(said`claims another unit than the ledger`);
  if (header.unit === "none") return views.length ? [...faults, said`claims privacy, and the ledger does not`] : faults;
  if (views.map((view) => view.key).join() !== viewsDue({ header, claim }, spec).join()) faults.push(said`claims other views than the ledger`);
  for (const name of ["adjacency", "randomness"]) if (stated[name] !== header[name]) faults.push(said`claims another ${name} than the ledger`);
  for (const view of views) {
    const source = claim?.[header.producer != null ? "server" : view.key], due = source?.epsilon?.[source.accountant ?? Object.keys(source.epsilon ?? {})[0]] ?? null;
    if (view.epsilon !== due || (view.delta ?? null) !== (claim?.delta ?? null)) faults.push(said`claims another ε or δ against ${VIEWS.get(view.key) ?? view.key} than the ledger`);
  }
  return faults;
}

// -------------------------------------------------------------------------------- private evidence

/** Arrays of an .npz: a ZIP archive without compression, of .npy files without objects. */
export function readArrays(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length), found = new Map();
  let end = bytes.length - 22;
  while (end >= 0 && view.getUint32(end, true) !== 0x06054b50) end--;
  if (end < 0) refuse(said`is no ZIP archive`);
  let at = view.getUint32(end + 16, true);
  for (let left = view.getUint16(end + 10, true); left > 0; left--) {
    if (at + 46 > bytes.length || view.getUint32(at, true) !== 0x02014b50) refuse(said`is a damaged ZIP archive`);
    const [names, extra, comment] = [28, 30, 32].map((offset) => view.getUint16(at + offset, true));
    const name = UTF8.decode(bytes.subarray(at + 46, at + 46 + names)), size = view.getUint32(at + 20, true), local = view.getUint32(at + 42, true);
    if (view.getUint16(at + 10, true) !== 0 || size !== view.getUint32(at + 24, true)) refuse(said`${name} is compressed; evidence is not`);
    const start = local + 30 + view.getUint16(local + 26, true) + view.getUint16(local + 28, true);
    if (start + size > bytes.length || found.has(name)) refuse(said`is a damaged ZIP archive`);
    found.set(name.replace(/\.npy$/, ""), bytes.subarray(start, start + size));
    at += 46 + names + extra + comment;
  }
  return { names: [...found.keys()], get: (name) => parseArray(found.get(name) ?? refuse(said`lacks ${name}`)) };
}

const TYPES = { "<f4": Float32Array, "<f8": Float64Array, "<i8": BigInt64Array, "<i4": Int32Array, "|u1": Uint8Array, "<u2": Uint16Array, "<u4": Uint32Array };

function parseArray(bytes) {
  const wide = bytes[6] > 1, size = wide ? new DataView(bytes.buffer, bytes.byteOffset).getUint32(8, true) : bytes[8] + 256 * bytes[9];
  const start = (wide ? 12 : 10) + size, head = UTF8.decode(bytes.subarray(wide ? 12 : 10, start));
  const type = TYPES[/'descr': '([^']+)'/.exec(head)?.[1]] ?? refuse(said`has an array of another type than numbers`), shape = /'shape': \(([\d, ]*)\)/.exec(head)?.[1].split(",").map((part) => part.trim()).filter(Boolean).map(Number);
  const count = (shape ?? refuse(said`has an array without a shape`)).reduce((product, side) => product * side, 1);
  if (count * type.BYTES_PER_ELEMENT !== bytes.length - start) refuse(said`has an array of another size than its shape`);
  const values = new type(bytes.slice(start).buffer, 0, count);
  return { shape, values: type === BigInt64Array ? Float64Array.from(values, Number) : values, isWhole: type !== Float32Array && type !== Float64Array };
}

/** How many standard deviations a sum of n squares of normal numbers lies off (Wilson & Hilferty 1931). */
const offBy = (squares, n) => (Math.cbrt(squares / n) - (1 - 2 / (9 * n))) / Math.sqrt(2 / (9 * n));
// A correct run raises each of the tests below with this chance at most, and there are ten.
const ALARM = 1e-7;
const AMONG = { clients: said`clients`, steps: said`steps`, rounds: said`rounds` };

/**
 * Noise and batch sizes of all rounds, held against the ledger: the noise's variance over all answers, in each block and
 * in each answer; its shape, its largest part, repeats, and sums over clients, steps and rounds; batch sizes. `missing` are
 * the files of finished rounds that are not there.
 */
export async function evidenceFaults(folder, { header, rounds, spends }) {
  const faults = [], missing = [], ended = new Map(rounds.map((round) => [round.round, round]));
  const charges = new Map(spends.map((spend) => [`${spend.round},${spend.client}`, spend])), far = quantile(ALARM / 2);
  const answers = [], blocks = [], values = [], sums = { clients: [], steps: [], rounds: [] }, seen = new Set();
  let excess = 0, variance = 0, largest = 0, repeats = 0, sizesOfBlocks = [], sumOfRounds = null;
  try {
    sizesOfBlocks = parseJson(await folder.text("evidence/layout.json")).blocks.sizes;
  } catch {
    faults.push(said`evidence/layout.json cannot be read`);
  }
  for (const [index, told] of ended) {
    const name = `evidence/round-${String(index).padStart(5, "0")}.npz`;
    if (!folder.has(name)) {
      missing.push(name);
      continue;
    }
    try {
      const arrays = readArrays(await folder.read(name, MOST_EVIDENCE)), [squares, sample, sizes, most] = ["noise_sum_squares", "noise_sample", "batch_size", "noise_largest"].map(arrays.get), clients = arrays.get("clients").values;
      const [people, steps, parts] = squares.shape, width = sample.shape.at(-1), round = new Float64Array(width);
      // A recorded loop's steps are charged at σ and C of their own, which are those of all steps of a file; its squares are not over C.
      const charge = header.producer != null ? (charges.get(`${index},0`) ?? refuse(said`covers no charge`)) : null;
      const sigma = charge?.noise_multiplier ?? header.noise_multiplier, unit = (sigma * (charge?.clipping_norm ?? 1)) ** 2;
      if (!parts || parts !== sizesOfBlocks.length) refuse(said`has other blocks than evidence/layout.json`);
      if (sample.values.length !== people * steps * width || sizes.values.length !== people * steps) refuse(said`has arrays of another shape`);
      if (!sizes.isWhole) refuse(said`has batch sizes that are no whole numbers`);
      if (![squares, sample, most].every(({ values }) => values.every(Number.isFinite))) refuse(said`has numbers that are not finite`);
      if (clients.length !== people || [...clients].sort(byNumber).join() !== [...told.clients].sort(byNumber).join()) refuse(said`its clients are not the ledger’s`);
      if (told.queries.some((queries) => queries !== steps)) refuse(said`its answers are not as many as the ledger’s`);
      for (let row = 0; row < people * steps; row++) {
        let sum = 0;
        for (let part = 0; part < parts; part++) {
          const own = squares.values[row * parts + part] / unit;
          blocks[part] = (blocks[part] ?? 0) + own;
          sum += own;
        }
        answers.push(sum);
        const noise = sample.values.subarray(row * width, (row + 1) * width), key = Array.from(noise.subarray(0, 8)).join();
        if (width >= 8) seen.has(key) ? repeats++ : seen.add(key);
        noise.forEach((value, place) => (values.push(value / sigma), (round[place] += value / sigma)));
      }
      for (const value of most.values) largest = Math.max(largest, value / sigma);
      // Sums of independent numbers, scaled so that each has variance 1.
      for (let place = 0; place < width; place++) {
        for (let step = 0; step < steps; step++) sums.clients.push(sumOf(people, (i) => sample.values[(i * steps + step) * width + place]) / sigma / Math.sqrt(people));
        for (let client = 0; client < people; client++) sums.steps.push(sumOf(steps, (i) => sample.values[(client * steps + i) * width + place]) / sigma / Math.sqrt(steps));
      }
      if (people * steps) {
        sumOfRounds ??= { total: new Float64Array(width), rounds: 0 };
        round.forEach((value, place) => (sumOfRounds.total[place] += value / Math.sqrt(people * steps)));
        sumOfRounds.rounds++;
      }
      if (header.sampling !== "poisson") continue;
      sizes.values.forEach((size, place) => {
        const spend = charges.get(`${index},${clients[Math.floor(place / steps)]}`);
        // Several answers are given on one batch, which counts once.
        if (!spend || (place % steps) % spend.queries_per_step) return;
        excess += size - spend.sampling_rate * spend.records;
        variance += spend.records * spend.sampling_rate * (1 - spend.sampling_rate);
      });
    } catch (error) {
      faults.push(said`${name}: ${error instanceof Refused ? error.said : said`has arrays of another shape`}`);
    }
  }
  const count = answers.length, d = header.parameters, freedom = d * count;
  if (!count || faults.length) return { faults, missing, queries: count };
  const total = answers.reduce((sum, one) => sum + one, 0), z = offBy(total, freedom), each = quantile(ALARM / 2 / count), part = quantile(ALARM / 2 / blocks.length);
  if (Math.abs(z) > far) faults.push(said`the noise has ${figure((total / freedom).toFixed(4))} of the variance that the ledger states (${figure(z.toFixed(1))} standard errors off)`);
  const wrong = blocks.filter((sum, i) => Math.abs(offBy(sum, sizesOfBlocks[i] * count)) > part).length, single = answers.filter((sum) => !sum || Math.abs(offBy(sum, d)) > each).length;
  if (wrong && blocks.length > 1) faults.push(said`in ${wrong} of ${blocks.length} blocks the noise has another variance`);
  if (single) faults.push(said`${single} of ${count} answers have noise of another variance`);
  const tail = 2 * freedom * ndtr(-largest);
  if (tail < ALARM || tail > -Math.log(ALARM)) faults.push(said`the largest of ${freedom} parts of the noise is ${figure(largest.toFixed(2))} σ, as normal numbers do not have it`);
  const distance = kolmogorov(values);
  if (distance > Math.sqrt(Math.log(2 / ALARM) / 2 / values.length)) faults.push(said`the sampled noise does not have the shape of normal numbers`);
  if (repeats) faults.push(said`${repeats} answers repeat the noise of another`);
  if (sumOfRounds?.rounds > 1) sumOfRounds.total.forEach((value) => sums.rounds.push(value / Math.sqrt(sumOfRounds.rounds)));
  for (const [name, found] of Object.entries(sums)) if (found.length && Math.abs(offBy(sumOf(found.length, (i) => found[i] ** 2), found.length)) > far) faults.push(said`noise is correlated between ${AMONG[name]}`);
  const batches = variance ? excess / Math.sqrt(variance) : 0;
  if (Math.abs(batches) > far) faults.push(said`batches are ${figure(batches.toFixed(1))} standard errors from the sizes that their rate gives`);
  return { faults, missing, queries: count, ratio: total / freedom };
}

const byNumber = (a, b) => a - b;
const sumOf = (count, of) => {
  let sum = 0;
  for (let i = 0; i < count; i++) sum += of(i);
  return sum;
};

/** Largest distance between the values' distribution and that of normal numbers. */
function kolmogorov(values) {
  const sorted = Float64Array.from(values).sort();
  let distance = 0;
  sorted.forEach((value, i) => {
    const due = ndtr(value);
    distance = Math.max(distance, due - i / sorted.length, (i + 1) / sorted.length - due);
  });
  return distance;
}

// ------------------------------------------------------------------------------------- a gate's ledger

const HEAD = { role: null, types: typeNames("gate:v1") }, NAME = /^[A-Za-z0-9._:-]{1,128}$/, KEPT = 16, MEDIAN = 0.6744897501960817, GATE_ALARM = 1e-6;
/** Whether a text is a time in UTC, in whole seconds, of a day that there is. */
const isTime = (v) => /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$/.test(v) && !Number.isNaN(Date.parse(v)) && new Date(v).toISOString().slice(0, 19) === v.slice(0, 19);
const GATE = {
  gate: { format: (v) => v === 1, unit: (v) => ["record", "person", "site"].includes(v), epsilon: (v) => isPositive(v), delta: (v) => isPositive(v, 0.5), key: (v) => typeof v === "string" },
  spend: {
    job: (v) => isText(v, NAME), framework: (v) => isText(v, NAME), request: (v) => isText(v, NAME), time: (v) => isTime(v), shards: (v) => isWhole(v, 1) && v <= 4096,
    clip: (v) => isPositive(v), sensitivity: (v) => isPositive(v), noise_multiplier: (v) => isPositive(v), broadcast_sha256: (v) => isText(v, HEX),
  },
  reply: { sha256: (v) => isText(v, HEX) },
};

/** Files that a run has and a gate's folder has not. */
const OF_A_RUN = ["spec.yaml", "audit.json", "report.json", "report-public.json", "trainer.pub", "auditor.pub", ...Object.keys(ENVELOPES)];
const OF_A_GATE = /^(ledger\.jsonl|head\.json|gate\.pub|refusals\.json|sharding\.key|replies\/\d{6,}\.safetensors|\.unfinished\/.*)$/;

/** A gate's ledger, in the folder given or in `ledger` in it, and the names that are none of its files; null of a run. */
function gateIn(folder) {
  if (OF_A_RUN.some(folder.has)) return null;
  const prefix = folder.has("head.json") ? "" : "ledger/";
  if (!folder.has(`${prefix}head.json`) || (prefix && folder.has("ledger.jsonl"))) return null;
  const inside = new Map(), outside = [];
  for (const [name, file] of folder.files) name.startsWith(prefix) && OF_A_GATE.test(name.slice(prefix.length)) ? inside.set(name.slice(prefix.length), file) : outside.push(name);
  return { ledger: new Folder(inside), outside: outside.sort() };
}

/** Lines of a gate's ledger: charges in order, and the digest of each stored reply. */
export function readGate(text) {
  const found = { header: null, charges: [], replies: new Map(), faults: [], ends: [0] }, lines = text.split("\n").slice(0, -1);
  for (const line of lines) found.ends.push(found.ends.at(-1) + bytesOf(line).length + 1);
  chained(lines, found.faults, (entry, line) => {
    if ((entry.kind === "gate") !== (line === 1)) refuse(said`is not the one header on the first line`);
    fits(entry, GATE[entry.kind] ?? refuse(said`is of an unknown kind`));
    if (entry.kind === "gate") found.header = entry;
    else if (entry.kind === "spend") found.charges.push(entry.release === found.charges.length + 1 ? { ...entry, line } : refuse(said`is not release ${found.charges.length + 1}, which is next`));
    else if (!(isWhole(entry.release, 1) && entry.release <= found.charges.length) || found.replies.has(entry.release)) refuse(said`is no reply to a release`);
    else found.replies.set(entry.release, entry.sha256);
  });
  return found;
}

/** Arrays of a .safetensors file of real numbers, by name. */
function readTensors(bytes) {
  const size = bytes.length < 8 ? Infinity : Number(new DataView(bytes.buffer, bytes.byteOffset).getBigUint64(0, true));
  if (size > bytes.length - 8) refuse(said`is no file of arrays`);
  const found = new Map();
  for (const [name, { dtype, data_offsets }] of Object.entries(parseJson(UTF8.decode(bytes.subarray(8, 8 + size)).trimEnd()))) {
    const type = { F32: Float32Array, F64: Float64Array }[dtype] ?? refuse(said`is no file of arrays`), raw = bytes.slice(8 + size + data_offsets[0], 8 + size + data_offsets[1]);
    if (raw.length !== data_offsets[1] - data_offsets[0] || raw.length % type.BYTES_PER_ELEMENT) refuse(said`is no file of arrays`);
    found.set(name, { raw, values: new type(raw.buffer) });
  }
  return found;
}

/** How many numbers of a reply moved by less than the noise's median, of how many; narrowing may have moved each a little. */
export function smallMoves(bytes, { shards, sensitivity, noise_multiplier, broadcast_sha256 }) {
  const arrays = readTensors(bytes), names = [...arrays.keys()].filter((name) => name.startsWith("broadcast.")).sort(byCodePoint), sent = new Sha256(), most = (MEDIAN * sensitivity * noise_multiplier) / shards;
  let small = 0, of = 0;
  for (const name of names) {
    const before = arrays.get(name), after = arrays.get(name.replace("broadcast", "released"));
    if (after?.raw.length !== before.raw.length || after.values.constructor !== before.values.constructor) refuse(said`${name} did not come back in its form`);
    sent.update(before.raw);
    const [least, bits] = after.values instanceof Float32Array ? [-126, 23] : [-1022, 52];
    after.values.forEach((value, i) => (small += Math.abs(value - before.values[i]) + 2 ** (Math.max(least, Math.floor(Math.log2(Math.abs(value)))) - bits) < most));
    of += after.values.length;
  }
  if (!of || arrays.size !== 2 * names.length) refuse(said`is no file of arrays`);
  if (hex(sent.digest()) !== broadcast_sha256) refuse(said`holds another broadcast than was charged`);
  return [small, of];
}

/** Chernoff's bound on the chance of so many among fair coins, as minus its logarithm. */
export function surprise(count, of) {
  const share = count / of;
  return share <= 0.5 ? 0 : of * (share * Math.log(2 * share) + (share === 1 ? 0 : (1 - share) * Math.log(2 * (1 - share))));
}

async function verifyGate(folder, { gate: pem, anchor: second }, result, say, fails, attempt) {
  const contradict = (why) => {
    say("fails", why, "ledger.jsonl", why);
    result.lines.at(-1).kind = "claim";
    result.claim = "CONTRADICTED";
  };
  result.unknown = pem ? [] : ["gate"];
  const bytes = await attempt("ledger.jsonl", () => folder.read("ledger.jsonl", 1 << 30));
  const ledger = bytes && (await attempt("ledger.jsonl", async () => readGate(decoded(bytes))));
  const key = await attempt("gate.pub", async () => readKey(pem ?? (await folder.text("gate.pub", 1 << 16))));
  const head = key && (await attempt("head.json", async () => openEnvelope(await folder.text("head.json", 1 << 16), HEAD, key)));
  for (const fault of ledger?.faults ?? []) fails("ledger.jsonl", fault);
  if (ledger && head) {
    const { header, charges, ends } = ledger, { bytes: size, charges: counted } = head.predicate, whole = ends.at(-1), place = ends.indexOf(size);
    result.run = `gate ${key.fingerprint}`;
    result.signers.gate = key.fingerprint;
    if (header?.key !== key.fingerprint) fails("head.json", said`is signed by another key than began the ledger`);
    if (!isWhole(size) || size > bytes.length || sha256(bytes.subarray(0, size)) !== head.subjects.get("ledger.jsonl")?.[1]) fails("head.json", said`the ledger is not as it was signed: it was changed or cut`);
    // A crash can come between a line and its head.
    else if (place < ends.length - 2) fails("head.json", said`more than one line of the ledger follows what was signed`);
    else if (charges.filter(({ line }) => ends[line] <= size).length !== counted) fails("head.json", said`counts other releases than the ledger`);
    else say("holds", said`ledger.jsonl: ${charges.length} releases in order, each line with the digest of the one before, signed by the gate’s key`, "head.json", key.fingerprint);
    const anchor = second ? await attempt("anchor", async () => openEnvelope(second, HEAD, key)) : null, kept = anchor?.predicate.bytes;
    if (anchor) {
      const written = isWhole(kept) && kept <= bytes.length && sha256(bytes.subarray(0, kept)) === anchor.subjects.get("ledger.jsonl")?.[1];
      if (written && ends.includes(kept) && Math.abs(ends.indexOf(kept) - place) < 2) say("holds", said`the anchor is a head of this ledger, and as new`, "anchor");
      else fails("anchor", said`the ledger was rolled back or changed: its anchor is of another or a newer one`);
    }
    if (whole < bytes.length) say("unseen", said`${bytes.length - whole} bytes at the ledger’s end that a crash tore: they paid for nothing.`);
  }
  const broken = () => result.lines.some(({ state }) => state === "fails");
  if (!broken() && ledger?.header) await attempt("ledger.jsonl", () => checkGate(folder, ledger, result, say, fails, attempt, contradict));
  say("unseen", second ? said`Whether shards were clipped and kept apart: the ledger does not show it.` : said`Whether shards were clipped and kept apart, and whether the ledger was rolled back together with its head: dpfedadamw gate verify reads the anchor.`);
  const valid = head && ledger && result.lines.every(({ state, kind }) => state !== "fails" || kind === "claim");
  result.outcome = !valid ? "NOT VALID" : pem ? "ALL HOLD" : "INTACT, SIGNER UNKNOWN";
  result.code = !valid || result.claim === "CONTRADICTED" ? 1 : pem ? 0 : 3;
  return result;
}

async function checkGate(folder, { header, charges, replies }, result, say, fails, attempt, contradict) {
  for (const { line, sensitivity, clip } of charges.filter((one) => one.sensitivity !== 2 * one.clip).slice(0, 1)) contradict(said`line ${line}: states a sensitivity of ${figure(String(sensitivity))}; one unit’s data move the sum by up to twice the clip, ${figure(String(2 * clip))}`);
  if (header.unit === "site" && charges.some(({ shards }) => shards !== 1)) contradict(said`a site is in all shards of a charge that names several`);
  // ε of all releases: Gaussians on all of the data.
  const counted = new Map();
  for (const { noise_multiplier } of charges) counted.set(noise_multiplier, (counted.get(noise_multiplier) ?? 0) + 1);
  const history = [...counted].map(([sigma, steps]) => ({ rate: 1, sigma, steps })), costs = (finer) => epsilonByLosses(history, header.delta, finer);
  const isCostly = history.length > MOST_KINDS, spent = isCostly ? null : costs(1);
  if (!isCostly) result.views.push({ key: "gate", claimed: header.epsilon, costs: spent, delta: header.delta });
  result.unprotected = spent > NO_PROTECTION_ABOVE ? "anyone" : null;
  if (isCostly) say("unseen", said`ε was not recomputed: the charges are of more than ${MOST_KINDS} kinds.`);
  else if (!Number.isFinite(spent) || below(header.epsilon, costs)) contradict(said`the releases cost ε = ${shown(spent)}, above the budget of ${shown(header.epsilon)}`);
  else say("holds", said`the releases cost ε = ${shown(spent)}, of a budget of ${shown(header.epsilon)}`, "ledger.jsonl");
  const counts = [];
  let unread = isCostly;
  for (const [release, digest] of [...replies].filter(([release]) => release > charges.length - KEPT)) {
    const name = `replies/${String(release).padStart(6, "0")}.safetensors`;
    if (!folder.has(name)) {
      unread = true;
      say("unseen", said`${name} is not in this folder.`);
    } else if ((await attempt(name, () => folder.sha256(name))) !== digest) fails(name, said`is not the reply that the ledger names`);
    else counts.push((await attempt(name, async () => smallMoves(await folder.read(name, 2 ** 31), charges[release - 1]))) ?? [0, 1]);
  }
  if (charges.length && !counts.length) unread = true;
  const total = [0, 1].map((place) => sumOf(counts.length, (i) => counts[i][place])), rare = Math.log((counts.length + 1) / GATE_ALARM);
  if ([...counts, total].some(([small, of]) => surprise(small, of) > rare)) contradict(said`there is less noise than was charged: ${total[0]} of ${total[1]} released numbers moved by less than its median`);
  else if (counts.length && !unread) say("holds", said`${total[0]} of ${total[1]} released numbers moved by less than the median of the charged noise; at most half should`, "replies");
  if (result.claim === "NOT SEEN" && !unread) result.claim = "AGREES";
}

// ---------------------------------------------------------------------------------- the judgement

const LEVELS = {
  1: [said`consistent`, said`Nothing in the files contradicts the claim. Evidence that the trainer forged consistently would pass.`],
  2: [said`re-executed`, said`The auditor computed participations again that were drawn after training. A trainer who chose the noise could still lie.`],
  3: [said`challenged`, said`Neither side could choose the noise, and the holder of another key computed participations again.`],
};
const VERDICTS = new Map([["PASS", said`PASS`], ["FAIL", said`FAIL`], ["NOT VERIFIED", said`NOT VERIFIED`], ["NO CLAIM", said`NO CLAIM`]]);
// An ε above this protects nobody in practice, whether or not the claim to it is true.
export const NO_PROTECTION_ABOVE = 20;
const UNPROTECTED = new Map([["anyone", said`No meaningful protection`], ["the server", said`No meaningful protection against the server`]]);
const WHY = said`An ε above ${NO_PROTECTION_ABOVE} lets an attacker’s odds grow more than ${Math.floor(Math.exp(NO_PROTECTION_ABOVE) / 1e6)} million times.`;
/** Against whom signed claims give no meaningful protection: "anyone", "the server" or null. */
function unprotectedBy(claims) {
  const views = new Map(sequence(mapping(claims).views).map(mapping).map((view) => [view.key, view.epsilon])), above = (epsilon) => Number(epsilon ?? 0) > NO_PROTECTION_ABOVE;
  if (above(views.get("third_party"))) return "anyone";
  return above(views.has("server_worst_case") ? views.get("server_worst_case") : views.get("server")) ? "the server" : null;
}
const VIEWS = new Map([["server", said`server`], ["server_worst_case", said`server worst case`], ["third_party", said`third party`]]);

/**
 * Judge a run directory, or the public files of one.
 *
 * @param folder A Folder.
 * @param pinned {trainer, auditor}: PEM of public keys that the reader received another way; either may be missing.
 * @returns outcome ("ALL HOLD", "INTACT, SIGNER UNKNOWN" or "NOT VALID"), claim ("AGREES", "CONTRADICTED", "NONE" or
 *   "NOT SEEN"), code (0, 3 or 1), run, verdict and level as signed, unprotected (against whom the ε as signed
 *   protects nobody, or null), views with ε claimed and recomputed, and lines
 *   {state: "holds" | "fails" | "unseen", what, file, why}.
 */
export async function verify(folder, pinned = {}) {
  const lines = [], say = (state, what, file = "", why = "") => lines.push({ state, what, file, why });
  const fails = (file, why) => say("fails", said`${file}: ${why}`, file, why);
  const attempt = async (file, work) => {
    try {
      return await work();
    } catch (error) {
      // Whatever a hostile file brings about, its reader is told of the file and not of this program.
      fails(file, error instanceof Refused ? error.said : said`cannot be read`);
      return null;
    }
  };
  const result = { outcome: "NOT VALID", claim: "NOT SEEN", code: 1, run: null, verdict: null, level: null, unprotected: null, signers: {}, views: [], lines };
  for (const { name, why } of folder.refused) fails(name, why);
  const gate = gateIn(folder);
  if (gate) {
    if (pinned.trainer || pinned.auditor) fails("head.json", said`is of a gate’s ledger, which no key of a trainer or an auditor judges; give the gate’s key`);
    if (gate.outside.length) say("unseen", said`Files that are no part of the gate’s ledger: ${gate.outside.slice(0, 20).concat(gate.outside.length > 20 ? "…" : []).join(", ")}`);
    return verifyGate(gate.ledger, pinned, result, say, fails, attempt);
  }
  if (!Object.keys(ENVELOPES).some(folder.has)) {
    fails("attestation.json", said`is missing: this is no folder of a run; give the one that holds attestation.json or attestation-public.json`);
    return result;
  }
  const isPublic = folder.has("attestation-public.json") && !["attestation.json", "training.attestation.json", "ledger.jsonl", "audit.json", "evidence"].some(folder.holds);
  const names = isPublic ? ["attestation-public.json"] : ["training.attestation.json", "attestation.json", ...(folder.has("attestation-public.json") ? ["attestation-public.json"] : [])];

  // Whose keys.
  const keys = {}, unknown = [];
  for (const role of ["trainer", "auditor"]) {
    const embedded = await attempt(`${role}.pub`, async () => readKey(await folder.text(`${role}.pub`, 16384)));
    const given = pinned[role] ? await readKey(pinned[role]) : null;
    if (given && embedded && given.fingerprint !== embedded.fingerprint) fails(`${role}.pub`, said`is ${embedded.fingerprint}, not the key you gave, ${given.fingerprint} (replaced keys are not followed here)`);
    if (!given) unknown.push(role);
    keys[role] = given ?? embedded;
  }

  // Signatures, and the files that they cover.
  const statements = {};
  for (const name of names) {
    const kind = ENVELOPES[name], key = keys[kind.role];
    const found = key && (await attempt(name, async () => openEnvelope(await folder.text(name), kind, key)));
    if (!found) continue;
    statements[name] = found;
    result.signers[kind.role] = key.fingerprint;
    const number = found.predicate.sequence ?? said`none`;
    say("holds", kind.role === "trainer" ? said`${name}: signed by the trainer, number ${number} of this run` : said`${name}: signed by the auditor, number ${number} of this run`, name, key.fingerprint);
  }
  await attempt("attestation.json", () => checkFiles(folder, statements, isPublic, say, fails, attempt));

  // What the files say: first the auditor's word, then the ledger by itself.
  const last = statements[isPublic ? "attestation-public.json" : "attestation.json"];
  const word = (value) => (typeof value === "string" ? value : null);
  result.run = word(last?.predicate.run);
  result.verdict = word(last?.predicate.verdict);
  result.unprotected = unprotectedBy(last?.predicate.claims);
  result.statement = word(mapping(last?.predicate.claims).statement);
  let ledger = null;
  if (!isPublic) {
    ledger = await attempt("ledger.jsonl", async () => readLedger(await folder.text("ledger.jsonl")));
    if (ledger) await attempt("ledger.jsonl", () => checkClaim(folder, ledger, statements, result, say, fails, attempt));
  }
  if (isPublic && last) for (const fault of sentenceFaults(mapping(last.predicate.claims))) fails("attestation-public.json", fault);
  const facts = await attempt("report.json", () => checkReports(folder, ledger, statements, result, isPublic, say, fails, attempt));
  const challenger = await attempt("challenge.json", () => checkAnnounced(folder, ledger?.header, keys, say, fails, attempt));
  if (facts?.public_coin && challenger && challenger !== keys.auditor?.fingerprint) say("unseen", said`The challenge is signed by ${challenger}, and the attestation by another key; whether one replaced the other: dpfedadamw verify reads it.`, "challenge.json");
  say("unseen", said`Whether trainer and auditor are two people, and whether a key was revoked or replaced: ask the signers.`);
  say("unseen", said`The signature inside each PDF, timestamps, proofs of logs and lists of replaced keys: dpfedadamw verify reads them; here only their digests are checked.`);
  if (isPublic) say("unseen", said`Ledger and evidence are not public: that verdict and claim follow from them is the auditor’s word.`);

  const broken = lines.some((line) => line.state === "fails" && line.kind !== "claim");
  result.outcome = broken || !last ? "NOT VALID" : unknown.length ? "INTACT, SIGNER UNKNOWN" : "ALL HOLD";
  result.unknown = unknown;
  if (!broken && result.claim !== "CONTRADICTED") result.level = levelOf(facts, keys, challenger);
  result.code = result.outcome === "NOT VALID" || result.claim === "CONTRADICTED" ? 1 : unknown.length ? 3 : 0;
  return result;
}

const MOST_LOCK_BYTES = 1024;

async function checkFiles(folder, statements, isPublic, say, fails, attempt) {
  const digestOf = (name) => attempt(name, () => folder.sha256(name));
  const lastName = isPublic ? "attestation-public.json" : "attestation.json", present = [...folder.files.keys()];
  // A lock says in a line who holds it; of what else lies there nothing is signed.
  const isLock = (name) => name === ".unfinished/lock" && folder.files.get(name).size <= MOST_LOCK_BYTES;
  if (present.some((name) => /^\.unfinished(\/|$)/.test(name) && !isLock(name))) fails(".unfinished", said`a write to this run was cut off or is going on`);
  if (folder.holds("checkpoint")) fails("checkpoint", said`is not signed; a finished run has none`);
  let checked = 0;
  for (const [envelope, { subjects }] of Object.entries(statements)) {
    for (const [name, [kind, digest]] of subjects) {
      if (kind !== "sha256") {
        if (name !== "evidence") fails(name, said`${envelope} gives only a salted digest`);
      } else if (!folder.has(name)) fails(name, said`is missing, though ${envelope} covers it`);
      else if ((await digestOf(name)) !== digest) fails(name, said`was changed since ${envelope} was signed`);
      else checked++;
    }
    const needed = { "training.attestation.json": TRAINED, "attestation-public.json": PUBLISHED, "attestation.json": JUDGED }[envelope];
    for (const name of needed) if (!subjects.has(name)) fails(name, said`is not covered by ${envelope}`);
    if (envelope === "attestation-public.json") for (const name of subjects.keys()) if (![...PUBLISHED, ...PUBLIC_TOO].includes(name)) fails(envelope, said`names ${name}, which is not public`);
  }
  const last = statements[lastName];
  if (last) {
    const itself = [lastName, `${lastName}.tsr`];
    for (const name of present) if (!last.subjects.has(name) && !itself.includes(name) && !name.startsWith("evidence/") && !isLock(name)) fails(name, said`is not covered by ${lastName}`);
    say("holds", said`${checked} digests of files compared with what was signed`);
  }
  if (isPublic) return;
  const evidence = present.filter((name) => name.startsWith("evidence/") && name !== "evidence/salt").sort();
  if (folder.has("evidence")) return fails("evidence", said`is no folder`);
  // When evidence was erased is for its reader; a record that cannot be read says nothing.
  if (!folder.holds("evidence") && folder.holds("erasure.json")) await attempt("erasure.json", async () => parseJson(await folder.text("erasure.json")));
  if (!folder.holds("evidence")) return say("unseen", said`The evidence is not in this folder, so that its signed digest was not compared.`, "evidence");
  const salt = folder.has("evidence/salt") ? await attempt("evidence/salt", () => folder.read("evidence/salt", 4096)) : new Uint8Array();
  if (salt?.length !== 32) return fails("evidence/salt", said`32 bytes are needed`);
  const lines = [];
  for (const name of evidence) lines.push([`${await digestOf(name)}  ${name.slice("evidence/".length)}\n`, name]);
  lines.sort(([a], [b]) => (a < b ? -1 : 1));
  for (const envelope of ["training.attestation.json", "attestation.json"]) {
    if (!statements[envelope]) continue;
    const { subjects, numbered } = statements[envelope], withFindings = envelope === "attestation.json" && numbered;
    const text = lines.filter(([, name]) => withFindings || name !== "evidence/findings.json").map(([line]) => line).join("");
    const [kind, digest] = subjects.get("evidence") ?? [];
    if (kind !== "hmacSha256" || digest !== hmac(salt, bytesOf(text))) fails("evidence", said`was changed since ${envelope} was signed, or its salt was`);
    else say("holds", said`evidence/: ${evidence.length} files have the salted digest that ${envelope} names`, "evidence");
  }
}

async function checkClaim(folder, ledger, statements, result, say, fails, attempt) {
  const { header, claim } = ledger, isSigned = !result.lines.some(({ state, file }) => state === "fails" && file === "ledger.jsonl") && Object.values(statements).some(({ subjects }) => subjects.has("ledger.jsonl"));
  result.run ??= header.run;
  const contradict = (why) => {
    say("fails", why, "ledger.jsonl", why);
    result.lines.at(-1).kind = "claim";
    result.claim = "CONTRADICTED";
  };
  const text = await attempt("spec.yaml", () => folder.text("spec.yaml", 1 << 20));
  if (text !== null && (await folder.sha256("spec.yaml")) !== header.spec_sha256) fails("spec.yaml", said`is not the spec whose SHA-256 the ledger’s header names`);
  const spec = text === null ? null : await attempt("spec.yaml", async () => parseSpec(text));
  for (const [name, statement] of Object.entries(statements)) for (const fault of attestedFaults(statement, ledger, spec)) fails(name, fault);
  result.claim = header.unit === "none" ? "NONE" : "AGREES";
  const faults = [...ledger.faults.map((fault) => said`${"ledger.jsonl"}: ${fault}`), ...(spec ? promiseFaults(spec, ledger) : [])];
  faults.slice(0, 20).forEach(contradict);
  if (!faults.length) say("holds", said`ledger.jsonl: ${ledger.entries.length} lines, each with the digest of the one before; rounds are charged before they end, in order; spec, header and every charge agree on noise, clipping, sampling, δ and adjacency`, "ledger.jsonl");
  if (header.unit === "none") return;
  const notSeen = (why) => {
    result.claim = result.claim === "AGREES" ? "NOT SEEN" : result.claim;
    say("unseen", why);
  };
  if (!isSigned) return notSeen(said`ε was not recomputed: the ledger is not the one that was signed.`);
  const mechanism = header.producer?.mechanism ?? "gaussian";
  if (mechanism !== "gaussian") {
    return notSeen(said`ε was not recomputed: the loop states ${mechanism} noise, which this verifier does not account for.`);
  }
  if (header.adaptation || claim.tuning) {
    return notSeen(header.adaptation ? said`ε was not recomputed: noise or steps follow a rule, which this verifier does not account for.` : said`ε was not recomputed: the run is the best of several trials, which this verifier does not account for.`);
  }
  const views = await attempt("ledger.jsonl", async () => viewsOf(ledger)), judge = (view) => {
    const against = VIEWS.get(view.key), costs = view.costs?.(1) ?? null;
    result.views.push({ ...view, costs, delta: claim.delta });
    if (costs === null ? view.claimed !== null : view.claimed === null || !Number.isFinite(view.claimed) || below(view.claimed, view.costs)) contradict(said`ε (${against}) is claimed ${shown(view.claimed)} and costs ${shown(costs)}`);
    else if (costs !== null && header.producer == null && above(view.claimed, costs)) contradict(said`ε (${against}) is claimed ${shown(view.claimed)}, overstated: it costs ${shown(costs)}`);
    else say("holds", said`ε (${against}): claimed ${shown(view.claimed)}, recomputed from the ledger ${shown(costs)}`, "ledger.jsonl");
  };
  try {
    (views ?? []).forEach(judge);
  } catch (error) {
    if (!(error instanceof TooMany)) throw error;
    notSeen(said`ε was not recomputed: the charges are of more than ${MOST_KINDS} kinds.`);
  }
  if (ledger.queries.length) say("unseen", said`Noise on histograms of columns, and the bounds learnt from them: dpfedadamw audit reads them.`);
  if (!folder.has("evidence/salt")) return say("unseen", said`Noise and batches: the evidence is not in this folder.`);
  if (header.unit === "client" || header.sparsification || header.adaptation) return say("unseen", said`Noise and batches of this kind of run: dpfedadamw audit reads them.`);
  const evidence = await evidenceFaults(folder, ledger);
  evidence.faults.forEach(contradict);
  if (evidence.missing.length) notSeen(said`Noise and batches: the evidence of ${evidence.missing.length} rounds is missing, first ${evidence.missing[0]}.`);
  else if (!evidence.queries && !evidence.faults.length) notSeen(said`Noise and batches: the evidence has no answer.`);
  else if (!evidence.faults.length) say("holds", said`the noise of ${evidence.queries} answers has ${figure(evidence.ratio?.toFixed(3))} of the variance that the ledger states, and batches have their sizes`, "evidence");
  say("unseen", said`Clipping, the algebra of uploads and the data: dpfedadamw audit and its re-execution read them.`);
}

const COUNTED = ["of_trainer", "for_data", "dropped", "dropped_of_trainer"];

/** Check what was signed before a run was trained and before it was opened; returns who challenged it. */
async function checkAnnounced(folder, header, keys, say, fails, attempt) {
  const stated = mapping(header?.public_coin), coin = Object.keys(stated).length ? stated : null;
  if (!coin && !Object.keys(ANNOUNCED).some(folder.holds)) return null;
  const opened = (name) => attempt(name, async () => openAnnounced(await folder.text(name, MOST_ANNOUNCED), ANNOUNCED[name]));
  const challenge = await opened("challenge.json");
  if (!challenge) return null;
  const { predicate, subjects, signer, digest } = challenge, seen = mapping(predicate.intents), named = mapping(coin?.intents);
  const intent = await attempt("challenge.json", async () => openAnnounced(decoded(base64(String(predicate.intent), said`its intent`)), ANNOUNCED["intent.json"]));
  if (!intent) return null;
  if (!COUNTED.every((name) => isWhole(seen[name])) || !isText(predicate.run, RUN)) fails("challenge.json", said`does not say what it answers`);
  if (subjects.get("intent.json")?.join() !== ["sha256", intent.digest].join() || predicate.run !== intent.predicate.run || predicate.trainer !== intent.signer) fails("challenge.json", said`answers another intent than the one it carries`);
  // By how much the clocks of trainer and auditor may differ: five minutes.
  if (Date.parse(intent.predicate.created) > Date.parse(predicate.created) + 300000) fails("challenge.json", said`its intent was made after it`);
  const due = { run: predicate.run, intent_sha256: intent.digest, challenge_sha256: digest, nonce: predicate.nonce, root: mapping(intent.predicate.keys).root, challenger: signer };
  const sameKeys = (one, names) => Object.keys(one).sort().join() === [...names].sort().join();
  const isNamed = !coin || (sameKeys(coin, [...Object.keys(due), "intents", "own"]) && sameKeys(named, COUNTED) && Object.entries(due).every(([name, value]) => coin[name] === value) && COUNTED.every((name) => named[name] === seen[name]));
  if (!isNamed) fails("challenge.json", said`is not what the ledger’s header says of it`);
  const file = await attempt("intent.json", () => folder.sha256("intent.json"));
  if (file !== null && file !== intent.digest) fails("intent.json", said`is not the one that challenge.json answers`);
  if (header && intent.subjects.get("spec.yaml")?.[1] !== header.spec_sha256) fails("intent.json", said`announces another spec than the run’s`);
  if (keys.trainer && intent.signer !== keys.trainer.fingerprint) {
    if (folder.has("trainer.rotations.json")) say("unseen", said`The intent is signed by ${intent.signer}, and the run by another key; whether one replaced the other: dpfedadamw verify reads it.`, "intent.json");
    else fails("intent.json", said`is signed by ${intent.signer}, not by the run’s trainer`);
  }
  const draw = folder.holds("draw.json") ? await opened("draw.json") : null;
  if (draw && draw.signer !== signer) fails("draw.json", said`is signed by ${draw.signer}, not by the auditor who challenged the run`);
  if (draw && folder.has("ledger.jsonl") && draw.subjects.get("ledger.jsonl")?.[1] !== (await folder.sha256("ledger.jsonl"))) fails("draw.json", said`was drawn for another ledger`);
  say("holds", said`challenge.json: an auditor’s nonce, for intent number ${seen.of_trainer} of this trainer`, "challenge.json", signer);
  return signer;
}

/** What a level is computed from, as findings and header say: whose challenge it is, is asked apart. */
function factsOf(audit, header) {
  const again = sequence(audit.checks).map(mapping).filter(({ name }) => name === "reexecution"), agrees = again.some(({ verdict }) => verdict === "PASS");
  const { drawn, participations } = mapping(again[0]?.details), coin = mapping(header?.public_coin);
  const known = agrees && isWhole(drawn, 1) && isWhole(participations, drawn + 1);
  return { verdict: audit.verdict, agrees, participations: known ? drawn : null, public_coin: Object.keys(coin).length > 0 && coin.own !== true };
}

/** The same as an auditor attests it; null from a version that attests none. */
function factsFrom({ verdict, reexecution }) {
  if (reexecution === undefined) return null;
  const told = mapping(reexecution);
  return { verdict, agrees: told.agrees === true, participations: Number.isInteger(told.participations) ? told.participations : null, public_coin: told.public_coin === true };
}

function sameFacts(told, due, { public_coin: coin }) {
  // Earlier versions attested a challenge of the trainer's own as one of an auditor's.
  const coins = [due.public_coin, Object.keys(mapping(coin)).length > 0];
  return told.agrees === due.agrees && told.participations === due.participations && coins.includes(told.public_coin);
}

/** Check audit and reports; returns what a level is computed from. */
async function checkReports(folder, ledger, statements, result, isPublic, say, fails, attempt) {
  const audit = isPublic ? null : await attempt("audit.json", () => readObject(folder, "audit.json"));
  if (audit) {
    const auditFaults = [];
    if (audit.run !== ledger?.header?.run) auditFaults.push(said`is about another run than the ledger`);
    for (const [name, digest] of Object.entries(mapping(audit.inputs))) if (folder.has(name) && (await folder.sha256(name)) !== digest) auditFaults.push(said`judged another ${name}`);
    const verdicts = sequence(audit.checks).map((check) => mapping(check).verdict), failed = verdicts.includes("FAIL");
    if (audit.verdict === "PASS" && failed) auditFaults.push(said`says PASS, and one of its checks FAIL`);
    for (const name of ["attestation.json", "attestation-public.json"]) if (statements[name] && statements[name].predicate.verdict !== audit.verdict) fails(name, said`states another verdict than audit.json`);
    for (const name of ["attestation.json", "attestation-public.json"]) {
      const told = statements[name] && ledger ? factsFrom(statements[name].predicate) : null;
      if (told && !sameFacts(told, factsOf(audit, ledger.header), ledger.header)) fails(name, said`states another re-execution than audit.json and ledger`);
    }
    auditFaults.forEach((why) => fails("audit.json", why));
    if (!auditFaults.length) say("holds", said`audit.json: ${verdicts.filter((one) => one === "PASS").length} checks passed, verdict ${VERDICTS.get(audit.verdict) ?? audit.verdict}`, "audit.json");
  }
  const verdict = audit?.verdict ?? result.verdict, model = folder.has("model.safetensors") ? await folder.sha256("model.safetensors") : null;
  for (const stem of isPublic ? ["report-public"] : ["report", "report-public"]) {
    if (stem !== "report" && !isPublic && !folder.has(`${stem}.json`)) continue;
    const faults = [], report = await attempt(`${stem}.json`, () => readObject(folder, `${stem}.json`));
    if (!report) continue;
    const identity = mapping(report.identity), guarantee = mapping(report.guarantee);
    if (identity.run !== result.run) faults.push(said`is about another run than ${result.run}`);
    if (report.verdict?.value !== verdict) faults.push(said`states another verdict than the audit’s, ${VERDICTS.get(verdict) ?? verdict}`);
    for (const { file, sha256: digest } of sequence(identity.hashes).map(mapping)) if ((folder.has(file) && (await folder.sha256(file)) !== digest) || (file === "model.safetensors" && digest !== model)) faults.push(said`was made with another ${file}`);
    const claims = mapping(Object.values(statements)[0]?.predicate.claims), header = ledger?.header;
    // What the report leads with: of a recorded loop the server's ε is everybody's.
    const key = header?.producer != null ? "server" : guarantee.view, isNone = guarantee.view === "none";
    const due = ledger ? { epsilon: stated(ledger.claim[key]), delta: ledger.claim.delta } : (sequence(claims.views).map(mapping).find((one) => one.key === guarantee.view) ?? {});
    const isTuned = ledger?.claim.tuning || header?.tuning, others = ["epsilon", "delta"].filter((name) => (guarantee[name] ?? null) !== (isNone ? null : (due[name] ?? null)));
    const leads = header?.unit === "none" ? "none" : stem === "report" && header?.unit !== "client" && header?.producer == null ? "server" : "third_party";
    if (!isTuned && (others.length || (ledger && guarantee.view !== leads))) faults.push(said`states another guarantee than was signed`);
    if (guarantee.unit !== (header?.unit ?? claims.unit)) faults.push(said`states another unit than was signed`);
    faults.forEach((why) => fails(`${stem}.json`, why));
    for (const suffix of ["pdf", "html"]) {
      const name = `${stem}.${suffix}`;
      if (!folder.has(name)) continue;
      const text = new TextDecoder("latin1").decode(await folder.read(name));
      if (!text.includes(`run ${result.run}`)) fails(name, said`is about another run than ${result.run}`);
      else if (!text.includes(`model sha256:${model}`)) fails(name, said`is about another model than model.safetensors`);
    }
    if (!faults.length) say("holds", said`${stem}.json: the same run, model, verdict and guarantee`, `${stem}.json`);
  }
  if (audit) return factsOf(audit, ledger?.header);
  return isPublic && statements["attestation-public.json"] ? factsFrom(statements["attestation-public.json"].predicate) : null;
}

/** The level that signatures support: 4 needs a time-stamping authority, which is not read here. */
export function levelOf(facts, keys, challenger = null) {
  if (facts?.verdict !== "PASS") return null;
  if (!facts.agrees) return 1;
  const [trainer, auditor] = [keys.trainer?.fingerprint, keys.auditor?.fingerprint];
  // A trainer with two keys could else challenge a run with one and have a stranger audit it.
  return facts.public_coin && trainer && auditor && trainer !== auditor && challenger === auditor ? 3 : 2;
}

// -------------------------------------------------------------------------------- the command line

/** What a result says, in lines for a terminal. */
export function asText(result) {
  const marks = { holds: "  holds   ", fails: "  FAILS   ", unseen: "  not seen" };
  const text = result.lines.map(({ state, what, why }) => `${marks[state]}  ${what}${state === "holds" && why ? `, ${why}` : ""}`);
  const level = result.level && `, level ${result.level} of 4 (${LEVELS[result.level][0]})`;
  // Names of files are a stranger's, and no escape sequence may reach the terminal.
  const warning = result.unprotected ? [`${String(UNPROTECTED.get(result.unprotected)).toUpperCase()}. ${WHY}`] : [];
  const whose = result.signers.gate ? result.run : `run ${result.run ?? "unknown"}: the auditor’s verdict is ${result.verdict ?? "not known"}${level || ""}`;
  return [...warning, whose, ...text, `the claim: ${result.claim}`, result.outcome].map((line) => line.replace(/[\u0000-\u001f\u007f-\u009f]/g, "?")).join("\n");
}

/** The run directory at a path, for Node; links are not followed. */
export async function folderAt(root) {
  const { readdir, lstat, open, constants } = await import("node:fs/promises"), { join } = await import("node:path");
  const files = new Map(), refused = [], folders = [];
  const slice = (full) => async (start, end) => {
    const file = await open(full, constants.O_RDONLY | constants.O_NOFOLLOW);
    try {
      const bytes = new Uint8Array(end - start), { bytesRead } = await file.read(bytes, 0, end - start, start);
      return bytes.subarray(0, bytesRead);
    } finally {
      await file.close();
    }
  };
  const walk = async (folder, prefix, depth) => {
    for (const entry of await readdir(folder, { withFileTypes: true })) {
      const name = prefix + entry.name, full = join(folder, entry.name);
      if (entry.isDirectory() && !prefix) folders.push(name);
      if (entry.isDirectory()) depth < 8 ? await walk(full, `${name}/`, depth + 1) : refused.push({ name, why: said`lies too deep` });
      else if (!entry.isFile()) refused.push({ name, why: entry.isSymbolicLink() ? said`is a link; a run holds regular files only` : said`is no regular file` });
      else if (!PLAIN_NAME.test(name)) refused.push({ name, why: said`has a name with unusual characters` });
      else files.set(name, { size: (await lstat(full)).size, slice: slice(full) });
    }
  };
  await walk(root, "", 0);
  return new Folder(files, refused, folders);
}

async function main(given) {
  const wrong = (text) => (console.error(`error: ${text}`), 2), pinned = {}, rest = [];
  let json = false;
  for (let i = 0; i < given.length; i++) {
    const role = /^--(trainer|auditor|gate)-key$/.exec(given[i])?.[1];
    if (given[i] === "--json") json = true;
    else if (given[i] === "--gate-anchor") {
      try {
        pinned.anchor = await (await import("node:fs/promises")).readFile(given[++i], "utf8");
      } catch {
        return wrong(`--gate-anchor ${given[i]}: cannot be read`);
      }
    } else if (role) {
      try {
        pinned[role] = await (await import("node:fs/promises")).readFile(given[++i], "utf8");
        await readKey(pinned[role]);
      } catch (error) {
        return wrong(`--${role}-key ${given[i]}: ${error instanceof Refused ? error.message : "cannot be read"}`);
      }
    } else rest.push(given[i]);
  }
  if (rest.length !== 1) return wrong("usage: node verify.mjs RUN_DIR [--trainer-key PUB] [--auditor-key PUB] [--json]");
  let folder;
  try {
    folder = await folderAt(rest[0]);
  } catch (error) {
    return wrong(`${rest[0]}: cannot be listed (${error.code ?? error.message}); give a run directory`);
  }
  const result = await verify(folder, pinned);
  console.log(json ? JSON.stringify(result, null, 2) : asText(result));
  return result.code;
}

if (typeof process !== "undefined" && process.argv?.[1] && import.meta.url?.endsWith("/verify.mjs") && process.argv[1].endsWith("verify.mjs")) process.exitCode = await main(process.argv.slice(2));
