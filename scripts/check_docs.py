#!/usr/bin/env python3
"""Checks the book under docs/ and the README against the tree, and against the program.

    scripts/check_docs.py                            # links, anchors, paths, contents, metrics, routes, words
    scripts/check_docs.py target/debug/tsnode        # also every verb, flag and setting, and the example settings
    scripts/check_docs.py target/debug/tsnode --write    # writes docs/reference/cli.md anew

Ends with 1 and a line for each thing that is wrong. Needs nothing but Python 3.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
CLI = DOCS / "reference/cli.md"
TOP = ("protocol", "coordinator", "kernels", "node", "testnet", "scripts", "docs", ".ci", ".github")
# Words that went away, and what is said now. Code is not looked at: a flag keeps its name for a while.
GONE = {
    r"rehears\w*": "simulation",
    r"roads?": "path",
    r"buddy|buddies": "replica",
    r"purses?": "token bucket",
    r"drafters?": "planner thread",
    r"guessers?": "draft model",
    r"hand-?overs?": "KV transfer",
    r"lanes?": "connection, stream",
    r"liars?": "byzantine peer",
    r"roll calls?": "liveness digest",
    r"(?<!model )(?<!model's )cards?": "GPU",
}
# Where such a word means something else.
KEPT = {
    ("design/arithmetic.md", r"lanes?"),  # of a vector register
    ("design/gpus.md", r"lanes?"),  # of a warp
    ("research/engine.md", r"lanes?"),
}

wrong = []


def complain(file, text):
    wrong.append(f"{file.relative_to(ROOT) if file.is_absolute() else file}: {text}")


def without_code(text):
    """The text with code taken out, lines as they were."""
    text = re.sub(r"^(```|~~~).*?^\1", lambda m: "\n" * m[0].count("\n"), text, flags=re.M | re.S)
    return re.sub(r"`[^`\n]*\n?[^`\n]*`", lambda m: "`" + "\n" * m[0].count("\n") + "`", text)


def anchors(path):
    """Anchors of a page's headings, as GitHub and mdBook make them."""
    found, seen = set(), {}
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S)
    for title in re.findall(r"^#{1,6} +(.+?) *#*$", text, flags=re.M):
        title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)
        slug = re.sub(r"[^\w\- ]", "", title.replace("`", "").lower()).replace(" ", "-")
        n = seen.get(slug, 0)
        seen[slug] = n + 1
        found.add(f"{slug}-{n}" if n else slug)
    return found | set(re.findall(r'<a (?:id|name)="([^"]+)"', text))


def links(pages):
    for page in pages:
        text = without_code(page.read_text())
        targets = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|href)="([^"]+)"', text)
        for target in targets:
            if re.match(r"[a-z]+:", target):
                continue
            name, _, anchor = target.partition("#")
            there = (page.parent / name).resolve() if name else page
            if not there.exists():
                complain(page, f"nothing is at {target}")
            elif anchor and there.suffix == ".md" and anchor not in anchors(there):
                complain(page, f"no heading for {target}")


def expanded(path):
    """`a/{b,c}.rs` as its paths."""
    parts = re.split(r"\{([^}]*)\}", path)
    choices = [part.split(",") if i % 2 else [part] for i, part in enumerate(parts)]
    return ["".join(choice) for choice in product(*choices)]


