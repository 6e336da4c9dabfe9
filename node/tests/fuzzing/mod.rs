//! What the fuzz target does with bytes: [`texts`] reads them as one of a model's small files, which a gateway may have of
//! any peer, or as a cluster, a trace, a table of times or a plan that a user wrote down. `node/fuzz` runs it for as long as one likes, `tests/fuzzed.rs` some
//! thousand times.

#![expect(clippy::unwrap_used, reason = "a fuzz target says what is wrong by failing")]

use crate::models::ModelFiles;
use crate::text::{ChatMessage, Detokeniser, Templates, TextModel};
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use tsnode_coordinator::scheduler::{
    self, Evaluator, Problem, Slo, Space, Workload, cluster_file, figures::Column, slo::Reference,
};
use tsnode_protocol::{ModelCard, ModelId, ModelShape};
use tsnode_simulator::{fixed_plan, table, trace};

/// Files that can be another, by the first byte; behind them what users write.
const FILES: [&str; 4] = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"];
/// What users write, and whether it can be read.
const WRITTEN: [fn(&str) -> bool; 5] = [
    |text| cluster_file::read(text, Column::default(), None).is_ok(),
    |text| trace::read(text).is_ok(),
    |text| table::read(text, "m", "h", 1).is_ok(),
    |text| Workload::from_trace("fuzzed", text).is_ok(),
    given_plan,
];
/// A tokenizer for those that are about another file.
const USUAL: &str = PIECES;

const SHAPE: ModelShape = ModelShape {
    layers: 1,
    hidden: 32,
    intermediate: 32,
    heads: 2,
    kv_heads: 1,
    head_dim: 16,
    vocab: 16,
    context: 64,
    layer_bytes: 0,
    embed_bytes: 0,
    head_bytes: 0,
    experts: None,
    whole: false,
    state_bytes: 0,
};

/// Reads a plan for the 32 GPUs of ThunderServe's evaluation, and rates it.
fn given_plan(text: &str) -> bool {
    static PROBLEM: OnceLock<Problem> = OnceLock::new();
    let problem = PROBLEM.get_or_init(|| {
        let (_, cloud) = cluster_file::SHIPPED[0];
        let cluster = cluster_file::read(cloud, Column::default(), None).unwrap();
        let model = scheduler::public_models::by_name("LLaMA-30B").unwrap();
        let reference = Reference::a100(&model, Column::default()).unwrap();
        let workload = Workload::named("conversation").unwrap();
        Problem::new(cluster, model, workload, 3.0, Slo::e2e(5.0), reference, Space::default()).unwrap()
    });
    let written = serde_json::from_str::<fixed_plan::Written>(text);
    written.is_ok_and(|written| fixed_plan::given(&mut Evaluator::new(problem), &written).is_ok())
}

/// Reads bytes as what the first of them says. Says whether something was in them.
pub fn texts(bytes: &[u8]) -> bool {
    let Some((kind, content)) = bytes.split_first() else { return false };
    let kind = usize::from(*kind) % (FILES.len() + WRITTEN.len());
    match FILES.get(kind) {
        Some(name) => model_with(name, content),
        None => std::str::from_utf8(content).is_ok_and(WRITTEN[kind - FILES.len()]),
    }
}

/// What comes of work that waits for nobody.
fn at_once<T>(work: impl Future<Output = T>) -> T {
    match pin!(work).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => panic!("it waits"),
    }
}

