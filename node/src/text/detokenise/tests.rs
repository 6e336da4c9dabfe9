//! Pieces make the whole, whichever decoder a tokenizer has: `tokenizers`' own decoding of all tokens at once is the reference.

use super::*;
use crate::text::{Passed, StopStrings, Templates, TextModel, bytes::letter, model::tests::embedded};
use serde_json::{Value, json};

/// Characters of one to four bytes.
const CHARACTERS: [&str; 9] = ["가", "나", "❤", "\u{FE0F}", "😀", "é", " ", "A", "የ"];
const WORDS: [&str; 12] = ["▁hello", "▁the", "▁", "▁▁", "▁▁▁x", "a", "b", ".", "é", "日本", "\u{FFFD}", " "];

struct TestTokenizer {
    name: &'static str,
    tokenizer: Tokenizer,
    tokens: Vec<String>,
}

impl TestTokenizer {
    fn new(name: &'static str, decoder: Value, words: &[&str], bytes: impl IntoIterator<Item = String>) -> Self {
        // Two that are special and one that was added and is not.
        let tokens: Vec<String> =
            ["<s>", "</s>", "<tag>"].iter().chain(words).map(|w| (*w).to_owned()).chain(bytes).collect();
        let added = |id: usize| {
            json!({ "id": id, "content": tokens[id], "special": id < 2, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false })
        };
        let vocab: serde_json::Map<String, Value> =
            tokens.iter().cloned().zip((0..).map(|id: u32| json!(id))).collect();
        let file = json!({
            "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "pre_tokenizer": null,
            "post_processor": null, "decoder": decoder, "added_tokens": [added(0), added(1), added(2)],
            "model": { "type": "WordLevel", "vocab": vocab, "unk_token": "<s>" },
        });
        let tokenizer = tokenizer_guard::read(&serde_json::to_vec(&file).unwrap()).unwrap();
        Self { name, tokenizer, tokens }
    }

    fn id(&self, token: &str) -> Option<u32> {
        self.tokens.iter().position(|t| t == token).map(|id| id as u32)
    }

    /// The tokens of a text's bytes, if there are byte tokens.
    fn spelled(&self, text: &str) -> Option<Vec<u32>> {
        ByteTokens::of(&self.tokenizer).spell(text).iter().map(|token| self.id(token)).collect()
    }

    /// Any tokens: bytes of no character, ids that no token has.
    fn any(&self, rng: &mut Lcg) -> Vec<u32> {
        (0..rng.below(24)).map(|_| rng.below(self.tokens.len() + 2) as u32).collect()
    }

    /// Tokens of which all bytes make characters.
    fn valid(&self, rng: &mut Lcg) -> Vec<u32> {
        let words = 3 + self.tokens[3..].iter().take_while(|token| !is_byte(token)).count();
        let one = |_| {
            let spelled = self.spelled(CHARACTERS[rng.below(CHARACTERS.len())]).filter(|_| rng.below(2) == 0);
            spelled.unwrap_or_else(|| vec![rng.below(words) as u32])
        };
        (0..24).flat_map(one).collect()
    }

    /// What `tokenizers` says of all of them at once; some of its decoders break at none.
    fn reference(&self, ids: &[u32], skip_special: bool) -> String {
        if self.read(ids, skip_special).is_empty() {
            String::new()
        } else {
            self.tokenizer.decode(ids, skip_special).unwrap()
        }
    }

    /// Those that are read at all.
    fn read(&self, ids: &[u32], skip_special: bool) -> Vec<u32> {
        let read = |id: &u32| (*id as usize) < self.tokens.len() && !(skip_special && *id < 2);
        ids.iter().copied().filter(read).collect()
    }

    /// As the reference would, if a byte that is of no character were a token U+FFFD.
    fn mended(&self, ids: &[u32], skip_special: bool) -> String {
        let ids = self.read(ids, skip_special);
        let mut mended = Vec::new();
        for run in ids.chunk_by(|a, b| self.byte(*a).is_some() == self.byte(*b).is_some()) {
            let Some(bytes) = run.iter().map(|id| self.byte(*id)).collect::<Option<Vec<u8>>>() else {
                mended.extend(run);
                continue;
            };
            for chunk in bytes.utf8_chunks() {
                mended.extend(chunk.valid().bytes().map(|byte| self.id(&format!("<0x{byte:02X}>")).unwrap()));
                mended.extend(chunk.invalid().iter().map(|_| self.id("\u{FFFD}").unwrap()));
            }
        }
        self.reference(&mended, skip_special)
    }

    fn byte(&self, id: u32) -> Option<u8> {
        let token = self.tokens.get(id as usize).filter(|token| is_byte(token))?;
        u8::from_str_radix(&token[3..5], 16).ok()
    }