def paths(pages):
    """Files and folders of the tree that pages name in code: from the top, or by the end of their path."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    files = ["/" + file for file in listed.stdout.splitlines() if (ROOT / file).exists()]
    from_top = re.compile(rf"(?:{'|'.join(map(re.escape, TOP))})/[\w./{{}},*-]*")
    by_end = re.compile(r"[\w./{},-]+\.(?:rs|cu|cuh|cpp|py|sh|cubin|ptx)")
    for page in pages:
        for code in re.findall(r"`([^`\n]+)`", page.read_text()):
            if "NAME" in code:
                continue  # one to be
            for path in expanded(code) if from_top.fullmatch(code) else []:
                if not (any(ROOT.glob(path)) if "*" in path else (ROOT / path).exists()):
                    complain(page, f"there is no {path}")
            for path in expanded(code) if by_end.fullmatch(code) and not from_top.fullmatch(code) else []:
                if not any(file.endswith("/" + path) for file in files):
                    complain(page, f"no file's path ends with {path}")


def sources_of_pages():
    """Pages that sources name."""
    listed = subprocess.run(["git", "grep", "-nIoE", r"docs/[A-Za-z0-9_/-]+\.(md|svg|toml|py)"], cwd=ROOT, capture_output=True, text=True)
    for line in listed.stdout.splitlines():
        file, number, path = line.split(":", 2)
        if not file.startswith("docs/") and not (ROOT / path).exists():
            complain(Path(file), f"line {number}: there is no {path}")


def variables(pages):
    """Variables of the environment that pages name: of settings, or read by a source or a script."""
    rows = re.findall(r"^\| `([a-z-]+)` \|", (DOCS / "reference/settings.md").read_text(), flags=re.M)
    known = {"TSNODE_" + row.upper().replace("-", "_") for row in rows}
    read = subprocess.run(["git", "grep", "-hIoE", r"\"TSNODE_[A-Z_]+\""], cwd=ROOT, capture_output=True, text=True)
    known |= {line.strip('"') for line in read.stdout.splitlines()}
    known |= {name for file in (ROOT / "scripts").glob("*.sh") for name in re.findall(r"TSNODE_[A-Z_]+", file.read_text())}
    for page in pages:
        for name in sorted(set(re.findall(r"\bTSNODE_[A-Z_]*[A-Z]\b", page.read_text())) - known):
            complain(page, f"nobody reads {name}")


def contents():
    """Every page is in SUMMARY.md, once."""
    summary = DOCS / "SUMMARY.md"
    listed = re.findall(r"\]\(([^)]+\.md)\)", summary.read_text())
    for page in sorted(DOCS.rglob("*.md")):
        name = str(page.relative_to(DOCS))
        if name != "SUMMARY.md" and listed.count(name) != 1:
            complain(summary, f"{name} is listed {listed.count(name)} times")


def words(pages):
    for page in pages:
        if page == CLI:
            continue  # the program's own words
        name = str(page.relative_to(DOCS)) if page.is_relative_to(DOCS) else page.name
        for number, line in enumerate(without_code(page.read_text()).splitlines(), 1):
            line = re.sub(r"\]\([^)]*\)", "]", line)
            for word, now in GONE.items():
                found = re.search(rf"\b(?:{word})\b", line, flags=re.I)
                if found and (name, word) not in KEPT:
                    complain(page, f"line {number}: “{found[0]}” is no word of ours any more: {now}")


def sources(needle):
    """Sources of the node that hold a text, without their tests."""
    files = [file for file in sorted((ROOT / "node/src").rglob("*.rs")) if "tests" not in str(file)]
    texts = [re.split(r"^#\[cfg\(test\)\]\nmod \w+ \{", file.read_text(), flags=re.M)[0] for file in files]
    return [text for text in texts if needle in text]


def named(page, what, names):
    """The first cells of a page's tables name all of these."""
    text = page.read_text()
    first = " ".join(re.findall(r"^\| ([^|]*) \|", text, flags=re.M))
    for name in sorted(names):
        if f"`{name}`" not in first:
            complain(page, f"{what} `{name}` is missing")
    return text


def metrics():
    names = {name for text in sources("registry::Registry") for name in re.findall(r'"((?:tsnode_|vllm:)\w+)"', text)}
    if not names:
        complain(ROOT / "node/src", "no metrics were found; mend scripts/check_docs.py")
    page = DOCS / "reference/metrics.md"
    text = page.read_text()
    said = set(re.findall(r"`((?:tsnode_|vllm:)\w+)`", text))
    # A counter's whole name ends with what the library adds to it.
    for name in sorted(names - said - {name.removesuffix("_total") for name in said}):
        complain(page, f"metric `{name}` is missing")
    for name in sorted(said - names - {f"{name}_total" for name in names}):
        complain(page, f"there is no metric `{name}`")
    dashboard(names)