/// Reads a model of which one file is given, and writes and reads text with it.
fn model_with(name: &str, content: &[u8]) -> bool {
    let mut files = BTreeMap::from([("tokenizer.json".to_owned(), USUAL.as_bytes().to_vec())]);
    files.insert("tokenizer_config.json".to_owned(), br#"{"bos_token":"<s>","eos_token":"</s>"}"#.to_vec());
    files.insert(name.to_owned(), content.to_vec());
    let card = ModelCard { id: ModelId([1; 16]), name: "tiny".into(), shape: SHAPE, files: vec![] };
    let Ok(model) = TextModel::new(&ModelFiles { card, files: Arc::new(files) }, &Templates::Here) else {
        return false;
    };
    let _ = (model.stop_tokens(), model.defaults());
    let says = ChatMessage::new;
    let messages = [says("system", "ab\u{e9}"), says("user", "a  b</s> c\n"), says("assistant", "\u{1F600} abc")];
    let asked = [model.encode("abc \u{2581}<s>\u{e9}\u{301} 12\t A"), at_once(model.encode_chat(&messages))];
    for tokens in asked.iter().flatten() {
        let mut said = Detokeniser::new(model.tokenizer(), true);
        for token in tokens {
            assert!(token.0 < SHAPE.vocab, "token {token:?} is none of the model's");
            drop(said.token_text(*token).text + &said.push(*token));
        }
        drop(said.finish());
    }
    // Some files have no template, and some templates refuse: then there is nothing to write.
    asked[0].is_ok() || asked[1].is_ok()
}

const BYTES: &str = r#"{"version":"1.0","truncation":null,"padding":null,
"added_tokens":[{"id":6,"content":"<s>","single_word":false,"lstrip":false,"rstrip":true,"normalized":false,"special":true},
{"id":7,"content":"</s>","single_word":true,"lstrip":true,"rstrip":false,"normalized":true,"special":false}],
"normalizer":{"type":"Sequence","normalizers":[{"type":"NFC"},{"type":"Lowercase"},{"type":"StripAccents"}]},
"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"\\p{N}{1,3}| ?\\p{L}+|\\s+(?!\\S)|\\s+"},
"behavior":"Isolated","invert":false},{"type":"Digits","individual_digits":true},{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false}]},
"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],
"pair":[{"Sequence":{"id":"A","type_id":0}},{"Sequence":{"id":"B","type_id":1}}],"special_tokens":{"<s>":{"id":"<s>","ids":[6],"tokens":["<s>"]}}},
"decoder":{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true},
"model":{"type":"BPE","dropout":null,"unk_token":"d","continuing_subword_prefix":null,"end_of_word_suffix":null,"fuse_unk":true,
"byte_fallback":false,"ignore_merges":true,"vocab":{"a":0,"b":1,"ab":2,"c":3,"abc":4,"d":5,"\u0120":8,"1":9},"merges":[["a","b"],["ab","c"]]}}"#;

const PIECES: &str = r#"{"version":"1.0","truncation":{"direction":"Right","max_length":12,"strategy":"LongestFirst","stride":2},
"padding":{"strategy":{"Fixed":4},"direction":"Left","pad_to_multiple_of":8,"pad_id":0,"pad_type_id":0,"pad_token":"a"},
"added_tokens":[{"id":6,"content":"<s>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}],
"normalizer":{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"\u2581"},{"type":"Replace","pattern":{"String":" "},"content":"\u2581"}]},
"pre_tokenizer":null,"post_processor":null,
"decoder":{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"\u2581"},"content":" "},{"type":"ByteFallback"},{"type":"Fuse"},
{"type":"Strip","content":" ","start":1,"stop":0}]},
"model":{"type":"BPE","dropout":null,"unk_token":"d","fuse_unk":true,"byte_fallback":true,"ignore_merges":false,
"vocab":{"a":0,"b":1,"ab":2,"c":3,"abc":4,"d":5,"\u2581":8,"<0x41>":9,"<0xC3>":10,"<0xA9>":11},"merges":["a b","ab c"]}}"#;

const UNIGRAM: &str = r#"{"version":"1.0","added_tokens":[],"normalizer":{"type":"Sequence","normalizers":[{"type":"Nmt"},{"type":"NFKC"},{"type":"Strip","strip_left":true,"strip_right":true}]},
"pre_tokenizer":{"type":"Metaspace","replacement":"\u2581","prepend_scheme":"always","split":true},
"post_processor":{"type":"RobertaProcessing","sep":["c",3],"cls":["b",2],"trim_offsets":true,"add_prefix_space":false},
"decoder":{"type":"Metaspace","replacement":"\u2581","prepend_scheme":"always","split":true},
"model":{"type":"Unigram","unk_id":0,"byte_fallback":false,"vocab":[["<unk>",0.0],["a",-1.0],["b",-2.5],["c",-3.0],["ab",-0.5],
["abc",-4.0],["\u2581",-2.0],["\u2581a",-1.5],["1",-6.0]]}}"#;

