//! Families of templates and what comes of them. The templates are our own, in the manner of those that models have; the texts
//! are what Jinja makes of them, set up as transformers does.

use super::*;
use jiff::{civil::date, tz::TimeZone};

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
    read(text)?.render(&[ChatMessage { role: "user".into(), content: " hi ".into() }])
}

#[test]
fn families_of_templates_give_what_jinja_makes_of_them() {
    for (family, file) in FAMILIES {
        let parts: Vec<_> = file["=== ".len()..].split("\n=== ").filter_map(|part| part.split_once('\n')).collect();
        let [("template", template), cases @ .., ("end", "")] = &parts[..] else { panic!("{family} is cut") };
        let template = read(template).unwrap();
        for case in cases.chunks(2) {
            // Read as it is, for the order of what stands in it.
            let given = |text| serde_json::from_str(text).unwrap();
            match *case {
                [("given", of), ("becomes", text)] => assert_eq!(template.fill(given(of)).unwrap(), text, "{family}"),
                [("given", of), ("fails", why)] => {
                    assert!(template.fill(given(of)).unwrap_err().contains(why), "{family}")
                }
                _ => panic!("{family} has a case that is none: {case:?}"),
            }
        }
    }
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
