//! Tiny encoders against sentence-transformers' own figures (`scripts/make_encoder_models.py` makes both), and damaged folders.

use super::*;
use batch::Tokenised;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use tokio::sync::watch;
use tsnode_protocol::{EncodeEvent, EncodeRefusal, EncodeRequest, Encoded, EncoderInput, EncoderTask, Token};

const MODELS: [&str; 10] = [
    "tiny-bert",
    "tiny-bert-dense",
    "tiny-bert-ranker",
    "tiny-distilbert",
    "tiny-modernbert",
    "tiny-nomic",
    "tiny-qwen2",
    "tiny-qwen3",
    "tiny-roberta",
    "tiny-roberta-ranker",
];

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/encoders").join(name)
}

struct Expected {
    input: EncoderInput,
    ids: Vec<u32>,
    values: Vec<f64>,
}

fn expected(name: &str) -> Vec<Expected> {
    let rows: Vec<Value> = serde_json::from_slice(&fs::read(folder(name).join("expected.json")).unwrap()).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let row = |row: &Value| Expected {
        input: match &row["query"] {
            Value::Null => EncoderInput::Text(text(&row["text"])),
            query => EncoderInput::Pair(text(query), text(&row["text"])),
        },
        ids: row["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect(),
        values: row["values"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect(),
    };
    rows.iter().map(row).collect()
}

fn cosine(a: &[f32], b: &[f64]) -> f64 {
    let (mut product, mut of_a, mut of_b) = (0.0, 0.0, 0.0);
    for (x, y) in a.iter().zip(b) {
        let x = f64::from(*x);
        (product, of_a, of_b) = (product + x * y, of_a + x * x, of_b + y * y);
    }
    product / (of_a * of_b).sqrt()
}

fn computed(encoder: &Encoder, inputs: &[EncoderInput]) -> (Vec<Tokenised>, Vec<Encoded>) {
    let read = encoder.tokenise(inputs, None).unwrap();
    let all: Vec<usize> = (0..read.len()).collect();
    let encoded = encoder.compute(&read, &all).unwrap();
    (read, encoded)
}

#[test]
fn vectors_and_scores_are_those_of_sentence_transformers() {
    for name in MODELS {
        let encoder = Encoder::open(&folder(name)).unwrap();
        let expected = expected(name);
        let inputs: Vec<EncoderInput> = expected.iter().map(|row| row.input.clone()).collect();
        // All in one batch, so that there is padding.
        let (read, encoded) = computed(&encoder, &inputs);
        for ((row, read), encoded) in expected.iter().zip(read).zip(encoded) {
            assert_eq!(read.ids, row.ids, "{name}: {:?}", row.input);
            assert_eq!((encoded.tokens as usize, encoded.values.len()), (row.ids.len(), row.values.len()), "{name}");
            let furthest = encoded.values.iter().zip(&row.values).map(|(a, b)| (f64::from(*a) - b).abs());
            let furthest = furthest.fold(0.0, f64::max);
            let cosine = cosine(&encoded.values, &row.values);
            println!("{name}: cosine 1 - {:.1e}, furthest {furthest:.1e}", 1.0 - cosine);
            // Candle's DistilBERT takes tanh for the error function in its GELU, where transformers has the function itself.
            let near = if name.contains("distilbert") { 1e-3 } else { 2e-5 };
            assert!(furthest < near && cosine > 0.999_999, "{name}: {:?}: {furthest} {cosine}", row.input);
        }
        assert_eq!(encoder.card().task == EncoderTask::Score, name.ends_with("ranker"));
    }
}

#[test]
fn tokens_are_what_a_text_is_and_long_ones_are_refused_or_cut() {
    let encoder = Encoder::open(&folder("tiny-bert")).unwrap();
    let row = &expected("tiny-bert")[0];
    let tokens = EncoderInput::Tokens(row.ids.iter().copied().map(Token).collect());
    let (_, encoded) = computed(&encoder, &[row.input.clone(), tokens.clone()]);
    let far = encoded[0].values.iter().zip(&encoded[1].values).any(|(a, b)| (a - b).abs() > 1e-6);
    assert!(!far && encoded[0].tokens == encoded[1].tokens, "{encoded:?}");
    let context = encoder.card().context;
    let long = EncoderInput::Text("a ".repeat(2 * context as usize));
    let refused = encoder.tokenise(&[row.input.clone(), long.clone()], None).unwrap_err();
    assert_eq!(refused, EncodeRefusal::TooLong { index: 1, tokens: 2 * context + 2, context });
    let cut = encoder.tokenise(std::slice::from_ref(&long), Some(10)).unwrap().remove(0).ids;
    assert_eq!((cut.len(), cut[0], cut[9]), (10, row.ids[0], *row.ids.last().unwrap()), "special tokens stay");
    assert_eq!(encoder.tokenise(&[long], Some(u32::MAX)).unwrap()[0].ids.len(), context as usize);
    let last = encoder.tokenise(&[tokens], Some(2)).unwrap().remove(0).ids;
    assert_eq!(last, row.ids[row.ids.len() - 2..], "of token ids the last, as vLLM does");
    let far = EncoderInput::Text("a".repeat(1 << 20));
    assert!(matches!(encoder.tokenise(std::slice::from_ref(&far), None), Err(EncodeRefusal::Input { index: 0, .. })));
    assert!(encoder.tokenise(&[far], Some(8)).is_ok());
    for wrong in [
        EncoderInput::Tokens(vec![Token(1 << 20)]),
        EncoderInput::Tokens(vec![]),
        EncoderInput::Pair("a".into(), "b".into()),
    ] {
        assert!(matches!(encoder.tokenise(&[wrong], None), Err(EncodeRefusal::Input { .. })));
    }
}

/// A copy of a tiny encoder that may be damaged.
fn copied(name: &str) -> tempfile::TempDir {
    fn copy(from: &Path, to: &Path) {
        for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
            let to = to.join(entry.file_name());
            if entry.path().is_dir() {
                fs::create_dir(&to).unwrap();
                copy(&entry.path(), &to);
            } else {
                fs::copy(entry.path(), to).unwrap();
            }
        }
    }
    let to = tempfile::tempdir().unwrap();
    copy(&folder(name), to.path());
    to
}

fn refused(folder: &Path) -> String {
    match Encoder::open(folder) {
        Ok(_) => panic!("it was read"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn damaged_and_foreign_folders_are_refused_in_words() {
    let empty = tempfile::tempdir().unwrap();
    assert!(refused(empty.path()).contains("config.json"));
    let with = |file: &str, content: &[u8]| {
        let copy = copied("tiny-bert");
        fs::write(copy.path().join(file), content).unwrap();
        refused(copy.path())
    };
    let weights = fs::read(folder("tiny-bert").join("model.safetensors")).unwrap();
    for (file, content) in [
        ("config.json", &b"{"[..]),
        ("tokenizer.json", b"{}"),
        ("model.safetensors", &weights[..weights.len() / 2]),
        ("model.safetensors", b""),
        ("modules.json", b"{}"),
        ("1_Pooling/config.json", b"{}"),
        ("model.safetensors.index.json", br#"{"weight_map":{"a":"../../etc/passwd.safetensors"}}"#),
    ] {
        let said = with(file, content);
        assert!(said.contains(file), "{file}: {said}");
    }
    let other = |from: &str, to: &str| {
        let config = fs::read_to_string(folder("tiny-bert").join("config.json")).unwrap();
        assert!(config.contains(from));
        with("config.json", config.replace(from, to).as_bytes())
    };
    assert!(other("\"model_type\": \"bert\"", "\"model_type\": \"llama\"").contains("llama"));
    assert!(other("\"hidden_size\": 16", "\"hidden_size\": 32").contains("model.safetensors"));
    assert!(other("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3").contains("model.safetensors"));
    let elsewhere = br#"[{"type":"sentence_transformers.models.Pooling","path":"../1_Pooling"}]"#;
    assert!(with("modules.json", elsewhere).contains("elsewhere"));
    let strange = br#"[{"type":"sentence_transformers.models.WordWeights","path":"1"}]"#;
    assert!(with("modules.json", strange).contains("WordWeights"));
    let ranker = copied("tiny-bert-ranker");
    let config = fs::read_to_string(ranker.path().join("config.json")).unwrap();
    fs::write(ranker.path().join("config.json"), config.replace("\"0\": \"LABEL_0\"", "\"0\": \"a\", \"1\": \"b\""))
        .unwrap();
    assert!(refused(ranker.path()).contains("2 labels"));
}

#[test]
fn other_bytes_are_another_model() {
    let id = |folder: &Path| Encoder::open(folder).unwrap().card().id;
    let copy = copied("tiny-bert");
    assert_eq!(id(copy.path()), id(&folder("tiny-bert")));
    let config = fs::read_to_string(copy.path().join("1_Pooling/config.json")).unwrap();
    fs::write(copy.path().join("1_Pooling/config.json"), config.replace("mean", "cls")).unwrap();
    assert_ne!(id(copy.path()), id(&folder("tiny-bert")));
    fs::write(copy.path().join("sentence_bert_config.json"), br#"{"max_seq_length":16,"do_lower_case":false}"#)
        .unwrap();
    assert_eq!(Encoder::open(copy.path()).unwrap().card().context, 16);
}

fn lender(name: &str) -> (Lenders, watch::Sender<bool>) {
    let (moves, moving) = watch::channel(false);
    let task = if name.ends_with("ranker") { EncoderTask::Score } else { EncoderTask::Embed };
    let computing = Computing { threads: 1, cores: None };
    let lender = LentEncoder::start(&folder(name), task, computing, moving).unwrap();
    (Lenders::new(vec![lender]), moves)
}

#[tokio::test]
async fn a_lender_answers_in_order_and_refuses_what_it_has_no_room_for() {
    let (lenders, moves) = lender("tiny-bert");
    let model = lenders.cards()[0].id;
    let text = |words: usize| EncoderInput::Text("dark ".repeat(words));
    let request = |inputs: Vec<EncoderInput>| EncodeRequest { model, inputs, truncate: None };
    let mut events = lenders.encode(request(vec![text(2), text(30), text(7)])).unwrap();
    let mut tokens = Vec::new();
    let last = loop {
        match events.recv().await.unwrap() {
            EncodeEvent::Encoded(encoded) => tokens.push(encoded.tokens),
            other => break other,
        }
    };
    assert_eq!((tokens, last), (vec![4, 32, 9], EncodeEvent::Done { waiting: 0 }));
    let asked: Vec<_> = (0..200).map(|_| lenders.encode(request(vec![text(40); 64]))).collect();
    let busy = asked.iter().filter(|asked| matches!(asked, Err(EncodeRefusal::Busy { .. }))).count();
    assert!(busy >= 200 - 64 - 2, "{busy} of 200 were refused");
    // Nobody waits for them any more: they are not computed.
    drop(asked);
    let unknown = EncodeRequest { model: tsnode_protocol::ModelId([0; 16]), ..request(vec![text(1)]) };
    assert!(matches!(lenders.encode(unknown), Err(EncodeRefusal::NotLent)));
    moves.send_replace(true);
    assert!(
        matches!(lenders.encode(request(vec![text(1)])), Err(EncodeRefusal::NotLent)),
        "the machine is wanted back"
    );
}

#[test]
fn a_model_is_lent_for_what_it_is() {
    let (_moves, moving) = watch::channel(false);
    let computing = Computing { threads: 1, cores: None };
    let start = |name: &str, task| LentEncoder::start(&folder(name), task, computing, moving.clone()).err().unwrap();
    assert!(start("tiny-bert", EncoderTask::Score).to_string().contains("--embedding-model"));
    assert!(start("tiny-bert-ranker", EncoderTask::Embed).to_string().contains("--rerank-model"));
}
