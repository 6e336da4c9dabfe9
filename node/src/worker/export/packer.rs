//! Packs a sequence's KV into tiles, on the compute thread: in the middle of a step, or between steps what was left then.

use super::tile_memory::TileMemory;
use bytes::Bytes;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tsnode_kernels::engine::{Engine, EngineError, Fresh, StageKey, Tap};
use tsnode_protocol::{KvCodec, LayerRange, RequestId, Seconds, TileHeader, kv::Packing};

/// Tokens in a tile at most: as many as a step computes.
const PIECE: u32 = 512;

/// A packed tile on its way to the network.
#[derive(Clone)]
pub(super) struct OutgoingTile {
    pub header: TileHeader,
    pub payload: Bytes,
}

/// What is to be packed.
#[derive(Clone, Copy, Debug)]
pub(super) struct PackRequest {
    pub stage: StageKey,
    pub request: RequestId,
    pub codec: KvCodec,
    /// Tokens of the prompt.
    pub tokens: u32,
    /// Layers that somebody wants.
    pub layers: LayerRange,
    pub heads: u32,
}

/// A sequence's packing. Clones are one; it is worked with on the compute thread only, but for looks at how far it is.
#[derive(Clone)]
pub(super) struct Packer(Arc<Mutex<PackProgress>>);

struct PackProgress {
    wanted: PackRequest,
    /// The first token of each layer that is in no tile yet.
    next: Vec<u32>,
    tiles: mpsc::Sender<OutgoingTile>,
    memory: TileMemory,
    spent: Duration,
    /// Of that, after the whole prompt was computed.
    late: Duration,
}

impl Packer {
    /// Nothing is packed yet; tiles go to `tiles`, and wait in pages where that is full.
    pub fn new(wanted: PackRequest, tiles: mpsc::Sender<OutgoingTile>) -> Self {
        let next = vec![0; wanted.layers.len() as usize];
        let (memory, spent, late) = (TileMemory::default(), Duration::ZERO, Duration::ZERO);
        Self(Arc::new(Mutex::new(PackProgress { wanted, next, tiles, memory, spent, late })))
    }

    fn lock(&self) -> MutexGuard<'_, PackProgress> {
        // A panic while packing ends the sequence; what it leaves is only counters.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether something of the first `computed` tokens could be packed.
    pub fn lags(&self, computed: u32) -> bool {
        let p = self.lock();
        let end = p.wanted.codec.tile_end(computed, p.wanted.tokens);
        p.next.iter().any(|next| *next < end)
    }

    pub fn packing(&self) -> Packing {
        let p = self.lock();
        Packing { all: Seconds(p.spent.as_secs_f64()), tail: Seconds(p.late.as_secs_f64()) }
    }

    /// Packs what is there of the first `computed` tokens and not packed yet, as far as there is room for tiles: a tile of each layer
    /// in turn, so that all who send layers have some, and of as many layers together as the device likes best.
    pub fn catch_up(&self, engine: &mut Engine, computed: u32) -> Result<(), EngineError> {
        let mut p = self.lock();
        let late = computed >= p.wanted.tokens;
        let PackRequest { stage, request, codec, layers, .. } = p.wanted;
        let (at_once, mut packed) = (engine.layers_at_once(), true);
        while std::mem::take(&mut packed) {
            // Those come first for which there was no room the last time, or they would wait for all of the others' tokens.
            let mut layer = layers.start + least_far(&p.next);
            while layer < layers.end {
                let fill = |tile: &TileHeader, count: u32, payload: &mut Vec<u8>| {
                    engine.export_layers(stage, request, tile, count, codec, payload)
                };
                let count = p.pack(layer..layer.saturating_add(at_once), computed, late, fill)?;
                packed |= count > 0;
                layer += count.max(1);
            }
        }
        Ok(())
    }

