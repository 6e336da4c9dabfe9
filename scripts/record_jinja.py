#!/usr/bin/env python3
"""What Jinja2, set up as transformers sets it up, makes of the templates in a file of cases.

    record_jinja.py FILE             writes the outcomes into FILE
    record_jinja.py --print FILE     prints FILE as it would be, and writes nothing
"""
import datetime, json, sys
import jinja2
import jinja2.ext
import jinja2.sandbox


class Generation(jinja2.ext.Extension):
    """Where text is made, what is marked for training is a scope."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        call = self.call_method("_text")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    @staticmethod
    def _text(caller):
        return caller()


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    made = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = lambda form: datetime.datetime(2025, 3, 9, 8, 5, 7, 1200).strftime(form)
    return made


def outcome(made, template, given):
    try:
        text = made.from_string(template).render(**given)
        if " at 0x" in text:
            return {"template": template, "fails": "is an address in memory"}
        return {"template": template, "becomes": text}
    except Exception as error:
        return {"template": template, "fails": type(error).__name__}


def main():
    show, path = "--print" in sys.argv[1:-1], sys.argv[-1]
    with open(path, encoding="utf-8") as file:
        first, *cases = [json.loads(line) for line in file]
    version = f"jinja2 {jinja2.__version__}, Python {sys.version_info.major}.{sys.version_info.minor}"
    made = environment()
    lines = [{"by": version, "given": first["given"]}] + [outcome(made, case["template"], first["given"]) for case in cases]
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    if show:
        sys.stdout.write(text)
    else:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)


if __name__ == "__main__":
    main()
