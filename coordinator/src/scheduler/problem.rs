//! What there is to plan, and the space of plans that are allowed.

use super::{
    cluster::{Cluster, InstanceId},
    cost::{LayerCost, USABLE},
    public_models::Model,
    slo::{Deadline, Reference, Slo, deadlines},
    workload::Workload,
};
use std::fmt;
use tsnode_protocol::{BatchPolicy, Bytes, Seconds, Tokens};

/// What a step holds of prompts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum PromptChunking {
    /// One prompt, whole.
    #[default]
    Whole,
    /// So many tokens, in steps that a policy forms: it says what goes beside them.
    Chunks {
        /// At most; where nothing is answered or prompts go alone, a few times as many.
        tokens: Tokens,
        /// How.
        order: BatchPolicy,
    },
}

/// Most devices side by side in a stage.
const MOST_TP: u16 = 8;

/// Which plans are allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Groups that prefill and groups that decode.
    pub phases: bool,
    /// Groups that do both.
    pub mixed: bool,
    /// Most devices side by side in a stage; 1 where the engine cannot cut a layer.
    pub tensor_parallel: u16,
    /// Most devices in a group; none larger than needed is worth its search.
    pub group_devices: u16,
    /// Whether a group may have two stages on one host.
    pub repeat_hosts: bool,
}

impl Default for Space {
    fn default() -> Self {
        Self { phases: true, mixed: true, tensor_parallel: MOST_TP, group_devices: 8, repeat_hosts: true }
    }
}

/// Everything a plan depends on.
#[derive(Clone, Debug)]
pub struct Problem {
    /// The devices and links there are.
    pub cluster: Cluster,
    /// The model that is to be served.
    pub model: Model,
    /// What requests look like.
    pub workload: Workload,
    /// Requests a second, Poisson.
    pub rate: f64,
    /// What counts as kept.
    pub slo: Slo,
    /// Times the SLO's scales refer to.
    pub reference: Reference,
    /// Which plans are allowed.
    pub space: Space,
    /// Of each request of the workload.
    pub deadlines: Vec<Deadline>,
    /// How groups compute prompts.
    pub prompts: PromptChunking,
    /// Differences in value that measurements do not tell apart: within them groups of a phase are loaded alike.
    pub noise: f64,
    /// Time per token that leaves an average answer in time: batches are not made larger than that.
    pub step_budget: Seconds,
    /// By instance, then by binary logarithm of the tensor-parallel degree.
    costs: Vec<Vec<(u16, LayerCost)>>,
}

/// Why there is nothing to plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ProblemError {
    /// No such rate.
    #[error("a rate of {0} requests/s: it must be a positive number")]
    Rate(f64),
    /// Too little memory in all.
    #[error("{0}")]
    DoesNotFit(ModelShortfall),
}

/// By how much a model does not fit.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelShortfall {
    /// The model's name.
    pub model: String,
    /// Its weights and one request's KV.
    pub need: Bytes,
    /// What the devices that can work together may use.
    pub have: Bytes,
    /// Devices of a kind in the cluster whose memory would make up for it: how many, of what.
    pub more: Vec<(usize, String)>,
}

impl fmt::Display for ModelShortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gb = |b: Bytes| b.0 / 1e9;
        write!(
            f,
            "{} needs {:.1} GB for weights and one request, the cluster's devices may use {:.1} GB: {:.1} GB are missing",
            self.model,
            gb(self.need),
            gb(self.have),
            gb(self.need - self.have)
        )?;
        let more: Vec<String> = self.more.iter().map(|(n, kind)| format!("{n} more {kind}")).collect();
        if more.is_empty() { Ok(()) } else { write!(f, "; enough would be {}", more.join(" or ")) }
    }
}

impl Problem {
    /// A problem.
    ///
    /// # Errors
    /// A rate that is none, a model that no set of devices that can work together can hold.
    pub fn new(
        cluster: Cluster,
        model: Model,
        workload: Workload,
        rate: f64,
        slo: Slo,
        reference: Reference,
        space: Space,
    ) -> Result<Self, ProblemError> {
        if !(rate.is_finite() && rate > 0.0) {
            return Err(ProblemError::Rate(rate));
        }
        let deadlines = deadlines(&slo, &reference, &workload);
        let step_budget = step_budget(&workload, &deadlines, &reference);
        let costs = cluster.ids().map(|i| costs(&cluster, &model, i, space.tensor_parallel)).collect();
        let (noise, prompts) = (0.0, PromptChunking::Whole);
        let mut problem = Self {
            cluster,
            model,
            workload,
            rate,
            slo,
            reference,
            space,
            deadlines,
            prompts,
            noise,
            step_budget,
            costs,
        };
        problem.space.group_devices = space.group_devices.max(problem.devices_needed());
        match problem.lack() {
            Some(lack) => Err(ProblemError::DoesNotFit(lack)),
            None => Ok(problem),
        }
    }

