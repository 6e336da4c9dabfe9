use super::*;
use crate::text::model::tests::embedded;
use std::sync::OnceLock;
use tokenizers::Tokenizer;

const END: Token = Token(1);

fn tokenizer() -> &'static Tokenizer {
    static READ: OnceLock<Tokenizer> = OnceLock::new();
    READ.get_or_init(|| Tokenizer::from_bytes(&embedded().files["tokenizer.json"]).unwrap())
}

fn compiler() -> &'static GrammarCompiler {
    static MADE: OnceLock<GrammarCompiler> = OnceLock::new();
    MADE.get_or_init(|| GrammarCompiler::new(GrammarVocabulary::new(tokenizer(), embedded().card.shape.vocab)).unwrap())
}

fn compile(grammar: Grammar) -> Result<Follow, GrammarError> {
    compiler().compile(&grammar, &[END])
}

fn schema(text: &str) -> Grammar {
    Grammar::JsonSchema(text.into())
}

fn tokens(text: &str) -> Vec<Token> {
    tokenizer().encode_fast(text, false).unwrap().get_ids().iter().copied().map(Token).collect()
}

/// Whether a text is followed to its end, token by token, and complete there.
fn is_whole(grammar: Grammar, text: &str) -> bool {
    let mut follow = compile(grammar).unwrap();
    for token in tokens(text) {
        if !follow.allows(token) {
            return false;
        }
        follow.consume(&[token]).unwrap();
    }
    follow.allows(END)
}

fn refusal(grammar: Grammar) -> String {
    match compile(grammar) {
        Err(GrammarError::Refused(why)) => why,
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("it is taken"),
    }
}