def dashboard(metrics):
    """The dashboard asks for metrics that there are; histograms and counters have more names than one."""
    file = DOCS / "examples/grafana.json"
    ends = ("", "_total", "_bucket", "_sum", "_count")
    there = {name + end for name in metrics for end in ends}

    def queries(value):
        if isinstance(value, dict):
            yield from (text for key, text in value.items() if key in ("expr", "query", "definition") and isinstance(text, str))
        for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            yield from queries(part)

    asked = {name for text in queries(json.loads(file.read_text())) for name in re.findall(r"\b(?:tsnode_|vllm:)\w+", text)}
    if not asked:
        complain(file, "no queries were found; mend scripts/check_docs.py")
    for name in sorted(asked - there):
        complain(file, f"there is no metric `{name}`")


def routes():
    routes = {route for text in sources(".route(") for route in re.findall(r'\.route\(\s*"([^"]+)"', text)}
    if not routes:
        complain(ROOT / "node/src", "no routes were found; mend scripts/check_docs.py")
    page = DOCS / "reference/http.md"
    text = named(page, "route", routes)
    for route in set(re.findall(r"^\| `(/[^`]*)`", text, flags=re.M)) - routes:
        complain(page, f"there is no route `{route}`")
    folder = ROOT / "node/src/http"
    shown = "".join(file.read_text() for file in [folder / "openapi.rs", *(folder / "openapi").glob("*.rs")] if file.stem != "tests")
    # A page, texts, the document itself, and what testnets break.
    for route in sorted(routes - {"/", "/page.js", "/metrics", "/openapi.json", "/api/faults", "/api/testnet"}):
        if f'"{route}"' not in shown:
            complain(folder / "openapi.rs", f"the document has no `{route}`")


def fields():
    """Fields of requests that the node reads."""
    read = r'fields\.(?:take|flag|integer|number|text)\("(\w+)"'
    names = {name for text in sources("fields.") for name in re.findall(read, text)}
    named(DOCS / "reference/http.md", "field", names)


def messages():
    """Kinds of gossip and of streams, and the version."""
    page = DOCS / "reference/protocol.md"
    for name, file in {"Opening": "stream.rs", "Gossip": "gossip.rs"}.items():
        text = (ROOT / "protocol/src" / file).read_text()
        body = re.search(rf"^pub enum {name} {{\n(.*?)^}}", text, flags=re.M | re.S)
        variants = re.findall(r"^    ([A-Z]\w+)", body[1], flags=re.M) if body else []
        if not variants:
            complain(ROOT / "protocol/src" / file, f"no enum {name} was found; mend scripts/check_docs.py")
        named(page, "message", variants)
    version = re.search(r"pub const VERSION: u16 = (\d+);", (ROOT / "protocol/src/codec.rs").read_text())
    if not version or f"**Version {version[1]}**" not in page.read_text():
        complain(page, f"the version is {version and version[1]}")


class Program:
    """The program, with settings and data of its own."""

    def __init__(self, path, folder):
        self.path = str(Path(path).resolve())
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TSNODE_")}
        self.env = inherited | {"HOME": folder, "XDG_CONFIG_HOME": folder, "XDG_DATA_HOME": folder, "NO_COLOR": "1", "COLUMNS": "110"}

    def say(self, *words):
        done = subprocess.run([self.path, *words], env=self.env, cwd=ROOT, capture_output=True, text=True, timeout=60)
        if done.returncode != 0:
            raise SystemExit(f"{self.path} {' '.join(words)}: {done.stderr}")
        return done.stdout

    def verbs(self, verb=()):
        """Every verb with its help, groups before what is in them."""
        said = self.say(*verb, "--help")
        if verb:
            yield verb, said
        block = re.search(r"^Commands:\n((?:  .*\n|\n)+)", said, flags=re.M)
        for name in re.findall(r"^  ([a-z-]+)(?: |$)", block[1], flags=re.M) if block else []:
            if name != "help":
                yield from self.verbs((*verb, name))


