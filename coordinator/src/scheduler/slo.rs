//! Service-level objectives: what times count as kept (ThunderServe §2, §5.1).

use super::{
    cluster::ClusterLink,
    cost::{Decode, LayerCost, Prefill, StageEnds},
    figures::{Column, shipped},
    public_models::Model,
    workload::{Workload, WorkloadRequest},
};
use std::fmt;
use std::str::FromStr;
use tsnode_protocol::{BytesPerSecond, Seconds};

/// What a time is held against.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Target {
    /// Nothing: any time will do.
    #[default]
    None,
    /// So many times what the reference device takes for the same request, alone on it.
    Scale(f64),
    /// The same time for every request.
    Seconds(Seconds),
}

/// Targets; a request keeps them if it keeps each.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Slo {
    /// Time to the first token.
    pub ttft: Target,
    /// Time per token after it.
    pub tpot: Target,
    /// Time to the last token.
    pub e2e: Target,
}

/// A text that is no SLO.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no target: write ttft=, tpot= or e2e= and a scale or seconds, as in ttft=2x,e2e=10s")]
pub struct ParseSloError(String);

impl Slo {
    /// Only the whole time counts, `scale` times the reference's.
    #[must_use]
    pub fn e2e(scale: f64) -> Self {
        Self { e2e: Target::Scale(scale), ..Self::default() }
    }
}

impl FromStr for Slo {
    type Err = ParseSloError;
    fn from_str(text: &str) -> Result<Self, ParseSloError> {
        let mut slo = Self::default();
        for part in text.split(',') {
            let wrong = || ParseSloError(part.chars().take(40).collect());
            let (what, value) = part.trim().split_once('=').ok_or_else(wrong)?;
            let target = target(value).ok_or_else(wrong)?;
            match what {
                "ttft" => slo.ttft = target,
                "tpot" => slo.tpot = target,
                "e2e" => slo.e2e = target,
                _ => return Err(wrong()),
            }
        }
        Ok(slo)
    }
}

fn target(text: &str) -> Option<Target> {
    let positive = |text: &str| text.parse::<f64>().ok().filter(|n| n.is_finite() && *n > 0.0);
    if let Some(scale) = text.strip_suffix('x') {
        return positive(scale).map(Target::Scale);
    }
    if let Some(ms) = text.strip_suffix("ms") {
        return positive(ms).map(|n| Target::Seconds(Seconds(n / 1e3)));
    }
    positive(text.strip_suffix('s')?).map(|n| Target::Seconds(Seconds(n)))
}

impl fmt::Display for Slo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut first = true;
        for (name, target) in [("ttft", self.ttft), ("tpot", self.tpot), ("e2e", self.e2e)] {
            let comma = if first { "" } else { "," };
            match target {
                Target::None => continue,
                Target::Scale(n) => write!(f, "{comma}{name}={n}x")?,
                Target::Seconds(Seconds(n)) => write!(f, "{comma}{name}={n}s")?,
            }
            first = false;
        }
        Ok(())
    }
}

/// What one request would take alone on the reference device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reference {
    /// What a prompt takes.
    pub prefill: Prefill,
    /// What a decode step takes.
    pub decode: Decode,
}

impl Reference {
    /// A100-80GB, as few as hold the model with a third to spare, side by side with NVLink between them: ThunderServe
    /// §5.1 scales its SLOs by an A100's times, and its eight A100s hold four replicas of LLaMA-30B (§5.3).
    #[must_use]
    pub fn a100(model: &Model, column: Column) -> Option<Self> {
        let table = shipped(column);
        let a100 = table.get("A100-80G")?;
        let enough = |d: &u16| a100.memory * f64::from(*d) >= model.bytes() * 1.5;
        let tp = [1u16, 2, 4, 8].into_iter().find(enough).unwrap_or(8);
        let nvlink = ClusterLink { latency: Seconds(10e-6), bandwidth: BytesPerSecond(240e9) };
        Some(Self::new(&LayerCost::new(model, a100, nvlink, tp), model.shape.layers))
    }

    /// Of a device that holds the whole model.
    #[must_use]
    pub fn new(cost: &LayerCost, layers: u32) -> Self {
        let ends = StageEnds { first: true, last: true };
        Self { prefill: cost.stage_prefill(layers, ends), decode: cost.stage_decode(layers, ends) }
    }

    /// Time to the first token, per token after it.
    #[must_use]
    pub fn times(&self, request: &WorkloadRequest) -> (Seconds, Seconds) {
        (self.prefill.time(request.prompt), self.decode.time(1.0, request.prompt + request.answer * 0.5))
    }
}

/// One request's targets; infinite where there is none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Deadline {
    /// To the first token.
    pub ttft: Seconds,
    /// Per token after it.
    pub tpot: Seconds,
    /// To the last token.
    pub e2e: Seconds,
}

impl Deadline {
    /// For so many tokens after the first: none are never late, also where there is no target.
    #[must_use]
    pub fn answer(&self, steps: f64) -> Seconds {
        if steps > 0.0 { self.tpot * steps } else { Seconds(0.0) }
    }
}

/// A request's targets.
#[must_use]
pub fn deadline(slo: &Slo, reference: &Reference, request: &WorkloadRequest) -> Deadline {
    let seconds = |target: Target, reference: Seconds| match target {
        Target::None => Seconds(f64::INFINITY),
        Target::Scale(scale) => reference * scale,
        Target::Seconds(time) => time,
    };
    let (ttft, tpot) = reference.times(request);
    let whole = ttft + tpot * request.steps();
    Deadline { ttft: seconds(slo.ttft, ttft), tpot: seconds(slo.tpot, tpot), e2e: seconds(slo.e2e, whole) }
}

/// The targets of each request of a workload.
#[must_use]
pub fn deadlines(slo: &Slo, reference: &Reference, workload: &Workload) -> Vec<Deadline> {
    workload.requests.iter().map(|r| deadline(slo, reference, r)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_one_token_is_not_late_for_lack_of_a_target() {
        let never = Seconds(f64::INFINITY);
        let deadline = Deadline { ttft: never, tpot: never, e2e: never };
        assert!(Seconds(0.0) <= deadline.answer(0.0) && Seconds(9.0) <= deadline.answer(3.0));
    }

    #[test]
    fn is_read_and_written() {
        let slo: Slo = "ttft=2x,tpot=50ms, e2e=10s".parse().unwrap();
        assert_eq!(slo.to_string(), "ttft=2x,tpot=0.05s,e2e=10s");
        for wrong in ["", "e2e", "e2e=5", "e2e=-1x", "e2e=nanx", "first=2x", "e2e=0s"] {
            assert!(wrong.parse::<Slo>().is_err(), "{wrong}");
        }
    }
}
