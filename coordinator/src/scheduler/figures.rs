//! What devices can do: figures of known GPUs, by the vendor or as a paper prints them.

use super::timing::{Decode, Prefill};
use serde::Deserialize;
use std::collections::BTreeMap;
use tsnode_protocol::{Bytes, BytesPerSecond, FlopsPerSecond};

/// Share of peak FLOP/s that prefill reaches where nobody measured: the middle of public profiles (0.36 to 0.82).
const PREFILL_SHARE: f64 = 0.6;
/// Share of peak bandwidth that decoding reaches where nobody measured (0.64 to 0.83).
const DECODE_SHARE: f64 = 0.75;

/// One kind of device.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceFigures {
    /// What the vendor calls it.
    pub name: String,
    /// Memory for weights and KV.
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
    /// The vendor's figures.
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
struct FiguresTable {
    gpu: BTreeMap<String, FiguresRow>,
}

#[derive(Deserialize)]
struct FiguresRow {
    memory_gb: f64,
    mem_bandwidth_gbs: f64,
    fp16_dense_tflops: f64,
    prefill_share: Option<f64>,
    decode_share: Option<f64>,
    power_w: Option<f64>,
    #[serde(default)]
    paper: Paper,
}

#[derive(Default, Deserialize)]
struct Paper {
    mem_bandwidth_gbs: Option<f64>,
    fp16_tflops: Option<f64>,
    price_per_hour: Option<f64>,
    machine_price_per_hour: Option<f64>,
}

impl DeviceFigures {
    /// The same where everything takes so many times as long.
    #[must_use]
    pub fn slowed(&self, times: f64) -> Self {
        Self {
            flops: FlopsPerSecond(self.flops.0 / times),
            bandwidth: BytesPerSecond(self.bandwidth.0 / times),
            profile: self.profile.map(|(prefill, decode)| (prefill.times(times), decode.times(times))),
            ..self.clone()
        }
    }
}

/// What one of a kind takes while it is there.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Upkeep {
    /// $ an hour: a part of a machine's where a paper prints that, as Splitwise's Table I does.
    pub price: Option<f64>,
    /// The most power (W).
    pub power: Option<f64>,
}

/// What devices take that ship with the project, by name.
#[must_use]
pub fn upkeep() -> BTreeMap<String, Upkeep> {
    let of = |row: &FiguresRow| Upkeep {
        price: row.paper.machine_price_per_hour.or(row.paper.price_per_hour),
        power: row.power_w,
    };
    table().iter().map(|(name, row)| (name.clone(), of(row))).collect()
}

/// All figures that ship with the project, by name.
#[must_use]
pub fn shipped(column: Column) -> BTreeMap<String, DeviceFigures> {
    table().iter().map(|(name, row)| (name.clone(), figures(name.clone(), row, column))).collect()
}

fn table() -> BTreeMap<String, FiguresRow> {
    let table: Result<FiguresTable, _> = toml::from_str(include_str!("../../data/gpus.toml"));
    let Ok(table) = table else {
        debug_assert!(false, "data/gpus.toml: {:?}", table.err());
        return BTreeMap::new();
    };
    table.gpu
}

/// Figures of a kind from its peaks (TFLOP/s, GB/s, GB).
#[must_use]
pub fn from_peaks(name: String, tflops: f64, bandwidth_gbs: f64, memory_gb: f64) -> DeviceFigures {
    DeviceFigures {
        name,
        memory: Bytes(memory_gb * 1e9),
        flops: FlopsPerSecond(tflops * 1e12 * PREFILL_SHARE),
        bandwidth: BytesPerSecond(bandwidth_gbs * 1e9 * DECODE_SHARE),
        pool: None,
        profile: None,
        price: None,
    }
}

fn figures(name: String, row: &FiguresRow, column: Column) -> DeviceFigures {
    let (paper_flops, paper_bandwidth) = match column {
        Column::Vendor => (None, None),
        Column::Paper => (row.paper.fp16_tflops, row.paper.mem_bandwidth_gbs),
    };
    let flops = paper_flops.unwrap_or(row.fp16_dense_tflops) * 1e12;
    let bandwidth = paper_bandwidth.unwrap_or(row.mem_bandwidth_gbs) * 1e9;
    // The papers give no shares: theirs are the prior's, alike for every kind, so that their ranking stands.
    let share = |measured: Option<f64>, prior| if column == Column::Paper { prior } else { measured.unwrap_or(prior) };
    DeviceFigures {
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
        let peak = |t: &BTreeMap<String, DeviceFigures>, name: &str| t[name].flops.0 / PREFILL_SHARE / 1e12;
        assert!((peak(&paper, "A6000") - 38.7).abs() < 1e-9);
        assert!((peak(&vendor, "A6000") - 154.8).abs() < 1e-9);
        assert!((peak(&paper, "A40") - peak(&vendor, "A40")).abs() < 1e-9);
        assert!(paper.len() > 15);
    }

    /// Splitwise's Table I: 17.6 and 38 $ an hour for machines of eight, 400 and 700 W a device.
    #[test]
    fn upkeep_is_known_of_every_device_and_splitwises_where_it_has_it() {
        let all = upkeep();
        assert!(all.values().all(|u| u.power.is_some()));
        for (name, price, power) in [("A100-80G", 17.6, 400.0), ("H100-SXM", 38.0, 700.0)] {
            let upkeep = all[name];
            assert!((upkeep.price.unwrap() * 8.0 - price).abs() < 0.1, "{name}");
            assert_eq!(upkeep.power, Some(power), "{name}");
        }
        assert_eq!(all["A40"].price, Some(0.403), "ThunderServe's Table 1 for the others");
    }
}