    /// The same at another rate.
    #[must_use]
    pub fn at_rate(&self, rate: f64) -> Self {
        Self { rate, ..self.clone() }
    }

    /// The same on some of the devices; `None` if they cannot hold the model. Instances are numbered anew.
    #[must_use]
    pub fn part(&self, members: &[(InstanceId, u16)]) -> Option<Self> {
        let (model, workload) = (self.model.clone(), self.workload.clone());
        let part =
            Self::new(self.cluster.part(members), model, workload, self.rate, self.slo, self.reference, self.space);
        part.ok().map(|part| Self { noise: self.noise, prompts: self.prompts, ..part })
    }

    /// The same with each instance's devices so many times slower, as others use them too.
    #[must_use]
    pub fn slowed(&self, times: impl Fn(InstanceId) -> f64) -> Self {
        let cluster = self.cluster.slowed(times);
        let costs = cluster.ids().map(|i| costs(&cluster, &self.model, i, self.space.tensor_parallel)).collect();
        Self { cluster, costs, ..self.clone() }
    }

    /// The same with other plans allowed.
    #[must_use]
    pub fn within(&self, space: Space) -> Self {
        Self { space, ..self.clone() }
    }

    /// The same under another SLO.
    #[must_use]
    pub fn under(&self, slo: Slo) -> Self {
        let deadlines = deadlines(&slo, &self.reference, &self.workload);
        let step_budget = step_budget(&self.workload, &deadlines, &self.reference);
        Self { slo, deadlines, step_budget, ..self.clone() }
    }

    /// What a layer costs on `tp` devices of an instance; `None` where the model cannot be cut so.
    #[must_use]
    pub fn layer_cost(&self, instance: InstanceId, tp: u16) -> Option<&LayerCost> {
        self.costs[instance.0 as usize].iter().find(|(d, _)| *d == tp).map(|(_, c)| c)
    }

