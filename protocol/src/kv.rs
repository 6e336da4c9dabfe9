//! KV on the wire: tiles, and the manifest that makes them a sequence.
//!
//! A prefill stage opens one stream to each decode stage that shares layers with it and sends, as frames
//! ([`crate::stream`]): `Opening::Kv(KvHeader)`, then per tile a [`KvPart::Tile`] and a frame of its payload's bytes,
//! then a [`KvPart::End`]. The decode stage answers with one [`KvAnswer`].

use crate::{KvStream, LayerRange, ModelId, PeerId, RequestId, Seconds, codec::CodecError, limits, reason::shorten};
use bincode::{Decode, Encode};
use serde::{Deserialize, Serialize};

/// How a page holds its elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KvDtype {
    /// IEEE half precision: the default.
    F16,
    /// bfloat16: the range of single precision in half its bytes.
    Bf16,
    /// Single precision: for checks against references.
    F32,
}

impl KvDtype {
    /// Bytes of one element.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::F16 | Self::Bf16 => 2,
            Self::F32 => 4,
        }
    }
}

/// How a tile's payload is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KvCodec {
    /// The pages' own elements, as they are: lossless.
    Raw,
    /// Keys in 4 bits per channel, values in 4 bits per token (ThunderServe §4, after KIVI); see `kernels::wire`.
    Int4,
    /// The same in 8 bits.
    Int8,
    /// The same in 3 bits, for links that are slow even so.
    Int3,
}

impl KvCodec {
    /// Tiles begin at multiples of so many tokens, and end there or with the prompt: groups of tokens are then cut alike
    /// whatever steps the prompt was computed in, and the same KV is always the same bytes.
    #[must_use]
    pub const fn tile_step(self) -> u32 {
        match self {
            Self::Raw => 1,
            Self::Int3 | Self::Int4 | Self::Int8 => 64,
        }
    }

    /// Where the next tile of a prompt of `prompt` tokens ends, of which `computed` are there: what is there beyond it
    /// waits for the rest of its group.
    #[must_use]
    pub fn tile_end(self, computed: u32, prompt: u32) -> u32 {
        if computed >= prompt { prompt } else { computed - computed % self.tile_step() }
    }
}

/// When a prompt's KV leaves (Splitwise §IV-C).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Encode, Decode, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KvPace {
    /// All of it once the prompt is computed.
    Whole,
    /// A layer's while the next layer is computed.
    #[default]
    Layers,
}

/// What one KV stream will carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct KvHeader {
    /// The request whose KV it is.
    pub request: RequestId,
    /// Of which model; the receiver refuses another.
    pub model: ModelId,
    /// Elements of the sender's pages; a raw tile needs the same at the receiver.
    pub dtype: KvDtype,
    /// Packing of every tile.
    pub codec: KvCodec,
    /// Layers that both stages have.
    pub layers: LayerRange,
    /// Of those, the ones sent on this stream.
    pub kv_stream: KvStream,
    /// Tokens of the prompt, or of its first part, all of which will be sent.
    pub tokens: u32,
}

impl KvHeader {
    /// Layers sent on this stream, in order.
    pub fn carried(&self) -> impl Iterator<Item = u32> + Clone {
        self.kv_stream.layers(self.layers)
    }

    /// Refuses layers, tokens and parallel streams that there cannot be.
    ///
    /// # Errors
    /// Names the rule broken.
    pub fn check(&self) -> Result<(), CodecError> {
        if self.layers.end > limits::LAYERS || self.tokens > limits::SEQUENCE_TOKENS {
            return Err(CodecError::Invalid("KV out of range"));
        }
        self.kv_stream.check()
    }
}

/// A unit of KV: both keys and values of one layer, some KV heads, some tokens.
///
/// Payload of a raw tile: keys `[head][token][channel]`, then values in the same order, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct TileHeader {
    /// Layer, counted over the whole model.
    pub layer: u32,
    /// First KV head.
    pub head_start: u32,
    /// One past the last KV head.
    pub head_end: u32,
    /// Position of the first token.
    pub token_start: u32,
    /// One past the position of the last token.
    pub token_end: u32,
    /// Bytes of payload that follow.
    pub bytes: u32,
}

