//! `tsnode bench kv`: what int4 on the wire costs in quality and saves in bytes.

use super::{loaded, open};
use crate::cli::{is_set, json, show::print_json, verb};
use crate::{
    exit::{Exit, Kind},
    models::ModelFiles,
    text::TextModel,
};
use clap::{Arg, ArgMatches, Command, value_parser};
use std::path::PathBuf;
use std::sync::Arc;
use tsnode_kernels::{
    engine::{Engine, EngineConfig, Threads},
    eval::{Windows, perplexity},
    source::ModelSource,
    speed::Step,
};
use tsnode_protocol::{KvCodec, KvDtype, Token};

pub(super) fn command() -> Command {
    verb("kv", "Perplexity with KV sent as int4, against KV sent as it is", "tsnode bench kv")
        .arg(
            Arg::new("text")
                .long("text")
                .value_name("FILE")
                .value_parser(value_parser!(PathBuf))
                .help("Text to measure on [default: the embedded model's]"),
        )
        .arg(super::model())
        .arg(json())
}

pub(super) fn run(matches: &ArgMatches) -> Result<(), Exit> {
    let broken = |e: String| Exit::new(Kind::Model, e);
    let watch = !is_set(matches, "json");
    let source = open(matches)?;
    let text = match matches.get_one::<PathBuf>("text") {
        Some(path) => {
            std::fs::read_to_string(path).map_err(|e| Exit::new(Kind::Usage, format!("{}: {e}", path.display())))?
        }
        None => tsnode_kernels::eval::TEXT.to_owned(),
    };
    let tokens = tokens(&source, &text).map_err(broken)?;
    let windows = Windows { bos: Token(0), window: 512, prompt: 256 };
    let threads = Threads::together(std::thread::available_parallelism().map_or(1, usize::from));
    let config = EngineConfig { threads, pool_bytes: 1 << 30, kv_dtype: KvDtype::F16 };
    let mut engine = Engine::new(config).map_err(|e| broken(e.to_string()))?;
    // Two sequences at a time: the one that hands its KV over and the one that goes on.
    let kv = Step { batch: 2, context: 0, new: windows.window as u32 }.kv_bytes(&source, config.kv_dtype);
    let (stage, _) = loaded(&source, threads, kv, watch)?;
    let stage = engine.load(stage).map_err(|e| broken(e.to_string()))?;
    let mut measure = |codec| {
        let shape = &source.card().shape;
        perplexity(&mut engine, stage, shape, &tokens, windows, Some(codec)).map_err(|e| broken(e.to_string()))
    };
    let (raw, int4) = (measure(KvCodec::Raw)?, measure(KvCodec::Int4)?);
    let ratio = int4.perplexity / raw.perplexity;
    let bits = int4.kv_bytes as f64 / raw.kv_bytes as f64 * 16.0;
    if !watch {
        return print_json(&serde_json::json!({ "raw": raw, "int4": int4, "ratio": ratio, "bits_per_element": bits }));
    }
    say!("16 bit  perplexity {:.4} over {} tokens, {} bytes of KV", raw.perplexity, raw.tokens, raw.kv_bytes);
    say!("int4    perplexity {:.4}, {} bytes of KV ({bits:.2} bits an element)", int4.perplexity, int4.kv_bytes);
    say!("ratio   {ratio:.5}");
    Ok(())
}

fn tokens(source: &ModelSource, text: &str) -> Result<Vec<Token>, String> {
    let card = source.card().clone();
    let files = card.files.iter().filter_map(|f| Some((f.name.clone(), source.file(&f.name)?.to_vec()))).collect();
    let model = TextModel::new(&ModelFiles { card, files: Arc::new(files) }).map_err(|e| e.to_string())?;
    let encoding = model.tokenizer().encode(text, false).map_err(|e| e.to_string())?;
    Ok(encoding.get_ids().iter().copied().map(Token).collect())
}