    fn pieces(&self, ids: &[u32], skip_special: bool) -> Vec<String> {
        let mut text = Detokeniser::new(&self.tokenizer, skip_special);
        let mut pieces = Vec::new();
        for id in ids {
            pieces.push(text.push(Token(*id)));
            assert!(text.context.len() <= CONTEXT && text.begun.len() <= 3, "what is kept grows: {}", self.name);
        }
        pieces.push(text.finish());
        pieces
    }
}

fn is_byte(token: &str) -> bool {
    token.len() == 6 && token.starts_with("<0x")
}

struct Lcg(u64);

impl Lcg {
    fn below(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % sides
    }
}

fn sequence(decoders: &[Value]) -> Value {
    json!({ "type": "Sequence", "decoders": decoders })
}

/// Vocabularies in which some tokens are bytes.
fn with_byte_fallback() -> Vec<TestTokenizer> {
    let spaces = json!({ "type": "Replace", "pattern": { "String": "▁" }, "content": " " });
    let [bytes, fuse] = [json!({ "type": "ByteFallback" }), json!({ "type": "Fuse" })];
    let strip = |start: u32, stop: u32| json!({ "type": "Strip", "content": " ", "start": start, "stop": stop });
    let metaspace = json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true });
    let decoders = [
        ("Llama's", sequence(&[spaces.clone(), bytes.clone(), fuse.clone(), strip(1, 0)])),
        ("Gemma's", sequence(&[spaces.clone(), bytes.clone(), fuse.clone()])),
        ("strip at the end", sequence(&[spaces.clone(), bytes.clone(), fuse.clone(), strip(0, 1)])),
        ("strip two at the start", sequence(&[spaces, bytes.clone(), fuse, strip(2, 0)])),
        ("byte fallback, Metaspace", sequence(&[bytes.clone(), metaspace])),
        ("byte fallback alone", bytes),
    ];
    let all = || (0..=255).map(|byte| format!("<0x{byte:02X}>"));
    decoders.map(|(name, decoder)| TestTokenizer::new(name, decoder, &WORDS, all())).into()
}

