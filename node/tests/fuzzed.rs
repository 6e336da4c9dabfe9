//! The fuzz targets' bodies for a fixed number of inputs, and settings files: no file of a peer, a user or a disk does harm.

#![expect(clippy::unwrap_used, reason = "a scenario that cannot be run fails")]

mod fuzzing;
#[path = "fuzzing/kept.rs"]
mod kept;
#[path = "../../protocol/tests/fuzzing/mutate.rs"]
mod mutate;
#[path = "fuzzing/pickles.rs"]
mod pickles;

use mutate::{FuzzInput, Mutator};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use tsnode::{
    config::Settings,
    data_plane::models,
    store,
    store::{invites, keys},
    text,
};
use tsnode_kernels::source::ModelSource;

/// Inputs of each kind.
const INPUTS: usize = 3_000;
/// Memory for one input (bytes): tokenizers' caches and tables of characters, a template's steps.
const MOST: u64 = 64 << 20;
/// The same where a pickle is read: candle believes how long a text is that it says, and makes room of zeros which nobody touches.
const MOST_OF_PICKLES: u64 = MOST + u32::MAX as u64;

/// Reads inputs made of `examples`, of which some are as good as these are.
fn run(seed: u64, examples: &[Vec<u8>], target: impl Fn(&[u8]) -> bool) {
    run_within(MOST, seed, examples, target);
}

/// The same, each within so much memory.
fn run_within(most: u64, seed: u64, examples: &[Vec<u8>], target: impl Fn(&[u8]) -> bool) {
    let seed = mutate::seed(seed);
    let (mut mutator, mut read) = (Mutator::new(seed), 0);
    for input in 0..INPUTS {
        let bytes = mutator.next(examples);
        let _tried = FuzzInput { seed, input, bytes: &bytes };
        let took = allocation_counter::measure(|| read += usize::from(target(&bytes))).bytes_max;
        assert!(took <= most, "input {input} of seed {seed}, {} bytes, took {took} of {most}", bytes.len());
    }
    assert!((INPUTS / 50..INPUTS).contains(&read), "{read} of {INPUTS} were read: too much is changed, or too little");
}

#[test]
fn no_file_of_a_model_does_harm() {
    run(1, &fuzzing::examples(), fuzzing::texts);
}

#[test]
fn nothing_in_a_data_folder_does_harm() {
    run(3, &kept::examples(), kept::kept);
}

#[test]
fn no_pickle_does_harm() {
    run_within(MOST_OF_PICKLES, 4, &pickles::examples(), pickles::pickles);
}

#[test]
fn no_settings_file_does_harm() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.toml");
    let examples = [
        "threads = 2\nname = \"a\"\nhttp = \"127.0.0.1:1\"\n# \u{e9}\n",
        "kv_memory = \"2GiB\"\nmodel = \"x\"\nshape-mbit = 10.5\nshape_ms = 3\ntensor-parallel = 1\nthreads = \"4\"\n",
        "# the machine in the attic, which is on at night alone\nname = \"attic\" # as its owner calls it\n",
        "listen = \"[::1]:0\"\nkv-dtype = \"bf16\"\nlayout = \"prefill=2,decode=3\"\nallow-remote-http = true\n",
    ];
    run(2, &examples.map(|text| text.as_bytes().to_vec()), |bytes| {
        std::fs::write(&path, bytes).unwrap();
        Settings::gather(&BTreeMap::new(), |_| None, &path, true).is_ok_and(|settings| settings.node().is_ok())
    });
}

/// So that changes begin where it matters. With `TSNODE_WRITE_CORPUS=1` fuzzing begins there too.
#[test]
fn what_is_not_changed_is_read() {
    let read = |name: &str, examples: Vec<Vec<u8>>, target: fn(&[u8]) -> bool| {
        for (place, bytes) in examples.iter().enumerate() {
            assert!(target(bytes), "{name}: example {place}");
        }
        if std::env::var_os("TSNODE_WRITE_CORPUS").is_some() {
            mutate::write_corpus(&Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(name), &examples);
        }
    };
    read("texts", fuzzing::examples(), fuzzing::texts);
    read("kept", kept::examples(), kept::kept);
    read("pickles", pickles::examples(), pickles::pickles);
}

