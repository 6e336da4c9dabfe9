#!/usr/bin/env python3
"""Figures of the house, by crate: how much code there is, how long functions are, and what is unsafe, commented or named twice.

    scripts/house_figures.py               of this tree
    scripts/house_figures.py ../other      of another, to compare

Counts Rust as it is written, without compiling: comments and strings are blanked out first, so that what is said about `unsafe`
is not counted as it.
"""
import collections
import pathlib
import re
import sys

CRATES = ["protocol", "coordinator", "kernels", "node", "testnet"]


def blanked(text):
    """The text with comments, strings and characters as spaces, and how many lines hold a comment and nothing else."""
    out, comments, i, only = [], 0, 0, True
    pattern = re.compile(
        r'//[^\n]*|/\*.*?\*/|b?r(#*)".*?"\1|b?"(?:\\.|[^"\\])*"|b?\'(?:\\(?:u\{[^}]*\}|x..|.)|[^\\\'\n])\'', re.S
    )
    for found in pattern.finditer(text):
        before = text[i : found.start()]
        out.append(before)
        if found.group().startswith("//"):
            line = text.rfind("\n", 0, found.start()) + 1
            comments += not text[line : found.start()].strip()
        out.append("".join("\n" if c == "\n" else " " for c in found.group()))
        i = found.end()
    out.append(text[i:])
    return "".join(out), comments


def functions(code):
    """Lines of every function that has a body, and whether it was cut short by the end of the file."""
    for found in re.finditer(r"\bfn\s+\w+", code):
        depth, at = 0, found.end()
        # The body is the first brace outside of brackets; a semicolon there ends a function without one.
        while at < len(code):
            c = code[at]
            if c in "([":
                depth += 1
            elif c in ")]":
                depth -= 1
            elif c == ";" and depth == 0:
                break
            elif c == "{" and depth == 0:
                start, braces = at, 0
                while at < len(code):
                    braces += (code[at] == "{") - (code[at] == "}")
                    if braces == 0:
                        yield code.count("\n", found.start(), at) + 1
                        break
                    at += 1
                break
            at += 1


def percentile(sorted_numbers, part):
    return sorted_numbers[min(len(sorted_numbers) - 1, int(len(sorted_numbers) * part))] if sorted_numbers else 0


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent)
    types, stems, largest = collections.defaultdict(set), collections.defaultdict(set), []
    print(f"{'crate':<12} {'files':>6} {'lines':>7} {'fns':>6} {'p50':>4} {'p90':>4} {'p99':>4} {'longest':>8} "
          f"{'unsafe {':>9} {'unsafe fn':>10} {'unsafe impl':>12} {'allow':>6} {'comments/100':>13}")
    total = collections.Counter()
    for crate in CRATES:
        count, lengths = collections.Counter(), []
        for path in sorted((root / crate).rglob("*.rs")):
            if "target" in path.relative_to(root).parts:
                continue
            text = path.read_text()
            code, comments = blanked(text)
            lines = text.count("\n")
            largest.append((lines, str(path.relative_to(root))))
            stems[path.stem].add(path)
            for found in re.finditer(r"\b(?:struct|enum|trait|union|type)\s+(\w+)", code):
                types[found.group(1)].add(path)
            lengths += functions(code)
            count["files"] += 1
            count["lines"] += lines
            count["comments"] += comments
            count["blocks"] += len(re.findall(r"\bunsafe\s*\{", code))
            count["fns"] += len(re.findall(r"\bunsafe\s+(?:extern\s+)?fn\s+\w", code))
            count["impls"] += len(re.findall(r"\bunsafe\s+impl\b", code))
            count["allows"] += len(re.findall(r"#!?\[allow\(", code))
        lengths.sort()
        total += count
        print(f"{crate:<12} {count['files']:>6} {count['lines']:>7} {len(lengths):>6} {percentile(lengths, .5):>4} "
              f"{percentile(lengths, .9):>4} {percentile(lengths, .99):>4} {max(lengths, default=0):>8} {count['blocks']:>9} "
              f"{count['fns']:>10} {count['impls']:>12} {count['allows']:>6} "
              f"{100 * count['comments'] / max(count['lines'], 1):>13.1f}")
    print(f"{'all':<12} {total['files']:>6} {total['lines']:>7} {'':>6} {'':>4} {'':>4} {'':>4} {'':>8} {total['blocks']:>9} "
          f"{total['fns']:>10} {total['impls']:>12} {total['allows']:>6} "
          f"{100 * total['comments'] / max(total['lines'], 1):>13.1f}")
    print("\nlargest files")
    for lines, path in sorted(largest, reverse=True)[:10]:
        print(f"{lines:>7} {path}")
    for what, names in (("types", types), ("files", stems)):
        twice = {name: len(at) for name, at in names.items() if len(at) > 1 and name not in ("Self", "mod", "lib", "main")}
        most = sorted(twice.items(), key=lambda item: (-item[1], item[0]))[:12]
        print(f"\nnames of {what} used more than once: {len(twice)}; most: " + ", ".join(f"{n} {k}" for n, k in most))


main()