SECTION = re.compile(r"^([A-Z][A-Za-z]+):(?:\n|$)", flags=re.M)
OPTION = re.compile(r"^ {2,6}((?:-\w, )?--[\w-]+(?:\[?[= ][^ ]+(?: \.\.\.)?)?|<[^>]+>(?:\.\.\.)?|\[[^\]]+\](?:\.\.\.)?)(?:  +(.*))?$")


def entries(block):
    """Options or arguments of a help text, with what is said of them."""
    found = []
    for line in block.splitlines():
        start = OPTION.match(line)
        if start:
            found.append([start[1].strip(), (start[2] or "").strip()])
        elif line.strip() and found:
            found[-1][1] = f"{found[-1][1]} {line.strip()}".strip()
    return found


def cell(text):
    return text.replace("|", "\\|").replace("<", "&lt;")


def cli(program):
    """The page of the command line, from the program's own help."""
    settings = set(setting_names(program))
    page = [
        "# Command line",
        "",
        "<!-- Written by scripts/check_docs.py TSNODE --write. Do not edit. -->",
        "",
        "Every verb has `--help`, and an example there. `--config`, `--log` and `--log-format`, which all of them take, are not repeated",
        "below; *settings* can also be variables or lines of a file ([settings](settings.md)).",
        "",
        "| exit code | meaning |",
        "| --- | --- |",
        *(f"| {code} | {meaning} |" for code, meaning in EXIT_CODES),
        "",
    ]
    for verb, said in program.verbs():
        parts = SECTION.split(said)
        about, sections = parts[0].strip(), dict(zip(parts[1::2], parts[2::2]))
        usage = re.search(r"Usage: (.*(?:\n {7}.*)*)", said)[1]
        name = " ".join(verb)
        page += [f"{'#' * min(len(verb) + 1, 3)} tsnode {name}", "", about.split("\n\nUsage")[0], "", "```text"]
        page += [re.sub(r"^ +", "", line) for line in usage.splitlines()] + ["```", ""]
        rows = entries(sections.get("Arguments", "")) + entries(sections.get("Options", ""))
        common = ("-h, --help", "--config", "--log ", "--log-format")
        rows = [row for row in rows if not row[0].startswith(common)]
        own = [row for row in rows if flag_name(row[0]) not in settings]
        borrowed = [flag_name(row[0]) for row in rows if flag_name(row[0]) in settings]
        if own:
            page += ["| | |", "| --- | --- |"]
            page += [f"| `{what}` | {cell(meaning)} |" for what, meaning in own] + [""]
        if borrowed and len(borrowed) < len(settings) - 3:
            page += ["Settings: " + ", ".join(f"`--{flag}`" for flag in borrowed) + ".", ""]
        elif borrowed:
            page += ["Settings: all of them ([settings](settings.md)).", ""]
        if "Example" in sections:
            example = [line.strip() for line in sections["Example"].strip().splitlines()]
            page += ["```sh", *example, "```", ""]
    return "\n".join(page).rstrip() + "\n"


EXIT_CODES = [
    (0, "done"),
    (1, "anything without a code of its own; `testnet chaos`: something did not hold"),
    (2, "wrong words on the command line"),
    (3, "a configuration that cannot be used"),
    (4, "a port that another program has"),
    (5, "a data folder that cannot be used, or is used by another process"),
    (6, "a model that is missing or broken"),
    (7, "no peer answers"),
    (8, "peers answer, and nobody serves the request"),
    (9, "the request was refused, or failed on the way"),
    (10, "an identity that cannot be used"),
    (130, "`join`, `simulate`: ended by a second Ctrl-C; `chat` without a terminal: ended by Ctrl-C"),
]


def flag_name(option):
    found = re.search(r"--([\w-]+)", option)
    return found[1] if found else ""