const WORDS: &str = r###"{"version":"1.0","added_tokens":[],
"normalizer":{"type":"BertNormalizer","clean_text":true,"handle_chinese_chars":true,"strip_accents":null,"lowercase":true},
"pre_tokenizer":{"type":"BertPreTokenizer"},"post_processor":{"type":"BertProcessing","sep":["c",3],"cls":["b",2]},
"decoder":{"type":"WordPiece","prefix":"##","cleanup":true},
"model":{"type":"WordPiece","unk_token":"[UNK]","continuing_subword_prefix":"##","max_input_chars_per_word":100,
"vocab":{"[UNK]":0,"a":1,"b":2,"c":3,"##b":4,"##c":5,"abc":6,"1":7,"##2":8}}}"###;

const SETTINGS: &str = r#"{"bos_token":{"content":"<s>"},"eos_token":"</s>","chat_template":[{"name":"default",
"template":"{{ bos_token }}{% for m in messages %}{{ m['role'] }}{% endfor %}"},{"name":"tool_use","template":"{{ tools }}"}]}"#;

const TEMPLATE: &str = "{%- set ns = namespace(last=-1) -%}{{ bos_token }}{% for message in messages %}\
{%- if message['role'] not in ['user', 'system', 'assistant'] %}{{ raise_exception('role') }}{% endif %}\
{% set ns.last = loop.index0 %}{{ '<s>' + message['role'] + '\\n' + message['content'] | trim }}{{ message.content.split(' ')[0][1:3] }}\
{% endfor %}{% macro end(x, y=1) %}{{ x }}{% endmacro %}{{ end(ns.last|string) }}{{ messages[0]|tojson }}{{ {'b': [1.5, none], 'a': {}}|tojson(indent=2, separators=(',', ':'), sort_keys=true) }}\
{%- generation -%}{{ strftime_now('%d %b %Y %H:%M:%S.%f %Z') if tools is none }}{%- endgeneration %}{% if add_generation_prompt %}a{% endif %}";

const TRACE: &str = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n";
const PLAIN_TRACE: &str = "arrival_s,prompt_tokens,output_tokens\n0.5,12,3\n1.25,2048,1\n";
const TABLE: &str = "model,hardware,tensor_parallel,prompt_size,batch_size,prompt_time,token_time\n\
m,h,1,128,1,12.5,8.25\nm,h,1,512,1,40.0,8.5\nm,h,1,512,4,160.0,9.0\nm,h,1,2048,8,900.0,14\n";

const PLAN: &str = r#"{"groups":[{"phase":"prefill","stages":[{"host":"a40-0","tp":2,"layers":60}]},
{"phase":"decode","stages":[{"host":"a6000-0","tp":2,"layers":{"start":0,"end":30}},{"host":"a6000-0","gpu":"A6000","tp":2,"layers":30}]}],
"routes":[{"prefill":0,"decode":1,"share":1.0}]}"#;

/// Files to begin with.
pub fn examples() -> Vec<Vec<u8>> {
    let generation = r#"{"eos_token_id":[7,6],"do_sample":true,"temperature":0.7,"top_k":40,"top_p":0.9}"#;
    let files = [(0, BYTES), (0, PIECES), (0, UNIGRAM), (0, WORDS), (1, SETTINGS), (2, TEMPLATE), (3, generation)];
    let shipped = cluster_file::SHIPPED.map(|(_, text)| (4, text));
    let tables = [(5, TRACE), (5, PLAIN_TRACE), (6, TABLE), (7, TRACE), (8, PLAN)];
    files.into_iter().chain(shipped).chain(tables).map(|(kind, text)| [&[kind], text.as_bytes()].concat()).collect()
}
