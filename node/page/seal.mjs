// Puts the licences of the libraries in the script at its head, as they ask, and the sheet into the page itself, with its hash beside it
// for the policy, so that nothing else is waited for before the page is painted. Writes down of which sources the built files are:
// hashes of both, which a test of the program holds against the tree (node/src/http/page.rs).
import { blake3 } from "@noble/hashes/blake3";
import { bytesToHex } from "@noble/hashes/utils";
import { createHash } from "node:crypto";
import { readdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const { dependencies } = JSON.parse(readFileSync("package.json", "utf8"));
const licence = (name) => `${name}:\n${readFileSync(join("node_modules", name, "LICENSE"), "utf8").trim()}\n`;
const script = readFileSync("built/page.js", "utf8");
writeFileSync("built/page.js", `/*! With code of others.\n\n${Object.keys(dependencies).map(licence).join("\n")}*/\n${script}`);

const taken = (text, what) => {
  const parts = text.split(what);
  if (parts.length !== 2) throw new Error(`index.html has ${what} ${parts.length - 1} times`);
  return parts;
};
const sheet = readFileSync("built/page.css", "utf8").trim();
rmSync("built/page.css");
const [head, tail] = taken(readFileSync("built/index.html", "utf8"), /[ \t]*<link rel="stylesheet"[^>]*>\n/);
const script_tag = /[ \t]*<script type="module"[^>]*><\/script>\n/;
const [before, after] = taken(`${head}    <style>${sheet}</style>\n${tail}`, script_tag);
// Last: a script that has come before the first paint would run before it.
const [body, end] = taken(before + after, /(?=  <\/body>)/);
writeFileSync("built/index.html", `${body}    <script type="module" src="/page.js"></script>\n${end}`);
writeFileSync("built/sheet.sha256", createHash("sha256").update(sheet).digest("base64"));

const files = (path) => (statSync(path).isDirectory() ? readdirSync(path).flatMap((name) => files(join(path, name))) : [path]);
const made = ["index.html", "package.json", "package-lock.json", "tsconfig.json", "vite.config.ts", "seal.mjs", "src"].flatMap(files);
const built = files("built").filter((path) => !path.endsWith("sources.txt"));
const line = (path) => `${bytesToHex(blake3(readFileSync(path)))}  ${path}\n`;
writeFileSync("built/sources.txt", [...made, ...built].sort().map(line).join(""));
const bytes = built.filter((path) => !path.endsWith("sheet.sha256")).map((path) => statSync(path).size).reduce((a, b) => a + b, 0);
console.log(`${bytes} bytes`);
