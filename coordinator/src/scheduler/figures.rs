//! What devices can do: figures of known GPUs, by the vendor or as a paper prints them.

use super::cost::{Decode, Prefill};
use serde::Deserialize;
use std::collections::BTreeMap;
use tsnode_protocol::{Bytes, BytesPerSecond, FlopsPerSecond};

/// Share of peak FLOP/s that prefill reaches where nobody measured: the middle of public profiles (0.36 to 0.82).
const PREFILL_SHARE: f64 = 0.6;
/// Share of peak bandwidth that decoding reaches where nobody measured (0.64 to 0.83).
const DECODE_SHARE: f64 = 0.75;

/// One kind of device.
#[derive(Clone, Debug, PartialEq)]
pub struct Figures {
    /// Its name.
    pub name: String,
    /// Its memory.
    pub memory: Bytes,
    /// Rate of matrix products it reaches.
    pub flops: FlopsPerSecond,
    /// Rate it reads its memory at.
    pub bandwidth: BytesPerSecond,
    /// The part of it that is set aside for KV (bytes), where that is fixed.
    pub pool: Option<Bytes>,
    /// What a layer of the model takes on one, where that was measured.
    pub profile: Option<(Prefill, Decode)>,
    /// Price of one ($ an hour), where known.
    pub price: Option<f64>,
}

/// Which column of the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Column {
    /// The vendor's.
    #[default]
    Vendor,
    /// ThunderServe's Table 1, where it has the GPU; the vendor's otherwise.
    Paper,
}

impl std::str::FromStr for Column {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "vendor" => Ok(Self::Vendor),
            "paper" => Ok(Self::Paper),
            _ => Err(format!("no figures called {text:?}; there are vendor and paper")),
        }
    }
}

#[derive(Deserialize)]
struct Table {
    gpu: BTreeMap<String, Row>,
}

#[derive(Deserialize)]
struct Row {
    memory_gb: f64,
    mem_bandwidth_gbs: f64,
    fp16_dense_tflops: f64,
    prefill_share: Option<f64>,
    decode_share: Option<f64>,
    #[serde(default)]
    paper: Paper,
}

#[derive(Default, Deserialize)]
struct Paper {
    mem_bandwidth_gbs: Option<f64>,
    fp16_tflops: Option<f64>,
    price_per_hour: Option<f64>,
}

/// All figures that ship with the project, by name.
#[must_use]
pub fn shipped(column: Column) -> BTreeMap<String, Figures> {
    let table: Result<Table, _> = toml::from_str(include_str!("../../data/gpus.toml"));
    let Ok(table) = table else {
        debug_assert!(false, "data/gpus.toml: {:?}", table.err());
        return BTreeMap::new();
    };
    table.gpu.into_iter().map(|(name, row)| (name.clone(), figures(name, &row, column))).collect()
}

/// Figures of a kind from its peaks (TFLOP/s, GB/s, GB).
#[must_use]
pub fn from_peaks(name: String, tflops: f64, bandwidth_gbs: f64, memory_gb: f64) -> Figures {
    Figures {
        name,
        memory: Bytes(memory_gb * 1e9),
        flops: FlopsPerSecond(tflops * 1e12 * PREFILL_SHARE),
        bandwidth: BytesPerSecond(bandwidth_gbs * 1e9 * DECODE_SHARE),
        pool: None,
        profile: None,
        price: None,
    }
}

fn figures(name: String, row: &Row, column: Column) -> Figures {
    let (paper_flops, paper_bandwidth) = match column {
        Column::Vendor => (None, None),
        Column::Paper => (row.paper.fp16_tflops, row.paper.mem_bandwidth_gbs),
    };
    let flops = paper_flops.unwrap_or(row.fp16_dense_tflops) * 1e12;
    let bandwidth = paper_bandwidth.unwrap_or(row.mem_bandwidth_gbs) * 1e9;
    // The papers give no shares: theirs are the prior's, alike for every kind, so that their ranking stands.
    let share = |measured: Option<f64>, prior| if column == Column::Paper { prior } else { measured.unwrap_or(prior) };
    Figures {
        name,
        memory: Bytes(row.memory_gb * 1e9),
        flops: FlopsPerSecond(flops * share(row.prefill_share, PREFILL_SHARE)),
        bandwidth: BytesPerSecond(bandwidth * share(row.decode_share, DECODE_SHARE)),
        pool: None,
        profile: None,
        price: row.paper.price_per_hour,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_paper_and_the_vendor_disagree_where_table_1_mixes_rates() {
        let (vendor, paper) = (shipped(Column::Vendor), shipped(Column::Paper));
        let peak = |t: &BTreeMap<String, Figures>, name: &str| t[name].flops.0 / PREFILL_SHARE / 1e12;
        assert!((peak(&paper, "A6000") - 38.7).abs() < 1e-9);
        assert!((peak(&vendor, "A6000") - 154.8).abs() < 1e-9);
        assert!((peak(&paper, "A40") - peak(&vendor, "A40")).abs() < 1e-9);
        assert!(paper.len() > 15);
    }
}