def setting_names(program):
    return [name.replace("_", "-") for name in names_in(json.loads(program.say("config", "show", "--json")))]


def names_in(shown):
    """Settings in what `config show --json` prints."""
    if isinstance(shown, dict):
        return list(shown)
    return [entry.get("name") or entry.get("setting") for entry in shown]


def settings(program):
    page = DOCS / "reference/settings.md"
    names = set(setting_names(program))
    rows = re.findall(r"^\| `([a-z-]+)` \| ([^|]*) \|", page.read_text(), flags=re.M)
    for name in sorted(names - {row[0] for row in rows}):
        complain(page, f"setting `{name}` is missing")
    defaults = {name: re.sub(r"\s+", " ", value) for name, value in default_values(program)}
    for name, default in rows:
        if name not in names:
            complain(page, f"there is no setting `{name}`")
        elif default.startswith("`$") or not default.startswith("`"):
            continue  # in words
        elif f"`{defaults.get(name)}`" != default.strip():
            complain(page, f"the default of `{name}` is `{defaults.get(name)}`, not {default}")
    for file in sorted((DOCS / "examples").glob("*.toml")):
        program.say("config", "show", "--config", str(file))


def commands(program, pages):
    """Flags of commands that pages show."""
    hidden = [(("render-template",), program.say("render-template", "--help"))]
    flags = {verb: set(re.findall(r"--[a-z][\w-]*", said)) for verb, said in [*program.verbs(), *hidden]}
    for page in pages:
        code = re.findall(r"`([^`\n]+)`", page.read_text()) + re.findall(r"^```(?:sh|console)\n(.*?)^```", page.read_text(), flags=re.M | re.S)
        lines = "\n".join(code).replace("cargo run -- ", "tsnode ").splitlines()
        for words in (re.split(r"\s+", run) for line in lines for run in re.findall(r"(?<![-/])\btsnode ([a-z][^#|<>`]*)", line)):
            verb = next((tuple(words[:n]) for n in (2, 1) if tuple(words[:n]) in flags), None)
            if not verb:
                complain(page, f"there is no verb: tsnode {' '.join(words)}")
                continue
            for word in words:
                flag = word.split("=")[0].rstrip(".,;:)")
                if flag.startswith("--") and len(flag) > 2 and flag not in flags[verb]:
                    complain(page, f"tsnode {' '.join(verb)} has no {flag}")


def default_values(program):
    """Settings whose default is one word, with it."""
    for what, meaning in entries(options(program)):
        found = re.search(r"\[default: ([^ ]+)\]$", meaning)
        if found:
            yield flag_name(what), found[1]


def options(program):
    parts = SECTION.split(program.say("join", "--help"))
    return dict(zip(parts[1::2], parts[2::2]))["Options"]


def exit_codes():
    """The codes of the page are those of the program."""
    said = {int(code) for text in sources("pub enum Kind") for code in re.findall(r"^    \w+ = (\d+),", text, flags=re.M)}
    for code in sorted(said - {code for code, _ in EXIT_CODES}):
        complain(Path(__file__).resolve(), f"exit code {code} is missing")


def main():
    words_given = [word for word in sys.argv[1:] if word != "--write"]
    pages = [ROOT / "README.md", *sorted(DOCS.rglob("*.md")), *sorted((ROOT / ".github").glob("*.md"))]
    if words_given:
        with tempfile.TemporaryDirectory() as folder:
            program = Program(words_given[0], folder)
            page = cli(program)
            if "--write" in sys.argv:
                CLI.write_text(page)
            elif not CLI.exists() or CLI.read_text() != page:
                complain(CLI, "not what the program says; write it anew: scripts/check_docs.py target/debug/tsnode --write")
            settings(program)
            commands(program, pages)
    links(pages)
    paths(pages)
    variables(pages)
    sources_of_pages()
    contents()
    metrics()
    routes()
    fields()
    messages()
    exit_codes()
    words(pages)
    print("\n".join(wrong) if wrong else f"{len(pages)} pages: nothing wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
