//! Families of templates and what comes of them. The templates are our own, in the manner of those that models have; the texts
//! are what Jinja makes of them, set up as transformers does.

use super::*;
use jiff::{civil::date, tz::TimeZone};
use serde::de::{MapAccess, SeqAccess, Visitor};
use std::fmt;

const FAMILIES: [(&str, &str); 6] = [
    ("llama", include_str!("families/llama.txt")),
    ("mistral", include_str!("families/mistral.txt")),
    ("qwen", include_str!("families/qwen.txt")),
    ("gemma", include_str!("families/gemma.txt")),
    ("marked", include_str!("families/marked.txt")),
    ("json", include_str!("families/json.txt")),
];

/// A Sunday morning.
fn then() -> jiff::Zoned {
    date(2025, 3, 9).at(8, 5, 7, 1_200_000).to_zoned(TimeZone::UTC).unwrap()
}

fn read(text: &str) -> Result<ChatTemplate, String> {
    let settings = serde_json::json!({ "chat_template": text, "bos_token": { "content": "<s>" }, "eos_token": "</s>" });
    ChatTemplate::new(TemplateText::find(&settings, None).unwrap(), then)
}

fn rendered(text: &str) -> Result<String, String> {
    read(text)?.render(&[ChatMessage::new("user", " hi ")].into())
}

#[test]
fn families_of_templates_give_what_jinja_makes_of_them() {
    for (family, file) in FAMILIES {
        let parts: Vec<_> = file["=== ".len()..].split("\n=== ").filter_map(|part| part.split_once('\n')).collect();
        let [("template", template), cases @ .., ("end", "")] = &parts[..] else { panic!("{family} is cut") };
        let template = read(template).unwrap();
        for case in cases.chunks(2) {
            let given = |text| move || names(text);
            match *case {
                [("given", of), ("becomes", text)] => {
                    assert_eq!(template.fill(&template.template, given(of)).unwrap(), text, "{family}")
                }
                [("given", of), ("fails", why)] => {
                    assert!(template.fill(&template.template, given(of)).unwrap_err().contains(why), "{family}")
                }
                _ => panic!("{family} has a case that is none: {case:?}"),
            }
        }
    }
}

/// JSON as a template is given it: its keys in their order.
struct GivenJson(Value);

impl<'de> Deserialize<'de> for GivenJson {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = GivenJson;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<GivenJson, E> {
        Ok(GivenJson(Value::None))
    }

    fn visit_bool<E>(self, truth: bool) -> Result<GivenJson, E> {
        Ok(GivenJson(Value::Bool(truth)))
    }

    fn visit_i64<E>(self, number: i64) -> Result<GivenJson, E> {
        Ok(GivenJson(Value::Int(number.into())))
    }

    fn visit_u64<E>(self, number: u64) -> Result<GivenJson, E> {
        Ok(GivenJson(Value::Int(number.into())))
    }

    fn visit_f64<E>(self, number: f64) -> Result<GivenJson, E> {
        Ok(GivenJson(Value::Float(number)))
    }