/// The model that a peer has anyway, with another template.
fn with_template(text: &str) -> models::ModelFiles {
    let source = ModelSource::embedded().unwrap();
    let card = source.card().clone();
    let mut files: BTreeMap<_, _> =
        card.files.iter().map(|f| (f.name.clone(), source.file(&f.name).unwrap().to_vec())).collect();
    files.insert("chat_template.jinja".into(), text.as_bytes().to_vec());
    models::ModelFiles { card, files: Arc::new(files) }
}

/// Tokens of a conversation of one message, whose template is rendered by this program.
async fn tokens(model: &text::TextModel, content: &str) -> Result<usize, text::TextError> {
    let message = text::ChatMessage::new("user", content);
    model.encode_chat(&[message]).await.map(|tokens| tokens.len())
}

/// What it does is what the message says: doubles a text for ever, copies a long one for hours, or says it.
const GREEDY: &str = "{% set ns = namespace(x='ab') %}{% if messages[0].content == 'double' %}\
{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{% endif %}{% if messages[0].content == 'copy' %}\
{% set long = 'a' * 50000000 %}{% for i in range(1000) %}{% for j in range(1000) %}{% set ns.x = long ~ j %}{% endfor %}{% endfor %}{% endif %}\
{{ messages[0].content }}{{ ns.x }}";

/// One after the other: a process that is started while a program is being written keeps that program from running.
#[tokio::test]
async fn templates_are_rendered_apart() {
    one_that_takes_too_much_is_ended_alone().await;
    #[cfg(unix)]
    processes_that_end_are_replaced().await;
}

async fn one_that_takes_too_much_is_ended_alone() {
    let tsnode = text::Templates::Sandboxed(env!("CARGO_BIN_EXE_tsnode").into());
    let greedy = text::TextModel::new(&with_template(GREEDY), &tsnode).unwrap();
    greedy.check().await.unwrap();
    let here = text::TextModel::new(&with_template(GREEDY), &text::Templates::Here).unwrap();
    let usual = tokens(&here, "hello").await.unwrap();
    let copies = tokens(&greedy, "copy");
    let others = async {
        for _ in 0..3 {
            assert_eq!(tokens(&greedy, "hello").await.unwrap(), usual, "as if it were rendered here");
            let doubled = tokens(&greedy, "double").await;
            assert!(matches!(doubled, Err(text::TextError::Unbounded)), "{doubled:?}");
        }
    };
    let (copied, ()) = tokio::join!(copies, others);
    assert!(matches!(copied, Err(text::TextError::Unbounded)), "{copied:?}");
    assert_eq!(tokens(&greedy, "hello").await.unwrap(), usual);

    let broken = text::TextModel::new(&with_template("{% for"), &tsnode).unwrap().check().await;
    assert!(matches!(broken, Err(text::TextError::Broken { file: "chat template", .. })), "{broken:?}");
    let nowhere = text::Templates::Sandboxed("/nowhere/tsnode".into());
    let missing = text::TextModel::new(&with_template(GREEDY), &nowhere).unwrap().check().await;
    assert!(missing.unwrap_err().to_string().contains("/nowhere/tsnode"));
}

/// Somebody kills them, or they have used up their time: clients do not notice.
#[cfg(unix)]
async fn processes_that_end_are_replaced() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("mortal");
    // It hears the template and one conversation, and ends.
    let hears = r#"{ read -r a; printf '%s\n' "$a"; read -r a; printf '%s\n' "$a"; }"#;
    let script = format!("#!/bin/sh\n{hears} | \"{}\" \"$@\"\n", env!("CARGO_BIN_EXE_tsnode"));
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
    let model = text::TextModel::new(&with_template(GREEDY), &text::Templates::Sandboxed(program)).unwrap();
    let first = tokens(&model, "hello").await.unwrap();
    for _ in 0..4 {
        assert_eq!(tokens(&model, "hello").await.unwrap(), first);
    }
}
