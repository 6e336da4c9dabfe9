//! Transcripts in the families' published forms, whole and in pieces. The texts are our own.

use super::*;
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::json;

/// A text cut at these places, between letters.
pub(in crate::text) fn split<'t>(text: &'t str, cuts: &[Index]) -> Vec<&'t str> {
    let places: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| places[cut.index(places.len())]).collect();
    cuts.sort_unstable();
    let ends = cuts.iter().copied().chain([text.len()]);
    let mut from = 0;
    ends.map(|to| &text[std::mem::replace(&mut from, to)..to]).collect()
}

/// Tools that may be called.
fn tools() -> Arc<[Callable]> {
    let days = json!({ "properties": { "town": { "type": "string" }, "days": { "type": "array" }, "hour": { "type": "integer" } } });
    [Callable::new("wind", &days), Callable::new("rain", &days)].into()
}

/// What a parser makes of pieces, with what belongs together in one.
fn parsed<'t>(format: ToolFormat, pieces: impl IntoIterator<Item = &'t str>) -> Vec<AnswerPart> {
    let mut parser = format.parser(tools());
    let mut all: Vec<AnswerPart> = Vec::new();
    let pieces: Vec<AnswerPart> = pieces.into_iter().flat_map(|piece| parser.push(piece)).collect();
    for one in pieces.into_iter().chain(parser.finish()) {
        match (all.last_mut(), one) {
            (Some(AnswerPart::Content(said)), AnswerPart::Content(more)) => said.push_str(&more),
            (Some(AnswerPart::Arguments { piece, .. }), AnswerPart::Arguments { piece: more, .. }) => {
                piece.push_str(&more)
            }
            (_, one) => all.push(one),
        }
    }
    all
}

/// Content, and calls with their arguments.
fn said(format: ToolFormat, text: &str) -> (String, Vec<(String, String)>) {
    let (mut content, mut calls) = (String::new(), Vec::<(String, String)>::new());
    for one in parsed(format, [text]) {
        match one {
            AnswerPart::Content(text) => content.push_str(&text),
            AnswerPart::Call { index, name } => {
                assert_eq!(index, calls.len());
                calls.push((name, String::new()));
            }
            AnswerPart::Arguments { index, piece } => calls[index].1.push_str(&piece),
            AnswerPart::Reasoning(_) => panic!("thoughts"),
        }
    }
    (content, calls)
}

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

