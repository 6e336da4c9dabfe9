//! Plan flow 1: what this host lends, measured once and remembered.

use crate::store::Store;
use serde::{Deserialize, Serialize};
use tsnode_kernels::{device::Host, probe};
use tsnode_protocol::{BytesPerSecond, Device, DeviceKind, FlopsPerSecond};

/// Part of the host's free memory lent unless told otherwise.
const MEMORY_PART: f64 = 0.5;
/// KV pages unless told otherwise: a part of what is lent, and at most this (bytes).
const KV_PART: f64 = 0.25;
const KV_AT_MOST: u64 = 4 << 30;

/// A remembered measurement, with what it holds for.
#[derive(Serialize, Deserialize)]
struct Remembered {
    cpu: String,
    threads: usize,
    version: String,
    flops: f64,
    bandwidth: f64,
}

/// What is asked of a host.
#[derive(Clone, Copy, Debug)]
pub struct Lend {
    /// Threads that compute.
    pub threads: usize,
    /// KV pages (bytes), if told.
    pub kv_bytes: Option<u64>,
}

/// The processor as a device of the swarm. Measures in a third of a second, unless it has before.
///
/// # Errors
/// When the system gives no threads.
pub fn processor(host: &Host, lend: Lend, store: &Store) -> std::io::Result<Device> {
    let memory = (host.cpu.available_bytes as f64 * MEMORY_PART) as u64;
    let kv = lend.kv_bytes.unwrap_or(((memory as f64 * KV_PART) as u64).min(KV_AT_MOST));
    let speed = speed(host, lend.threads, store)?;
    Ok(Device {
        kind: DeviceKind::Cpu { threads: lend.threads.min(u16::MAX.into()) as u16 },
        name: host.cpu.name.chars().take(100).collect(),
        memory_bytes: memory.max(kv),
        kv_bytes: kv,
        flops: speed.flops,
        bandwidth: speed.bandwidth,
    })
}

fn speed(host: &Host, threads: usize, store: &Store) -> std::io::Result<probe::Speed> {
    let version = env!("CARGO_PKG_VERSION");
    let fits = |r: &Remembered| r.cpu == host.cpu.name && r.threads == threads && r.version == version;
    let kept = store.probe().and_then(|bytes| serde_json::from_slice::<Remembered>(&bytes).ok()).filter(fits);
    if let Some(kept) = kept {
        let (flops, bandwidth) = (FlopsPerSecond(kept.flops), BytesPerSecond(kept.bandwidth));
        return Ok(probe::Speed { flops, bandwidth });
    }
    let speed = probe::measure(threads)?;
    let remembered = Remembered {
        cpu: host.cpu.name.clone(),
        threads,
        version: version.to_owned(),
        flops: speed.flops.0,
        bandwidth: speed.bandwidth.0,
    };
    if let Ok(bytes) = serde_json::to_vec(&remembered) {
        store.set_probe(&bytes);
    }
    Ok(speed)
}