    /// Takes a layer out of the step that computes it, which ends with token `end`.
    pub fn tap(&self, layer: u32, end: u32, fresh: &mut Fresh<'_>) {
        let mut p = self.lock();
        if !p.wanted.layers.contains(layer) {
            return;
        }
        let PackRequest { request, codec, .. } = p.wanted;
        let mut fill = |tile: &TileHeader, _: u32, payload: &mut Vec<u8>| {
            let there = fresh.export(request, tile.token_start..tile.token_end, codec, payload);
            if there { Ok(()) } else { Err(EngineError::NoSequence(request)) }
        };
        // What cannot be packed now fails again after the step, where somebody hears of it.
        while p.pack(layer..layer + 1, end, false, &mut fill).is_ok_and(|count| count > 0) {}
    }
}

impl PackProgress {
    /// A tile of each of some layers that are equally far: of how many there was one, and room.
    fn pack(
        &mut self,
        some: Range<u32>,
        computed: u32,
        late: bool,
        mut fill: impl FnMut(&TileHeader, u32, &mut Vec<u8>) -> Result<(), EngineError>,
    ) -> Result<u32, EngineError> {
        let PackRequest { codec, tokens, layers, heads, .. } = self.wanted;
        let (end, first) = (codec.tile_end(computed, tokens), (some.start - layers.start) as usize);
        let start = self.next[first];
        if start >= end {
            return Ok(0);
        }
        // Nobody takes tiles, or there is no room: KV waits in its pages.
        let most = self.tiles.capacity().min(some.len());
        let count = self.next[first..].iter().take(most).take_while(|next| **next == start).count();
        if count == 0 {
            return Ok(0);
        }
        let Ok(room) = self.tiles.try_reserve_many(count) else { return Ok(0) };
        let end = end.min(start + PIECE);
        let header = TileHeader {
            layer: some.start,
            head_start: 0,
            head_end: heads,
            token_start: start,
            token_end: end,
            bytes: 0,
        };
        let (mut payload, began) = (self.memory.take(), Instant::now());
        fill(&header, count as u32, &mut payload)?;
        let took = began.elapsed();
        self.spent += took;
        self.late += if late { took } else { Duration::ZERO };
        let each = payload.len() / count;
        let payload = self.memory.lend(payload);
        for (number, room) in room.enumerate() {
            let header = TileHeader { layer: some.start + number as u32, bytes: each as u32, ..header };
            room.send(OutgoingTile { header, payload: payload.slice(number * each..(number + 1) * each) });
        }
        self.next[first..first + count].fill(end);
        Ok(count as u32)
    }
}

/// The place of the first of the layers that are behind all others.
fn least_far(next: &[u32]) -> u32 {
    next.iter().zip(0..).min_by_key(|(next, _)| **next).map_or(0, |(_, place)| place)
}

/// The exports of one step's sequences.
#[derive(Default)]
pub(in crate::worker) struct Taps {
    taken: Vec<(Packer, u32)>,
}

impl Taps {
    /// A sequence whose tokens up to `end` are in the step.
    pub(super) fn add(&mut self, packer: Packer, end: u32) {
        self.taken.push((packer, end));
    }

    /// For the engine; none where nobody takes anything.
    pub fn as_tap(&mut self) -> Option<&mut dyn Tap> {
        if self.taken.is_empty() { None } else { Some(self) }
    }
}

impl Tap for Taps {
    fn layer(&mut self, layer: u32, fresh: &mut Fresh<'_>) {
        for (packer, end) in &self.taken {
            packer.tap(layer, *end, fresh);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::least_far;

    #[test]
    fn layers_without_a_tile_come_before_those_that_had_one() {
        assert_eq!([least_far(&[]), least_far(&[0, 0, 0])], [0, 0]);
        // There was room for two tiles.
        assert_eq!(least_far(&[512, 512, 0, 0]), 2);
        assert_eq!([least_far(&[512, 512, 512, 0]), least_far(&[512; 4])], [3, 0]);
    }
}
