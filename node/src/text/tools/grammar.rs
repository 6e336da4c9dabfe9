//! A grammar (in Lark's notation, as llguidance reads it) of nothing but calls, in a family's own form: what an answer must be
//! where a tool has to be called.

use super::{ToolFormat, bare, deepseek, gemma4, harmony, hermes, mistral};
use serde_json::{Map, Value, json};
use std::fmt::Write;

/// Calls of one answer where there may be several: a model that goes on for ever ends somewhere.
const CALLS: usize = 16;
/// How families write JSON; the keys that say it are llguidance's.
const SPACES: &str = "x-guidance";

/// What may come before calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::text) enum Thought {
    /// Nothing.
    None,
    /// Thoughts that the model begins.
    May(ThoughtMarks),
    /// The rest of thoughts that the prompt begins.
    Begun(ThoughtMarks),
}

/// What a family writes around thoughts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::text) struct ThoughtMarks {
    pub begin: &'static str,
    /// Text behind it that is no thought, either.
    pub label: &'static str,
    pub end: &'static str,
}

impl ThoughtMarks {
    /// Whether a prompt of that text ends where thoughts have begun.
    pub fn are_begun_by(self, prompt: &str) -> bool {
        let unlabelled = prompt.trim_end().strip_suffix(self.label.trim_end());
        unlabelled.is_some_and(|prompt| prompt.ends_with(self.begin))
    }
}

/// Tools by name and schema of the arguments, at least one; `special` finds the id of a mark that is a special token.
pub(in crate::text) fn grammar(
    format: ToolFormat,
    tools: &[(&str, &Value)],
    parallel: bool,
    thought: Thought,
    special: impl Fn(&str) -> Option<u32>,
) -> String {
    let mark = |text: &str| special(text).map_or_else(|| quoted(text), |id| format!("<[{id}]>"));
    let form = CallSyntax::of(format, &mark);
    let CallSyntax { open, between, close } = &form;
    let more = if parallel { format!(" ({between} call){{0,{}}}", CALLS - 1) } else { String::new() };
    let mut text = String::from("start: ");
    text.push_str(match thought {
        Thought::None => "",
        Thought::May(_) => "(think thought)? ",
        Thought::Begun(_) => "thought ",
    });
    // A list of one is no list.
    let calls = match format {
        ToolFormat::Json if parallel => format!("call | {open} call{more} {close}"),
        ToolFormat::Json => "call".to_owned(),
        _ => format!("{open} call{more} {close}"),
    };
    text += &format!("calls\ncalls: {calls}\n");
    if let Thought::May(marks) = thought {
        let label = if marks.label.is_empty() { String::new() } else { quoted(marks.label) };
        text += &format!("think: {} {label}\n", mark(marks.begin));
    }
    if let Thought::May(marks) | Thought::Begun(marks) = thought {
        text += &match special(marks.end) {
            Some(id) => format!("thought: (/(?s:.+)/)? <[{id}]> (/\\n+/)?\n"),
            None => format!("thought: within (/\\n+/)?\nwithin[suffix={}]: /(?s:.*)/\n", quoted(marks.end)),
        };
    }
    let names: Vec<String> = (0..tools.len()).map(|at| format!("call_{at}")).collect();
    text += &format!("call: {}\n", names.join(" | "));
    for (at, (name, schema)) in tools.iter().enumerate() {
        let [before, behind] = call(format, name, &mark);
        // Writing to a text cannot fail.
        _ = writeln!(text, "call_{at}: {before} arguments_{at} {behind}\narguments_{at}: %json {}", arguments(schema));
    }
    text
}

/// What stands around all calls and between two.
struct CallSyntax {
    open: String,
    between: String,
    close: String,
}

impl CallSyntax {
    fn of(format: ToolFormat, mark: &impl Fn(&str) -> String) -> Self {
        let (open, between, close) = match format {
            ToolFormat::Hermes | ToolFormat::Qwen3Coder => (String::new(), quoted("\n"), String::new()),
            ToolFormat::Llama3Json => (String::new(), quoted("; "), String::new()),
            ToolFormat::Mistral => (format!("{} {}", mark(mistral::CALLS), quoted("[")), quoted(", "), quoted("]")),
            ToolFormat::DeepSeekV3 => (mark(deepseek::BEGIN), quoted("\n"), mark(deepseek::END)),
            ToolFormat::DeepSeekV31 => (mark(deepseek::BEGIN), String::new(), mark(deepseek::END)),
            ToolFormat::Gemma4 => Default::default(),
            ToolFormat::Harmony => {
                (String::new(), format!("{} {}", mark(harmony::START), quoted("assistant")), String::new())
            }
            ToolFormat::Json => (quoted("["), quoted(", "), quoted("]")),
        };
        Self { open, between, close }
    }
}