/// All others.
fn others() -> Vec<TestTokenizer> {
    let metaspace =
        |scheme| json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": true });
    let pieces = ["hel", "##lo", "##", "don", "'", "##t", "n't", ".", "日", "##本", "##é", "▁"];
    let word_piece = |cleanup| json!({ "type": "WordPiece", "prefix": "##", "cleanup": cleanup });
    let ends = ["low</w>", "er</w>", "</w>", "n", "est", ".</w>", "日", "本</w>", "▁"];
    let letters = ["h", "e", "l", "o", "|", "<pad>", "'s", "日"];
    let ctc = |cleanup| json!({ "type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": cleanup });
    let level = json!({ "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true });
    let bytes = |of: std::ops::RangeInclusive<u8>| {
        of.flat_map(|byte| {
            // Every byte alone, and some with another: characters begin and end within tokens.
            let alone = letter(byte).to_string();
            [alone.clone(), format!("{alone}©"), format!("ê{alone}")]
        })
    };
    let spelled = ["hello", "Ġthe", "ê°Ģ", "ðŁĺĢ", "Ċ", " ñ 가"];
    let none = std::iter::empty::<String>;
    vec![
        TestTokenizer::new("ByteLevel", level.clone(), &spelled, bytes(0..=255)),
        TestTokenizer::new("ByteLevel, fused", sequence(&[level, json!({ "type": "Fuse" })]), &spelled, bytes(0..=255)),
        TestTokenizer::new("Metaspace", metaspace("always"), &WORDS, none()),
        TestTokenizer::new("Metaspace, never", metaspace("never"), &WORDS, none()),
        TestTokenizer::new("WordPiece", word_piece(true), &pieces, none()),
        TestTokenizer::new("WordPiece as it is", word_piece(false), &pieces, none()),
        TestTokenizer::new("BPE with ends of words", json!({ "type": "BPEDecoder", "suffix": "</w>" }), &ends, none()),
        TestTokenizer::new("CTC", ctc(true), &letters, none()),
        TestTokenizer::new("CTC as it is", ctc(false), &letters, none()),
        TestTokenizer::new("no decoder", Value::Null, &WORDS, none()),
    ]
}

/// Tokens for every kind, bytes of no character only where the reference reads them as it should.
fn rounds(times: usize, mut check: impl FnMut(&TestTokenizer, &[u32], &mut Lcg)) {
    let (fallback, others, mut rng) = (with_byte_fallback(), others(), Lcg(7));
    for _ in 0..times {
        for kind in &fallback {
            let ids = kind.valid(&mut rng);
            check(kind, &ids, &mut rng);
        }
        for kind in &others {
            let ids = kind.any(&mut rng);
            check(kind, &ids, &mut rng);
        }
    }
}

#[test]
fn pieces_of_any_decoder_make_the_whole() {
    let mut said = 0;
    rounds(200, |kind, ids, _| {
        for skip_special in [true, false] {
            let whole = kind.reference(ids, skip_special);
            assert_eq!(kind.pieces(ids, skip_special).concat(), whole, "{}: {ids:?}", kind.name);
            said += whole.len();
        }
    });
    assert!(said > 100_000, "{said}");
}

#[test]
fn a_byte_of_no_character_costs_itself_only() {
    let kinds = with_byte_fallback();
    let mut rng = Lcg(11);
    for kind in kinds.iter().cycle().take(200 * kinds.len()) {
        let ids = kind.any(&mut rng);
        for skip_special in [true, false] {
            let whole = kind.mended(&ids, skip_special);
            assert_eq!(kind.pieces(&ids, skip_special).concat(), whole, "{}: {ids:?}", kind.name);
        }
    }
}

#[test]
fn characters_of_bytes_are_whole_and_what_follows_is_not_lost() {
    let kind = &with_byte_fallback()[0];
    let spelled = |text: &str| kind.spelled(text).unwrap();
    let (hello, the, lead) = (kind.id("▁hello").unwrap(), kind.id("▁the").unwrap(), kind.id("<0xEA>").unwrap());
    let said = |parts: &[&[u32]]| kind.pieces(&parts.concat(), true);
    assert_eq!(said(&[&[hello], &spelled("가나다라"), &[the]]).concat(), "hello가나다라 the");
    assert_eq!(said(&[&spelled("❤️❤️"), &spelled("ኢትዮጵያ𠮷")]).concat(), "❤️❤️ኢትዮጵያ𠮷");
    let broken = said(&[&spelled("가"), &[lead], &[hello, the, the]]);
    assert_eq!(broken, ["", "", "가", "", "\u{FFFD} hello", " the", " the", ""]);
    assert_eq!(said(&[&[the, lead]]), ["the", "", "\u{FFFD}"]);
}

#[test]
fn a_stop_string_is_found_wherever_it_is() {
    let mut found = 0;
    rounds(60, |kind, ids, rng| {
        let whole = kind.reference(ids, true);
        let characters: Vec<char> = whole.chars().collect();
        if characters.is_empty() {
            return;
        }
        let from = rng.below(characters.len());
        let stop: String = characters[from..].iter().take(1 + rng.below(5)).collect();
        let (mut stops, mut said) = (StopStrings::new(vec![stop.clone()]), String::new());
        for piece in kind.pieces(ids, true) {
            match stops.push(&piece) {
                Passed::On(text) => said += &text,
                Passed::Stopped(text) => {
                    assert_eq!(said + &text, whole[..whole.find(&stop).unwrap()], "{}: {ids:?}, {stop:?}", kind.name);
                    found += 1;
                    return;
                }
            }
        }
        panic!("{}: {stop:?} is not found in {ids:?}", kind.name);
    });
    assert!(found > 100, "{found}");
}

#[test]
fn what_tokens_are_said_to_be_makes_the_whole_too() {
    rounds(60, |kind, ids, _| {
        if kind.name == "strip at the end" {
            // A space that the decoder kept back is the next token's, which may be a byte.
            return;
        }
        let ids = kind.read(ids, true);
        let mut text = Detokeniser::new(&kind.tokenizer, true);
        let mut bytes = Vec::new();
        for id in &ids {
            bytes.extend(text.token_text(Token(*id)).bytes);
            text.push(Token(*id));
        }
        // At byte level these are bytes of no character, too.
        let whole = kind.reference(&ids, true);
        assert_eq!(String::from_utf8_lossy(&bytes), whole, "{}: {ids:?}", kind.name);
    });
    let kind = &with_byte_fallback()[0];
    let text = Detokeniser::new(&kind.tokenizer, true);
    let said = |token: &str| text.token_text(Token(kind.id(token).unwrap()));
    assert_eq!(said("<0xEA>"), TokenText { text: "\u{FFFD}".into(), bytes: vec![0xEA] });
    assert_eq!((said("<0x41>").text, said("▁the").text, said("</s>").text), ("A".into(), "the".into(), "</s>".into()));
    assert_eq!(text.token_text(Token(9999)), TokenText::default());
}

#[test]
fn no_piece_of_a_text_is_half_a_character() {
    let model = TextModel::new(&embedded(), &Templates::Here).unwrap();
    let text = "“Naïve,” she said — 日本 😀, and so on.";
    let tokens = model.tokenizer().encode(text, false).unwrap();
    let mut detokeniser = Detokeniser::new(model.tokenizer(), true);
    let mut whole = String::new();
    for id in tokens.get_ids() {
        let piece = detokeniser.push(Token(*id));
        assert!(!piece.contains('\u{FFFD}'), "{piece:?}");
        whole.push_str(&piece);
    }
    whole.push_str(&detokeniser.finish());
    assert_eq!(whole, text);
    let tokens: Vec<Token> = tokens.get_ids().iter().copied().map(Token).collect();
    assert_eq!(model.decode(&tokens), text);
}
