#!/usr/bin/env python3
"""Import cycles between the modules of each crate: `scripts/module_cycles.py`, with --edges the imports that make them.

In every folder of a crate, siblings are compared: the modules at the top of the crate with each other, those of one module with
each other, and so on. A module stands for all that is inside it; what a module says of the one it lies in is no import between
siblings, so a parent may re-export its children and children may use what their parent defines; what is used through a parent's re-export is not seen. Tests inside a file do not count.

Cycles that are known are in scripts/module_cycles.txt, and may only become fewer: any other is an error, and so is a line there
that no longer names a cycle. --write writes that file anew. --uses MODULE prints who uses a module.
"""

import argparse
import re
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KNOWN = ROOT / "scripts" / "module_cycles.txt"
SOURCES = ["protocol/src", "coordinator/src", "coordinator/simulator/src", "kernels/src", "node/src", "testnet/src"]

TOKEN = re.compile(
    r"""//[^\n]*|/\*.*?\*/|b?r(?P<h>\#*)".*?"(?P=h)|b?"(?:\\.|[^"\\])*"|b?'(?:\\(?:u\{[^}]*\}|x..|.)|[^'\\])'""", re.S
)
PATH = re.compile(r"(?<![\w:])(crate|self|super)((?:\s*::\s*(?:\w+|(?=[{*])))+)")


def bare(text):
    """The text without comments and literals."""
    return TOKEN.sub(lambda m: " " if m[0].startswith("/") else '""', text)


def closing(text, start):
    """Where the brace that opens at `start` is closed."""
    depth = 0
    for at in range(start, len(text)):
        if text[at] == "{":
            depth += 1
        elif text[at] == "}":
            depth -= 1
            if depth == 0:
                return at
    return len(text)


def without_tests(text):
    """The text without modules, functions and uses that only tests have."""
    out = []
    while hit := re.search(r"#\[cfg\(test\)\]\s*(?:#\[[^\]]*\]\s*)*[^;{]*([;{])", text):
        out.append(text[: hit.start()])
        end = hit.end() if hit[1] == ";" or " use " in f" {hit[0]}" else closing(text, hit.end() - 1) + 1
        if " use " in f" {hit[0]}" and hit[1] == "{":
            end = text.index(";", hit.end()) + 1
        text = text[end:]
    return "".join(out) + text


def leaves(tree):
    """The paths of a use tree, as lists of names."""
    tree = tree.strip()
    opening = tree.find("{")
    if opening < 0:
        return [[part.strip() for part in re.sub(r"\s+as\s+\w+", "", tree).split("::") if part.strip()]]
    head = [part.strip() for part in tree[:opening].split("::") if part.strip()]
    found, depth, part = [], 0, ""
    for letter in tree[opening + 1 : closing(tree, opening)] + ",":
        depth += (letter == "{") - (letter == "}")
        if letter == "," and depth == 0:
            found += [head + leaf for leaf in leaves(part)] if part.strip() else []
            part = ""
        else:
            part += letter
    return found