impl TileHeader {
    /// KV heads in the tile.
    #[must_use]
    pub fn heads(&self) -> u32 {
        self.head_end.saturating_sub(self.head_start)
    }

    /// Tokens in the tile.
    #[must_use]
    pub fn tokens(&self) -> u32 {
        self.token_end.saturating_sub(self.token_start)
    }

    /// Refuses empty, inverted and oversized tiles.
    ///
    /// # Errors
    /// Names the rule broken.
    pub fn check(&self) -> Result<(), CodecError> {
        if self.heads() == 0 || self.tokens() == 0 {
            return Err(CodecError::Invalid("empty tile"));
        }
        if self.layer >= limits::LAYERS || self.token_end > limits::SEQUENCE_TOKENS || self.head_end > 1024 {
            return Err(CodecError::Invalid("tile out of range"));
        }
        if self.bytes as usize > limits::TILE_BYTES {
            return Err(CodecError::Invalid("tile too large"));
        }
        Ok(())
    }
}

/// Closes a KV stream: nothing is decoded from unless it fits what arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Manifest {
    /// Tiles sent on this stream.
    pub tiles: u32,
    /// Payload bytes sent.
    pub bytes: u64,
    /// [`crate::checksum`] over header frame and payload of each tile, in the order sent.
    pub checksum: u64,
}

/// What a KV stream consists of after its header.
#[derive(Clone, Copy, Debug, PartialEq, Encode, Decode)]
pub enum KvPart {
    /// A tile; its payload is the next frame.
    Tile(TileHeader),
    /// That was all.
    End(Manifest, Packing),
}

/// What packing a stream's tiles took at its sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Encode, Decode)]
pub struct Packing {
    /// All of it.
    pub all: Seconds,
    /// From the end of the prefill to the last tile: what could not be hidden behind it.
    pub tail: Seconds,
}

/// What one stage sent of a sequence's KV, as its receiver saw it.
#[derive(Clone, Copy, Debug, PartialEq, Encode, Decode, Serialize, Deserialize)]
pub struct Delivery {
    /// Who sent it.
    pub from: PeerId,
    /// Whose pages it lies in.
    pub to: PeerId,
    /// Payload bytes that arrived, headers not counted.
    pub bytes: u64,
    /// Tiles that arrived.
    pub tiles: u32,
    /// Streams they came by, each on a connection of its own.
    pub streams: u32,
    /// Packing, all of it, and what came after the prefill.
    pub pack: Seconds,
    /// Of that, after the prefill.
    pub pack_tail: Seconds,
    /// From the first byte to the last.
    pub wire: Seconds,
    /// Unpacking, all of it.
    pub unpack: Seconds,
    /// Of that, after the last byte.
    pub unpack_tail: Seconds,
}

impl Delivery {
    /// With another of the same tiles' packing, that came beside it: its sender says the same of both what packing took.
    pub fn join(&mut self, other: &Self) {
        self.bytes += other.bytes;
        self.tiles += other.tiles;
        self.streams += other.streams;
        self.pack = self.pack.max(other.pack);
        self.pack_tail = self.pack_tail.max(other.pack_tail);
        self.wire = self.wire.max(other.wire);
        self.unpack = Seconds(self.unpack.0 + other.unpack.0);
        self.unpack_tail = self.unpack_tail.max(other.unpack_tail);
    }
}

/// The decode stage's answers to a KV stream: credit as often as it likes, then one of the others.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum KvAnswer {
    /// So many payload bytes more may be sent: that many have been unpacked. [`limits::KV_CREDIT`] may be sent unasked.
    Credit(u64),
    /// Everything arrived, fits the manifest and lies in pages.
    Committed,
    /// Nothing of it will be used.
    Refused(String),
}

impl KvAnswer {
    /// Leaves no more of a reason in it than is kept.
    pub fn shorten_reason(&mut self) {
        if let Self::Refused(why) = self {
            shorten(why);
        }
    }
}