#[test]
fn a_text_of_the_form_is_followed_and_no_other() {
    let person = || {
        schema(
            r#"{"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer"}},"required":["name","age"],"additionalProperties":false}"#,
        )
    };
    assert!(is_whole(person(), r#"{"name": "Zoë 😀", "age": 7}"#));
    assert!(is_whole(person(), r#"{"name":"","age":-12}"#));
    assert!(is_whole(person(), "{\n  \"name\": \"Ann\",\n  \"age\": 7\n}"), "as it is written for people");
    // A small model would go on like this for ever.
    assert!(!is_whole(person(), "{\n\n\n\n\"name\": \"Ann\", \"age\": 7}"));
    let free = schema(r#"{"type":"array","items":{"type":"null"},"x-guidance":{"whitespace_flexible":true}}"#);
    assert!(is_whole(free, "[\n\n\n null]"), "who wishes it so");
    for wrong in [r#"{"name": "Ann"}"#, r#"{"age": 7, "name": "Ann"}"#, r#"{"name": "Ann", "age": "7"}"#, "Ann", "{"] {
        assert!(!is_whole(person(), wrong), "{wrong}");
    }
    assert!(is_whole(Grammar::Regex("[ab]{2,3}".into()), "aba"));
    assert!(!is_whole(Grammar::Regex("[ab]{2,3}".into()), "a"));
    assert!(is_whole(Grammar::Regex(r"yes|<a\.b\|c/\n\\>".into()), "<a.b|c/\n\\>"));
    assert!(is_whole(Grammar::Lark("start: \"yes\" | \"no\"".into()), "no"));
    assert!(is_whole(schema("true"), r#"[1, {"a": null}]"#));
}

#[test]
fn an_answer_ends_only_where_its_text_is_complete() {
    let mut follow = compile(Grammar::Regex("a{3}".into())).unwrap();
    assert!(!follow.allows(END));
    for token in tokens("aaa") {
        follow.consume(&[token]).unwrap();
    }
    let words = follow.allowed().unwrap();
    assert_eq!((words.iter().map(|w| w.count_ones()).sum::<u32>(), bit(&words, END.0)), (1, true));
    // A model that has no token that ends an answer can say nothing more.
    let mut endless = compiler().compile(&Grammar::Regex("a{3}".into()), &[]).unwrap();
    endless.consume(&tokens("aaa")).unwrap();
    assert!(matches!(endless.allowed(), Err(GrammarError::Stuck(_))));
}

#[test]
fn who_comes_later_allows_the_same_tokens() {
    let form = || schema(r#"{"type":"array","items":{"enum":["red","green"]},"minItems":2}"#);
    let all = tokens(r#"["red", "green"]"#);
    let mut first = compile(form()).unwrap();
    for n in 0..=all.len() {
        let mut later = compile(form()).unwrap();
        later.consume(&all[..n]).unwrap();
        assert_eq!(first.allowed(), later.allowed(), "after {n} tokens");
        first.consume(&all[n..all.len().min(n + 1)]).unwrap();
    }
}

#[test]
fn tokens_that_are_not_allowed_are_an_error() {
    let mut follow = compile(Grammar::Regex("[0-9]+".into())).unwrap();
    assert!(matches!(follow.consume(&tokens("word")), Err(GrammarError::Stuck(_))));
    assert!(follow.allowed().is_err());
}

#[test]
fn what_is_no_grammar_is_refused_with_the_place() {
    for (grammar, said) in [
        (schema("{"), "not JSON: EOF while parsing an object at line 1 column 1"),
        (
            schema(r#"{"properties":{"a/b":{"items":{"type":"intger"}}}}"#),
            "#/properties/a~1b/items: Invalid type: intger",
        ),
        (schema(r##"{"$defs":{"x":{"not":{}}},"$ref":"#/$defs/x"}"##), "#/$defs/x: Unimplemented keys: [\"not\"]"),
        (schema("7"), "the schema: schema must be an object or boolean"),
        (schema("false"), "Unsatisfiable"),
        (Grammar::Regex("a(b".into()), "unclosed group"),
        (Grammar::Regex(r"(a)\1".into()), "backreferences are not supported"),
        (Grammar::Lark("start: \"a\" |\n foo".into()), "2("),
        (Grammar::Lark("foo: \"a\"".into()), "no start rule"),
    ] {
        let why = refusal(grammar);
        assert!(why.contains(said) && why.chars().count() < 600, "{why:?} does not say {said:?}");
    }
}

/// What takes much to compile, or is deep, is taken or refused within the limits, and nothing breaks.
#[test]
fn grammars_that_are_meant_to_hurt_do_not() {
    let chain = |of: &str, last: usize| {
        let each = (0..last).map(|n| format!(r##""d{n}":{}"##, of.replace("NEXT", &format!("#/$defs/d{}", n + 1))));
        let each: Vec<String> = each.collect();
        schema(&format!(r##"{{"$ref":"#/$defs/d0","$defs":{{{},"d{last}":{{}}}}}}"##, each.join(",")))
    };
    let branches: Vec<String> = (0..12)
        .map(|i| {
            let one = |j| format!(r#"{{"type":"object","properties":{{"a{i}{j}":{{"const":{j}}}}}}}"#);
            format!(r#"{{"anyOf":[{}]}}"#, (0..6).map(one).collect::<Vec<_>>().join(","))
        })
        .collect();
    let rules: Vec<String> = (0..2000).map(|n| format!("T{n}: T{} \"a\"", n + 1)).collect();
    let grammars = [
        chain(r#"{"$ref":"NEXT"}"#, 1800),
        chain(r#"{"properties":{"x":{"$ref":"NEXT"}}}"#, 1000),
        schema(&format!(r#"{{"allOf":[{}]}}"#, branches.join(","))),
        schema(r#"{"type":"array","minItems":1000000000}"#),
        schema(r#"{"type":"string","maxLength":1000000000}"#),
        Grammar::Regex("(((a{100}){100}){100}){100}".into()),
        Grammar::Regex("(.*a){30}.{500}".into()),
        Grammar::Regex("(".repeat(30_000)),
        Grammar::Lark(format!("start: {}", "(".repeat(30_000))),
        Grammar::Lark("start: x{1,100000}\nx: \"a\" | x \"b\"".into()),
        Grammar::Lark(format!("{}\nT2000: \"a\"\nstart: T0", rules.join("\n"))),
    ];
    let embedded = GrammarVocabulary::new(tokenizer(), embedded().card.shape.vocab);
    let vocabulary = std::sync::Mutex::new(Some(embedded));
    let grammars_of = Grammars::new(move || Ok(vocabulary.lock().unwrap().take().unwrap()));
    for (n, grammar) in grammars.into_iter().enumerate() {
        let (sender, result) = std::sync::mpsc::channel();
        let work = move |compiler: Result<&GrammarCompiler, GrammarError>| {
            let mut follow = match compiler.unwrap().compile(&grammar, &[END]) {
                Ok(follow) => follow,
                Err(refused) => return drop(sender.send(Err(refused))),
            };
            // A mask may take more than it may; then it is an error.
            drop(sender.send(Ok(follow.allowed().is_ok())));
        };
        grammars_of.run(work).unwrap();
        let result = result.recv_timeout(std::time::Duration::from_secs(60));
        assert!(result.is_ok(), "grammar {n}: no result");
    }
}
