//! How fast one core packs KV for a link and unpacks it, beside a copy of the same numbers, without a model or a node:
//! `cargo bench -p tsnode-kernels --bench codec`, or some only: `… -- Avx512 Int4 128`. With `64` tokens or so, `… -- tokens=64`, a
//! cache holds them, and what is measured is instructions alone.
#![expect(clippy::unwrap_used, reason = "a benchmark that cannot start ends")]

use tsnode_kernels::{
    cpu::Simd,
    wire::codec_speed::{CodecLoad, measure},
};
use tsnode_protocol::KvCodec;

const CODECS: [KvCodec; 3] = [KvCodec::Int3, KvCodec::Int4, KvCodec::Int8];
/// A layer of Llama-3-8B, and one of the embedded model. No cache holds either.
const LOADS: [CodecLoad; 2] = [
    CodecLoad { heads: 8, dim: 128, tokens: 16_384, tile: 512 },
    CodecLoad { heads: 4, dim: 32, tokens: 131_072, tile: 512 },
];
/// Tokens of a load measured in all: shorter loads are measured more often.
const TOKENS: usize = 21 * 16_384;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let tokens: Option<usize> = words.iter().find_map(|w| w.strip_prefix("tokens=")).map(|n| n.parse().unwrap());
    let by: Vec<Simd> = Simd::packing().into_iter().filter(|simd| *simd != Simd::Plain).rev().collect();
    for simd in chosen(&words, &by, |simd| format!("{simd:?}")) {
        for codec in chosen(&words, &CODECS, |codec| format!("{codec:?}")) {
            for load in chosen(&words, &LOADS, |load| load.dim.to_string()) {
                report(simd, codec, CodecLoad { tokens: tokens.unwrap_or(load.tokens), ..load });
            }
        }
    }
}

/// Those that are named, or all if none is.
fn chosen<T: Copy>(words: &[String], all: &[T], name: impl Fn(&T) -> String) -> Vec<T> {
    let named: Vec<T> = all.iter().filter(|one| words.contains(&name(one))).copied().collect();
    if named.is_empty() { all.to_vec() } else { named }
}

fn report(simd: Simd, codec: KvCodec, load: CodecLoad) {
    let rates = measure(simd, codec, load, (TOKENS / load.tokens).max(21)).unwrap();
    let [copy, pack, unpack] = [rates.copy.0, rates.pack.0, rates.unpack.0].map(|rate| rate / 1e9);
    let [packing, unpacking] = [pack, unpack].map(|rate| rate / copy * 100.0);
    println!(
        "{simd:?} {codec:?} {:>3}: copy {copy:.2} GB/s, pack {pack:.2} ({packing:.0} %), unpack {unpack:.2} ({unpacking:.0} %)",
        load.dim
    );
}