/// Form, text, content, calls.
type Transcript = (ToolFormat, &'static str, &'static str, &'static [(&'static str, &'static str)]);

const BONN: &str = r#"{"town": "Bonn"}"#;
const CURLY: &str = r#"{"town": "}\"{<é", "days": [1, {"a": null}]}"#;

const TRANSCRIPTS: &[Transcript] = &[
    (
        ToolFormat::Hermes,
        "I look.\n<tool_call>\n{\"name\": \"wind\", \"arguments\": {\"town\": \"Bonn\"}}\n</tool_call>\n\
         <tool_call>\n{\"name\": \"rain\", \"arguments\": {\"town\": \"}\\\"{<é\", \"days\": [1, {\"a\": null}]}}\n</tool_call>",
        "I look.",
        &[("wind", BONN), ("rain", CURLY)],
    ),
    // Arguments first, as a text, none at all; a name that nobody has said is the client's to refuse.
    (
        ToolFormat::Hermes,
        r#"<tool_call>{"arguments": {"town": "Bonn"}, "id": 7, "name": "wind"}</tool_call> <tool_call>{"name":"snow","arguments":"{\"a\":1}"}</tool_call><tool_call>{"name":"now"}</tool_call>"#,
        "",
        &[("wind", BONN), ("snow", r#"{"a":1}"#), ("now", "{}")],
    ),
    // Cut off within the arguments, and behind them.
    (
        ToolFormat::Hermes,
        r#"<tool_call>{"name": "wind", "arguments": {"town": "Bo"#,
        "",
        &[("wind", r#"{"town": "Bo"#)],
    ),
    (ToolFormat::Hermes, "<tool_call>{\"name\": \"wind\", \"arguments\": {}}\n</tool_c", "", &[("wind", "{}")]),
    // Broken within the arguments: what came stays, and what follows is read.
    (
        ToolFormat::Hermes,
        r#"<tool_call>{"name": "wind", "arguments": {"town": </tool_call> So."#,
        " So.",
        &[("wind", r#"{"town": "#)],
    ),
    (
        ToolFormat::Hermes,
        "Use <tool_call> like <tool_call>{\"name\": 7}.",
        "Use <tool_call> like <tool_call>{\"name\": 7}.",
        &[],
    ),
    (ToolFormat::Hermes, "<tool_call>{\"name\": \"wind\"", "<tool_call>{\"name\": \"wind\"", &[]),
    (ToolFormat::Hermes, "a <tool_<tool_call>{\"name\":\"wind\"}</tool_call>", "a <tool_", &[("wind", "{}")]),
    (
        ToolFormat::Qwen3Coder,
        "I look.\n<tool_call>\n<function=wind>\n<parameter=town>\nBonn\n</parameter>\n<parameter=days>\n[1, {\"a\": null}]\n\
         </parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=rain>\n<parameter=hour>\n7\n</parameter>\n</function>\n\
         </tool_call>",
        "I look.",
        &[("wind", r#"{"town": "Bonn", "days": [1,{"a":null}]}"#), ("rain", r#"{"hour": 7}"#)],
    ),
    // All in one line; lines of a text, and what JSON would escape; a tool without parameters, and one that nobody has said.
    (
        ToolFormat::Qwen3Coder,
        "<tool_call><function=wind><parameter=town>a <b>\n\n\"c\" </d>\n</parameter></function></tool_call>\
         <tool_call><function=rain></function></tool_call> <tool_call><function=snow><parameter=hour>7</parameter></function></tool_call>",
        "",
        &[("wind", r#"{"town": "a <b>\n\n\"c\" </d>"}"#), ("rain", "{}"), ("snow", r#"{"hour": "7"}"#)],
    ),
    // Marks that were left out: the call's, a parameter's, the function's; a parameter that comes twice.
    (
        ToolFormat::Qwen3Coder,
        "Now: <function=wind>\n<parameter=town>\nBonn\n<parameter=hour>\n7\n</parameter>\n<parameter=hour>\n8\n</parameter>\n</tool_call> So.",
        "Now: So.",
        &[("wind", r#"{"town": "Bonn", "hour": 7}"#)],
    ),
    // JSON, as Hermes has it, and as calls that must be made are written.
    (
        ToolFormat::Qwen3Coder,
        "<tool_call>\n{\"name\": \"wind\", \"arguments\": {\"town\": \"Bonn\"}}\n</tool_call>",
        "",
        &[("wind", BONN)],
    ),
    // Cut off in a text, in a number, and in a name.
    (ToolFormat::Qwen3Coder, "<tool_call>\n<function=wind>\n<parameter=town>\nBo", "", &[("wind", r#"{"town": "Bo"#)]),
    (ToolFormat::Qwen3Coder, "<tool_call>\n<function=wind>\n<parameter=hour>\n1", "", &[("wind", r#"{"hour": "#)]),
    (ToolFormat::Qwen3Coder, "<tool_call>\n<function=wi", "<tool_call>\n<function=wi", &[]),
    (ToolFormat::Qwen3Coder, "Write <function=f> and <tool_call>.", "Write <function=f> and <tool_call>.", &[]),
    (
        ToolFormat::Llama3Json,
        "{\"name\": \"wind\", \"parameters\": {\"town\": \"Bonn\"}}; {\"type\": \"function\", \"name\": \"rain\", \"parameters\": {}}",
        "",
        &[("wind", BONN), ("rain", "{}")],
    ),
    (
        ToolFormat::Llama3Json,
        "<|python_tag|>{\"name\": \"wind\", \"parameters\": {\"town\": \"Bonn\"}}",
        "",
        &[("wind", BONN)],
    ),
    (ToolFormat::Llama3Json, "<|python_tag|>wind.call(\"Bonn\")", "<|python_tag|>wind.call(\"Bonn\")", &[]),
    (ToolFormat::Llama3Json, "{\"name\": \"Bonn\", \"people\": 3}", "{\"name\": \"Bonn\", \"people\": 3}", &[]),
    (ToolFormat::Llama3Json, "Say {\"name\": \"wind\"}", "Say {\"name\": \"wind\"}", &[]),
    (
        ToolFormat::Mistral,
        r#"[TOOL_CALLS] [{"name": "wind", "arguments": {"town": "Bonn"}}, {"arguments": {}, "name": "rain"}]"#,
        "",
        &[("wind", BONN), ("rain", "{}")],
    ),
    (
        ToolFormat::Mistral,
        r#"I look.[TOOL_CALLS]wind[ARGS]{"town": "Bonn"}[TOOL_CALLS]rain[CALL_ID]abcdefghi[ARGS]{}"#,
        "I look.",
        &[("wind", BONN), ("rain", "{}")],
    ),
    (ToolFormat::Mistral, r#"[TOOL_CALLS]wind{"town": "Bonn"}"#, "", &[("wind", BONN)]),
    (ToolFormat::Mistral, "[TOOL_CALLS] [1]", "[TOOL_CALLS] [1]", &[]),
    (ToolFormat::Mistral, "[TOOL_CALLS] none, so.", "[TOOL_CALLS] none, so.", &[]),
    (
        ToolFormat::DeepSeekV3,
        "I look.\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>wind\n```json\n{\"town\": \"Bonn\"}\n```<｜tool▁call▁end｜>\n\
         <｜tool▁call▁begin｜>function<｜tool▁sep｜>rain\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "I look.",
        &[("wind", BONN), ("rain", "{}")],
    ),
    (
        ToolFormat::DeepSeekV31,
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>wind<｜tool▁sep｜>{\"town\": \"Bonn\"}<｜tool▁call▁end｜><｜tool▁call▁begin｜>rain<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "",
        &[("wind", BONN), ("rain", "{}")],
    ),
    (ToolFormat::DeepSeekV31, "<｜tool▁call▁begin｜>{", "<｜tool▁call▁begin｜>{", &[]),
    (
        ToolFormat::Gemma4,
        "I look.\n<|tool_call>call:wind{town:<|\"|>Bonn<|\"|>}<tool_call|><|tool_call>call:rain{town:<|\"|>}\"{<é<|\"|>,days:[1,{a:null}]}<tool_call|>",
        "I look.",
        &[("wind", BONN), ("rain", CURLY)],
    ),
    // Numbers, truths, nothing, words without marks, a key with them; no arguments.
    (
        ToolFormat::Gemma4,
        "<|tool_call>call:wind{hour:7,share: -2.5e3 , is:true,no:None,at:Bonn am Rhein,<|\"|>a:b<|\"|>:007}<tool_call|>\n<|tool_call>call:now{}<tool_call|>",
        "",
        &[
            ("wind", r#"{"hour": 7, "share": -2.5e3, "is": true, "no": null, "at": "Bonn am Rhein", "a:b": "007"}"#),
            ("now", "{}"),
        ],
    ),
    // JSON, as calls that must be made are written.
    (
        ToolFormat::Gemma4,
        r#"<|tool_call>call:wind{"town": "B\"o{n:n", "days": [ ], "a": [[], "b",],}<tool_call|>"#,
        "",
        &[("wind", r#"{"town": "B\"o{n:n", "days": [], "a": [[], "b"]}"#)],
    ),
    // Lines in such a text, as they may stand in the family's own.
    (
        ToolFormat::Gemma4,
        "<|tool_call>call:wind{\"town\":\"B\no\\n\"}<tool_call|>",
        "",
        &[("wind", r#"{"town": "B\no\n"}"#)],
    ),
    // Cut off in a text, in a number, in a name, and behind the arguments.
    (ToolFormat::Gemma4, "<|tool_call>call:wind{town:<|\"|>Bo <|", "", &[("wind", r#"{"town": "Bo <|"#)]),
    (ToolFormat::Gemma4, "<|tool_call>call:wind{hour:1", "", &[("wind", r#"{"hour": "#)]),
    (ToolFormat::Gemma4, "<|tool_call>call:wi", "<|tool_call>call:wi", &[]),
    (ToolFormat::Gemma4, "<|tool_call>call:wind{}\n<tool_c", "", &[("wind", "{}")]),
    // Broken: what came stays, and what follows is read.
    (ToolFormat::Gemma4, "<|tool_call>call:wind{town:<tool_call|> So.", " So.", &[("wind", r#"{"town": "#)]),
    (ToolFormat::Gemma4, "<|tool_call>call:wind{hour:7,<tool_call|> So.", " So.", &[("wind", r#"{"hour": 7"#)]),
    (ToolFormat::Gemma4, "<|tool_call>call:wind{days:[1}<tool_call|>", "}<tool_call|>", &[("wind", r#"{"days": [1"#)]),
    (
        ToolFormat::Gemma4,
        "Write <|tool_call> or <|tool_call>call:{} or call:<|tool_call>call:wind{}<tool_call|>",
        "Write <|tool_call> or <|tool_call>call:{} or call:",
        &[("wind", "{}")],
    ),
    (ToolFormat::Json, "\n{\"name\": \"wind\", \"arguments\": {\"town\": \"Bonn\"}}\n", "", &[("wind", BONN)]),
    (
        ToolFormat::Json,
        "```json\n[{\"name\": \"wind\", \"arguments\": {\"town\": \"Bonn\"}}, {\"name\": \"rain\", \"arguments\": {}}]\n```",
        "",
        &[("wind", BONN), ("rain", "{}")],
    ),
    // Cut off where another begins.
    (ToolFormat::Json, r#"[{"name": "wind", "arguments": {}}, {"na"#, "", &[("wind", "{}")]),
    (ToolFormat::Json, "{\"name\": \"Bonn\"}", "{\"name\": \"Bonn\"}", &[]),
    (ToolFormat::Json, "```\nlet x;\n```", "```\nlet x;\n```", &[]),
    (ToolFormat::Json, "[1, 2]", "[1, 2]", &[]),
];

#[test]
fn transcripts_are_read() {
    for (format, text, content, calls) in TRANSCRIPTS {
        let calls: Vec<_> = calls.iter().map(|(name, arguments)| ((*name).into(), (*arguments).into())).collect();
        assert_eq!(said(*format, text), ((*content).into(), calls), "{format:?}: {text}");
    }
}

#[test]
fn arguments_come_as_they_are_written() {
    let mut parser = ToolFormat::Hermes.parser([].into());
    let said = parser.push("<tool_call>{\"name\": \"wind\", \"arguments\": {\"town\": \"Bo");
    let (name, piece) = ("wind".to_owned(), "{\"town\": \"Bo".to_owned());
    assert_eq!(said, [AnswerPart::Call { index: 0, name }, AnswerPart::Arguments { index: 0, piece }]);
    assert_eq!(parser.push("nn"), [AnswerPart::Arguments { index: 0, piece: "nn".into() }]);
}

#[test]
fn a_form_is_known_by_its_template() {
    let of = |text: &str| {
        let template = TemplateText::find(&serde_json::json!({ "chat_template": text }), None);
        ToolFormat::of(template.as_ref())
    };
    for (text, format) in [
        ("{% if tools %}<tool_call>{% endif %}", ToolFormat::Hermes),
        ("{% if tools %}<tool_call>\n<function=name>{% endif %}", ToolFormat::Qwen3Coder),
        ("{{ tools }}<|eot_id|>", ToolFormat::Llama3Json),
        ("[AVAILABLE_TOOLS][TOOL_CALLS]", ToolFormat::Mistral),
        ("<｜tool▁call▁begin｜>\n```json", ToolFormat::DeepSeekV3),
        ("<｜tool▁call▁begin｜>", ToolFormat::DeepSeekV31),
        ("{% if tools %}<|tool_call>call:{% endif %}", ToolFormat::Gemma4),
        ("{{ messages }}<|eot_id|>", ToolFormat::Json),
    ] {
        assert_eq!(of(text), format, "{text}");
    }
    assert_eq!(ToolFormat::of(None), ToolFormat::Json);
    assert!(ToolFormat::names().all(|name| ToolFormat::named(name).is_some()));
}

/// Texts of what forms are made of.
fn parts() -> impl Strategy<Value = String> {
    let parts = [
        "<tool_call>",
        "</tool_call>",
        "<function=wind>",
        "<function=",
        "</function>",
        "<parameter=town>",
        "<parameter=hour>",
        "</parameter>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "<|python_tag|>",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        "<|tool_call>",
        "call:wind{",
        "<tool_call|>",
        "<|\"|>",
        "{\"name\": \"wind\", \"arguments\": {\"a\": 1}}",
        "{\"name\": \"wind\", \"parameters\": ",
        "{\"arguments\": {}, \"name\": \"rain\"}",
        "{",
        "}",
        "[",
        "]",
        "\"",
        "\\",
        ",",
        ":",
        ";",
        "wind",
        "```json\n",
        "```",
        "\n",
        " ",
        "é",
        "<",
        "null",
        "1.5",
    ];
    prop::collection::vec(prop::sample::select(parts.to_vec()), 0..14).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_split_gives_the_same(text in parts(), cuts in prop::collection::vec(any::<Index>(), 0..8)) {
        for format in ALL {
            prop_assert_eq!(parsed(format, split(&text, &cuts)), parsed(format, [text.as_str()]), "{:?}", format);
        }
    }

    /// Whatever is no call is content, to the letter; DeepSeek's marks around calls are special tokens.
    #[test]
    fn a_text_without_calls_loses_nothing(text in parts()) {
        for format in ALL {
            let (content, calls) = said(format, &text);
            let has_marks = text.contains("<｜tool▁calls▁begin｜>") && matches!(format, ToolFormat::DeepSeekV3 | ToolFormat::DeepSeekV31);
            if calls.is_empty() && !has_marks {
                prop_assert_eq!(content, text.as_str(), "{:?}", format);
            }
        }
    }

    #[test]
    fn transcripts_in_any_pieces(which in any::<Index>(), cuts in prop::collection::vec(any::<Index>(), 0..20)) {
        let (format, text, ..) = TRANSCRIPTS[which.index(TRANSCRIPTS.len())];
        prop_assert_eq!(parsed(format, split(text, &cuts)), parsed(format, [text]));
    }
}
