//! KV packed on a GPU has the processor's bytes, and is unpacked to the processor's numbers.

use super::{Lcg, machines, with};
use crate::{
    cpu::Simd,
    cuda::{Gpu, GpuTurn, machine::Queue, tiles::GpuTile},
    pages::{PAGE_BYTES, PageLayout, PagePool, SequenceKv, Side},
    rope::{Rope, RopePairs, RopeScaling},
    wire::{self, CodecScratch, KeyRotation, Tile, TileCodec},
};
use tsnode_protocol::{KvCodec, KvDtype};

/// A sequence's KV on the processor, some of it no numbers, and the same pages on a GPU.
struct Scenario {
    pool: PagePool,
    kv: SequenceKv,
    gpu: Gpu,
}

const PAGES: usize = 12;

fn pages(layout: PageLayout, room: usize) -> usize {
    room.div_ceil(layout.tokens)
}

impl Scenario {
    fn new(machine: &std::sync::Arc<dyn crate::cuda::machine::Machine>, layout: PageLayout, tokens: usize) -> Self {
        let mut pool = PagePool::new(PAGES * PAGE_BYTES);
        let kv = SequenceKv::reserve(&mut pool, layout, 1, tokens).unwrap();
        assert!(pages(layout, tokens) <= PAGES);
        let mut draw = Lcg(tokens as u64 + layout.dim as u64);
        for token in 0..tokens {
            for head in 0..layout.heads {
                for side in [Side::Keys, Side::Values] {
                    let mut row = draw.numbers(layout.dim);
                    row.iter_mut().enumerate().for_each(|(c, x)| *x = *x * (1 << (c % 7)) as f32 + (c % 3) as f32);
                    if draw.below(9) == 0 {
                        row[draw.below(layout.dim)] = [f32::NAN, f32::INFINITY, 0.0, 60000.0][draw.below(4)];
                    }
                    if draw.below(20) == 0 {
                        row.fill(0.0);
                    }
                    kv.write(&mut pool, 0, side, head, token, &row);
                }
            }
        }
        let mut gpu = Gpu::on(machine.clone());
        gpu.reserve(PAGES * PAGE_BYTES).unwrap();
        gpu.machine.upload(Queue::Compute, gpu.pool(), pool.bytes()).unwrap();
        Self { pool, kv, gpu }
    }

    fn packed(&self, packing: TileCodec<'_>, tile: &Tile) -> Vec<u8> {
        let mut out = Vec::new();
        wire::export(packing, &self.kv, &self.pool, tile, &mut CodecScratch::default(), &mut out);
        out
    }
}

/// Keys that do not turn, whose channels all do, and whose first half does.
fn turns(dim: usize) -> [Option<KeyRotation>; 3] {
    let turn = |dim, pairs| Some(KeyRotation::new(&Rope::new(dim, 10_000.0, &RopeScaling::None), pairs));
    [None, turn(dim, RopePairs::Halves), turn(dim / 2, RopePairs::Neighbours)]
}

const CODECS: [KvCodec; 3] = [KvCodec::Raw, KvCodec::Int4, KvCodec::Int8];

#[test]
fn packed_bytes_and_unpacked_numbers_are_the_processors() {
    for machine in machines() {
        for (dim, heads, dtype, tokens) in [
            (64, 2, KvDtype::F16, 135),
            (128, 1, KvDtype::Bf16, 64),
            (40, 3, KvDtype::F16, 67),
            (96, 1, KvDtype::F16, 81),
            (32, 2, KvDtype::Bf16, 83),
            (8, 1, KvDtype::F32, 1),
            (128, 2, KvDtype::F16, 127),
            (256, 2, KvDtype::F16, 100),
            (224, 1, KvDtype::Bf16, 81),
        ] {
            let row = 2 * heads * dim * dtype.bytes();
            // Pages that end inside blocks, and less memory than a page has.
            let layout = PageLayout { heads, dim, dtype, tokens: (PAGE_BYTES / row).min(23) };
            let mut scenario = Scenario::new(&machine, layout, tokens);
            for (codec, turn) in CODECS.into_iter().flat_map(|codec| turns(dim).map(|turn| (codec, turn))) {
                let packing = TileCodec { simd: Simd::detect(), codec, turn: turn.as_ref() };
                for (heads, range) in [(0..heads, 0..tokens), (heads - 1..heads, 0..tokens.min(33))] {
                    let tile = Tile { layer: 0, heads: heads.clone(), tokens: range.clone() };
                    let wanted = scenario.packed(packing, &tile);
                    let pages: Vec<u32> = scenario.kv.pages_of(0).collect();
                    let angles = turn.as_ref().map(|turn| with(&machine, turn.all_angles()));
                    let on_gpu = turn.as_ref().zip(angles.as_ref()).map(|(turn, angles)| GpuTurn {
                        angles: angles.at(),
                        half: turn.half(),
                        pairs: turn.pairs(),
                    });
                    let on_gpu =
                        GpuTile { pages: &pages, layers: 1, layout, heads, tokens: range, codec, turn: on_gpu };
                    let mut found = vec![7; 3];
                    scenario.gpu.export(Queue::Side, std::slice::from_ref(&on_gpu), &mut found).unwrap();
                    assert!(found == wanted, "{codec:?} {dim} {dtype:?} {tokens} {:?}", on_gpu.turn);
                    unpacks_alike(&mut scenario, packing, &tile, &on_gpu, &wanted);
                }
            }
        }
    }
}

fn unpacks_alike(scenario: &mut Scenario, packing: TileCodec<'_>, tile: &Tile, on_gpu: &GpuTile<'_>, payload: &[u8]) {
    let mut scratch = CodecScratch::default();
    wire::import(packing, &scenario.kv, &mut scenario.pool, tile, &mut scratch, payload).unwrap();
    scenario.gpu.import(std::slice::from_ref(on_gpu), payload).unwrap();
    let mut found = vec![0; scenario.pool.bytes().len()];
    scenario.gpu.machine.download(Queue::Compute, scenario.gpu.pool(), &mut found).unwrap();
    assert!(found == scenario.pool.bytes(), "{:?} {:?}", packing.codec, on_gpu.layout);
}
