// What verify.mjs makes of things, for tests: `node judge.mjs WHAT` reads JSON from its input and prints JSON.
import { readFileSync } from "node:fs";

import { canonical, costOf, epsilonByLosses, epsilonByRenyi, evidenceFaults, Folder, folderAt, levelOf, parseJson, parseSpec, printed, promiseFaults, readArrays, readGate, readLedger, smallMoves, surprise, verify } from "../../reports/verifier/verify.mjs";

const refused = (work) => {
  try {
    return work();
  } catch (error) {
    return { refused: error.message };
  }
};
// What lines are made of: the English of each sentence and of those in its fields, or what is no sentence.
const keys = (told) => (told.parts ? [told.parts.reduce((text, part, i) => `${text}{${i}}${part}`), ...told.values.flatMap((value) => (value.parts ? keys(value) : []))] : [`bare: ${told}`]);
const said = async (path) => (await verify(await folderAt(path))).lines.flatMap(({ state, what, why }) => [what, ...(state === "fails" ? [why] : [])].flatMap(keys));
const arraysOf = (bytes) => {
  const { names, get } = readArrays(bytes);
  return Object.fromEntries(names.map((name) => [name, get(name)]).map(([name, { shape, values }]) => [name, [shape, [...values]]]));
};
const decoded = (text) => new Uint8Array(Buffer.from(text, "base64"));
const folderOf = (files) => new Folder(new Map(Object.entries(files).map(([name, text]) => [name, decoded(text)]).map(([name, bytes]) => [name, { size: bytes.length, slice: async (start, end) => bytes.slice(start, end) }])));
const noiseOf = async ({ files, ledger }) => {
  const { faults, ...rest } = await evidenceFaults(folderOf(files), ledger);
  return { faults: faults.map(String), ...rest };
};
const WHAT = {
  sentences: async (paths) => [...new Set((await Promise.all(paths.map(said))).flat())],
  folders: async (paths) => Object.fromEntries(await Promise.all(paths.map(async (path) => [path, await verify(await folderAt(path))]))),
  epsilons: (cases) => cases.map(({ history, delta }) => refused(() => [epsilonByLosses(history, delta), epsilonByRenyi(history, delta)[0]])),
  canonical: (texts) => texts.map((text) => refused(() => canonical(parseJson(text)))),
  specs: (texts) => texts.map((text) => refused(() => parseSpec(text))),
  promises: (pairs) => pairs.map(([spec, ledger]) => promiseFaults(parseSpec(spec), readLedger(ledger)).map(String)),
  ledgers: (texts) => texts.map((text) => refused(() => readLedger(text).faults.map(String))),
  arrays: (files) => files.map((file) => refused(() => arraysOf(decoded(file)))),
  noise: (cases) => Promise.all(cases.map(noiseOf)),
  moves: (cases) => cases.map(([file, charge]) => refused(() => smallMoves(decoded(file), charge))),
  surprises: (cases) => cases.map((given) => surprise(...given)),
  gates: (texts) => texts.map(readGate).map(({ replies, faults, ...rest }) => ({ ...rest, replies: [...replies], faults: faults.map(String) })),
  levels: (cases) => cases.map((given) => levelOf(...given)),
  costs: (charges) => charges.map((charge) => refused(() => costOf(charge))),
  printed: (values) => values.map(printed),
};
console.log(JSON.stringify(await WHAT[process.argv[2]](JSON.parse(readFileSync(0, "utf8")))));
