// Puts the licences of the libraries in the script at its head, as they ask, and writes down of which sources the built files are: hashes of both, which a test of the program holds against the tree
// (node/src/http/page.rs).
import { blake3 } from "@noble/hashes/blake3";
import { bytesToHex } from "@noble/hashes/utils";
import { readdirSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const { dependencies } = JSON.parse(readFileSync("package.json", "utf8"));
const licence = (name) => `${name}:\n${readFileSync(join("node_modules", name, "LICENSE"), "utf8").trim()}\n`;
const script = readFileSync("built/page.js", "utf8");
writeFileSync("built/page.js", `/*! With code of others.\n\n${Object.keys(dependencies).map(licence).join("\n")}*/\n${script}`);

const files = (path) => (statSync(path).isDirectory() ? readdirSync(path).flatMap((name) => files(join(path, name))) : [path]);
const made = ["index.html", "package.json", "package-lock.json", "tsconfig.json", "vite.config.ts", "seal.mjs", "src"].flatMap(files);
const built = files("built").filter((path) => !path.endsWith("sources.txt"));
const line = (path) => `${bytesToHex(blake3(readFileSync(path)))}  ${path}\n`;
writeFileSync("built/sources.txt", [...made, ...built].sort().map(line).join(""));
const bytes = built.map((path) => statSync(path).size).reduce((a, b) => a + b, 0);
console.log(`${bytes} bytes in ${built.length} files`);