/// What stands before and behind the arguments of one call.
fn call(format: ToolFormat, name: &str, mark: &impl Fn(&str) -> String) -> [String; 2] {
    let object = |key: &str| format!("{{\"name\": {}, \"{key}\": ", json!(name));
    match format {
        // Bare text cannot be held to all that a schema says, so Qwen3-Coder's calls are JSON, too, where they must be made.
        ToolFormat::Hermes | ToolFormat::Qwen3Coder => [
            format!("{} {}", mark(hermes::OPEN), quoted(&format!("\n{}", object("arguments")))),
            format!("{} {}", quoted("}\n"), mark(hermes::CLOSE)),
        ],
        ToolFormat::Llama3Json => [quoted(&object(bare::PARAMETERS)), quoted("}")],
        ToolFormat::Mistral | ToolFormat::Json => [quoted(&object("arguments")), quoted("}")],
        ToolFormat::DeepSeekV3 => [
            format!(
                "{} {} {} {}",
                mark(deepseek::CALL),
                quoted("function"),
                mark(deepseek::SEPARATOR),
                quoted(&format!("{name}\n```json\n"))
            ),
            format!("{} {}", quoted("\n```"), mark(deepseek::CALL_END)),
        ],
        ToolFormat::Harmony => [
            format!(
                "{} {} {} {} {}",
                mark(harmony::CHANNEL),
                quoted(&format!("commentary to=functions.{name} ")),
                mark(harmony::CONSTRAIN),
                quoted("json"),
                mark(harmony::MESSAGE)
            ),
            String::new(),
        ],
        // Of arguments in the family's own notation no grammar can be made of a schema: they are JSON where they must be made.
        ToolFormat::Gemma4 => {
            [format!("{} {}", mark(gemma4::OPEN), quoted(&format!("{}{name}", gemma4::CALL))), mark(gemma4::CLOSE)]
        }
        ToolFormat::DeepSeekV31 => [
            format!("{} {} {}", mark(deepseek::CALL), quoted(name), mark(deepseek::SEPARATOR)),
            mark(deepseek::CALL_END),
        ],
    }
}