    fn visit_str<E>(self, text: &str) -> Result<GivenJson, E> {
        Ok(GivenJson(Value::text(text)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<GivenJson, A::Error> {
        let mut list = Vec::new();
        while let Some(GivenJson(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(GivenJson(Value::list(list)))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut pairs: A) -> Result<GivenJson, A::Error> {
        let mut dict = Dict::default();
        while let Some((key, GivenJson(value))) = pairs.next_entry::<String, _>()? {
            dict.insert(Value::text(key), value).map_err(serde::de::Error::custom)?;
        }
        Ok(GivenJson(Value::dict(dict)))
    }
}

fn names(text: &str) -> Result<Names, Error> {
    let Ok(GivenJson(Value::Dict(given))) = serde_json::from_str(text) else { panic!("{text} is no object") };
    names_of(&given)
}

fn names_of(given: &Dict) -> Result<Names, Error> {
    Ok(given.pairs().map(|(name, value)| (name.as_text().unwrap().clone(), value.clone())).collect())
}

/// Templates, what each is given, and what Jinja2 made of it: `scripts/record_jinja.py`.
const CASES: &str = include_str!("cases.jsonl");

/// A line of the file; the first says what the others are given, and who made them.
#[derive(Deserialize)]
struct Case {
    template: String,
    becomes: Option<String>,
    /// How, where it fails.
    fails: Option<String>,
}

/// Constructs that are not rendered as Jinja2 does, with why; the others are, or fail there too.
const REFUSED: [(&str, &str); 2] =
    [("{{ 2 ** 200 }}", "128 bits"), ("{% autoescape true %}{{ '<' }}{% endautoescape %}", "autoescape")];

/// Every case of a file that is not rendered as it says.
fn differing(file: &str) -> Vec<String> {
    let (first, cases) = file.split_once('\n').unwrap();
    assert!(first.starts_with("{\"by\": \"jinja2 3.1"), "{first}");
    let given = || {
        let first = names(first)?;
        let Some((_, Value::Dict(given))) = first.into_iter().find(|(name, _)| **name == *"given") else {
            panic!("no given")
        };
        names_of(&given)
    };
    let mut wrong = Vec::new();
    let mut count = 0;
    for case in cases.lines() {
        let Case { template, becomes, fails } = serde_json::from_str(case).unwrap();
        assert_ne!(becomes.is_some(), fails.is_some(), "{template}");
        count += 1;
        let made = read(&template).and_then(|template| template.fill(&template.template, given));
        let same = match (&made, &becomes) {
            (Ok(made), Some(becomes)) => made == becomes,
            (Err(why), None) => !why.is_empty(),
            (Err(why), Some(_)) => REFUSED.iter().any(|(refused, reason)| *refused == template && why.contains(reason)),
            (Ok(_), None) => false,
        };
        if !same {
            wrong.push(format!("{template}\n   Jinja2: {becomes:?} {fails:?}\n   here:   {made:?}"));
        }
    }
    assert!(count >= 300, "{count} cases");
    wrong
}

#[test]
fn constructs_are_rendered_as_jinja2_renders_them() {
    let wrong = differing(CASES);
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// The same against the Jinja2 of this machine, whichever version that is.
#[test]
#[ignore = "needs python3 with jinja2"]
fn constructs_are_rendered_as_the_jinja2_of_this_machine_renders_them() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let cases = format!("{root}/node/src/text/chat/cases.jsonl");
    let recorded = std::process::Command::new("python3")
        .args([&format!("{root}/scripts/record_jinja.py"), "--print", &cases])
        .output()
        .unwrap();
    assert!(recorded.status.success(), "{}", String::from_utf8_lossy(&recorded.stderr));
    let wrong = differing(&String::from_utf8(recorded.stdout).unwrap());
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// What Python can do and this cannot is an error that says so.
#[test]
fn what_cannot_be_rendered_right_is_refused() {
    for (template, why) in [
        ("{{ 2 ** 200 }}", "128 bits"),
        ("{{ messages | map(attribute='role') }}", "address in memory"),
        ("{{ 'abc'.upper }}", "address in memory"),
        ("{% include 'other' %}", "another template"),
        ("{% autoescape true %}{{ '<' }}{% endautoescape %}", "autoescape"),
        ("a\n{{ 1 +\n'a' }}", "line 2: + is not for int and str"),
        ("{{ messages[0].nope.more }}", "no \"nope\""),
        ("{{ nope() }}", "\"nope\" is not defined"),
        ("{{ messages.append(1) }}", "\"append\" of list is not for templates"),
        ("{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}", "deep"),
        (
            "{% set ns = namespace(x=[]) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}",
            "deep",
        ),
        ("{{ 'x' * 999999999999 }}", "too long"),
        ("{{ '%999999999d' % 1 }}", "wide"),
    ] {
        let refused = rendered(template).unwrap_err();
        assert!(refused.contains(why), "{template}: {refused}");
    }
    assert!(rendered(&"(".repeat(100_000)).is_ok(), "text");
    assert!(rendered(&format!("{{{{ {} }}}}", "(".repeat(100_000))).is_err());
    assert!(rendered(&format!("{{{{ {}1 }}}}", "-".repeat(100_000))).is_err());
    assert!(rendered(&"{% if true %}".repeat(10_000)).is_err());
}

#[test]
fn python_is_understood_as_far_as_templates_use_it() {
    let text =
        "{{ bos_token }}{% for m in messages %}{{ m['content'].strip().upper() }}{{ m.get('x', '-') }}{% endfor %}";
    assert_eq!(rendered(text).unwrap(), "<s>HI-");
}

#[test]
fn a_template_may_refuse_and_may_not_run_forever() {
    assert!(rendered("{{ raise_exception('no system role') }}").unwrap_err().contains("no system role"));
    let loops = "{% for a in range(10000) %}{% for b in range(10000) %}x{% endfor %}{% endfor %}";
    assert!(rendered(loops).is_err());
    assert!(rendered("{% for").is_err());
    assert!(rendered("{% generation %}").is_err());
}

#[test]
fn what_is_not_given_is_none_and_a_token_that_is_not_there_is_undefined() {
    let text = "{{ tools is defined and tools is none and documents is none }}{{ tools }}{{ add_generation_prompt }} \
                {{ eos_token }}{{ pad_token is defined }}{{ pad_token }}";
    assert_eq!(rendered(text).unwrap(), "TrueNoneTrue </s>False");
}

#[test]
fn messages_are_written_with_the_role_before_what_was_said() {
    let text = "{{ messages | tojson }}{% for key, value in messages[0].items() %}{{ key }}{% endfor %}";
    assert_eq!(rendered(text).unwrap(), r#"[{"role": "user", "content": " hi "}]rolecontent"#);
}

#[test]
fn the_date_is_the_clocks() {
    assert_eq!(rendered("{{ strftime_now('%d %b %Y') }}{{ strftime_now('%') }}").unwrap(), "09 Mar 2025%");
    assert!(rendered("{{ strftime_now() }}").is_err());
}

/// As transformers cuts it: also where the template trims what is said, and never within what only looks like it.
#[test]
fn a_conversation_ends_where_it_is_told_to() {
    let text = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</s>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
    let kept = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}";
    let rendered = |text: &str, said: &str, ending: Ending| {
        let messages = vec![ChatMessage::new("user", said), ChatMessage::new("assistant", said)];
        read(text).unwrap().render(&Conversation { messages, ending, ..Conversation::default() })
    };
    let of = |text: &str, said: &str, ending| rendered(text, said, ending).unwrap();
    assert_eq!(of(text, "Yes ", Ending::Answer), "<user>Yes</s><assistant>Yes</s><assistant>");
    assert_eq!(of(text, "Yes ", Ending::Closed), "<user>Yes</s><assistant>Yes</s>");
    assert_eq!(of(text, " Yes ", Ending::Open), "<user>Yes</s><assistant>Yes");
    assert_eq!(of(kept, "Yes ", Ending::Open), "<user>Yes </s><assistant>Yes ");
    let refused = rendered(text, " ", Ending::Open).unwrap_err();
    assert!(refused.contains("cannot be gone on with"), "{refused}");
}
