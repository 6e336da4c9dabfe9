//! Grammars in EBNF: what they mean is what their answers are held to.

use super::*;
use crate::text::{
    grammar::{GrammarCompiler, GrammarVocabulary},
    model::tests::embedded,
    tokenizer_guard,
};
use std::sync::OnceLock;
use tokenizers::Tokenizer;
use tsnode_protocol::{Grammar, Token};

fn tokenizer() -> &'static Tokenizer {
    static READ: OnceLock<Tokenizer> = OnceLock::new();
    READ.get_or_init(|| tokenizer_guard::read(&embedded().files["tokenizer.json"]).unwrap())
}

fn compiler() -> &'static GrammarCompiler {
    static MADE: OnceLock<GrammarCompiler> = OnceLock::new();
    MADE.get_or_init(|| GrammarCompiler::new(GrammarVocabulary::new(tokenizer(), embedded().card.shape.vocab)).unwrap())
}

/// As llama.cpp makes them of JSON schemas: names of properties that others have not, and values within values.
const MADE: &str = r##"array ::= "[" space ( value ("," space value)* )? "]" space
boolean ::= ("true" | "false") space
char ::= [^"\\\x7F\x00-\x1F] | [\\] (["\\bfnrt] | "u" [0-9a-fA-F]{4})
decimal-part ::= [0-9]{1,16}
integral-part ::= [0] | [1-9] [0-9]{0,15}
k ::= ["] ( [t] ([h] ([e] ([_] ([n] ([a] ([m] ([e] ([_] ([o] ([f] ([_] ([i] ([t] char+ | [^"t] char*) | [^"i] char*) | [^"_] char*) | [^"f] char*) | [^"o] char*) | [^"_] char*) | [^"e] char*) | [^"m] char*) | [^"a] char*) | [^"n] char*) | [^"_] char*) | [^"e] char*) | [^"h] char*) | [^"t] char* )? ["] space
null ::= "null" space
number ::= ("-"? integral-part) ("." decimal-part)? ([eE] [-+]? integral-part)? space
object ::= "{" space ( string ":" space value ("," space string ":" space value)* )? "}" space
root ::= "{" space "\"the_name_of_it\"" space ":" space string ( "," space ( k ":" space value ( "," space k ":" space value )* ) )? "}" space
space ::= | " " | "\n"{1,2} [ \t]{0,20}
string ::= "\"" char* "\"" space
value ::= object | array | string | number | boolean | null
"##;

/// Whether a text follows a grammar, and may end.
fn is_whole(ebnf: &str, text: &str) -> bool {
    let lark = to_lark(ebnf).unwrap_or_else(|error| panic!("{error} in\n{ebnf}"));
    let follow = compiler().compile(&Grammar::Lark(lark.clone()), &[Token(1)]);
    let mut follow = follow.unwrap_or_else(|error| panic!("{error} in\n{lark}"));
    let tokens = tokenizer_guard::encode(tokenizer(), text, false).unwrap();
    let tokens: Vec<Token> = tokens.into_iter().map(Token).collect();
    follow.consume(&tokens).is_ok() && follow.allowed().is_ok_and(|words| words[0] >> 1 & 1 == 1)
}

/// JSON, with a rule for white space that may be nothing, and lines that end anywhere.
const JSON: &str = r##"
# An object, and nothing else
root ::= map
any ::= map | list | text | count | ("null" | "true" | "false") gap
map ::= "{" gap (
    pair
    (  "," gap pair  )*   # more of them
  )? "}" gap
pair ::= text ":" gap any
list ::= "[" gap ( any ( "," gap any )* )?
  "]" gap
text ::= "\"" ( [^\x00-\x1F"\\] | "\\" ( [\\/"bfnrt] | "u" [a-fA-F0-9]{4} ) )* "\"" gap
count ::= "-"? ( "0" | [1-9] [0-9]{0,15} ) ( "." [0-9]+ )? ( [eE] [-+]? [0-9]+ )? gap
gap ::= | " " | "\n" [ \t]{0,20}
"##;

const SUMS: &str = r#"root ::= (sum "=" part "\n")+
sum ::= part ([-+*/] part)*
part ::= "(" sum ")" | [0-9]+"#;