/// A text in the grammar.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// The schema of an object, written with one space behind signs and no others: the model need not choose among spaces.
fn arguments(schema: &Value) -> Value {
    let mut schema = schema.as_object().cloned().unwrap_or_else(Map::new);
    let says_what = ["type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"];
    if !says_what.iter().any(|key| schema.contains_key(*key)) {
        schema.insert("type".into(), json!("object"));
    }
    let spaces = json!({ "whitespace_flexible": false, "key_separator": ": ", "item_separator": ", " });
    schema.insert(SPACES.into(), spaces);
    Value::Object(schema)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::{
        grammar::{GrammarCompiler, GrammarVocabulary},
        model::tests::embedded,
        tokenizer_guard,
    };
    use tsnode_protocol::{Grammar, Token};

    const THINK: ThoughtMarks = ThoughtMarks { begin: "<think>", label: "", end: "</think>" };
    const CHANNEL: ThoughtMarks = ThoughtMarks { begin: "<|channel>", label: "thought\n", end: "<channel|>" };

    const ALL: [ToolFormat; 8] = [
        ToolFormat::Hermes,
        ToolFormat::Qwen3Coder,
        ToolFormat::Llama3Json,
        ToolFormat::Mistral,
        ToolFormat::DeepSeekV3,
        ToolFormat::DeepSeekV31,
        ToolFormat::Gemma4,
        ToolFormat::Json,
    ];

    fn of(format: ToolFormat, parallel: bool, thought: Thought, special: impl Fn(&str) -> Option<u32>) -> String {
        let schema =
            json!({ "type": "object", "properties": { "town": { "enum": ["Bonn"] } }, "additionalProperties": false });
        grammar(format, &[("wind", &schema), ("now", &Value::Null)], parallel, thought, special)
    }

    fn of_text(format: ToolFormat, parallel: bool) -> String {
        of(format, parallel, Thought::None, |_| None)
    }

    #[test]
    fn calls_have_their_familys_form() {
        let hermes = of_text(ToolFormat::Hermes, true);
        for line in [
            r#"calls:  call ("\n" call){0,15} "#,
            "call: call_0 | call_1",
            r#"call_0: "<tool_call>" "\n{\"name\": \"wind\", \"arguments\": " arguments_0 "}\n" "</tool_call>""#,
        ] {
            assert!(hermes.lines().any(|one| one == line), "{line} in\n{hermes}");
        }
        assert!(hermes.contains("arguments_1: %json {") && !hermes.contains("thought"), "{hermes}");
        let special = |text: &str| (text == "[TOOL_CALLS]").then_some(5);
        let mistral = of(ToolFormat::Mistral, false, Thought::Begun(THINK), special);
        assert!(mistral.starts_with("start: thought calls\ncalls: <[5]> \"[\" call \"]\"\n"), "{mistral}");
    }

    /// Whether a text follows each of the grammars, and may end.
    fn follow<'t>(texts: impl IntoIterator<Item = (String, &'t str)>) -> Vec<bool> {
        let tokenizer = tokenizer_guard::read(&embedded().files["tokenizer.json"]).unwrap();
        let compiler = GrammarCompiler::new(GrammarVocabulary::new(&tokenizer, embedded().card.shape.vocab)).unwrap();
        let follows = |(grammar, text): (String, &str)| {
            let mut follow = compiler.compile(&Grammar::Lark(grammar.clone()), &[Token(1)]).unwrap_or_else(|error| {
                panic!("{error} in\n{grammar}");
            });
            let tokens = tokenizer_guard::encode(&tokenizer, text, false).unwrap();
            let tokens: Vec<Token> = tokens.into_iter().map(Token).collect();
            follow.consume(&tokens).is_ok() && follow.allowed().is_ok_and(|words| words[0] >> 1 & 1 == 1)
        };
        texts.into_iter().map(follows).collect()
    }

    #[test]
    fn what_families_write_follows_and_nothing_else() {
        let wind = r#"{"name": "wind", "arguments": {"town": "Bonn"}}"#;
        let now = r#"{"name": "now", "arguments": {}}"#;
        let hermes = |call: &str| format!("<tool_call>\n{call}\n</tool_call>");
        let texts = [
            (ToolFormat::Hermes, hermes(wind)),
            (ToolFormat::Llama3Json, wind.replace("arguments", "parameters")),
            (ToolFormat::Mistral, format!("[TOOL_CALLS][{wind}]")),
            (
                ToolFormat::DeepSeekV3,
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>wind\n```json\n{\"town\": \"Bonn\"}\n```\
                 <｜tool▁call▁end｜><｜tool▁calls▁end｜>"
                    .to_owned(),
            ),
            (
                ToolFormat::DeepSeekV31,
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>".to_owned(),
            ),
            (ToolFormat::Gemma4, "<|tool_call>call:wind{\"town\": \"Bonn\"}<tool_call|>".to_owned()),
            (ToolFormat::Json, now.to_owned()),
        ];
        let right = texts.iter().flat_map(|(format, text)| {
            [(of_text(*format, true), text.as_str()), (of_text(*format, false), text.as_str())]
        });
        assert!(follow(right).iter().all(|follows| *follows));
        let (two, list) = (format!("{}\n{}", hermes(wind), hermes(now)), format!("[{wind}, {now}]"));
        assert_eq!(
            follow([
                (of_text(ToolFormat::Hermes, true), two.as_str()),
                (of_text(ToolFormat::Hermes, false), two.as_str()),
                (of_text(ToolFormat::Json, true), list.as_str()),
                (of_text(ToolFormat::Json, false), list.as_str()),
                (of_text(ToolFormat::Hermes, true), "Good day"),
                (of_text(ToolFormat::Hermes, true), hermes(&wind.replace("Bonn", "Rome")).as_str()),
                (of_text(ToolFormat::Hermes, true), hermes(&wind.replace("wind", "rain")).as_str()),
            ]),
            [true, false, true, false, false, false, false]
        );
    }

    #[test]
    fn thoughts_come_first() {
        let call = r#"{"name": "now", "arguments": {}}"#;
        let begun = format!("One <and> one.\n</think>\n\n{call}");
        let own = format!("<think>{begun}");
        let channel = format!("<|channel>thought\nOne.<channel|>{call}");
        let of = |thought| of(ToolFormat::Json, true, thought, |_| None);
        assert_eq!(
            follow([
                (of(Thought::Begun(THINK)), begun.as_str()),
                (of(Thought::Begun(THINK)), call),
                (of(Thought::May(THINK)), own.as_str()),
                (of(Thought::May(THINK)), call),
                (of(Thought::May(CHANNEL)), channel.as_str()),
                (of(Thought::May(CHANNEL)), own.as_str()),
                (of(Thought::None), own.as_str()),
            ]),
            [true, false, true, true, true, false, false]
        );
    }

    /// Marks that are special tokens, in every form.
    #[test]
    fn special_tokens_are_named_by_their_ids() {
        let special = |text: &str| Some(if text.starts_with("</") { 4 } else { 5 });
        let all = ALL.into_iter().flat_map(|format| {
            [Thought::None, Thought::May(THINK), Thought::Begun(THINK), Thought::May(CHANNEL)]
                .map(|thought| (of(format, true, thought, special), "x"))
        });
        // They are grammars.
        assert_eq!(follow(all).len(), 32);
    }
}