    /// Tensor-parallel degrees that `count` devices of an instance can be cut into.
    pub fn degrees(&self, instance: InstanceId, count: u16) -> impl Iterator<Item = u16> + '_ {
        self.costs[instance.0 as usize].iter().map(|(d, _)| *d).filter(move |d| count.is_multiple_of(*d))
    }

    /// Memory a group must have for the model and one request.
    #[must_use]
    pub fn least_memory(&self) -> Bytes {
        self.model.bytes() + self.longest_kv()
    }

    /// Memory of a request at its longest, beside weights.
    fn longest_kv(&self) -> Bytes {
        self.model.kv() * (self.workload.mean.longest + self.model.state_tokens())
    }

    /// Tokens of KV that every stage must have room for: a request's at its longest, and those that a state is worth.
    #[must_use]
    pub fn least_tokens(&self) -> Tokens {
        self.tokens_of(1.0)
    }

    /// The same of so many requests.
    pub(super) fn tokens_of(&self, requests: f64) -> Tokens {
        (self.workload.mean.longest + self.model.state_tokens()).max(self.reserved().0 * requests)
    }

    /// Tokens that memory is reserved for, and their squares, averaged as [`super::workload::Means`] are: those that a request will have
    /// had, and those that its state is worth.
    #[must_use]
    pub fn reserved(&self) -> (Tokens, f64) {
        let (m, state) = (&self.workload.mean, self.model.state_tokens());
        (m.reserved + state, m.reserved_squared + 2.0 * state.0 * m.reserved.0 + state.0 * state.0)
    }

    /// Whether groups may compute prompts for others, whose KV is sent then.
    #[must_use]
    pub fn has_phases(&self) -> bool {
        self.space.phases && !self.model.shape.has_state()
    }

    /// Memory that `count` devices of an instance bring: what a plan may use of it, and no more than lies beside the KV
    /// that may be there.
    #[must_use]
    pub fn usable(&self, instance: InstanceId, count: u16) -> Bytes {
        let figures = self.cluster.figures(instance);
        let with = |pool| self.most_with(pool);
        (figures.memory * USABLE).min(figures.pool.map_or(Bytes(f64::INFINITY), with)) * f64::from(count)
    }

    /// The most that a group's device with so much KV memory is good for: a layer is held only where a request's KV of it
    /// fits.
    fn most_with(&self, pool: Bytes) -> Bytes {
        let shape = &self.model.shape;
        let kv = self.longest_kv();
        let part = pool / kv;
        if part >= 1.0 {
            return Bytes(f64::INFINITY);
        }
        let layers = Bytes(shape.layer_bytes as f64) * f64::from(shape.layers);
        (layers + kv) * part + Bytes((shape.embed_bytes + shape.head_bytes) as f64)
    }

    /// Twice the devices that the smallest kind needs to hold the model: larger groups only add KV transfers.
    fn devices_needed(&self) -> u16 {
        let smallest = self.cluster.ids().map(|i| self.usable(i, 1)).fold(Bytes(f64::INFINITY), Bytes::min);
        (2.0 * (self.least_memory() / smallest).ceil()).min(f64::from(self.model.shape.most_stages())) as u16
    }

    fn lack(&self) -> Option<ModelShortfall> {
        let need = self.least_memory();
        // Of a model that one stage has to hold, each device by itself.
        let alone = || self.cluster.ids().map(|id| self.usable(id, 1)).fold(Bytes(0.0), Bytes::max);
        let together = || self.islands().into_iter().map(|(_, memory)| memory).fold(Bytes(0.0), Bytes::max);
        let whole = self.model.shape.whole && self.space.tensor_parallel <= 1;
        let have = if whole { alone() } else { together() };
        if have >= need {
            return None;
        }
        if whole {
            return Some(ModelShortfall { model: self.model.name.clone(), need, have, more: Vec::new() });
        }
        let short =
            |figures: &super::figures::DeviceFigures| ((need - have) / (figures.memory * USABLE)).ceil() as usize;
        let mut more: Vec<(usize, String)> = self.cluster.kinds.iter().map(|k| (short(k), k.name.clone())).collect();
        more.sort();
        more.truncate(3);
        Some(ModelShortfall { model: self.model.name.clone(), need, have, more })
    }

    /// Instances that links connect, and what memory they may use together (bytes).
    #[must_use]
    pub fn islands(&self) -> Vec<(Vec<InstanceId>, Bytes)> {
        let mut islands: Vec<(Vec<InstanceId>, Bytes)> = Vec::new();
        // Links between sites decide; one host of each site stands for it.
        for id in self.cluster.ids() {
            let memory = self.usable(id, self.cluster.instance(id).count);
            let home = islands.iter_mut().find(|(members, _)| {
                let first = members[0];
                self.cluster.path(first, id).is_open() && self.cluster.path(id, first).is_open()
            });
            match home {
                Some((members, sum)) => {
                    members.push(id);
                    *sum += memory;
                }
                None => islands.push((vec![id], memory)),
            }
        }
        islands
    }
}

fn costs(cluster: &Cluster, model: &Model, id: InstanceId, most: u16) -> Vec<(u16, LayerCost)> {
    let instance = cluster.instance(id);
    let most = most.min(instance.count).min(MOST_TP);
    let divides = |d: &u16| model.shape.heads.is_multiple_of(u32::from(*d));
    let cost = |d: u16| (d, LayerCost::new(model, cluster.figures(id), instance.inside, d));
    (1..=most).filter(divides).map(cost).collect()
}

/// The mean over answers, by length, of what is left for a token after the reference's prompt.
fn step_budget(workload: &Workload, deadlines: &[Deadline], reference: &Reference) -> Seconds {
    let (mut time, mut steps) = (Seconds(0.0), 0.0);
    for (request, deadline) in workload.requests.iter().zip(deadlines) {
        let n = request.steps().max(0.05);
        // A prompt is given twice what the reference takes: devices here are slower, and it may wait.
        let left = (deadline.e2e - reference.prefill.time(request.prompt) * 2.0).max(Seconds(0.0));
        time += left.min(deadline.tpot * n);
        steps += n;
    }
    time / steps
}