#[test]
fn texts_follow_as_ebnf_says() {
    for (grammar, text, follows) in [
        (JSON, r#"{"a": [1, -2.5e3, "x\"\u00e9", true, {}], "b":{"c": null} }"#, true),
        (JSON, "{\n  \"a\": 1\n}", true),
        (JSON, r#"{"a": 01}"#, false),
        (JSON, r#"{"a" 1}"#, false),
        (JSON, "[1]", false),
        (MADE, r#"{"the_name_of_it": "x", "the_nom": [1, {"a": "b"}], "other": null}"#, true),
        (MADE, r#"{"the_name_of_it": "x", "the_name_of_it": 1}"#, false),
        (SUMS, "1+(2*30)=4\n(5)=5\n", true),
        (SUMS, "1+=2\n", false),
        (SUMS, "1+2=3", false),
        // Without recursion nothing is cut: the longest piece would be "ab", and "bc" could not follow.
        ("root ::= (\"a\" | \"ab\") \"bc\"", "abc", true),
        ("root ::= a+ \"ab\"\na ::= [a-c]", "abcab", true),
        ("root ::= \"yes\" | 'no'", "no", true),
        ("root ::= \"yes\"\n   | \"no\" .{2}", "no/\n", true),
        ("root ::= [^/\\]&~-]{2,}", "é ", true),
        ("root ::= [^/\\]&~-]{2,}", "a-", false),
        ("root ::= [-a] [a-] [\\x41\\u00e9]", "--é", true),
        ("root ::= \"\"? \"x\"{0} \"y\"{,2}", "yy", true),
        ("root ::= ws \"a\" ws\nws ::= [ ]*", "  a", true),
        ("root::=a-b c_d\na-b::=\"1\"\nc_d\n::= \"2\"", "12", true),
        ("root ::= \"a\" root | \"b\"", "aab", true),
        ("root ::= root \"a\" | \"b\"", "baa", true),
        // Around what is recursive the longest piece is taken, as the reference says.
        ("root ::= [a-z]+ rest\nrest ::= \"x(\" rest \")\" | \".\"", "ax.", true),
        ("root ::= [a-z]+ rest\nrest ::= \"x(\" rest \")\" | \".\"", "ax(.)", false),
        ("root ::= \"[\" (root (\",\" root)*)? \"]\"", "[[],[[]]]", true),
    ] {
        assert_eq!(is_whole(grammar, text), follows, "{text:?} of\n{grammar}\n{:?}", to_lark(grammar));
    }
}

#[test]
fn what_is_no_grammar_is_said_with_its_place() {
    for (grammar, said) in [
        ("# Letters\nstart ::= \"a\"", "line 1, column 1: there is no rule 'root'"),
        ("root ::= \"a\"\n  b c\nb ::= \"b\"", "line 2, column 5: there is no rule 'c'"),
        ("root ::= \"a\nb\"", "line 1, column 10: this text is not closed"),
        ("root ::= [a", "line 1, column 10: this '[' is not closed"),
        ("root ::= [z-a]", "line 1, column 11: this range ends before it begins"),
        ("root ::= (\"a\" | \"b\"", "a ')' is missing"),
        ("root ::= \"a\")", "')' cannot stand here"),
        ("root ::= \"a\"**", "line 1, column 14: there is nothing to repeat"),
        ("root ::= * \"a\"", "line 1, column 10: there is nothing to repeat"),
        ("root ::= \"a\"{3,2}", "a repetition is {2}, {2,} or {2,3}"),
        ("root ::= \"a\"{99999}", "of numbers up to 10000"),
        ("root ::= \"\\q\"", "line 1, column 11: this is no escape"),
        ("root ::= \"\\ud800\"", "4 digits of a letter's number"),
        ("root ::= \"a\" (= \"b\")", "'(=' is not built"),
        ("root ::= <think> \"a\"", "tokens cannot be named"),
        ("root ::= TagDispatch((\"a\", root))", "is not built"),
        ("root ::= \"a\"\nroot ::= \"b\"", "line 2, column 1: there are two rules 'root'"),
        ("root ::= []", "there are no letters"),
        (
            "root ::= (sum \"=\" part \"\\n\")+\nsum ::= part ([-+] part)*\npart ::= [a-z]+ ws | \"(\" sum \")\" ws\nws ::= [ \\n]*",
            "line 1, column 1: in the rule 'root' what must begin with \"\\n\" comes behind what takes as many",
        ),
        ("nothing at all", "a rule begins as 'name ::='"),
    ] {
        let refused = to_lark(grammar).unwrap_err().to_string();
        assert!(refused.contains(said), "{refused:?} does not say {said:?}");
    }
    let wide = format!("root ::= {}\"a\"{}", "(\"b\" | ".repeat(64), ")?".repeat(64));
    assert!(is_whole(&wide, "a") && is_whole(&wide, "b") && !is_whole(&wide, "c"));
    let deep = format!("root ::= {}\"a\"{}", "(".repeat(5000), ")".repeat(5000));
    assert!(to_lark(&deep).unwrap_err().to_string().contains("more than 64 groups"));
    assert!(to_lark("root ::= \"a\" \"").is_err());
    // Twice as much of each at the next: looked at once, all the same.
    let doubling: String = (0..60).map(|n| format!("r{n} ::= r{0} | r{0} | \"a\" root\n", (n + 1) % 60)).collect();
    assert!(to_lark(&format!("root ::= \"a\" r0 \"a\" r1\n{doubling}")).is_ok());
}

#[test]
fn notations_are_told_apart() {
    for ebnf in ["root ::= \"a\"", "# JSON\n\n  root::=x\nx ::= \"a\"", "root\n  ::= \"a\""] {
        assert!(is_ebnf(ebnf), "{ebnf}");
    }
    for lark in ["start: \"::=\"", "start: x\nx: \"a ::= b\"", "%llguidance {}\nstart: \"a\"", ""] {
        assert!(!is_ebnf(lark), "{lark}");
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { cases: 2000, failure_persistence: None, ..Default::default() })]

    /// Whatever comes is read or refused, and never a panic.
    #[test]
    fn any_text_is_read_or_refused(text in r#"(root ::= )?([a-c"'\[\](){}|*+?.^\\\-,0-9# \n]|::=|root|\\x4|é){0,40}"#) {
        _ = to_lark(&text);
        _ = is_ebnf(&text);
    }
}