class Crate:
    """The modules of a crate, and who says whose name."""

    def __init__(self, source):
        self.source = source
        self.files = {}
        for file in sorted(source.rglob("*.rs")):
            parts = list(file.relative_to(source).with_suffix("").parts)
            if parts[-1] == "mod":
                parts.pop()
            if parts == ["main"] and (source / "lib.rs").exists():
                continue
            if parts in (["lib"], ["main"]):
                parts = []
            if "bin" not in parts[:1]:
                self.files[tuple(parts)] = without_tests(bare(file.read_text()))
        self.modules = set(self.files)
        self.inline()
        self.uses = defaultdict(set)
        for module, text in self.files.items():
            if not self.only_tests(module):
                self.read(module, text)

    def inline(self):
        """Modules that are written inside a file."""
        for module, text in list(self.files.items()):
            for name in re.findall(r"\bmod\s+(\w+)\s*\{", text):
                self.modules.add((*module, name))

    def only_tests(self, module):
        """Whether no parent says `mod` of it outside tests."""
        return any(
            not re.search(rf"\bmod\s+{module[depth]}\b", self.files.get(module[:depth], f"mod {module[depth]};"))
            for depth in range(len(module))
        )

    def place(self, module, path):
        """The module that a path names, and whether it is inside this crate."""
        at = list(module)
        for name in path:
            if name == "crate":
                at = []
            elif name == "super":
                at = at[:-1]
            elif name != "self":
                break
        rest = [name for name in path if name not in ("crate", "super", "self")]
        for name in rest:
            if (*at, name) not in self.modules:
                break
            at.append(name)
        return tuple(at)

    def local(self, module, name):
        """Whether a path that begins with a name begins with a child module."""
        return (*module, name) in self.modules

    def read(self, module, text):
        """Takes in what a file says."""
        aliases = {}
        for use in re.finditer(r"\buse\s+([^;]+);", text):
            for path in leaves(use[1]):
                if path and (path[0] in ("crate", "self", "super") or self.local(module, path[0])):
                    self.uses[module].add(self.place(module, path))
                    target = self.place(module, path)
                    if path[-1] == "self" or target and target[-1] == path[-1]:
                        aliases[target[-1] if target else ""] = target
        rest = re.sub(r"\buse\s+[^;]+;", " ", text)
        for path in PATH.finditer(rest):
            names = [path[1], *(n for n in re.split(r"\s*::\s*", path[2]) if n)]
            self.uses[module].add(self.place(module, names))
        for name in re.findall(r"(?<![\w:])(\w+)\s*::", rest):
            if self.local(module, name):
                self.uses[module].add((*module, name))

    def siblings(self):
        """For each folder: the edges between its modules, each with the modules that say so."""
        folders = defaultdict(lambda: defaultdict(set))
        for user, used in self.uses.items():
            for other in used:
                depth = 0
                while depth < min(len(user), len(other)) and user[depth] == other[depth]:
                    depth += 1
                if depth < min(len(user), len(other)):
                    edge = (user[depth], other[depth])
                    folders[user[:depth]][edge].add(f"{'::'.join(user)} uses {'::'.join(other)}")
        return folders


def components(edges):
    """The strongly connected components of more than one module."""
    graph = defaultdict(set)
    for user, used in edges:
        graph[user].add(used)
    reach = {}
    for start in list(graph):
        seen, todo = set(), [start]
        while todo:
            for other in graph.get(todo.pop(), ()):
                if other not in seen:
                    seen.add(other)
                    todo.append(other)
        reach[start] = seen
    found = {frozenset(b for b in seen if a in reach.get(b, ())) for a, seen in reach.items() if a in seen}
    return sorted(sorted(component) for component in found)


def cycles(with_edges):
    """A line for each cycle: the folder, and the modules in it."""
    lines = []
    for source in SOURCES:
        if not (ROOT / source).is_dir():
            continue
        for folder, edges in sorted(Crate(ROOT / source).siblings().items()):
            for component in components(edges):
                lines.append(f"{'/'.join([source, *folder])}: {' '.join(component)}")
                if with_edges:
                    for (user, used), why in sorted(edges.items()):
                        if user in component and used in component:
                            print(f"    {user} -> {used}: {'; '.join(sorted(why))}")
                    print(f"  {lines[-1]}")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--edges", action="store_true", help="print the imports that make the cycles")
    parser.add_argument("--write", action="store_true", help="write the file of known cycles anew")
    parser.add_argument("--uses", metavar="CRATE:MODULE", help="print who uses a module, such as coordinator:scheduler::dice")
    asked = parser.parse_args()
    if asked.uses:
        crate, module = asked.uses.split(":", 1)
        wanted = tuple(module.split("::"))
        for user, used in sorted(Crate(ROOT / crate / "src").uses.items()):
            if any(other[: len(wanted)] == wanted for other in used) and user[: len(wanted)] != wanted:
                print("::".join(user))
        return 0
    found = cycles(asked.edges)
    if asked.write:
        KNOWN.write_text("".join(f"{line}\n" for line in found))
        return 0
    known = KNOWN.read_text().splitlines() if KNOWN.exists() else []
    failed = False
    for line in found:
        print(line)
    for line in known:
        if line not in found:
            failed = True
            print(f"{KNOWN.name} names a cycle that is no longer there (or changed); write it anew: {line}", file=sys.stderr)
    for line in found:
        if line not in known and not shrunk(line, known):
            failed = True
            print(f"new cycle: {line}\n  scripts/module_cycles.py --edges says what makes it", file=sys.stderr)
    return 1 if failed else 0


def shrunk(line, known):
    """Whether a cycle is what is left of a known one."""
    folder, names = line.split(": ")
    return any(k.split(": ")[0] == folder and set(names.split()) <= set(k.split(": ")[1].split()) for k in known)


if __name__ == "__main__":
    sys.exit(main())
