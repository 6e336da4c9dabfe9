//! Clusters written down: a TOML file of hosts and links, and those that ship with the project.

use super::{
    cluster::{Cluster, ClusterError, ClusterLink, Instance, KindId},
    figures::{self, Column, DeviceFigures},
};
use serde::Deserialize;
use std::collections::BTreeMap;
use tsnode_protocol::{BytesPerSecond, Seconds};

/// Names of the clusters that ship with the project, and their texts.
pub const SHIPPED: [(&str, &str); 2] =
    [("cloud32", include_str!("../../data/cloud32.toml")), ("a100x8", include_str!("../../data/a100x8.toml"))];

/// Zones a file may name.
const MOST_ZONES: usize = 1024;

/// Why a text is no cluster.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// Not the format.
    #[error("{0}")]
    Syntax(#[from] toml::de::Error),
    /// A GPU nobody gave figures for.
    #[error(
        "no figures are known for GPU {0:?}: add [gpu.{0:?}] with memory_gb, mem_bandwidth_gbs and fp16_dense_tflops"
    )]
    UnknownGpu(String),
    /// A link one way only.
    #[error("there is a link from {0:?} to {1:?} and none back: add the other direction")]
    OneWay(String, String),
    /// A link to nowhere.
    #[error("a link names zone {0:?}, where no host is")]
    UnknownZone(String),
    /// Two hosts with one name and one kind.
    #[error("two hosts are called {0:?} and have the same GPUs: give each its own name")]
    Twice(String),
    /// Too many zones for a matrix.
    #[error("{0} zones are more than {MOST_ZONES}")]
    Zones(usize),
    /// No such variant.
    #[error("the cluster has no links called {0:?}; it has {1}")]
    UnknownVariant(String, String),
    /// The parts do not make a cluster.
    #[error("{0}")]
    Cluster(#[from] ClusterError),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClusterFile {
    name: String,
    #[serde(default)]
    host: Vec<HostEntry>,
    #[serde(default)]
    link: Vec<LinkEntry>,
    #[serde(default)]
    gpu: BTreeMap<String, GpuEntry>,
    #[serde(default)]
    variant: BTreeMap<String, Numbers>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HostEntry {
    name: String,
    gpu: String,
    count: u16,
    zone: String,
    inside: Numbers,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct Numbers {
    /// Seconds.
    latency: f64,
    /// Bytes a second.
    bandwidth: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkEntry {
    from: String,
    to: String,
    latency: f64,
    bandwidth: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GpuEntry {
    memory_gb: f64,
    mem_bandwidth_gbs: f64,
    fp16_dense_tflops: f64,
}

impl Numbers {
    fn path(self) -> ClusterLink {
        ClusterLink { latency: Seconds(self.latency), bandwidth: BytesPerSecond(self.bandwidth) }
    }
}

/// Reads a cluster. `variant` names one of the file's alternatives for the links between hosts.
///
/// # Errors
/// What is wrong with it, and what to write instead.
pub fn read(text: &str, column: Column, variant: Option<&str>) -> Result<Cluster, FileError> {
    let file: ClusterFile = toml::from_str(text)?;
    let mut zones: Vec<&str> = file.host.iter().map(|h| h.zone.as_str()).collect();
    zones.sort_unstable();
    zones.dedup();
    if zones.len() > MOST_ZONES {
        return Err(FileError::Zones(zones.len()));
    }
    let links = matrix(&zones, &file.link)?;
    let (kinds, instances) = hosts(&file, &zones, column)?;
    let cluster = Cluster::new(file.name, kinds, instances, links)?;
    match variant.filter(|v| *v != "default") {
        None => Ok(cluster),
        Some(name) => match file.variant.get(name) {
            Some(numbers) => Ok(cluster.with_links(numbers.path())),
            None => {
                let names: Vec<&str> = ["default"].into_iter().chain(file.variant.keys().map(String::as_str)).collect();
                Err(FileError::UnknownVariant(name.to_owned(), names.join(", ")))
            }
        },
    }
}

fn matrix(zones: &[&str], links: &[LinkEntry]) -> Result<Vec<Vec<ClusterLink>>, FileError> {
    let place = |zone: &str| zones.binary_search(&zone).map_err(|_| FileError::UnknownZone(zone.to_owned()));
    let mut matrix = vec![vec![ClusterLink::NONE; zones.len()]; zones.len()];
    for link in links {
        let numbers = Numbers { latency: link.latency, bandwidth: link.bandwidth };
        matrix[place(&link.from)?][place(&link.to)?] = numbers.path();
    }
    for (i, from) in zones.iter().enumerate() {
        for (j, to) in zones.iter().enumerate() {
            if matrix[i][j].is_open() && !matrix[j][i].is_open() {
                return Err(FileError::OneWay((*from).to_owned(), (*to).to_owned()));
            }
        }
    }
    Ok(matrix)
}

fn hosts(file: &ClusterFile, zones: &[&str], column: Column) -> Result<(Vec<DeviceFigures>, Vec<Instance>), FileError> {
    let shipped = figures::shipped(column);
    let (mut kinds, mut places): (Vec<DeviceFigures>, BTreeMap<&str, KindId>) = (Vec::new(), BTreeMap::new());
    let mut instances: Vec<Instance> = Vec::new();
    let mut seen = std::collections::BTreeSet::new();
    for host in file.host.iter().filter(|h| h.count > 0) {
        let kind = match places.get(host.gpu.as_str()) {
            Some(kind) => *kind,
            None => {
                let own = file.gpu.get(&host.gpu).map(|g| {
                    figures::from_peaks(host.gpu.clone(), g.fp16_dense_tflops, g.mem_bandwidth_gbs, g.memory_gb)
                });
                let known = own.or_else(|| shipped.get(&host.gpu).cloned());
                kinds.push(known.ok_or_else(|| FileError::UnknownGpu(host.gpu.clone()))?);
                let kind = KindId((kinds.len() - 1) as u16);
                places.insert(&host.gpu, kind);
                kind
            }
        };
        if !seen.insert((&host.name, kind)) {
            return Err(FileError::Twice(host.name.clone()));
        }
        let site = zones.binary_search(&host.zone.as_str()).unwrap_or_default() as u32;
        instances.push(Instance { name: host.name.clone(), kind, count: host.count, site, inside: host.inside.path() });
    }
    Ok((kinds, instances))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shipped_clusters_are_read() {
        for (name, text) in SHIPPED {
            let cluster = read(text, Column::Vendor, None).unwrap();
            assert_eq!(cluster.name, name);
        }
        let cloud = read(SHIPPED[0].1, Column::Paper, Some("low")).unwrap();
        assert_eq!(cloud.devices(), 32);
        // The sum of the paper's own Table 1, not the total it prints.
        assert!((cloud.price().unwrap() - 11.328).abs() < 1e-9);
        let ids: Vec<_> = cloud.ids().collect();
        assert!((cloud.path(ids[0], ids[2]).bandwidth.0 - 0.5625e9).abs() < 1.0);
        assert!((cloud.path(ids[0], ids[0]).bandwidth.0 - 25.6e9).abs() < 1.0);
    }

    #[test]
    fn bad_files_are_refused_with_the_reason() {
        let host = "[[host]]\nname='a'\ngpu='A40'\ncount=1\nzone='z'\ninside={latency=1e-5,bandwidth=1e9}\n";
        let other = host.replace("'a'", "'b'").replace("'z'", "'y'");
        let link = |from: &str, to: &str, b: &str| {
            format!("[[link]]\nfrom='{from}'\nto='{to}'\nlatency=1e-3\nbandwidth={b}\n")
        };
        let cases = [
            (String::new(), "no devices"),
            (host.replace("A40", "B9000"), "add [gpu.\"B9000\"]"),
            (format!("{host}{other}{}", link("z", "y", "1e9")), "none back"),
            (format!("{host}{}", link("z", "x", "1e9")), "no host is"),
            (format!("{host}{host}"), "own name"),
            (host.replace("1e9", "nan"), "must be a positive number"),
            (host.replace("1e9", "-1"), "must be a positive number"),
            (host.replace("count=1", "counts=1"), "unknown field"),
            (format!("{host}[gpu.A40]\nmemory_gb=0\nmem_bandwidth_gbs=1\nfp16_dense_tflops=1\n"), "memory of \"A40\""),
            (format!("{host}{other}{}{}", link("z", "y", "inf"), link("y", "z", "1")), "is inf"),
        ];
        for (body, reason) in cases {
            let error = read(&format!("name='c'\n{body}"), Column::Vendor, None).unwrap_err().to_string();
            assert!(error.contains(reason), "{body}: {error}");
        }
        let error = read(&format!("name='c'\n{host}"), Column::Vendor, Some("slow")).unwrap_err().to_string();
        assert!(error.contains("it has default"), "{error}");
    }
}
