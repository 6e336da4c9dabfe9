//! HexGen's cost formulas as printed (the model ThunderServe App. B takes over), in SI units, for comparison.
//!
//! They count neither attention's products, nor KV reads, logits, grouped heads and what kernels really reach: the
//! scheduler plans with [`tsnode_coordinator::scheduler::cost`], and this file shows where that comes from.

use tsnode_coordinator::scheduler::cluster::ClusterLink;
use tsnode_protocol::Bytes;

/// A stage: layers on `tp` equal devices of one host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HexgenStage {
    /// Layers l.
    pub layers: f64,
    /// Hidden size H.
    pub hidden: f64,
    /// Bytes of an element B.
    pub element: f64,
    /// Tensor-parallel degree d = |D|.
    pub tp: f64,
    /// Memory bandwidth m (B/s) of each device.
    pub bandwidth: f64,
    /// Arithmetic c (FLOP/s) of each device.
    pub flops: f64,
    /// The link between two of them.
    pub inside: ClusterLink,
}

impl HexgenStage {
    /// Weights and products for `rows` rows through the stage: `[12H²B/(d·m) + 24·rows·H²/(d·c)]·l` (s).
    #[must_use]
    pub fn compute(&self, rows: f64) -> f64 {
        let square = self.hidden * self.hidden;
        let read = 12.0 * square * self.element / (self.tp * self.bandwidth);
        let multiply = 24.0 * rows * square / (self.tp * self.flops);
        (read + multiply) * self.layers
    }

    /// Two all-reduces a layer, each reduce-scatter and all-gather: `Σ_{d'≠d} (α + rows·H·B/(d·β))·4l` (s).
    #[must_use]
    pub fn communication(&self, rows: f64) -> f64 {
        let message = rows * self.hidden * self.element / (self.tp * self.inside.bandwidth.0);
        (self.tp - 1.0) * (self.inside.latency.0 + message) * 4.0 * self.layers
    }

    /// `(12H²B/d + 2b(s_in+s_out)HB/d)·l + 4b(s_in+s_out)HB` for `rows` = b(s_in+s_out) (bytes per device).
    #[must_use]
    pub fn memory(&self, rows: f64) -> f64 {
        let weights = 12.0 * self.hidden * self.hidden * self.element / self.tp;
        let kv = 2.0 * rows * self.hidden * self.element / self.tp;
        (weights + kv) * self.layers + 4.0 * rows * self.hidden * self.element
    }
}

/// Activations of `rows` rows to the next stage: `α + rows·H·B/β` (s).
#[must_use]
pub fn activations(path: ClusterLink, rows: f64, hidden: f64, element: f64) -> f64 {
    path.time(Bytes(rows * hidden * element)).0
}

/// ThunderServe Eq. 1 with the layer count it lacks: `α + layers·2·rows·H·N_bytes/β` (s).
#[must_use]
pub fn kv_transfer(path: ClusterLink, layers: f64, rows: f64, hidden: f64, element: f64) -> f64 {
    path.time(Bytes(layers * 2.0 * rows * hidden * element)).0
}
